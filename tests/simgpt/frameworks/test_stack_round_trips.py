"""The stack of imported files: that of their framework and its release, of `simgpt export`, or the
user's; and the same step after export and import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.exporting import told
from simgpt.frameworks.files import BRIDGE, MEGATRON, NEMO, Described
from simgpt.frameworks.imported_job import ImportedJob, Instead, shape_of
from simgpt.frameworks.importing import imported, job_from
from simgpt.frameworks.rendering import rendered
from simulator.predict import predict
from simulator.stacks import load_stack, stack_names
from simulator.stacks.job import Job, job_of
from tests.examples import one_in
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_round_trips import SUFFIXES, session
from topologies.machine_files import load_machine
from workload.descriptions.from_table import model_from_table
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model

__all__ = ["session"]  # the fixture
DENSE = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 1024, "sequence": 256, "vocab": 32000}
EXPERTS = {**DENSE, "experts": 8, "topk": 2, "expert_ffn": 512, "activation": "swiglu"}
EXPERTS |= {"norm": "rmsnorm", "positions": "rope", "biases": False}
PLANS: list[tuple[Mapping[str, Any], str]] = [
    (DENSE, "tp=2,sp=true,dp=rest,mbs=1"),
    (DENSE, "pp=2,vpp=2,dp=rest,mbs=1,overlap=oar+dp+pp"),
    (DENSE, "dp=rest,mbs=1,precision=fp8,attention=unfused"),
    (DENSE, "dp=rest,mbs=1,zero=0,overlap=none"),
    (DENSE, "dp=rest,mbs=1,zero=3,overlap=ors+oag"),
    (EXPERTS, "ep=8,dp=rest,mbs=1,overlap=oar+dp"),
]
NEMO_1 = {"trainer.precision": "bf16", "model.use_flash_attention": False}
WHOLE = {**NEMO_1, "model.apex_transformer_log_level": 30}
MACHINE = "2x8xH100,8xNDR"


def model(fields: Mapping[str, Any]) -> GPT:
    """A small model."""
    return model_from_table(dict(fields), "the model", name="small")


def asked_of(framework: str, settings: Mapping[str, Any], stack: str | None = None) -> ImportedJob:
    """The question of settings beside those of a small model."""
    own = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    own |= {"seq_length": 64}
    named: dict[str, Any] = {f"model.{key}": value for key, value in own.items()}
    if framework == MEGATRON:
        named = {key.replace("_", "-"): value for key, value in own.items()} | {"bf16": True}
    described = [Described(framework, {**named, **settings})]
    return job_from(described, devices=16, changed={}, instead=Instead(stack))


def there_and_back(
    gpt: GPT, plan: str, framework: str, stack: str, folder: Path
) -> tuple[Job, Job] | None:
    """The job that is exported, and the one that its text asks for; None where the framework has no
    settings for the plan, or runs another under this stack, which is said."""
    try:
        found = exported(Asked(gpt, plan, 16, 64), framework, stack)
    except PlanCannotRunError:
        return None
    if any(" runs " in note for note in found.notes):
        return None
    path = folder / f"exported{SUFFIXES[framework]}"
    path.write_text(rendered(found) + "\n", encoding="utf-8")
    again = imported([path], framework, devices=16)
    assert again.gpt is not None
    one = job_of(gpt, plan, load_stack(stack), devices=16, batch=64)
    two = job_of(
        again.gpt,
        dict(again.plan),
        load_stack(again.question.stack),
        devices=16,
        batch=again.question.batch,
    )
    return one, two


def assert_all_come_back(
    plans: list[tuple[Mapping[str, Any], str]],
    framework: str,
    stack: str,
    folder: Path,
    *,
    timed: bool = True,
) -> None:
    """Plans of a stack come back as the same jobs, the first of them as a step of the same time
    where steps are `timed`."""
    machine = load_machine(MACHINE)
    written = 0
    for fields, plan in plans:
        jobs = there_and_back(model(fields), plan, framework, stack, folder)
        if jobs is None:
            continue
        one, two = jobs
        assert two.stack.name == stack
        assert shape_of(two.gpt) == shape_of(one.gpt)
        assert told(two.plan, two.gpt) == told(one.plan, one.gpt)
        if timed and not written:
            steps = [predict(each.gpt, each.plan, machine, stack=each.stack) for each in jobs]
            assert steps[1].step_s == pytest.approx(steps[0].step_s, rel=1e-9)
        written += 1
    own = load_stack(stack).plan
    whole = not own.get(
        "reshard", True
    )  # weights that stay whole, which Megatron has no setting for
    assert written or whole or "dispatcher" in own  # of experts alone


@pytest.mark.parametrize("stack", one_in(2, stack_names()))
def test_a_plan_of_any_stack_comes_back_as_the_same_job(stack: str, tmp_path: Path) -> None:
    """The time follows from the job, so that one stack's will do."""
    timed = stack == "nemo"
    assert_all_come_back([PLANS[0], *PLANS[-2:]], MEGATRON, stack, tmp_path, timed=timed)


@pytest.mark.slow
@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE])
@pytest.mark.parametrize("stack", stack_names())
def test_all_plans_of_any_stack_come_back_as_the_same_step(
    stack: str, framework: str, tmp_path: Path
) -> None:
    assert_all_come_back(PLANS, framework, stack, tmp_path)


@pytest.mark.parametrize(
    ("framework", "stack", "plan"),
    [
        ("torchtitan", "torchtitan", "tp=2,sp=true,dp=rest,mbs=2,zero=3"),
        ("torchtitan", "torchtitan-eager", "dp=rest,mbs=2,zero=3"),
        ("torchtitan", "megatron-core", "dp=rest,mbs=2,zero=3"),
        ("deepspeed", "fsdp", "dp=rest,mbs=2,zero=3,overlap=ors+oag"),
        ("deepspeed", "other", "dp=rest,mbs=2,zero=1,overlap=dp"),
    ],
)
def test_plans_of_sharded_data_come_back_as_the_same_step(
    framework: str, stack: str, plan: str, tmp_path: Path
) -> None:
    gpt = find_model("llama-3.1-8b")
    found = exported(Asked(gpt, plan, 16, 64), framework, stack)
    path = tmp_path / f"exported{SUFFIXES[framework]}"
    path.write_text(rendered(found) + "\n", encoding="utf-8")
    given = Instead(stack if framework == "deepspeed" else None)
    model = gpt.name if framework == "deepspeed" else None
    again = imported([path], devices=16, model=model, instead=given)
    one = job_of(gpt, plan, load_stack(stack), devices=16, batch=64)
    two = job_of(
        gpt,
        dict(again.plan),
        load_stack(again.question.stack),
        devices=16,
        batch=again.question.batch,
    )
    assert (again.question.stack, again.question.batch) == (stack, 64)
    assert told(two.plan, gpt) == told(one.plan, gpt)


@pytest.mark.parametrize(
    ("stack", "dispatcher"), [("primus", "once_per_node"), ("primus-deepep", "all_to_all")]
)
def test_a_dispatcher_that_is_not_the_stacks_own_comes_back(
    stack: str, dispatcher: str, tmp_path: Path
) -> None:
    plan = f"{PLANS[-1][1]},dispatcher={dispatcher}"
    jobs = there_and_back(model(EXPERTS), plan, MEGATRON, stack, tmp_path)
    assert jobs is not None
    assert [each.plan.experts.dispatcher for each in jobs] == [dispatcher, dispatcher]


def test_an_exported_plan_of_experts_that_are_sent_once_comes_back(tmp_path: Path) -> None:
    """Primus with DeepEP, whose dispatcher Megatron-LM calls flex as that of another stack."""
    jobs = there_and_back(model(EXPERTS), PLANS[-1][1], MEGATRON, "primus-deepep", tmp_path)
    assert jobs is not None
    assert [each.plan.experts.dispatcher for each in jobs] == ["usual", "usual"]


@pytest.mark.parametrize(
    ("framework", "settings", "stack"),
    [
        (NEMO, NEMO_1, "nemo"),
        (NEMO, WHOLE, "nemo@23.05"),
        (NEMO, WHOLE | {"model.mcore_gpt": False}, "nemo@23.05"),
        (NEMO, WHOLE | {"model.mcore_gpt": True}, "nemo"),
        (BRIDGE, {"mixed_precision": "bf16_mixed"}, "nemo"),
        (MEGATRON, {}, "megatron-core"),
    ],
)
def test_files_ask_for_a_stack_of_their_framework_and_release(
    framework: str, settings: dict[str, Any], stack: str
) -> None:
    question = asked_of(framework, settings)
    assert question.question.stack == stack
    assert ("--stack" in question.stack_words) == (framework != MEGATRON)


@pytest.mark.parametrize(
    ("settings", "attention"),
    [
        ({"model.use_flash_attention": True}, "flash"),
        ({"model.use_flash_attention": False}, "unfused"),
        ({"model.apex_transformer_log_level": 30}, "unfused"),  # NeMo's own default
    ],
)
def test_nemo_of_2023_takes_its_attention_from_the_recipe(
    settings: dict[str, Any], attention: str
) -> None:
    found = asked_of(NEMO, {"trainer.precision": "bf16", **settings}, "nemo@23.05")
    assert found.plan["attention"] == attention
    assert asked_of(NEMO, {**NEMO_1, **settings}, "nemo").plan["attention"] == "flash"


def test_what_a_recipe_turns_off_picks_the_stack_that_has_it_off() -> None:
    """Unsaid, kernels are as NVIDIA's own runs have them."""
    own = {"model.num_moe_experts": 8, "model.moe_token_dispatcher_type": "alltoall"}
    own |= {"mixed_precision": "bf16_mixed"}
    assert asked_of(BRIDGE, own).question.stack == "nemo"
    permuted = asked_of(BRIDGE, own | {"model.moe_permute_fusion": False})
    assert permuted.question.stack == "nemo+unfused-permutation"
    once = own | {"model.moe_token_dispatcher_type": "flex"}
    assert asked_of(BRIDGE, once).question.stack == "nemo+deepep"
    dense = {"mixed_precision": "bf16_mixed", "model.cross_entropy_loss_fusion": False}
    (said,) = asked_of(BRIDGE, dense | {"ddp.use_distributed_optimizer": True}).changes
    assert said.name == "model.cross_entropy_loss_fusion"
    assert_names(said.why, "nemo")


def test_options_stand_in_place_of_the_files(tmp_path: Path) -> None:
    """The batch of 128 sequences is replaced by 64 x 4,096 tokens of 256; and both are said."""
    path = tmp_path / "run.sh"
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 --bf16 "
    text += "--num-attention-heads 4 --seq-length 256 --vocab-size 512 --micro-batch-size 1 "
    path.write_text(f"{text} --global-batch-size 128")
    said = simgpt("import", str(path), "--stack", "nemo", "--batch-tokens", "262144")
    assert_names(said.out, "1,024 sequences", "128", "megatron-core")
    assert "--stack nemo" in said.out
    assert "--batch 1024" in said.out
    path.write_text(text)
    assert "--batch 64" in simgpt("import", str(path), "--batch", "64").out
    both = simgpt("import", str(path), "--batch", "64", "--batch-tokens", "16384")
    assert both.status == 2
    assert_names(both.err, "--batch", "--batch-tokens")
    assert simgpt("import", str(path), "--stack", "nemoo").status == 2


def test_a_batch_of_the_users_stands_in_place_of_one_that_other_ranks_share() -> None:
    """DeepSpeed's 512 = 1 x 4 x 128 are refused for 64 ranks; 256 = 1 x 4 x 64 are asked for."""
    sizes = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 1}
    described = [Described("deepspeed", sizes | {"gradient_accumulation_steps": 4})]
    given: dict[str, Any] = {"devices": 64, "model": "llama-3.1-8b", "changed": {}}
    assert job_from(described, **given).refused != ()
    question = job_from(described, **given, instead=Instead(batch=256))
    assert (question.refused, question.question.batch) == ((), 256)
    assert "512" in question.batch_words


@pytest.mark.parametrize("last", ["ddp", "optimizer"])
def test_a_distributed_optimizer_of_one_section_is_one_of_both(last: str) -> None:
    """Megatron-Bridge turns both on where one is, whichever stands last."""
    own = {f"{each}.use_distributed_optimizer": each != last for each in ("ddp", "optimizer")}
    own |= {f"{last}.use_distributed_optimizer": own.pop(f"{last}.use_distributed_optimizer")}
    assert asked_of(BRIDGE, {"mixed_precision": "bf16_mixed", **own}).plan["zero"] == 1


def test_a_stack_that_a_file_cannot_name_is_given_by_option(tmp_path: Path) -> None:
    """DeepSpeed's JSON and AxoNN's grid have no comments, and AxoNN's has no batch."""
    asked = ("export", "gpt-5b", "-n", "16", "--batch", "64", "--stack", "axonn-easy")
    said = simgpt(*asked, "--plan", "tp=2,y=2,z=2,dp=2", "--to", "axonn")
    assert_names(said.err, "--stack axonn-easy")
    path = tmp_path / "grid.json"
    path.write_text(said.out)
    record = simgpt(
        "import", str(path), "--model", "gpt-5b", "--batch", "64", "--stack", "axonn-easy"
    )
    assert "--stack axonn-easy --plan tp=2,y=2,z=2,dp=2 --batch 64" in record.out


def test_a_comment_with_an_unknown_stack_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("--num-layers 8 --bf16\n# exported by simgpt from the stack nosuch\n")
    said = simgpt("import", str(path))
    assert said.status == 2
    assert "nosuch" in said.err
