"""Why a step takes as long: of this plan on these nodes, with what fits, the largest first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simulator.explain.bottleneck_link import limiting_link
from simulator.explain.sensitivity import elasticity, parameters
from simulator.explain.what_if import WhatIf, neighbours, twice_as_good
from simulator.explain.why import LONGEST, Why, why
from simulator.predict import Prediction, predict
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous
from workload.gpt import find_model
from workload.lowering import check
from workload.plan_text import parse_plan

FRONTIER = load_machine("frontier")
TINY = find_model("tiny-1m")
PLAN = parse_plan("tp=2,z=2,dp=2,mbs=2", batch=8)
APART = Placement(node=np.arange(8), device=np.zeros(8, dtype=np.int64))  # a node for each rank


def predicted(machine: Machine) -> Prediction:
    return predict(TINY, PLAN, machine, placement=APART)


@pytest.fixture(scope="module")
def tight() -> Machine:
    """Frontier with just as much memory as the plan takes."""
    peak = f"{predicted(FRONTIER).memory.peak_bytes} B"
    return with_settings(FRONTIER, {"device.memory": peak, "device.reserve": "0 B"})


@pytest.fixture(scope="module")
def found(tight: Machine) -> Why:
    return why(predicted(tight), tight, APART)


@pytest.mark.slow
def test_figures_are_of_the_ranks_where_the_plan_has_them(found: Why, tight: Machine) -> None:
    assert predicted(tight).step_s > 1.2 * predict(TINY, PLAN, tight).step_s
    better = {each.words: each for each in twice_as_good(parameters(tight, "bf16"))}
    for each in found.better[::6]:
        changed = with_settings(tight, better[each.words].settings(tight))
        assert each.step_s == predicted(changed).step_s
    nics = next(e for e in found.elasticities if e.parameter.name == "node.nics.bandwidth")
    again = elasticity(nics.parameter, tight, lambda machine: predicted(machine).step_s)
    assert nics.value == again.value < -0.01
    for each in found.plans[::4]:
        assert each.plan is not None
        assert each.step_s == predict(TINY, each.plan, tight, placement=APART).step_s


def test_plans_that_do_not_fit_are_counted_and_not_recommended(found: Why, tight: Machine) -> None:
    """Nor those that are less likely to fit than the plan, where neither surely does."""
    own = predicted(tight).memory
    fits = {
        words: predict(TINY, plan, tight, placement=APART).memory.is_as_sure_as(own)
        for words, plan in neighbours(TINY, PLAN)
    }
    assert {each.words for each in found.plans} == {words for words in fits if fits[words]}
    assert found.unfit == list(fits.values()).count(False) > 0
    assert found.as_dict()["neighbours_that_do_not_fit"] == found.unfit


def test_what_matters_most_comes_first(found: Why) -> None:
    for values in (
        [abs(each.value) for each in found.elasticities],
        [each.saving for each in found.better],
        [each.saving for each in found.plans],
        [piece.ticks for piece in found.longest],
        list(found.shares.seconds.values()),
    ):
        assert len(values) > 1
        assert all(before >= after for before, after in pairwise(values))
    assert len(found.longest) == LONGEST
    assert found.longest[0].ticks == max(piece.ticks for piece in found.shares.path)


def test_a_saving_is_a_share_of_the_step_as_it_is() -> None:
    assert WhatIf("faster", 3.0, base_s=4.0).saving == 0.25
    assert WhatIf("slower", 5.0, base_s=4.0).saving == -0.25


def test_a_machine_twice_as_good_is_so_in_what_it_says_alone() -> None:
    found = [
        {p.name for p in each.parameters} for each in twice_as_good(parameters(FRONTIER, "bf16"))
    ]
    rates = [names for names in found if any("bandwidth" in name for name in names)]
    assert sorted(rates, key=sorted) == [
        {"device.memory_bandwidth"},
        {"interconnect.link_bandwidth"},
        {"node.host.bandwidth"},
        {"node.links.bandwidth"},
        {"node.nics.bandwidth"},
    ]
    assert {f"device.peak_flops.{d}" for d in ("bf16", "fp32")} in found
    (latencies,) = (names for names in found if "software.tree.launch" in names)
    assert "interconnect.switch_latency" in latencies


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_step_depends_on_the_peak_of_its_own_precision_and_on_no_fact_without_a_cost(
    precision: str,
) -> None:
    names = {p.name for p in parameters(FRONTIER, precision)}
    peaks = {name.rpartition(".")[2] for name in names if name.startswith("device.peak_flops.")}
    assert peaks == {precision, "fp32"}
    assert {"device.matmul.best", "node.nics.latency"} <= {f.key for f in FRONTIER.entries}
    assert not {"device.matmul.best", "node.nics.latency"} & names


def test_neighbours_are_plans_that_the_model_can_have() -> None:
    """Four heads: no x of 8, from whichever axis its factor of two would come."""
    gpt = TINY.changed(heads=4, kv_heads=0)
    plan = parse_plan("tp=4,z=2,dp=2,zero=1,mbs=4", batch=16)
    found = dict(neighbours(gpt, plan))
    for other in found.values():
        check(gpt, other)
    assert {other.tp for other in found.values()} == {2, 4}
    assert {other.zero for other in found.values()} == {0, 1, 2}
    assert {other.mbs for other in found.values()} >= {2, 4}
    assert (found["mbs=2"].mbs, found["zero=2"].zero) == (2, 2)


def test_where_some_groups_cross_nodes_the_links_that_hold_those_back_are_named() -> None:
    """tp=3 on nodes of 8: ranks 6 to 8 lie in two, all others of the first 24 in one."""
    plan = parse_plan("tp=3,dp=8", batch=8)
    assert limiting_link(FRONTIER, contiguous(FRONTIER, 24), plan.grid, "tp") == "across NICs"
