"""Rooflines: intensities and rates by hand, and what no kind of op of any step may exceed."""

from __future__ import annotations

import pytest

from simulator.attribution.compute_ops import OpTime
from simulator.explain.roofline import KindOfOp, Roofline, Roofs, kinds_of, roofline, whole_step
from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from tests.blocks import BLOCK
from tests.messages import names
from topologies.errors import MachineError
from topologies.machine_files import load_machine
from topologies.placement import contiguous
from topologies.placement_names import parse_placement
from workload.gpt import find_model
from workload.kinds import Work
from workload.op import STEP, Block, Op
from workload.plan_text import parse_plan

FRONTIER = load_machine("frontier")  # 191.5 TFLOP/s over 1.6384 TB/s: the ridge is at 116.9
US = 10**6  # ticks


def matmul(m: int, n: int, k: int, dtype: str = "bf16", label: str = "up.matmul") -> Op:
    return Op(label, "matmul", (), (), BLOCK, nbytes=2 * (m * n + n * k + m * k),
              flops=2 * m * n * k, dtype=dtype, label=label,
              attributes={"form": "NN", "m": m, "n": n, "k": k})  # fmt: skip


def plain(kind: str, nbytes: int, block: Block = BLOCK) -> Op:
    return Op(kind, kind, (), (), block, nbytes=nbytes, label=kind)


def roofs_of(kinds: list[KindOfOp]) -> Roofs:
    peaks = {kind.dtype: kind.peak_flops_per_s for kind in kinds if kind.flops}
    return Roofs(1.6384e12, 1.2566e12, peaks, None)


def of_step(
    text: str, model: str = "tiny-1m", machine: str = "frontier", stack: str = "simgpt"
) -> tuple[Prediction, Roofline]:
    plan, built = parse_plan(text, batch=32), load_machine(machine)
    placement = parse_placement("scheduler", built, plan.grid.ranks)
    found = predict(find_model(model), plan, built, placement=placement, stack=load_stack(stack))
    return found, roofline(found, built, placement)


def test_three_square_matmuls_of_20_us_reach_107_teraflops() -> None:
    """2 * 1024^3 FLOPs over 3 * 1024^2 elements of 2 bytes: 1024 / 3 FLOPs a byte, right of the
    ridge; and 2^31 FLOPs in 20 us are 107.4 TFLOP/s of 191.5."""
    found = kinds_of([OpTime(matmul(1024, 1024, 1024), 3, 60 * US)], FRONTIER)
    roofs = roofs_of(found)
    (kind,) = found
    assert (kind.name, kind.flops, kind.nbytes) == ("up.matmul", 3 * 2**31, 9 * 2**21)
    assert kind.intensity == pytest.approx(1024 / 3)
    assert kind.flops_per_s == pytest.approx(107.374e12, rel=1e-5)
    assert not kind.is_memory_bound(roofs)
    assert kind.share_of_roof(roofs) == pytest.approx(107.374 / 191.5, rel=1e-5)


def test_a_flat_matmul_is_held_to_the_memory() -> None:
    """16 rows: 2^25 FLOPs over 2 * (2 * 16 * 1024 + 1024^2) = 2,162,688 bytes, 15.5 a byte; in 2 us
    these are 1.081 of 1.638 TB/s."""
    found = kinds_of([OpTime(matmul(16, 1024, 1024), 1, 2 * US)], FRONTIER)
    roofs = roofs_of(found)
    assert found[0].intensity == pytest.approx(2**25 / 2_162_688)
    assert found[0].is_memory_bound(roofs)
    assert found[0].share_of_roof(roofs) == pytest.approx(1.081344 / 1.6384)


def test_ops_without_flops_are_kinds_by_the_bytes_that_they_move() -> None:
    ops = [
        OpTime(plain("layernorm", 10**6), 4, 4 * US),
        OpTime(plain("rmsnorm_grad", 2 * 10**6), 2, 4 * US),
        OpTime(plain("gelu", 10**6), 1, 1 * US),
        OpTime(plain("rope", 10**6), 1, 1 * US),
        OpTime(plain("zero", 5 * 10**6, STEP), 1, 10 * US),
    ]
    found = {kind.name: kind for kind in kinds_of(ops, FRONTIER)}
    assert list(found) == ["optimizer", "norms", "activation functions", "other elementwise"]
    norms, roofs = found["norms"], roofs_of(list(found.values()))
    assert (norms.flops, norms.intensity, norms.nbytes, norms.seconds) == (0, None, 8e6, 8e-6)
    assert norms.share_of_roof(roofs) == pytest.approx(1 / 1.6384)
    assert [kind.share for kind in found.values()] == [0.5, 0.4, 0.05, 0.05]


def test_ops_of_experts_and_recipes_have_kinds_of_their_own() -> None:
    """Casts of weights follow the optimizer and are casts as those of activations are."""
    gpt, machine = find_model("mixtral-8x7b"), load_machine("dgx-h100")
    text = "ep=8,dp=rest,mbs=1,zero=2,recompute=full,recipe=fp8-tensorwise"
    plan = parse_plan(text, devices=16, batch=32)
    found = roofline(predict(gpt, plan, machine), machine, contiguous(machine, 16))
    names = [(kind.name, kind.dtype) for kind in found.kinds]
    assert len({*names}) == len(names)
    shares = {kind.name: kind.share for kind in found.kinds}
    named = ("routing", Work.ROWS.value, Work.CASTS.value, "optimizer")
    assert all(shares[name] > 0 for name in named)
    assert shares["activation functions"] > shares["other elementwise"] > 0


def test_attention_counts_what_a_causal_kernel_does() -> None:
    """Of 8 FLOPs of the square 4, of 16 of its gradient 5 products where 2 * 2 are counted: 10."""
    both = [
        Op(kind, kind, (), (), BLOCK, nbytes=8, flops=flops, label=kind)
        for kind, flops in (("attention", 8), ("attention_grad", 16))
    ]
    found = kinds_of([OpTime(op, 1, US) for op in both], FRONTIER)
    assert {kind.name: kind.flops for kind in found} == {"attention": 4, "attention.grad": 10}


def test_a_data_type_without_a_peak_is_refused_by_name() -> None:
    ops = [OpTime(matmul(64, 64, 64, dtype="fp8"), 1, US)]
    with pytest.raises(MachineError, check=names("frontier", "device.peak_flops.fp8")):
        kinds_of(ops, FRONTIER)


def test_a_step_of_two_data_types_has_the_peak_of_both_one_after_the_other() -> None:
    """As many FLOPs at 989 and at 1,979 TFLOP/s: the harmonic mean of both."""
    ops = [OpTime(matmul(64, 64, 64, dtype), 1, US) for dtype in ("bf16", "fp8")]
    prediction, _ = of_step("dp=2")
    step = whole_step(kinds_of(ops, load_machine("dgx-h100")), prediction)
    assert step.dtype == "bf16+fp8"
    assert step.peak_flops_per_s == pytest.approx(2 / (1 / 989e12 + 1 / 1979e12))


@pytest.mark.parametrize(
    ("text", "machine", "stack"),
    [
        ("dp=8", "frontier", "simgpt"),
        ("tp=2,y=2,z=2,dp=2,overlap=oar+ors+oag", "frontier", "simgpt"),
        ("tp=2,pp=2,dp=2,zero=1,recompute=full,overlap=none", "frontier", "megatron-deepspeed"),
        ("pp=4,dp=2,mbs=2,schedule=zb-h1", "dgx-h100", "simgpt"),
        ("pp=2,vpp=2,dp=4,mbs=1", "perlmutter", "megatron-core"),
        ("z=8,zero=1,attention=unfused", "dgx-a100", "simgpt"),
    ],
)
def test_kinds_make_up_the_compute_of_the_step_below_their_roofs(
    text: str, machine: str, stack: str
) -> None:
    """No table of these machines was measured above what their data sheets say."""
    prediction, found = of_step(text, machine=machine, stack=stack)
    parts = prediction.breakdown_s
    every = sum(kind.seconds for kind in found.kinds)
    assert every == pytest.approx(parts["compute"] + parts["optimizer"], rel=1e-12)
    assert sum(kind.share for kind in found.kinds) == pytest.approx(1)
    assert found.step.share == pytest.approx(every / prediction.step_s)
    assert all(0 < kind.share_of_roof(found.roofs) <= 1 for kind in (*found.kinds, found.step))
    assert found.step.flops == sum(kind.flops for kind in found.kinds)
    assert found.step.nbytes == sum(kind.nbytes for kind in found.kinds)


def test_where_nothing_is_computed_twice_the_step_reaches_the_hfu() -> None:
    """Unfused attention multiplies whole squares, so nothing is counted in another way."""
    prediction, found = of_step("dp=4,attention=unfused,recompute=full")
    assert found.step.flops_per_s == pytest.approx(
        prediction.hardware_flops_per_s_per_device, rel=1e-12
    )


def test_a_pipeline_is_that_of_its_busiest_stage() -> None:
    """The last of two stages has the head beside as many layers."""
    _, found = of_step("pp=2,dp=2,mbs=1")
    assert found.stage == 1
    names = {kind.name for kind in found.kinds}
    assert {"head.matmul", "loss", "optimizer"} <= names
    assert "embedding" not in names
