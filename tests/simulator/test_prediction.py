"""Predictions as a whole: sums, conventions, and the time and memory it takes to make one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from math import fsum
from pathlib import Path

import numpy as np
import pytest

from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from simulator.stacks.stack import EXECUTOR
from simulator.uncertainty.fitting import DOES_NOT_FIT, kind_of, peak_errors
from tests.messages import names
from topologies.errors import MachineError
from topologies.machine_files import load_machine
from topologies.placement import Placement, contiguous
from workload.errors import PlanCannotRunError
from workload.expert_loads.histogram import Histogram, routed
from workload.gpt import find_model
from workload.plan_text import parse_plan

ROOT = Path(__file__).resolve().parents[2]
PLANS = {
    "gpt-5b": "tp=2,y=2,z=2,dp=64,recompute=full",
    "gpt-20b": "tp=4,y=2,z=8,dp=8,mbs=1",
    "gpt-80b": "tp=8,y=2,z=8,dp=4,mbs=2,recompute=full,overlap=oar+ors+oag",
}


def predicted(model: str, machine: str = "frontier", batch: int = 4096) -> Prediction:
    plan = parse_plan(PLANS[model], batch=batch)
    return predict(find_model(model), plan, load_machine(machine))


@pytest.mark.parametrize(
    ("machine", "model"),
    [("frontier", "gpt-5b"), ("perlmutter", "gpt-20b"), ("frontier", "gpt-80b")],
)
def test_the_breakdown_sums_to_the_step(model: str, machine: str) -> None:
    prediction = predicted(model, machine)
    parts = prediction.breakdown_s.values()
    assert fsum(parts) == pytest.approx(prediction.step_s, rel=1e-12)
    assert min(parts) >= 0


def test_offloaded_states_take_the_host_s_memory_and_time_on_its_link() -> None:
    gpt, machine = find_model("gpt-5b"), load_machine("perlmutter")
    here, away = (
        predict(gpt, parse_plan(f"tp=4,dp=4,recompute=full,offload={where}", batch=16), machine)
        for where in ("none", "optimizer")
    )
    assert away.memory.host_bytes == here.memory.parts["optimizer"]
    assert away.memory.peak_bytes == sum(away.memory.parts.values()) < here.memory.peak_bytes
    # 15 GB of states per rank at 25 GB/s, either way at once, beside AdamW's 40 ms.
    link_s = away.memory.host_bytes / machine.node.host.bytes_per_s
    assert away.step_s - here.step_s == pytest.approx(link_s, rel=0.1)
    assert away.breakdown_s["to_device"] == pytest.approx(link_s, rel=0.2)
    assert fsum(away.breakdown_s.values()) == pytest.approx(away.step_s, rel=1e-12)


@pytest.mark.parametrize(
    "machine", ["frontier", pytest.param("perlmutter", marks=pytest.mark.slow)]
)
def test_a_folded_prediction_is_the_whole_one(machine: str) -> None:
    gpt = replace(find_model("gpt-5b"), layers=14)
    plan = parse_plan("tp=4,y=2,z=4,dp=4,mbs=1,recompute=full", batch=112)
    whole = predict(gpt, plan, load_machine(machine), fold=False)
    assert predict(gpt, plan, load_machine(machine)) == whole


def test_utilisation_follows_the_published_formulas() -> None:
    prediction = predicted("gpt-80b")
    gpt, machine = find_model("gpt-80b"), load_machine("frontier")
    peak = prediction.step_s * prediction.devices * machine.device.peak_flops_per_s["bf16"]
    assert prediction.mfu == pytest.approx(gpt.model_flops(4096) / peak, rel=1e-3)
    assert prediction.hfu == pytest.approx(gpt.hardware_flops(4096) / peak, rel=1e-3)


@pytest.mark.parametrize(("precision", "peak"), [("fp32", 19.5e12), ("bf16", 312e12)])
def test_utilisation_relates_to_the_peak_of_the_plan_s_precision(
    precision: str, peak: float
) -> None:
    """An A100 multiplies 16 times as fast in bf16 as in fp32; 64 sequences on 64 of them."""
    gpt = find_model("gpt-5b")
    plan = parse_plan(f"tp=4,y=2,z=8,precision={precision}", batch=64)
    prediction = predict(gpt, plan, load_machine("perlmutter"))
    s, n, h, v = gpt.sequence, gpt.layers, gpt.hidden, gpt.vocab
    # Narayanan et al. (SC21), equation 3, without its quarter of recomputation.
    flops = 72 * 64 * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h))
    utilisation = flops / (64 * peak * prediction.step_s)
    assert prediction.mfu == prediction.hfu == pytest.approx(utilisation, rel=1e-3)


def test_without_recomputation_hardware_flops_are_model_flops() -> None:
    prediction = predicted("gpt-20b")
    assert prediction.hfu == prediction.mfu


EVEN, UNEVEN = (2, 2, 2, 2), (5, 1, 1, 1)


@pytest.mark.parametrize(
    ("counts", "capacity", "kept", "computed"),
    [
        ((), 0, 1, 1),
        ((), 0.5, 1 / 2, 1 / 2),
        ((), 4, 1, 4),
        (EVEN, 0.5, 1 / 2, 1 / 2),
        (UNEVEN, 0, 1, 1),
        (UNEVEN, 0.5, 1 / 2, 1 / 2),
        (UNEVEN, 1, 5 / 8, 1),
        (UNEVEN, 4, 1, 4),
    ],
)
def test_what_experts_drop_and_their_empty_places_are_no_flops_of_the_model(
    counts: tuple[int, ...], capacity: float, kept: float, computed: float
) -> None:
    """Shares of experts' rows, of which each token has topk; three matrices, forward and twice
    back. Of 8 choices of four experts each has place for 2 times the capacity: if the first gets 5,
    with one time the even share it drops 3, and the others compute an empty place each."""
    gpt = find_model("tiny-mixtral-2m").changed(capacity=capacity)
    plan = parse_plan("dp=2,ep=2", batch=16)
    asked = routed(gpt, Histogram((counts,) * gpt.layers)) if counts else gpt
    found = predict(asked, plan, load_machine("dgx-h100"))
    rows = gpt.layers * plan.batch * gpt.sequence * gpt.moe.topk
    experts = 3 * 2 * 3 * gpt.hidden * gpt.moe.expert_ffn * rows
    rest = gpt.model_flops(plan.batch) - experts
    device_s = found.step_s * plan.grid.ranks
    rates = found.model_flops_per_s_per_device, found.hardware_flops_per_s_per_device
    assert [rate * device_s for rate in rates] == pytest.approx(
        [rest + kept * experts, rest + computed * experts]
    )


def test_mfu_of_causal_attention_leaves_out_what_no_query_sees() -> None:
    """Of s keys a query sees half, and itself; scores and values are 2 FLOPs a column each."""
    found = predicted("gpt-20b")
    gpt = found.gpt
    pairs = gpt.sequence * (gpt.sequence - 1) // 2
    flops = 3 * 4 * gpt.hidden * gpt.layers * found.plan.batch * pairs
    left_out = flops / (found.step_s * found.devices * found.peak_flops_per_s)
    assert found.mfu - found.mfu_causal == pytest.approx(left_out)
    assert found.as_dict()["mfu_causal"] == found.mfu_causal


@pytest.mark.parametrize(
    ("stack", "counts"),
    [
        ("megatron-core", "causal"),
        ("nemo@24.05", "full"),
        ("torchtitan", "full"),
        ("megatron-deepspeed", "hardware"),
    ],
)
def test_utilisation_is_said_as_the_log_of_the_stack_counts_it(stack: str, counts: str) -> None:
    """With every layer recomputed the three differ."""
    plan = parse_plan("tp=1,y=1,z=1,dp=8,mbs=1,recompute=full", batch=8)
    gpt, machine = find_model("gpt-5b"), load_machine("dgx-a100")
    found = predict(gpt, plan, machine, stack=load_stack(stack))
    shares = {"causal": found.mfu_causal, "full": found.mfu, "hardware": found.hfu}
    assert len(set(shares.values())) == 3
    rate = shares[counts] * found.peak_flops_per_s
    said = {"share": shares[counts], "flops_per_s": pytest.approx(rate), "counts": counts}
    assert found.as_dict()["logged"] == said


def test_where_no_log_is_known_none_is_said() -> None:
    assert predicted("gpt-5b").logged is None


def test_a_model_that_is_too_large_does_not_fit() -> None:
    plan = parse_plan("dp=8", batch=8)
    memory = predict(find_model("gpt-80b"), plan, load_machine("frontier")).memory
    assert not memory.fits
    assert sum(memory.parts.values()) == memory.peak_bytes


def test_a_plan_fits_up_to_a_peak_of_which_nine_of_ten_runs_do() -> None:
    """And is tight up to one of which one of ten does."""
    gpt, machine = find_model("gpt-5b"), load_machine("frontier")
    plan = parse_plan("tp=4,y=2,mbs=1", batch=4)
    peak = predict(gpt, plan, machine).memory.peak_bytes
    reserve = machine.device.reserve_bytes
    assert reserve > 0
    errors = peak_errors(kind_of(EXECUTOR, experts=False))
    ways = (0.901, "fits"), (0.899, "tight"), (0.101, "tight"), (0.099, "does not fit")
    for p_fits, verdict in ways:
        capacity = int(peak * math.exp(errors.quantile(p_fits)))
        device = replace(machine.device, memory_bytes=capacity + reserve)
        memory = predict(gpt, plan, replace(machine, device=device)).memory
        assert (memory.peak_bytes, memory.capacity_bytes, memory.verdict) == (
            *(peak, capacity),
            verdict,
        )
        assert memory.p_fits == pytest.approx(p_fits, abs=1e-6)
        assert memory.fits is (verdict != DOES_NOT_FIT)


def test_ops_of_more_flops_than_63_bits_hold_are_counted() -> None:
    """A rank has two million sequences; of one it has as many FLOPs for each."""
    gpt, machine = find_model("llama-3.1-8b"), load_machine("dgx-h100")
    one, many = (predict(gpt, parse_plan("dp=8", batch=b), machine) for b in (8, 2**24))
    flops = [each.model_flops_per_s_per_device * each.step_s for each in (one, many)]
    assert flops[1] > 2**63
    assert flops[1] == pytest.approx(2**21 * flops[0])


@pytest.mark.parametrize(("layers", "batch"), [(10, 11), (60, 1)])
def test_a_step_longer_than_ticks_can_count_is_refused(layers: int, batch: int) -> None:
    """That of 60 layers is so only once the layers are put in that a folded step leaves out."""
    wide = find_model("gpt-80b").changed(hidden=200_000, heads=10_000, ffn=1_000_000)
    gpt = replace(wide, layers=layers, sequence=10_000_000)
    plan = parse_plan(f"tp=8,mbs={batch}", batch=batch)
    with pytest.raises(PlanCannotRunError, check=names("106 days")):
        predict(gpt, plan, load_machine("frontier"))


def test_the_timeline_is_the_whole_step() -> None:
    plan = parse_plan(PLANS["gpt-5b"], batch=1024)
    prediction = predict(find_model("gpt-5b"), plan, load_machine("frontier"), timeline=True)
    assert prediction.timeline is not None
    assert prediction.timeline.step_s == pytest.approx(prediction.step_s, rel=1e-9)
    assert len(prediction.timeline.of_rank(0)) == prediction.ops


def test_the_same_prediction_is_the_same_text_twice() -> None:
    first, second = (json.dumps(predicted("gpt-80b").as_dict()) for _ in range(2))
    assert first == second


def test_json_has_the_promised_keys() -> None:
    keys = """step_s tokens_per_s model_flops_per_s_per_device mfu hfu memory breakdown_s plan
        plan_string machine devices model program"""
    given = predicted("gpt-5b").as_dict()
    assert set(keys.split()) <= set(given)
    assert set(given["memory"]) >= {"peak_bytes", "capacity_bytes", "fits", "parts"}
    assert set(given["program"]) == {"ops", "comm_bytes"}


def test_a_placement_of_other_ranks_than_the_plans_is_refused() -> None:
    machine, plan = load_machine("frontier"), parse_plan("dp=8", batch=8)
    with pytest.raises(MachineError, check=names("16", "8")):
        predict(find_model("gpt-5b"), plan, machine, placement=contiguous(machine, 16))


def test_ranks_that_are_spread_over_nodes_wait_for_the_network() -> None:
    """Eight ranks of z on eight nodes gather through NICs what one node's own links carry."""
    machine, plan = load_machine("frontier"), parse_plan("z=8,mbs=1", batch=8)
    ranks = np.arange(8, dtype=np.int64)
    spread = Placement(node=ranks, device=np.zeros_like(ranks))
    together, apart = (
        predict(find_model("gpt-5b"), plan, machine, placement=placement)
        for placement in (None, spread)
    )
    assert apart.breakdown_s["z"] > together.breakdown_s["z"]


LARGEST = """
import re, sys
from pathlib import Path
from simulator.predict import predict
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.plan_text import parse_plan
plan = parse_plan("tp=8,y=2,z=64,dp=32,recompute=full", batch=8192)
predict(find_model("gpt-640b"), plan, load_machine("frontier"))
assert not {"torch", "networkx", "matplotlib", "scipy"} & set(sys.modules)
# Not getrusage: what it says of a new process includes the one that started it.
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
assert int(peak[1]) < 300_000
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_thirty_thousand_devices_take_less_than_three_hundred_megabytes() -> None:
    subprocess.run([sys.executable, "-c", LARGEST], check=True, cwd=ROOT, timeout=60)
