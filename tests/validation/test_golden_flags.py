"""Golden runs: arguments without a column, images, uneven stages, recomputation and the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.messages import names
from validation.memory import golden_flags, golden_recompute
from validation.memory.golden_runs import GoldenRun, NotExpressibleError, golden_runs
from validation.memory.memory_questions import answer, questions
from workload.lowering import lower
from workload.op import ROLES

OF_7B = next(run.cells for run in golden_runs() if run.id == "mcore-008")
OLD = (
    "[env:lts] [golden first recorded 2025-10-12 at commit a] "
    "env.NVTE_ALLOW_NONDETERMINISTIC_ALGO=0;"
)


def changed(**cells: str) -> GoldenRun:
    return GoldenRun({**OF_7B, **cells})


@pytest.mark.parametrize(
    ("cells", "fused"),
    [
        ({}, False),
        ({"platform_gpu": "H100"}, True),
        ({"seq_len": "512"}, True),
        ({"attention_backend": "flash"}, True),
        ({"notes": OLD.replace("2025-10-12", "2025-11-06")}, True),
        ({"notes": OLD.replace("lts", "dev")}, True),
        ({"notes": OLD.replace("ALGO=0", "ALGO=1")}, True),
        ({"notes": OLD[:10]}, True),
        ({"attention_backend": "unfused", "notes": ""}, False),
    ],
)
def test_transformer_engine_1_2_has_no_deterministic_kernel_for_long_rows_on_an_a100(
    cells: dict[str, str], fused: bool
) -> None:
    plan = changed(**{"notes": OLD, **cells}).job.plan
    assert (plan.training.attention == "flash") is fused


@pytest.mark.parametrize(
    ("notes", "vpp", "layers"),
    [
        (";decoder-first-pipeline-num-layers=5;", "1", (5, 9, 9, 9)),
        (";decoder-last-pipeline-num-layers=2;", "1", (10, 10, 10, 2)),
        (";decoder-first-pipeline-num-layers=4;decoder-last-pipeline-num-layers=8", "1",
         (4, 10, 10, 8)),
        (";decoder-first-pipeline-num-layers=2;", "2", (1, 5, 5, 5, 1, 5, 5, 5)),
        ("[pipeline-layout:Et*7|t*9|(t*8|)*2L] ", "1", None),
        ("[pipeline-layout:Et*7|t*9|t*8|t*8L] ", "1", (7, 9, 8, 8)),
        ("[pipeline-layout:Et*3|(t*4|)*6t*5L] ", "1", (3, 4, 4, 4, 4, 4, 4, 5)),
    ],
)  # fmt: skip
def test_first_and_last_stages_have_layers_of_their_own(
    notes: str, vpp: str, layers: tuple[int, ...] | None
) -> None:
    run = changed(notes=notes, vpp=vpp)
    if layers is None:
        with pytest.raises(NotExpressibleError, check=names("5", "4")):
            _ = run.job
        return
    assert run.job.plan.pipeline.stage_layers == layers
    assert run.job.plan.vpp == len(layers) // 4


def test_embedding_and_loss_count_as_layers_where_accounted_for() -> None:
    both = ";account-for-embedding-in-pipeline-split=True;account-for-loss-in-pipeline-split=True;"
    assert changed(layers="30", vpp="1", notes=both).job.plan.pipeline.ends_as_layers
    loss = ";account-for-loss-in-pipeline-split=True;"
    assert changed(layers="31", vpp="1", notes=loss).job.plan.pipeline.stage_layers == (8, 8, 8, 7)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("none", "none"),
        ("selective", "core_attn"),
        ("selective/modules=moe_act", "moe_act"),
        ("selective/modules=layernorm mla_up_proj mlp", "layernorm+mla_up_proj+mlp"),
        ("selective/modules=hyena", None),
        ("full/uniform/layers=1", "full"),
        ("full/uniform/layers=2", None),
        ("full/block/layers=3", "full:3"),
    ],
)
def test_recomputation_is_read_by_its_method(text: str, word: str | None) -> None:
    assert golden_recompute.recomputes({"recompute": text, "notes": ""}) == word


def test_a_number_of_gpus_is_the_one_stated_or_inferred() -> None:
    inferred = "[gpus:release recipe not public, inferred, not stated: memory implies 64] "
    assert changed(gpus="", global_batch="64", notes=inferred).job.plan.grid.ranks == 64
    assert changed(notes=inferred).job.plan.grid.ranks == 8


def test_precisions_in_fp8_are_those_of_the_stack_or_of_a_recipe() -> None:
    tensorwise = changed(precision="bf16+fp8(hybrid,tensorwise)").job
    assert tensorwise.plan.training.recipe == "fp8"
    assert tensorwise.stack.memory["fp8_weights"]
    gathered = changed(precision="bf16+fp8(hybrid,tensorwise,param_gather)").job
    assert (gathered.plan.training.fp8_params, tensorwise.plan.training.fp8_params) == (True, False)
    blocks = changed(precision="bf16+fp8(hybrid,blockwise)").job
    assert blocks.plan.training.recipe == "fp8-blockwise"


def test_weights_of_8_bits_have_transposed_copies_on_hopper_alone() -> None:
    """Rows mcore-540 and mcore-541 are one test on GB200 and H100: between steps they differ by a
    byte for each of 12 x 12 x 512^2 / 4 parameters of linears, as they are predicted to."""
    few = {"global_batch": "8"}  # one micro-batch: weights are the same in each
    rows = {
        run.id: GoldenRun({**run.cells, **few})
        for run in golden_runs()
        if run.id in ("mcore-540", "mcore-541")
    }
    blackwell, hopper = rows["mcore-540"], rows["mcore-541"]
    held = {}
    for run in (blackwell, hopper):
        job = run.job
        behaviour = job.stack.kernels(job.gpt, job.plan, run.machine).behaviour
        level = lower(job.gpt, job.plan, behaviour=behaviour).levels[:, 0]
        held[run.id] = int(level[ROLES.index("parameters")])
    assert hopper.persistent_bytes is not None
    assert blackwell.persistent_bytes is not None
    more = held["mcore-541"] - held["mcore-540"]
    assert more == hopper.persistent_bytes - blackwell.persistent_bytes == 36 * 512**2


def test_graphs_are_refused() -> None:
    with pytest.raises(NotExpressibleError, match="CUDA graphs"):
        _ = changed(cuda_graph="transformer_engine:attn mlp").job


def test_modules_for_further_tokens_are_the_models() -> None:
    assert (
        changed(notes=";mtp-num-layers=1;hidden-dropout=0.0", position="rope").job.gpt.mtp.layers
        == 1
    )


def test_an_argument_is_no_part_of_another() -> None:
    cells = {"notes": "[env:dev] q-head=1;b=2;last=3"}
    assert [golden_flags.number(cells, name) for name in ("head", "b", "last")] == [None, 2, 3]


def test_a_fused_loss_holds_another_copy_of_the_logits() -> None:
    """Row mcore-310: 4 x 1,024 tokens by 25,216 of the vocabulary on two ranks, 4 bytes each."""
    asked = next(run for run in questions(None) if run.id == "mcore-310").ask()
    plain = replace(asked, job=replace(asked.job, stack=replace(asked.job.stack, memory={})))
    more = answer(asked).peak_bytes - answer(plain).peak_bytes
    libraries = asked.job.stack.library_bytes(asked.machine)
    assert more - libraries == 4 * 1024 * 25_216 * 4
