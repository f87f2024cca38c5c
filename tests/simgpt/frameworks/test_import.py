"""`simgpt import` as people see it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from simgpt.commands.import_ import _check
from simgpt.frameworks.files import MEGATRON, Described
from simgpt.frameworks.importing import job_from
from simgpt.frameworks.reading import FrameworkError, Remark
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt

FILES = Path(__file__).parent / "files"
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "pretrain.sh"

LLAMA = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --rotary-base 500000 --disable-bias-linear "
    "--untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1 --bf16 "
    "--global-batch-size 512 --attention-dropout 0 --hidden-dropout 0"
)


def test_an_imported_script_as_a_person_reads_it() -> None:
    said = simgpt("import", str(SCRIPT), "-m", "64x8xH100,8xNDR", "-v")
    assert (said.status, said.err) == (0, "")
    assert_golden("import.txt", said.out)


def test_the_printed_command_asks_the_question() -> None:
    said = simgpt("import", str(SCRIPT), "-m", "64x8xH100,8xNDR", "--json")
    words = shlex.split(json.loads(said.out)["predict"])
    answer = simgpt(*words[1:], "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["plan"]["vpp"] == 5


PART = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
IMPORTED = ("import", str(SCRIPT), "-m", "64x8xH100,8xNDR")


def test_predict_answers_as_the_printed_command_does(tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    sizes = "--seq-length 64 --vocab-size 512 --global-batch-size 8 --bf16"
    path.write_text(f"torchrun pretrain_gpt.py {PART} {sizes}", encoding="utf-8")
    asked = ("import", str(path), "-m", "1x2xH100", "-n", "2")
    question, said = simgpt(*asked), simgpt(*asked, "--predict")
    words = shlex.split(question.out.splitlines()[-1])
    alone = simgpt(*words[1:])
    assert (said.status, said.err) == (0, alone.err)
    assert said.out == f"{question.out}\n{alone.out}"
    record = json.loads(simgpt(*asked, "--predict", "--json").out)
    answer = json.loads(simgpt(*words[1:], "--json").out)
    assert record["prediction"]["step_s"] == answer["step_s"]
    assert record["prediction"].keys() == answer.keys()
    assert "prediction" not in json.loads(simgpt(*asked, "--json").out)


def test_an_imported_plan_that_does_not_fit_is_predicted_and_ends_with_3(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text(f"{LLAMA} --vocab-size 128256", encoding="utf-8")
    said = simgpt("import", str(path), "-m", "1x8xA100-40", "-n", "8", "--predict")
    assert said.status == 3
    assert_names(said.err, "GiB")
    assert "\nfits " in said.out


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ((str(SCRIPT),), "-m"),
        (("{part}", "-m", "frontier"), "-n"),
        (("{bare}", "-m", "frontier", "-n", "8"), "--model"),
        ((str(FILES / "offload.yaml"), "-m", "frontier", "-n", "8"), "--cpu-offloading-num-layers"),
    ],
)
def test_what_cannot_be_predicted_right_away_is_refused_by_name(
    words: tuple[str, ...], remedy: str, tmp_path: Path
) -> None:
    files = {"part": f"{LLAMA} --vocab-size 128256", "bare": '{"train_batch_size": 64}'}
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    (tmp_path / "part.json").rename(tmp_path / "part.txt")
    named = {"part": tmp_path / "part.txt", "bare": tmp_path / "bare.json"}
    said = simgpt("import", *(word.format(**named) for word in words), "--predict")
    assert said.status == 2
    assert_names(said.err, remedy)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_of_refused_settings_the_first_is_explained_and_the_others_are_counted(others: int) -> None:
    refused = [Remark(f"--{name}", "", "it is odd") for name in ("first", "second", "third")]
    described = Described(MEGATRON, {})
    question = job_from([described], devices=8, model="llama-3.1-8b", changed={})
    with pytest.raises(FrameworkError, check=names("--first", "it is odd")) as raised:
        _check(replace(question, refused=tuple(refused[: 1 + others])))
    assert re.findall(r"\d+", str(raised.value)) == [str(others)] * (others > 0)


def test_a_refused_file_is_said_whole_in_json_and_ends_as_refused_input_does() -> None:
    said = simgpt("import", str(FILES / "offload.yaml"), "-n", "8", "--json")
    assert said.status == 2
    assert_names(said.err, "--cpu-offloading-num-layers 2")
    record = json.loads(said.out)
    assert record["predict"] is None
    assert [each["name"] for each in record["refused"]] == [
        "--cpu-offloading-num-layers",
    ]
    assert "--log-interval 1" in record["without_effect"]


def test_what_the_files_do_not_say_of_a_model_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "part.txt"
    path.write_text(f"{PART} --seq-length 32")
    said = simgpt("import", str(path))
    assert said.status == 2
    assert_names(said.err, "--model-set vocab=N")
    known = ("layers=2", "hidden=64", "heads=4", "ffn=256", "sequence=32", "dropout=0.1")
    assert_names(said.out, *known)
    assert "--model" not in said.out
    assert "simgpt predict" not in said.out
    assert simgpt("import", str(path), "--model-set", "vocab=512").status == 0
    path.write_text(PART)
    said = simgpt("import", str(path), "--json")
    assert_names(said.err, "--model-set sequence=N", "--model-set vocab=N")


def test_a_preset_that_is_alike_but_for_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"{LLAMA} --ffn-hidden-size 14336\n")
    said = simgpt("import", str(path))
    assert_names(said.err, "--model-set vocab=N", "llama-3.1-8b", "vocab=128256")
    path.write_text(f"{LLAMA} --ffn-hidden-size 14337\n")
    err = simgpt("import", str(path)).err
    assert_names(err, "--model-set vocab=N")
    assert "llama-3.1-8b" not in err


@pytest.mark.parametrize(
    ("launcher", "words", "devices", "named"),
    [
        ("torchrun --nproc-per-node 8", ("-m", "64x8xH100"), 512,
         ["torchrun", "8", "--nnodes", "64", "-m", "-n"]),
        ("torchrun --nproc-per-node 8", (), 8,
         ["torchrun", "8", "--nnodes", "-n"]),
        ("torchrun --nproc-per-node 8", ("-m", "frontier"), 8, None),
        ("torchrun --nproc-per-node 8", ("-m", "64x4xA100"), 8, None),
        ("torchrun --nproc-per-node 8 --nnodes 2", ("-m", "64x8xH100"), 16, []),
        ("torchrun --nproc-per-node 8 --nnodes 2", ("-n", "32"), 32,
         ["-n", "16"]),
        ("torchrun --nproc-per-node 8 --nnodes 2", ("-n", "16"), 16, []),
        ("#SBATCH -N 4 --gpus-per-node=8\ntorchrun --nproc-per-node 8", (), 32, []),
        ("deepspeed --num_gpus 4", ("-m", "2x4xA100"), 8,
         ["DeepSpeed", "4", "--num_nodes", "2", "-m", "-n"]),
    ],
)  # fmt: skip
def test_where_the_number_of_devices_comes_from_is_said(
    launcher: str, words: tuple[str, ...], devices: int, named: list[str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"{launcher} {LLAMA} --ffn-hidden-size 14336 --vocab-size 128256\n")
    record = json.loads(simgpt("import", str(path), *words, "--json").out)
    assert record["devices"] == devices
    if named is not None:
        assert bool(record["devices_words"]) == bool(named)
        assert_names(record["devices_words"] or "", *named)
        told = " ".join(simgpt("import", str(path), *words).out.split())
        assert_names(told, f"devices {devices}")
        assert (record["devices_words"] or "") in told
