"""The MFU waterfall: losses by hand, and that they and the utilisation are the whole peak."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.attribution.compute_ops import OpTime
from simulator.explain import mfu_waterfall as module
from simulator.explain.mfu_waterfall import (
    ATTENTION,
    ELEMENTWISE,
    FASTER,
    MASKED,
    MATMULS,
    RECOMPUTATION,
    UNEVEN,
    Loss,
    MfuWaterfall,
    mfu_waterfall,
    waterfall_rows,
)
from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from simulator.stacks.logged import CAUSAL, FULL, HARDWARE
from tests.blocks import BLOCK
from tests.simulator.test_roofline import FRONTIER, US, matmul, plain
from topologies.machine_files import load_machine
from topologies.placement_names import parse_placement
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import RECOMPUTE, Block, Op

PEAK = 191.5e12  # bf16 on Frontier's devices
AGAIN = Block(micro_batch=0, phase=RECOMPUTE)


def waterfall_of(
    model: str, machine: str, stack: str, plan: str, batch: int
) -> tuple[Prediction, MfuWaterfall]:
    built, software = load_machine(machine), load_stack(stack)
    job = job_of(find_model(model), plan, software, devices=8, batch=batch)
    placement = parse_placement("scheduler", built, job.plan.grid.ranks)
    gpt = job.stack.model(job.gpt, job.plan.tp)
    found = predict(gpt, job.plan, built, placement=placement, stack=job.stack)
    return found, mfu_waterfall(found, built, placement)


def test_a_matmul_loses_the_time_that_its_flops_do_not_take_at_the_peak() -> None:
    """2^31 FLOPs at 191.5 TFLOP/s take 11.214 us of each 20."""
    counted = module._Counted(FULL, PEAK, FRONTIER)
    counted.add(OpTime(matmul(1024, 1024, 1024), 3, 60 * US))
    counted.add(OpTime(plain("gelu", 8_000_000), 2, 14 * US))
    assert counted.seconds == {MATMULS: 60e-6, ELEMENTWISE: 14e-6}
    assert counted.useful_s[MATMULS] == pytest.approx(3 * 11.214e-6, rel=1e-4)
    assert counted.useful_s[ELEMENTWISE] == 0


@pytest.mark.parametrize(("counts", "useful"), [(FULL, 0), (CAUSAL, 0), (HARDWARE, 11.214e-6)])
def test_recomputation_is_a_loss_unless_the_log_counts_it(counts: str, useful: float) -> None:
    op = matmul(1024, 1024, 1024)
    again = Op(op.name, op.kind, (), (), AGAIN, nbytes=op.nbytes, flops=op.flops, dtype=op.dtype,
               label=op.label, attributes=op.attributes)  # fmt: skip
    counted = module._Counted(counts, PEAK, FRONTIER)
    counted.add(OpTime(again, 1, 20 * US))
    key = MATMULS if counts == HARDWARE else RECOMPUTATION
    assert counted.seconds == {key: 20e-6}
    assert counted.useful_s.get(key, 0.0) == pytest.approx(useful, rel=1e-4)


@pytest.mark.parametrize(("counts", "masked"), [(CAUSAL, 0.0), (FULL, 0.5), (HARDWARE, 0.5)])
def test_the_masked_half_is_a_gain_where_the_log_counts_it(counts: str, masked: float) -> None:
    """An attention of 191.5 MFLOPs, which would take 1 us at the peak, half of it masked."""
    op = Op("a", "attention", (), (), BLOCK, flops=191_500_000, dtype="bf16", label="attention",
            attributes={"sequence": 64})  # fmt: skip
    counted = module._Counted(counts, PEAK, FRONTIER)
    counted.add(OpTime(op, 1, 4 * US))
    assert counted.useful_s[ATTENTION] == pytest.approx(0.5e-6)
    assert counted.useful_s.get(MASKED, 0.0) == pytest.approx(masked * 1e-6)


def test_linears_in_fp8_are_held_to_their_own_peak() -> None:
    """989 TFLOP/s in bf16 and 1,979 in fp8: 2^31 FLOPs take 2.171 and 1.085 us."""
    machine = load_machine("dgx-h100")
    bf16, fp8 = (machine.device.peak_flops_per_s[name] for name in ("bf16", "fp8"))
    counted = module._Counted(FULL, bf16, machine)
    counted.add(OpTime(matmul(1024, 1024, 1024, "fp8"), 1, 2 * US))
    assert counted.useful_s[MATMULS] == pytest.approx(2**31 / fp8)
    assert counted.useful_s[FASTER] == pytest.approx(2**31 * (1 / bf16 - 1 / fp8))


STEPS = [
    ("tiny-2m", "dgx-h100", "megatron-core", "tp=2,pp=2,dp=2,mbs=1", 8),
    ("tiny-2m", "dgx-h100", "megatron-core", "pp=2,vpp=2,dp=4,mbs=1,recompute=full", 16),
    ("tiny-2m", "dgx-h100", "torchtitan", "dp=8,mbs=1", 8),
    ("tiny-2m", "dgx-h100", "nemo", "tp=2,cp=2,dp=2,mbs=2,precision=fp8", 8),
    ("tiny-2m", "frontier", "axonn", "x=2,z=2,dp=2,mbs=2,recompute=full", 8),
    ("tiny-mixtral-2m", "dgx-h100", "megatron-core", "ep=4,dp=8,mbs=1", 16),
    ("tiny-mixtral-2m", "dgx-h100", "simgpt", "pp=2,dp=4,ep=2,mbs=1,attention=unfused", 8),
]


@pytest.mark.parametrize(("model", "machine", "stack", "plan", "batch"), STEPS)
def test_losses_and_the_utilisation_of_the_log_are_the_whole_peak(
    model: str, machine: str, stack: str, plan: str, batch: int
) -> None:
    prediction, found = waterfall_of(model, machine, stack, plan, batch)
    log = prediction.logged
    assert found.end == (prediction.mfu if log is None else log.share)
    assert sum(found.share(loss) for loss in found.losses) == pytest.approx(1 - found.end, abs=1e-9)
    assert sum(loss.seconds for loss in found.losses) == pytest.approx(prediction.step_s, rel=1e-9)
    assert found.levels[-1] == pytest.approx(found.end, abs=1e-9)
    assert all(
        loss.lost_s >= 0 for loss in found.losses if loss.key not in (FASTER, MASKED, UNEVEN)
    )


@pytest.mark.parametrize(("model", "machine", "stack", "plan", "batch"), STEPS)
def test_what_is_left_to_the_mfu_is_what_the_busiest_stage_has_beyond_the_mean(
    model: str, machine: str, stack: str, plan: str, batch: int
) -> None:
    """Against the programs' FLOPs, of which ranks of a stage have equal parts. The diagonal of the
    mask, half of which a log counts, is some thousandth of attention."""
    prediction, found = waterfall_of(model, machine, stack, plan, batch)
    grid, pp = prediction.plan.grid, prediction.plan.pp
    stages = [lower(prediction.gpt, prediction.plan, stage).model_flops for stage in range(pp)]
    beyond = max(stages) * pp / sum(stages) - 1
    mean_s = sum(stages) / grid.ranks / prediction.peak_flops_per_s
    assert found.of(UNEVEN) * found.step_s == pytest.approx(beyond * mean_s, abs=2e-3 * mean_s)


def test_without_stages_no_device_has_more_work_than_the_mean() -> None:
    _, found = waterfall_of(*STEPS[2])
    assert found.of(UNEVEN) == pytest.approx(0.0, abs=1e-9)


def test_a_stage_with_more_layers_loses_what_it_has_beyond_the_mean() -> None:
    """The first of two stages has three of four layers; ranks of a stage share its FLOPs."""
    prediction, found = waterfall_of(
        "tiny-2m", "dgx-h100", "simgpt", "pp=2,dp=4,mbs=1,stage_layers=3+1", 16
    )
    stages = [lower(prediction.gpt, prediction.plan, stage).model_flops for stage in (0, 1)]
    beyond_s = (stages[0] / 4 - sum(stages) / 8) / prediction.peak_flops_per_s
    assert found.of(UNEVEN) == pytest.approx(beyond_s / prediction.step_s, rel=1e-6)
    assert found.of(UNEVEN) > 0


def record(*levels: float, remedies: tuple[float | None, ...] = ()) -> dict[str, Any]:
    after = (*remedies, *[None] * (len(levels) - len(remedies)))
    losses = [
        {"name": f"loss {number}", "left": level, "remedy": "mbs=2", "with_remedy": regained}
        for number, (level, regained) in enumerate(zip(levels, after, strict=True))
    ]
    return {"losses": losses, "counts": CAUSAL, "as_in_the_log": True}


@given(st.lists(st.floats(0.0, 1.4), min_size=1, max_size=12))
def test_printed_changes_add_up_to_the_printed_utilisation(levels: list[float]) -> None:
    rows = waterfall_rows(record(*levels))
    changes = [Decimal(change.removesuffix(" %")) for _, _, change, _ in rows if change]
    assert 100 + sum(changes) == Decimal(rows[-1][3].removesuffix(" %"))
    assert rows[-1][3] == f"{round(1000 * levels[-1]) / 10:.1f} %"


def test_rows_say_what_a_simulated_change_reaches_and_leave_out_what_changes_nothing() -> None:
    assert waterfall_rows(record(0.7, 0.7, 0.4, remedies=(0.45,))) == [
        ("peak FLOP/s", "", "", "100.0 %"),
        ("loss 0", "mbs=2: 45.0 %", "-30.0 %", "70.0 %"),
        ("loss 2", "mbs=2", "-30.0 %", "40.0 %"),
        ("MFU (causal, as in the log)", "", "", "40.0 %"),
    ]


def waterfall(matmuls_s: float, waits_s: float) -> MfuWaterfall:
    """One second of work at the peak, and two losses."""
    step_s = matmuls_s + waits_s
    losses = [Loss(MATMULS, MATMULS, matmuls_s, 1.0, "as usual"), Loss("dp", "dp", waits_s, 0.0)]
    return MfuWaterfall(losses, step_s, 1 / step_s, FULL, is_logged=False)


def test_each_loss_is_given_the_change_that_shrinks_it_most() -> None:
    changes = {
        "less waiting": waterfall(2.0, 0.4),
        "no waiting": waterfall(2.1, 0.1),
        "slower, with faster matmuls": waterfall(1.2, 2.0),
    }
    matmuls, waits = waterfall(2.0, 1.0).with_changes(changes).losses
    assert waits.remedy == "no waiting"
    assert waits.regained == pytest.approx(1 / 2.2)
    assert (matmuls.remedy, matmuls.regained) == ("as usual", None)


def test_a_step_of_twice_the_time_has_half_the_utilisation() -> None:
    once = waterfall(2.0, 1.0).with_changes({"no waiting": waterfall(2.1, 0.1)})
    twice = once.scaled(2.0)
    assert twice.end == once.end / 2
    assert twice.levels[-1] == pytest.approx(twice.end)
    assert twice.losses[1].regained == pytest.approx(0.5 / 2.2)
