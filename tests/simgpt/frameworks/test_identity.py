"""Whose a file is, by names that no other framework has; it is refused by name if not read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from simgpt.frameworks.identity.frozen import frozen
from simgpt.frameworks.identity.names import of_document, of_script
from simgpt.frameworks.identity.rows import rows
from simgpt.frameworks.imported_job import Instead
from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from simulator.stacks import load_stack
from tests.messages import assert_names

TRAIN = "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
TRAIN += "--vocab-size 512 --micro-batch-size 1 --global-batch-size 8 --bf16"

NAMING = ("commands", "programs")  # which say a project's name


def refused(path: Path, text: str, framework: str | None = None) -> str:
    """The sentence by which a file of this text is refused."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FrameworkError) as error:
        imported([path], framework, devices=8)
    return str(error.value)


def test_no_other_framework_has_a_name_by_which_a_file_is_read() -> None:
    read = [row for row in rows() if "reads" in row]
    for row in read:
        own = {*row.get("keys", ()), *row.get("flags", ())}
        for other in rows():
            if other is not row:
                assert own & {*other.get("keys", ()), *other.get("flags", ())} == set(), other
    by_name = {each for row in rows() for part in NAMING for each in row.get(part, ())}
    assert by_name & {each for row in rows() for each in row.get("keys", ())} == set()
    assert max(Counter(row["name"] for row in rows()).values()) == 1


def test_every_stack_that_a_refusal_names_exists() -> None:
    for row in rows():
        if "stack" in row:
            assert load_stack(row["stack"]).name == row["stack"]
        if "of" in row:
            assert row["of"] in {each["name"] for each in rows()}


def test_what_a_program_is_started_by_does_not_hide_whose_it_is(tmp_path: Path) -> None:
    for start in ("accelerate launch --num_processes 8 {}", "srun {}", "bash -c '{}'", "eval {}"):
        own = start.format("accelerate launch train.py --num_layers 4 --lr 1")
        assert "accelerate" in refused(tmp_path / "a.sh", own)
        (tmp_path / "b.sh").write_text(start.replace("accelerate launch", "torchrun").format(TRAIN))
        assert imported([tmp_path / "b.sh"]).frameworks == ("megatron",)


def test_a_script_of_megatrons_that_prepares_and_evaluates_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    after = "python convert.py --load x --tensor-model-parallel-size 4\nlm_eval --model hf\n"
    path.write_text(f"huggingface-cli download x\ntorchrun {TRAIN}\n{after}")
    assert "x" not in imported([path], devices=8).plan
    assert imported([path], devices=8).question.batch == 8


def test_a_program_whose_arguments_nobody_knows_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path / "job.sh", "torchrun train.py --layers 4 --lr 0.1 --batch 8")
    assert_names(said, "train.py")
    assert "nobody.py" in refused(tmp_path / "nobody.py", "layers = 4\n")


def test_a_user_who_says_whose_a_file_is_does_not_make_it_so(tmp_path: Path) -> None:
    text = "finetuning_type: full\ntemplate: llama3\ncutoff_len: 4096\nstage: sft\n"
    assert "LLaMA-Factory" in refused(tmp_path / "a.yaml", text, "deepspeed")


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"finetuning_type": "lora"}, "finetuning_type lora"),
        ({"finetuning_type": "full", "lora_rank": "8"}, ""),
        ({"model": {"peft": {"peft_scheme": "null", "lora_tuning": {"adapter_dim": 32}}}}, ""),
        ({"model": {"peft": {"peft_scheme": "lora"}}}, "model.peft.peft_scheme lora"),
        ({"peft": {"dim": "8", "alpha": "16"}}, "peft.dim 8"),
        ({"peft": "none", "load_in_4bit": "false"}, ""),
        ({"load_in_4bit": "true"}, "load_in_4bit true"),
        ({"adapter": ""}, ""),
        ({"a": {"_target_": "nemo.collections.llm.peft.LoRA"}}, "a._target_"),
        ({"model": {"q_lora_rank": 1536, "kv_lora_rank": 512}}, ""),  # DeepSeek's attention
        ({"optimizer": {"params": {"freeze_step": 400}}}, ""),  # of 1-bit Adam's variance
    ],
)
def test_a_setting_that_trains_some_weights_alone_is_found(
    settings: dict[str, object], setting: str
) -> None:
    found = frozen(of_document(settings))
    assert found.startswith(setting)
    assert bool(found) == bool(setting)


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        ("python t.py --use_peft --lora_r 16", "--use_peft"),
        ("python t.py --use_peft False", ""),
        ("tune run lora_finetune_distributed --config x", "lora_finetune_distributed"),
        ("swift sft --train_type lora", "--train_type lora"),
        ("python pretrain_gpt.py --q-lora-rank 1536", ""),
        ("python pretrain_gpt.py --lora-rank 16", "--lora-rank 16"),
    ],
)
def test_an_option_that_trains_some_weights_alone_is_found(command: str, setting: str) -> None:
    assert frozen(of_script([command.split()])) == setting


def test_adapters_in_a_file_that_is_read_are_refused_by_name(tmp_path: Path) -> None:
    assert "--lora-rank 16" in refused(tmp_path / "a.sh", f"torchrun {TRAIN} --lora-rank 16\n")
    recipe = (
        "model: {tensor_model_parallel_size: 1}\ntrain: {train_iters: 1, micro_batch_size: 1}\n"
    )
    assert "peft.dim 8" in refused(tmp_path / "a.yaml", f"{recipe}peft: {{dim: 8}}\n")


def test_a_file_of_whose_settings_most_are_unknown_is_refused(tmp_path: Path) -> None:
    """As a table of another program's that happens to say `train_batch_size`."""
    said = refused(tmp_path / "a.json", '{"train_batch_size": 64, "lr": 0.1, "epochs": 3}')
    assert "2 of 3 settings" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "python convert.py --tensor-model-parallel-size 2 --num-layers 4 --save x"),
        ("a.toml", "[model]\nname = 'llama3'\nflavor = '8B'\n[job]\ndump_folder = 'x'\n"),
        ("a.yaml", "model: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}\n"),
        ("a.json", '{"fp16": {"enabled": true}, "steps_per_print": 10}'),
    ],
)
def test_a_file_that_says_no_batch_asks_for_no_step(name: str, text: str, tmp_path: Path) -> None:
    assert_names(refused(tmp_path / name, text), name, "batch")


def test_a_batch_that_a_training_script_fills_in_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}')
    assert imported([path], devices=8).command().endswith("--batch BATCH")


def test_a_batch_that_the_user_says_stands_for_the_files(tmp_path: Path) -> None:
    path = tmp_path / "part.sh"
    path.write_text(f"torchrun {TRAIN.partition(' --micro')[0]} --tensor-model-parallel-size 2")
    assert imported([path], devices=8, instead=Instead(batch=16)).question.batch == 16
