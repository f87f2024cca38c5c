"""Recipes in the layout of each release of Megatron-Bridge, written here in a few lines each."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.recipe_code.facts import facts
from simgpt.frameworks.recipe_code.recipe import named_recipe
from simgpt.frameworks.recipe_code.values import RecipeError
from tests.messages import names

COMMON = """
from dataclasses import dataclass
from typing import Optional, List
from elsewhere.core import OptimizerConfig, DistributedDataParallelConfig, TransformerConfig
@dataclass
class Provider(TransformerConfig):
    seq_length: int = 4096
    num_moe_experts: Optional[int] = 128
    moe_token_dispatcher_type: str = "alltoall"
@dataclass
class Train:
    global_batch_size: int = 512
    micro_batch_size: int = 1
@dataclass
class Overlap:
    tp_comm_overlap: bool = True
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
@dataclass
class Precision:
    grad_reduce_in_fp32: bool = True
@dataclass
class Container:
    model: object
    train: object
    optimizer: object
    ddp: object
    comm_overlap: object
    mixed_precision: object
def library():
    return Container(model=Provider(), train=Train(), optimizer=OptimizerConfig(),
                     ddp=DistributedDataParallelConfig(), comm_overlap=Overlap(),
                     mixed_precision=Precision())
"""
FLAT = """
from megatron.bridge.library import library
def moe_30b_pretrain_64gpu_gb200_fp8mx_config():
    cfg = library()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 8
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    cfg.model.cuda_graph_impl = "transformer_engine"
    cfg.model.cuda_graph_scope = ["attn", "moe_router", "moe_preprocess"]
    cfg.model.recompute_modules = ["moe_act"]
    cfg.comm_overlap.overlap_moe_expert_parallel_comm = True
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    return cfg
"""
VARIANTS = """
from megatron.bridge.library import library
from utils.overrides import set_plan
from . import plans
def moe_30b_pretrain_config_h100(precision="bf16", mock=True, config_variant="v1"):
    cfg = library()
    name = f"moe_30b_pretrain_config_h100_{precision}_{config_variant}".upper()
    set_plan(cfg, getattr(plans, name))
    return cfg
"""
PLANS = """
from dataclasses import replace
from utils.utils import Plan
BASE = Plan(num_gpus=16, graphs=["full_iteration"])
MOE_30B_PRETRAIN_CONFIG_H100_BF16_V1 = BASE
MOE_30B_PRETRAIN_CONFIG_H100_BF16_V2 = replace(BASE, num_gpus=32, gbs=1024, modules=["layernorm"])
"""
UTILS = """
from dataclasses import dataclass
@dataclass
class Plan:
    num_gpus: int = 1
    gbs: int = 512
    graphs: list = None
    modules: list = None
"""
OVERRIDES = """
def set_plan(cfg, plan):
    cfg.train.global_batch_size = plan.gbs
    if plan.graphs is not None:
        cfg.model.cuda_graph_impl = "local"
        cfg.model.cuda_graph_scope = plan.graphs
    if plan.modules is not None:
        cfg.model.recompute_granularity = "selective"
        cfg.model.recompute_modules = plan.modules
def set_post_overrides(recipe, family, model, gpu, num_gpus, dtype, task, user_gbs=None,
                       config_variant="v1"):
    if dtype == "bf16" and recipe.optimizer.optimizer == "adam":
        recipe.optimizer.use_precision_aware_optimizer = True
        recipe.optimizer.exp_avg_dtype = "bfloat16"
    if user_gbs is None and num_gpus != 32:
        recipe.train.global_batch_size = num_gpus * 32
    return recipe
"""
MATRIX_SCRIPT = """
from megatron.bridge.library import library
from omegaconf import OmegaConf
from utils.helpers import apply_overrides, parse_cli_args, pretrain
def main():
    args, _ = parse_cli_args()
    recipe = library()
    conf = OmegaConf.load(args.config_file)
    plan = conf["perf_matrix"][args.gpu][f"num_gpus_{args.num_gpus}"]
    merged = OmegaConf.merge(plan["common"], plan[args.compute_dtype])
    apply_overrides(recipe, OmegaConf.to_container(merged), None)
    pretrain(config=recipe)
"""
MATRIX_HELPERS = """
def apply_overrides(recipe, plan, excluded): ...
def parse_cli_args(): ...
def pretrain(config): ...
"""
MATRIX = """
perf_matrix:
  h100:
    num_gpus_64:
      common: {train: {global_batch_size: 256, micro_batch_size: 2}}
      bf16: {train: {global_batch_size: 1024}}
"""


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(dedent(text))
    return folder


def _take_model_of(flat: Path, checkpoint: str) -> None:
    """Have the recipes of a checkout take the model that a checkpoint's configuration describes."""
    path = flat / "src/megatron/bridge/library.py"
    bridge = "class AutoBridge:\n    pass\n"
    made = f'AutoBridge.from_hf_pretrained("{checkpoint}").to_megatron_provider()'
    path.write_text(bridge + path.read_text().replace("model=Provider()", f"model={made}"))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A checkout in the layout of v0.6."""
    return _write(
        tmp_path,
        src__megatron__bridge__library=COMMON,
        src__megatron__bridge__perf_recipes__moe__gb200__moe=FLAT,
    )


@pytest.fixture
def variants(tmp_path: Path) -> Path:
    """A checkout in the layout of v0.3 to v0.5."""
    base = "scripts__performance__"
    return _write(
        tmp_path,
        src__megatron__bridge__library=COMMON,
        **{
            f"{base}configs__moe__moe_llm_pretrain": VARIANTS,
            f"{base}configs__moe__plans": PLANS,
            f"{base}utils__utils": UTILS,
            f"{base}utils__overrides": OVERRIDES,
        },
    )


def test_a_plan_of_a_matrix_is_merged_key_by_key_by_the_script(tmp_path: Path) -> None:
    """The layout of v0.1."""
    base = "scripts__performance__"
    scripts = {f"{base}run_script": MATRIX_SCRIPT, f"{base}utils__helpers": MATRIX_HELPERS}
    _write(tmp_path, src__megatron__bridge__library=COMMON, **scripts)
    path = tmp_path / "scripts/performance/configs/moe/moe_30b_llm_pretrain.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MATRIX)
    found = facts(named_recipe(tmp_path, "moe_30b_pretrain_64gpu_h100_bf16"))
    assert (found["devices"], found["gbs"], found["mbs"]) == ("64", "1024", "2")


def test_a_flat_recipe_gives_its_facts(flat: Path) -> None:
    found = facts(named_recipe(flat, "moe_30b_pretrain_64gpu_gb200_fp8mx"))
    assert found["devices"] == "64"
    assert found["precision"] == "fp8_mx"
    assert (found["tp"], found["pp"], found["gbs"]) == ("2", "1", "512")
    assert found["graphs"] == "attn+moe_router+moe_preprocess"
    assert found["dispatcher"] == "hybridep"
    assert found["overlap"] == "a2a"
    assert found["gradients"] == "bf16"
    assert found["moments"] == "fp32"  # Megatron-Core's default
    assert found["unresolved"] == ""


def test_modules_count_only_where_recomputation_is_selective(flat: Path, variants: Path) -> None:
    assert facts(named_recipe(flat, "moe_30b_pretrain_64gpu_gb200_fp8mx"))["recompute"] == "none"


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"granularity": "full"}, "full"),
        ({"granularity": "full", "method": "block", "num_layers": 4}, "full:4"),
        ({"granularity": "full", "method": "block"}, "full"),
        ({"granularity": "full", "method": "uniform", "num_layers": 4}, "full"),
        ({"granularity": "selective", "method": "block", "num_layers": 4}, "core_attn"),
        ({"granularity": "selective", "modules": ["mlp", "moe_act"]}, "mlp+moe_act"),
        ({"granularity": "selective", "modules": []}, "none"),
    ],
)
def test_the_number_of_layers_counts_where_full_recomputation_is_of_a_block(
    flat: Path, settings: dict[str, object], again: str
) -> None:
    """The method `uniform` recomputes all layers, so many of them at a time."""
    path = flat / "src/megatron/bridge/perf_recipes/moe/gb200/moe.py"
    own = '    cfg.model.recompute_modules = ["moe_act"]\n'
    lines = "".join(
        f"    cfg.model.recompute_{key} = {value!r}\n" for key, value in settings.items()
    )
    text = path.read_text()
    assert own in text
    path.write_text(text.replace(own, lines))
    assert facts(named_recipe(flat, "moe_30b_pretrain_64gpu_gb200_fp8mx"))["recompute"] == again


def test_a_variant_takes_its_own_plan_and_what_the_launcher_adds(variants: Path) -> None:
    first = facts(named_recipe(variants, "moe_30b_pretrain_h100_bf16_v1"))
    second = facts(named_recipe(variants, "moe_30b_pretrain_h100_bf16_v2"))
    assert (first["devices"], second["devices"]) == ("16", "32")
    assert (first["recompute"], second["recompute"]) == ("none", "layernorm")
    assert first["graphs"] == second["graphs"] == "full_iteration"
    assert (first["gbs"], second["gbs"]) == ("512", "1024")
    assert second["moments"] == "bf16"


def test_another_number_of_devices_is_asked_of_the_launcher(variants: Path) -> None:
    assert facts(named_recipe(variants, "moe_30b_pretrain_h100_bf16_v2", 8))["gbs"] == "256"


def test_a_setting_that_cannot_be_told_is_named_with_its_line(flat: Path) -> None:
    path = flat / "src/megatron/bridge/perf_recipes/moe/gb200/moe.py"
    path.write_text(path.read_text().replace('= "hybridep"', "= elsewhere.best()"))
    found = facts(named_recipe(flat, "moe_30b_pretrain_64gpu_gb200_fp8mx"))
    assert found["dispatcher"] == ""
    assert found["unresolved"].startswith("model.moe_flex_dispatcher_backend@")
    assert found["unresolved"].endswith("gb200/moe.py:8")


def test_an_unknown_recipe_is_refused_with_names_like_it(variants: Path) -> None:
    with pytest.raises(RecipeError, match="moe_30b_pretrain_h100_bf16_v1"):
        named_recipe(variants, "moe_30b_pretrain_h100_fp8_cs_v1")


def test_a_folder_without_recipes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, check=names(tmp_path.name)):
        named_recipe(tmp_path, "anything")


def test_a_recipe_is_imported_as_the_question_that_it_asks(flat: Path) -> None:
    question = imported([flat], recipe="moe_30b_pretrain_64gpu_gb200_fp8mx", model="qwen3-30b-a3b")
    assert question.question.devices == 64
    assert question.question.batch == 512
    assert question.question.stack == "nemo+deepep+graphs=attn"
    assert question.plan["tp"] == 2
    assert question.plan["gradients"] == "bf16"
    assert "a2a" in str(question.plan["overlap"])


@pytest.mark.parametrize(
    ("checkpoint", "dispatcher"),
    [("Qwen/Qwen3-30B-A3B", "hybridep"), ("meta-llama/Meta-Llama-3-8B", "")],
)
def test_tokens_are_dispatched_where_the_checkpoint_has_experts(
    flat: Path, checkpoint: str, dispatcher: str
) -> None:
    _take_model_of(flat, checkpoint)
    found = facts(named_recipe(flat, "moe_30b_pretrain_64gpu_gb200_fp8mx"))
    assert found["dispatcher"] == dispatcher


def test_the_preset_of_the_checkpoint_is_the_model_with_the_recipes_sequence(flat: Path) -> None:
    _take_model_of(flat, "Qwen/Qwen3-30B-A3B")
    recipe = flat / "src/megatron/bridge/perf_recipes/moe/gb200/moe.py"
    text = recipe.read_text()
    recipe.write_text(text.replace("    return", "    cfg.model.seq_length = 2048\n    return"))
    question = imported([flat], recipe="moe_30b_pretrain_64gpu_gb200_fp8mx")
    assert question.question.model == "qwen3-30b-a3b"
    assert question.question.model_set == {"sequence": 2048}


def test_what_the_recipe_leaves_open_stands_among_what_is_not_carried_over(flat: Path) -> None:
    path = flat / "src/megatron/bridge/perf_recipes/moe/gb200/moe.py"
    path.write_text(path.read_text().replace('"transformer_engine"', "elsewhere.best()"))
    question = imported([flat], recipe="moe_30b_pretrain_64gpu_gb200_fp8mx", model="qwen3-30b-a3b")
    told = {each.name: each.value for each in question.changes}
    assert told["model.cuda_graph_impl"].endswith("gb200/moe.py:9")


def test_a_recipe_is_of_one_checkout_of_its_own_framework(flat: Path) -> None:
    for paths, framework in (([flat, flat], None), ([flat], "torchtitan")):
        with pytest.raises(FrameworkError, match="--recipe"):
            imported(paths, framework, recipe="moe_30b_pretrain_64gpu_gb200_fp8mx")
