"""Where a tuner takes another algorithm on a changed machine, worked out from its own constants."""

from __future__ import annotations

import pytest

from simulator.explain.algorithm_switches import AllReduce, Switch, all_reduces, sentence, switches
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from tests.messages import assert_names
from topologies.collectives.collective_time import nominal_bytes_per_s
from topologies.collectives.nccl_tuner import Shape, tuner_seconds
from topologies.machine_files import load_machine, with_settings
from topologies.routing.rings import Ring
from workload.gpt import find_model
from workload.plan_text import parse_plan

KESTREL = load_machine("kestrel")
FAST_NICS = with_settings(KESTREL, {"node.nics.bandwidth": "50 GB/s"})
TINY = find_model("tiny-2m")
RING = Ring(8, 4, 2, 25e9, 100e9)
SIZES = [2**power for power in range(10, 31)]


def chosen(size: int, nominal_bytes_per_s: float) -> str:
    """What the tuner's own estimates favour."""
    times = tuner_seconds(KESTREL.software.tuner, size, Shape(8, 4, nominal_bytes_per_s))
    return min(("ring", "tree"), key=lambda name: times[name])


def test_a_switch_is_where_the_tuners_estimates_cross_between_the_two_machines() -> None:
    slow, fast = (nominal_bytes_per_s(each, RING) for each in (KESTREL, FAST_NICS))
    assert fast == 2 * slow
    crossed = {size for size in SIZES if chosen(size, slow) != chosen(size, fast)}
    assert 0 < len(crossed) < len(SIZES)
    for size in SIZES:
        found = switches([AllReduce("y", size, RING)], KESTREL, FAST_NICS)
        expected = (Switch("y", size, chosen(size, slow), chosen(size, fast)),)
        assert found == (expected if size in crossed else ())


def test_a_library_without_a_tuner_and_one_set_to_an_algorithm_switch_nothing() -> None:
    plan = parse_plan("tp=2,y=8", batch=16)
    for setting in ({}, {"software.tuner": "none"}, {"software.algorithm.all_reduce": "ring"}):
        machine = with_settings(KESTREL, setting)
        prediction = predict(TINY, plan, machine)
        asked = all_reduces(prediction, machine, MachineFabric(machine, 16))
        assert bool(asked) == (not setting)


@pytest.mark.parametrize("plan", ["tp=2,y=8", "tp=2,y=2,dp=2,pp=2", "dp=16,mbs=1"])
def test_every_all_reduce_of_a_step_is_asked_about_once(plan: str) -> None:
    parsed = parse_plan(plan, batch=64)
    prediction = predict(TINY, parsed, KESTREL, timeline=True)
    assert prediction.timeline is not None
    asked = all_reduces(prediction, KESTREL, MachineFabric(KESTREL, 16))
    assert len(asked) == len(set(asked))
    carried = {
        ("+".join(span.op.group), span.op.nbytes)
        for span in prediction.timeline.spans
        if span.op.kind == "all_reduce"
    }
    assert {(each.axes, each.nbytes) for each in asked} == carried


def test_two_switches_are_named_and_the_others_counted() -> None:
    some = [Switch("tp", 2**20 * n, "ring", "tree") for n in (1, 2, 3)]
    assert_names(sentence("nccl", some[:1]), "nccl", "tree", "ring", "tp", "1 MiB")
    assert_names(sentence("nccl", some), "1 MiB", "2 MiB", "1")
    assert "3 MiB" not in sentence("nccl", some)
