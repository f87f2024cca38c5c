"""Command lines that change the settings of a file: Hydra's overrides, torchtitan's flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from tests.messages import names

RECIPE = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  encoder_seq_length: 2048
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 2
  vocab_size: 50304
  optim: {name: fused_adam, lr: 0.1}
"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
[compile]
enable = true
"""


def asked(folder: Path, table: str, name: str, line: str, *, first: bool = True) -> ImportedJob:
    """The question of a table and of a script with this command."""
    (folder / name).write_text(table, encoding="utf-8")
    (folder / "run.sh").write_text(f"TP=4\n{line}\n", encoding="utf-8")
    paths = [folder / name, folder / "run.sh"]
    return imported(paths if first else paths[::-1])


@pytest.mark.parametrize("first", [True, False])
def test_overrides_of_hydra_stand_above_the_recipe(tmp_path: Path, *, first: bool) -> None:
    line = (
        "srun python megatron_gpt_pretraining.py --config-path=. --config-name=recipe "
        "trainer.num_nodes=4 ++model.tensor_model_parallel_size=${TP} model.hidden_size=8192 "
        "+model.sequence_parallel=True 'model.optim={name: distributed_fused_adam}' ~exp_manager"
    )
    question = asked(tmp_path, RECIPE, "recipe.yaml", line, first=first)
    assert question.gpt is not None
    assert (question.gpt.hidden, question.gpt.ffn) == (8192, 32768)  # 4 * the hidden size above
    assert question.question.devices == 32
    plan = question.plan
    assert (plan["tp"], plan["zero"], plan["sp"]) == (4, 1, True)


def test_an_override_may_refer_to_the_recipe(tmp_path: Path) -> None:
    line = (
        "python megatron_gpt_pretraining.py --config-name recipe "
        "'model.micro_batch_size=${trainer.num_nodes}' model.global_batch_size=$((64 * TP))"
    )
    question = asked(tmp_path, RECIPE.replace("num_nodes: 2", "num_nodes: 1"), "recipe.yaml", line)
    assert (question.plan["mbs"], question.question.batch) == (1, 256)


def test_flags_of_torchtitan_stand_above_its_file(tmp_path: Path) -> None:
    line = (
        "torchrun --nproc_per_node=8 --nnodes 2 -m torchtitan.train --job.config_file a.toml "
        "--training.local-batch-size 4 --parallelism.tensor_parallel_degree=$TP --compile.no-enable"
    )
    question = asked(tmp_path, TITAN, "a.toml", line)
    assert question.question.devices == 16
    assert (question.plan["tp"], question.plan["mbs"]) == (4, 4)
    assert question.question.stack == "torchtitan-eager"


@pytest.mark.parametrize(
    "line",
    [
        "python megatron_gpt_pretraining.py --config-name recipe model.hidden_size=8192",
        "torchrun -m torchtitan.train --job.config_file recipe --training.seq_len 8",
        "torchrun scripts/performance/run_script.py --recipe recipe train.global_batch_size=8",
    ],
)
def test_changes_of_a_file_that_is_not_given_are_refused_by_its_name(
    line: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(FrameworkError, check=names("run.sh", "recipe")):
        imported([path], devices=8)
