"""torchtitan's configurations in Python: evaluated as text, as far as they are literals."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from tests.messages import names

REGISTRY = """
import os
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.lora import LoRAConverter
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import ActivationCheckpointConfig, CompileConfig
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.components.optimizer import default_adamw
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer
from . import model_registry

os.abort()  # nothing here is run


def base() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(vocab=size_of(spec))),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=4096 * 2, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        compile=CompileConfig(enable=True),
    )


def tokens() -> Trainer.Config:
    config = base()
    config.training = TrainingConfig(
        num_tokens_per_microbatch_per_dp_rank=4 * 4096,
        num_tokens_per_train_step=256 * 4096,
        max_context_length=4096,
    )
    config.activation_checkpoint = SelectiveAC.Config()
    config.parallelism.tensor_parallel_degree *= 2
    return config


def piped() -> Trainer.Config:
    config = tokens()
    config.training.num_tokens_per_train_step = -1
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=2, num_pp_microbatches=8)
    config.compile = CompileConfig(enable=True, components=["loss"])
    return config


def fp8() -> Trainer.Config:
    config = base()
    config.model_spec = model_registry(
        "70B",
        converters=[Float8LinearConverter.Config(model_compile_enabled=config.compile.enable)],
    )
    return config


def adapters() -> Trainer.Config:
    config = base()
    config.model_spec = model_registry("8B", converters=[LoRAConverter.Config(rank=8)])
    return config


def untold() -> Trainer.Config:
    config = base()
    config.parallelism.data_parallel_replicate_degree = os.cpu_count()
    return config


def defaults() -> Trainer.Config:
    config = base()
    spec = config.parallelism.context_parallel_degree
    config.training.seq_len = config.parallelism.pipeline_parallel_degree
    return config


def other() -> int:
    return 4
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one model's configurations."""
    folder = tmp_path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True)
    (folder / "config_registry.py").write_text(REGISTRY, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "model", "batch", "plan"),
    [
        ("base", "llama-3.1-8b", 16, {"tp": 2, "mbs": 2, "recompute": "full"}),
        ("tokens", "llama-3.1-8b", 256, {"tp": 4, "mbs": 4, "recompute": "selective"}),
        ("piped", "llama-3.1-8b", 256, {"pp": 2, "mbs": 4, "loss_chunks": 8}),
        ("fp8", "llama-3.1-70b", 16, {"precision": "fp8", "tp": 2}),
    ],
)
def test_a_configuration_is_a_plan(
    name: str, model: str, batch: int, plan: dict[str, object], checkout: Path
) -> None:
    """On 16 devices: of `piped` 8 ranks of data with 8 micro-batches of 4 sequences."""
    question = imported([checkout], recipe=name, devices=16)
    assert (question.question.model, question.question.batch) == (model, batch)
    assert {key: question.plan.get(key) for key in plan} == plan
    assert question.question.stack == ("torchtitan-eager" if name == "piped" else "torchtitan")
    assert question.changes == ()


def test_one_file_of_a_checkout_is_enough(checkout: Path) -> None:
    path = checkout / "torchtitan" / "models" / "llama3" / "config_registry.py"
    assert imported([path], recipe="base", devices=16).plan["tp"] == 2


@pytest.mark.parametrize(("folder", "name"), [("qwen3", "base"), ("mine", "qwen3_base")])
def test_a_models_family_is_its_folder_or_what_its_configuration_is_named_after(
    folder: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / folder / "config_registry.py"
    path.parent.mkdir()
    path.write_text(REGISTRY.replace('"8B"', '"32B"').replace("def base()", f"def {name}()"))
    assert imported([path], recipe=name, devices=16).question.model == "qwen3-32b"


def test_what_the_text_does_not_determine_is_listed(checkout: Path) -> None:
    changes = imported([checkout], recipe="untold", devices=16).changes
    assert [each.name for each in changes] == ["parallelism.data_parallel_replicate_degree"]
    assert "config_registry.py:" in changes[0].value


def test_a_setting_that_is_only_read_keeps_its_default_and_is_not_listed(checkout: Path) -> None:
    """Two are read; what one of them is, another setting is then, which is not told."""
    changes = imported([checkout], recipe="defaults", devices=16).changes
    assert [each.name for each in changes] == ["training.seq_len"]


@pytest.mark.parametrize(
    ("name", "why"), [("adapters", "LoRA"), ("other", "Trainer.Config"), ("none", "none")]
)
def test_what_is_no_configuration_is_refused(name: str, why: str, checkout: Path) -> None:
    with pytest.raises(FrameworkError, check=names(why)):
        imported([checkout], recipe=name, devices=16)


def test_a_configuration_without_its_recipe_is_told_the_option_that_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(REGISTRY)
    with pytest.raises(FrameworkError, check=names("--recipe")):
        imported([path])
