"""Elasticities and what-ifs: small machines worked out by hand, and laws that all must keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import reject, settings
from hypothesis import strategies as st

from simulator.attribution.time_shares import ALL, SLOTS, shares_of
from simulator.explain.bottleneck_link import INSIDE, SORTS, limiting_link
from simulator.explain.sensitivity import FACTOR, MachineParameter, elasticity, parameters
from simulator.explain.what_if import neighbours, twice_as_good
from simulator.explain.why import why
from simulator.predict import predict
from tests.examples import few_and_many
from tests.messages import assert_names
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import contiguous
from workload.gpt import find_model
from workload.lowering import check
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.recomputation.parts import RECOMPUTES

FRONTIER = load_machine("frontier")
TINY = find_model("tiny-1m")
MACHINES = ("frontier", "perlmutter", "alps", "lumi", "dgx-a100", "dgx-h100", "kestrel")


def nic() -> MachineParameter:
    """The bandwidth of a NIC, 25 GB/s."""
    return next(p for p in parameters(FRONTIER, "bf16") if p.name == "node.nics.bandwidth")


def step_on(plan: str, batch: int = 32) -> Callable[[Machine], float]:
    parsed = parse_plan(plan, batch=batch)
    return lambda machine: predict(TINY, parsed, machine).step_s


def test_time_that_goes_as_one_over_a_rate_has_the_elasticity_minus_one() -> None:
    found = elasticity(nic(), FRONTIER, lambda m: 1e9 / m.node.nics.bytes_per_s)
    assert found.value == pytest.approx(-1, abs=1e-12)


def test_half_of_the_time_behind_a_rate_halves_the_elasticity() -> None:
    """t = 1 + 25 GB/s / p: at p / 1.1 it is 2.1, at p * 1.1 it is 1 + 1 / 1.1."""
    found = elasticity(nic(), FRONTIER, lambda m: 1 + 25e9 / m.node.nics.bytes_per_s)
    expected = math.log((1 + 1 / FACTOR) / (1 + FACTOR)) / (2 * math.log(FACTOR))
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.value == pytest.approx(-0.5, abs=1e-2)


def test_links_are_changed_by_one() -> None:
    """From 3 to 5 links between groups, time that goes as one over their number."""
    links = next(p for p in parameters(FRONTIER, "bf16") if p.name.endswith("global_links"))
    seen: list[int] = []

    def seconds_on(machine: Machine) -> float:
        seen.append(machine.interconnect.global_links)  # type: ignore[union-attr]
        return 1 / seen[-1]

    assert elasticity(links, FRONTIER, seconds_on).value == pytest.approx(-1)
    assert seen == [3, 5]


def test_the_rate_of_links_to_a_switch_is_listed_once() -> None:
    """18 links of 25 GB/s are one rate of 450 GB/s."""
    names = {p.name for p in parameters(load_machine("dgx-h100"), "bf16")}
    assert [name for name in names if name.startswith("node.links.")] == ["node.links.bandwidth"]


def test_a_class_of_links_in_the_node_is_changed_by_itself() -> None:
    (four,) = (p for p in parameters(FRONTIER, "bf16") if p.of_class == 4)
    changed = with_settings(FRONTIER, four.settings(FRONTIER, 5))
    before = {(a, b): n for a, b, n in FRONTIER.node.links.pairs}
    after = {(a, b): n for a, b, n in changed.node.links.pairs}
    assert after == {pair: 5 if n == 4 else n for pair, n in before.items()}


@st.composite
def drawn_plans(draw: st.DrawFn) -> Plan:
    """Plans of tiny-1m on 1 to 64 devices, with all that may change a step's collectives."""
    axes = {key: draw(st.sampled_from([1, 2, 4])) for key in ("tp", "y", "z", "dp")}
    keys: dict[str, Any] = {**axes, "pp": draw(st.sampled_from([1, 1, 2])), "mbs": 1}
    keys["zero"] = draw(st.integers(0, 3)) if axes["dp"] > 1 and axes["z"] == 1 else 0
    keys["schedule"] = draw(st.sampled_from(["1f1b", "zb-h1"])) if keys["pp"] > 1 else "1f1b"
    keys["recompute"] = draw(st.sampled_from(RECOMPUTES))
    keys["overlap"] = draw(st.sampled_from([(), OVERLAPS, ("oar", "ors", "oag")]))
    keys["sp"] = axes["tp"] > 1 and draw(st.booleans())
    try:
        plan = Plan.of(batch=64, **keys)
        check(TINY, plan)
    except SimgptError:
        reject()
    return plan


@few_and_many(4, 60, settings(deadline=None), name=st.sampled_from(MACHINES), plan=drawn_plans())
def test_a_machine_twice_as_fast_in_everything_takes_half_as_long(name: str, plan: Plan) -> None:
    """But for its library's tuner, whose constants are its own."""
    machine = with_settings(load_machine(name), {"software.tuner": "none"})
    with_unit = [p for p in parameters(machine, "bf16") if p.unit]
    changes: dict[str, object] = {}
    for p in with_unit:
        changes |= p.settings(machine, p.value * (2 if p.is_rate else 0.5))
    usual, fast = (
        predict(TINY, plan, each).step_s for each in (machine, with_settings(machine, changes))
    )
    assert fast == pytest.approx(usual / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("perlmutter", "tp=2,y=2,z=2"),
        pytest.param("frontier", "z=8,dp=4", marks=pytest.mark.slow),
        pytest.param("perlmutter", "dp=2,pp=2,tp=2", marks=pytest.mark.slow),
        pytest.param("frontier", "tp=2,y=2,z=2", marks=pytest.mark.slow),
        pytest.param("frontier", "dp=2,pp=2,tp=2", marks=pytest.mark.slow),
        pytest.param("perlmutter", "z=8,dp=4", marks=pytest.mark.slow),
    ],
)
def test_sensitivities_to_durations_minus_those_to_rates_sum_to_one(name: str, plan: str) -> None:
    machine = load_machine(name)
    seconds_on = step_on(plan)
    found = [elasticity(p, machine, seconds_on) for p in parameters(machine, "bf16")]
    total = sum(e.value * (-1 if e.parameter.is_rate else 1) for e in found if e.parameter.unit)
    assert total == pytest.approx(1, abs=0.03)  # a library that changes its algorithm makes a kink
    assert all(e.value <= 1e-9 for e in found if e.parameter.unit == "FLOP/s")


def test_a_twice_as_good_machine_has_its_rates_doubled_and_its_durations_halved() -> None:
    better = {
        parameter.name: each
        for each in twice_as_good(parameters(FRONTIER, "bf16"))
        for parameter in each.parameters
    }
    nics = with_settings(FRONTIER, better["node.nics.bandwidth"].settings(FRONTIER))
    assert nics.node.nics.bytes_per_s == 2 * FRONTIER.node.nics.bytes_per_s
    quick = with_settings(FRONTIER, better["device.launch"].settings(FRONTIER))
    assert quick.device.launch_s == pytest.approx(FRONTIER.device.launch_s / 2)
    assert quick.device.matmul.launch_s == pytest.approx(FRONTIER.device.matmul.launch_s / 2)


def test_a_parameter_says_its_value_in_its_unit() -> None:
    assert nic().text == "25 GB/s"
    assert MachineParameter("links", 1, None, counted=True).text == "1 link"
    single, several = (MachineParameter("links", n, None, counted=True).difference for n in (1, 4))
    assert single != several  # of one link none can be taken away
    assert_names(single, "links")
    assert_names(several, "links")
    assert MachineParameter("launch", 1e-6, "s").difference == "10 % of launch"


def test_numbers_without_a_unit_are_asked_for_by_name() -> None:
    usual, every = (parameters(FRONTIER, "bf16", pure=pure) for pure in (False, True))
    assert all(p.unit or p.counted for p in usual)
    added = {p.name: p for p in every if p not in usual}
    efficiency = added["software.all_gather.efficiency_across"]
    assert efficiency.text == "0.7362"
    changed = with_settings(FRONTIER, efficiency.settings(FRONTIER, 0.5))
    assert changed.software.all_gather is not None
    assert changed.software.all_gather.efficiency_across == 0.5
    assert {"device.matmul.e_max", "software.compute_share"} <= added.keys()


def test_a_share_near_one_rises_no_further_than_its_range() -> None:
    """What is reached goes up to 1, what others take half way there; t = 1/p and t = 1/(1 - p)."""
    reached, taken = "software.all_gather.efficiency_across", "interconnect.background"
    machine = with_settings(FRONTIER, {reached: 0.96, taken: 0.94})
    found = {p.name: p for p in parameters(machine, "bf16", pure=True)}
    assert found[reached].steps() == pytest.approx((0.96 / FACTOR, 1))
    assert found[taken].steps() == pytest.approx((0.94 / FACTOR, 0.97))
    rise = elasticity(
        found[reached],
        machine,
        lambda m: 1 / m.software.all_gather.efficiency_across,  # type: ignore[union-attr]
    )
    assert rise.value == pytest.approx(-1, abs=1e-12)
    assert (
        elasticity(found[taken], machine, lambda m: 1 / (1 - m.interconnect.background)).value > 1
    )


def test_neighbours_are_legal_plans_on_as_many_devices_that_differ_in_what_they_say() -> None:
    plan = parse_plan("tp=2,z=2,dp=2,mbs=2", batch=16)
    found = dict(neighbours(TINY, plan))
    assert found["x=1, z=4"] == parse_plan("z=4,dp=2,mbs=2", batch=16)
    assert found["mbs=4"].mbs == 4
    assert found["z=1, pp=2"].pp == 2
    assert {other.grid.ranks for other in found.values()} == {8}
    assert plan not in found.values()


def test_a_group_in_a_node_and_one_across_nodes_wait_on_different_links() -> None:
    plan = parse_plan("tp=8,dp=4", batch=16)
    placed = contiguous(FRONTIER, 32)
    assert limiting_link(FRONTIER, placed, plan.grid, "tp") == INSIDE
    assert limiting_link(FRONTIER, placed, plan.grid, "dp") == SORTS["node.nics.bandwidth"]


@pytest.mark.parametrize("plan", ["tp=2", "pp=2"])
def test_shares_of_many_micro_batches_are_those_of_every_op(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.costs.analytic import compute_costs
    from simulator.ranks.fabric import MachineFabric

    parsed = parse_plan(f"{plan},mbs=1", batch=24)
    prediction = predict(TINY, parsed, FRONTIER)
    fabric = MachineFabric(FRONTIER, parsed.grid.ranks)
    costs = compute_costs(FRONTIER, fabric.ranks_per_node, parsed.grid.ranks)
    whole = shares_of(prediction, costs, fabric)
    monkeypatch.setattr(
        "simulator.attribution.time_shares.MOST_OPS", prediction.ops * parsed.pp - 1
    )
    few = shares_of(prediction, costs, fabric)
    assert whole.basis == ALL
    few_micro_batches = "simulated with 5 micro-batches, extrapolated to 24"
    assert few.basis == (SLOTS if parsed.pp > 1 else few_micro_batches)
    assert few.seconds == whole.seconds


@pytest.mark.slow
def test_every_figure_of_the_sentence_is_a_simulated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.explain.why._elasticities", lambda *_: [])
    plan = parse_plan("tp=2,z=4,dp=2", batch=8)
    prediction = predict(TINY, plan, FRONTIER)
    found = why(prediction, FRONTIER, contiguous(FRONTIER, 16))
    best, next_best = found.better[:2]
    settings = {b.words: b for b in twice_as_good(parameters(FRONTIER, "bf16"))}[best.words]
    again = predict(TINY, plan, with_settings(FRONTIER, settings.settings(FRONTIER)))
    assert again.step_s == best.step_s
    assert_names(found.sentence, best.words, f"{100 * best.saving:.0f} %")
    assert best.saving >= next_best.saving
    chosen = found.plans[0]
    assert chosen.plan is not None
    assert predict(TINY, chosen.plan, FRONTIER).step_s == chosen.step_s
    assert_names(found.sentence, chosen.words, f"{100 * chosen.saving:.0f} %")
    largest, seconds = next(iter(found.shares.seconds.items()))
    share = f"{100 * seconds / prediction.step_s:.0f} %"
    assert_names(found.sentence, share, str(largest), found.links[largest.axes])


@pytest.mark.slow
def test_a_number_without_a_unit_has_none_in_json() -> None:
    parsed = parse_plan("dp=2", batch=2)
    prediction = predict(replace(TINY, layers=1), parsed, FRONTIER)
    found = why(prediction, FRONTIER, contiguous(FRONTIER, 2), lambda *_, **__: None, pure=True)
    units = {e["key"]: e["unit"] for e in found.as_dict()["sensitivity"]}
    assert units["device.matmul.e_max"] == ""
    assert units["node.nics.bandwidth"] == "bytes/s"
