"""Recipes of NeMo 2: scripts with tables of plans, and factories, written here in a few lines."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.facts import facts
from simgpt.frameworks.recipe_code.layouts import recipes_of
from simgpt.frameworks.recipe_code.recipe import named_recipe
from simgpt.frameworks.recipe_code.tables import rows_of
from simgpt.frameworks.recipe_code.values import RecipeError
from tests.messages import names

LAYOUT = "pipeline_model_parallel_layout"
RECIPE = """
import nemo_run as run
from elsewhere.core import DistributedDataParallelConfig, OptimizerConfig
from elsewhere.parts import Precision, Model, Trainer, Mock, Adam, pretrain
from nemo.parts import Strategy, Moe, Overlap
NAME = "moe_8b"
@run.cli.factory(target=pretrain, name=NAME)
def pretrain_recipe(num_nodes: int = 2, num_gpus_per_node: int = 8, performance_mode: bool = False):
    strategy = run.Config(Strategy, tensor_model_parallel_size=2, pipeline_model_parallel_size=4,
                          ddp=run.Config(DistributedDataParallelConfig, grad_reduce_in_fp32=True))
    trainer = run.Config(Trainer, num_nodes=num_nodes, devices=num_gpus_per_node, callbacks=[],
                         strategy=strategy, plugins=run.Config(Precision, grad_reduce_in_fp32=True))
    recipe = run.Partial(
        pretrain, model=run.Config(Model, config=run.Config(Moe)), trainer=trainer,
        data=run.Config(Mock, seq_length=4096, global_batch_size=512, micro_batch_size=1),
        optim=run.Config(Adam, config=run.Config(OptimizerConfig, optimizer="adam")))
    if performance_mode:
        recipe.trainer.callbacks.append(run.Config(Overlap, tp_comm_overlap=True))
        recipe.trainer.plugins.grad_reduce_in_fp32 = False
    return recipe
"""
PARTS = """
import torch
from dataclasses import dataclass
from elsewhere.core import TransformerConfig
class Strategy:
    def __init__(self, tensor_model_parallel_size: int = 1, context_parallel_size: int = 1,
                 virtual_pipeline_model_parallel_size=None, ddp="megatron", fsdp=None):
        self.fsdp = fsdp
@dataclass
class Moe(TransformerConfig):
    num_layers: int = 14
    num_moe_experts: int = 8
    moe_token_dispatcher_type: str = "alltoall"
class Drop:
    def __init__(self, factor: float = 1.0):
        self.factor = factor
    def setup(self, trainer, module, stage):
        if isinstance(trainer.model.config, TransformerConfig):
            trainer.model.config.moe_expert_capacity_factor = self.factor
class Deep:
    def setup(self, trainer, module, stage):
        if torch.cuda.get_device_properties(0).major not in [8, 9]:
            return
        trainer.model.config.moe_token_dispatcher_type = "flex"
        trainer.model.config.moe_enable_deepep = True
class MegatronCommOverlapCallback:
    def __init__(self, tp_comm_overlap=None, overlap_grad_reduce=None):
        pass
Overlap = MegatronCommOverlapCallback
"""
SCRIPT = """
import nemo_run as run
from nemo.parts import Deep, Drop
from nemo.collections.llm.recipes.moe import pretrain_recipe
from ..arguments import parse_cli_args
from ..helpers import get_user_configs
def override(args, nodes, tp, graphs, layers, modules):
    recipe = pretrain_recipe(performance_mode=True)
    recipe.trainer.num_nodes = nodes
    recipe.trainer.strategy.tensor_model_parallel_size = tp
    recipe.trainer.strategy.num_layers_in_first_pipeline_stage = 3
    recipe.trainer.strategy.num_layers_in_last_pipeline_stage = 3
    recipe.model.config.enable_cuda_graph = graphs
    recipe.trainer.callbacks.extend([run.Config(Drop), run.Config(Deep)])
    if modules is not None:
        recipe.model.config.recompute_granularity = "selective"
        recipe.model.config.recompute_modules = modules
    match args.compute_dtype:
        case "fp8" | "mxfp8":
            recipe.trainer.plugins.fp8_recipe = "tensorwise"
    return recipe
if __name__ == "__main__":
    args = parse_cli_args().parse_args()
    recipe = override(args, *get_user_configs(args.gpu.lower(), "pre_train", "moe", "8b", args))
    with run.Experiment("a name") as exp:
        exp.add(recipe, name="it")
"""
ARGUMENTS = """
import argparse
def parse_cli_args():
    def switch(text):
        if text in ("true", "1"):
            return True
        raise ValueError(text)
    parser = argparse.ArgumentParser()
    parser.add_argument("-g", "--gpu", type=str, required=True)
    parser.add_argument("-c", "--compute_dtype", type=str, default="bf16")
    parser.add_argument("-ng", "--num_gpus", type=int)
    parser.add_argument("-cg", "--cuda_graphs", type=switch, default=None)
    parser.add_argument("-rm", "--recompute_modules", nargs="*", default=None)
    parser.add_argument("--dryrun", action="store_true")
    parser.add_subparsers().add_parser("slurm").add_argument("--account")
    return parser
"""
HELPERS = """
import os
import pandas as pd
from numpy import nan
from pathlib import Path
def get_user_configs(gpu, task, model_name, model_size, args):
    folder = str(Path(__file__).parent.absolute())
    table = os.path.join(folder, "plans", f"model_configs_{gpu}.csv")
    df = pd.read_csv(table) if os.path.isfile(table) else pd.DataFrame()
    df = df[(df["task"] == task) & (df["size"] == model_size) & (df["dtype"] == args.compute_dtype)
            & (args.num_gpus is None or df["num_gpus"] == args.num_gpus)]
    df = df.replace({nan: None})
    config = df.to_dict(orient="records")[0] if len(df) > 0 else {}
    nodes = -(config.get("num_gpus") // -8)
    graphs = config.get("cuda_graphs") if args.cuda_graphs is None else args.cuda_graphs
    modules = args.recompute_modules or config.get("modules")
    modules = modules.split("/") if isinstance(modules, str) else modules
    return [int(nodes), int(config.get("tp")), bool(graphs), config.get("layers"), modules]
"""
TABLE = """task,model,size,dtype,num_gpus,tp,cuda_graphs,layers,modules
pre_train,moe,8b,bf16,16.0,2.0,1,,mlp/moe_act
pre_train,moe,8b,fp8,32.0,4.0,,,
pre_train,other,8b,bf16,16.0,2.0,1,,
"""
FILES = {
    "nemo/collections/llm/recipes/moe.py": RECIPE,
    "nemo/parts.py": PARTS,
    "scripts/performance/llm/pretrain_moe.py": SCRIPT,
    "scripts/performance/arguments.py": ARGUMENTS,
    "scripts/performance/helpers.py": HELPERS,
    "scripts/performance/plans/model_configs_h100.csv": TABLE,
    "scripts/performance/plans/model_configs_b200.csv": TABLE,
    "scripts/performance/plans/strong_scaling_model_configs_h100.csv": TABLE.replace("16.0", "8"),
}


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    """A checkout in the layout of NeMo 2.3 to 2.5."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip())
    return tmp_path


def test_a_checkout_has_its_tables_plans_and_its_factories(nemo: Path) -> None:
    assert {key.name for key in recipes_of(Checkout(nemo))} == {
        *("moe_8b_pretrain", "moe_8b_pretrain_performance"),
        *(f"moe_8b_pretrain_16gpu_{gpu}_bf16" for gpu in ("h100", "b200")),
        *(f"moe_8b_pretrain_32gpu_{gpu}_fp8" for gpu in ("h100", "b200")),
    }


def test_a_script_gives_the_plan_of_its_table(nemo: Path) -> None:
    found = facts(named_recipe(nemo, "moe_8b_pretrain_16gpu_h100_bf16"))
    assert [found[key] for key in ("devices", "tp", "pp", "cp", "gbs")] == [
        "16",
        "2",
        "4",
        "1",
        "512",
    ]
    assert (found["graphs"], found["recompute"]) == ("layer", "mlp+moe_act")
    assert found["stage_layers"] == "3,4,4,3"
    assert (found["tp_overlap"], found["gradients"]) == ("yes", "bf16")
    assert found["unresolved"] == ""
    fp8 = facts(named_recipe(nemo, "moe_8b_pretrain_32gpu_h100_fp8"))
    assert [fp8[key] for key in ("devices", "tp", "precision")] == ["32", "4", "fp8_cs"]
    assert (fp8["graphs"], fp8["recompute"]) == ("none", "none")


def test_callbacks_set_the_model_up_on_the_gpus_that_they_are_for(nemo: Path) -> None:
    hopper = facts(named_recipe(nemo, "moe_8b_pretrain_16gpu_h100_bf16"))
    blackwell = facts(named_recipe(nemo, "moe_8b_pretrain_16gpu_b200_bf16"))
    assert (hopper["dispatcher"], blackwell["dispatcher"]) == ("deepep", "alltoall")
    assert hopper["capacity"] == blackwell["capacity"] == "1.0"


def test_a_factory_has_a_variant_for_performance(nemo: Path) -> None:
    usual = facts(named_recipe(nemo, "moe_8b_pretrain"))
    fast = facts(named_recipe(nemo, "moe_8b_pretrain_performance"))
    assert (usual["gradients"], usual["tp_overlap"]) == ("fp32", "")
    assert (fast["gradients"], fast["tp_overlap"]) == ("bf16", "yes")
    assert facts(named_recipe(nemo, "moe_8b_pretrain", 32))["devices"] == "32"


def test_a_script_that_refuses_is_quoted(nemo: Path) -> None:
    path = nemo / "scripts/performance/llm/pretrain_moe.py"
    path.write_text(path.read_text().replace("performance_mode=True", "performnce_mode=True"))
    with pytest.raises(RecipeError, check=names("performnce_mode")):
        named_recipe(nemo, "moe_8b_pretrain_16gpu_h100_bf16")


def test_an_assertion_that_does_not_hold_is_quoted(nemo: Path) -> None:
    path = nemo / "scripts/performance/llm/pretrain_moe.py"
    check = '    assert layers is None or graphs, "graphs want layers"\n    return recipe\nif'
    path.write_text(path.read_text().replace("    return recipe\nif", check))
    assert facts(named_recipe(nemo, "moe_8b_pretrain_16gpu_h100_bf16"))["tp"] == "2"
    table = nemo / "scripts/performance/plans/model_configs_h100.csv"
    table.write_text(table.read_text().replace("2.0,1,,mlp", "2.0,0,7,mlp"))
    with pytest.raises(RecipeError, check=names("graphs want layers")):
        named_recipe(nemo, "moe_8b_pretrain_16gpu_h100_bf16")


def test_a_layout_in_lists_is_read_as_megatrons_letters(nemo: Path) -> None:
    path = nemo / "scripts/performance/llm/pretrain_moe.py"
    lists = (
        '[["embedding"] + ["decoder"] * 4, ["decoder"] * 4, ["decoder"] * 4, ["decoder", "loss"]]'
    )
    own = "    recipe.trainer.strategy.num_layers_in_first_pipeline_stage = 3\n"
    text = path.read_text().replace(own, f"{own.partition('num')[0]}{LAYOUT} = {lists}\n")
    path.write_text(text.replace("num_layers_in_last_pipeline_stage = 3", "fsdp = None"))
    name = "moe_8b_pretrain_16gpu_h100_bf16"
    question = imported([nemo], recipe=name, model="mixtral-8x7b", changed={"layers": 13})
    assert str(question.plan["stage_layers"]) in ("4+4+4+1", "(4, 4, 4, 1)")


def test_a_recipe_of_nemo_is_imported_as_the_question_that_it_asks(nemo: Path) -> None:
    question = imported(
        [nemo],
        recipe="moe_8b_pretrain_16gpu_h100_bf16",
        model="mixtral-8x7b",
        changed={"layers": 14},
    )
    assert (question.question.devices, question.question.batch) == (16, 512)
    assert (question.plan["tp"], question.plan["pp"]) == (2, 4)
    assert str(question.plan["stage_layers"]) in ("3+4+4+3", "(3, 4, 4, 3)")
    assert question.plan["gradients"] == "bf16"


def test_no_table_is_read_outside_of_the_checkout(nemo: Path) -> None:
    checkout = Checkout(nemo / "scripts")
    for path in ("../nemo/parts.py", "/etc/passwd", "performance/../../nemo/parts.py"):
        assert checkout.file(path) is None
        assert rows_of(checkout, path) is None
