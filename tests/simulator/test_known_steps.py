"""Steps that a session knows: each as it would be without, and simulated where a price differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.columns import columns_of
from simulator.engine.core import is_built
from simulator.engine.engines import SIMPY, using
from simulator.engine.known_steps import MOST, KnownStep, KnownSteps
from simulator.engine.simulate import Prices
from simulator.engine.whole_step import simulate_step
from simulator.pipeline.pipeline_step import simulate_pipeline
from simulator.predict import predict
from simulator.ranks.classes import classes_of
from simulator.result import StepResult
from tests.simulator.worlds import TINY, Ring, SmallCosts, SmallFabric
from topologies.machine_files import load_machine, with_settings
from topologies.session import Session
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.transport import Transport

PLANS = {
    "tp=2,pp=2,dp=2,mbs=1": 8,
    "x=2,z=2,dp=2,mbs=1": 12,
    "dp=4,mbs=1,overlap=none": 16,
    "pp=2,dp=2,mbs=1,schedule=zb-h1": 8,
}
MACHINE = load_machine("dgx-h100")


def simulated(text: str, costs: SmallCosts, fabric: SmallFabric) -> StepResult:
    plan = parse_plan(text, batch=PLANS[text])
    simulate = simulate_pipeline if plan.pp > 1 else simulate_step
    return simulate(replace(TINY, layers=2), plan, costs, fabric)


@given(
    worlds=st.lists(
        st.tuples(
            st.sampled_from(list(PLANS)),
            st.builds(
                SmallCosts,
                launch_s=st.sampled_from((1e-6, 3e-6)),
                issue_s=st.sampled_from((0.0, 1e-5)),
            ),
            st.builds(
                SmallFabric,
                bytes_per_s=st.sampled_from((1e6, 2e8)),
                compute_share=st.sampled_from((0.0, 0.2)),
                devices_per_node=st.sampled_from((2, 4)),
                axes_share=st.booleans(),
            ),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_a_step_is_the_same_whatever_a_session_knows(
    worlds: list[tuple[str, SmallCosts, SmallFabric]],
) -> None:
    with Session():
        known = [simulated(*world) for world in worlds]
    assert known == [simulated(*world) for world in worlds]


@pytest.mark.parametrize("text", ["pp=2,dp=2,mbs=1", "dp=4,mbs=1"])
def test_only_a_step_with_another_price_is_simulated_anew(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def counted(*found: Any) -> KnownStep:
        runs.append(found)
        return KnownStep(*found)

    monkeypatch.setattr("simulator.engine.known_steps.KnownStep", counted)
    plan = parse_plan(text, batch=16)
    with Session():
        base = predict(TINY, plan, MACHINE)
        for settings, count in (
            ({"device.scan.convolution": 0.3}, 1),  # there is no scan
            ({"software.all_to_all.launch": "1 us"}, 1),  # nor an all-to-all
            ({"device.memory_bandwidth": "3 TB/s"}, 2),
            ({"node.links.bandwidth": "20 GB/s"}, 3),
            ({"software.compute_share": 0.3}, 4),
            ({}, 4),
        ):
            other = predict(TINY, plan, with_settings(MACHINE, settings))
            assert len(runs) == count, settings
            assert (other.step_s == base.step_s) == (count == 1 or not settings), settings
        with using(SIMPY):
            assert predict(TINY, plan, MACHINE).step_s == base.step_s
        assert len(runs) == (5 if is_built() else 4)  # each engine knows its own


@dataclass(frozen=True)
class Crowded(SmallFabric):
    """One on which more than two collectives at once take longer by so much."""

    crowd_s: float = 0.0

    @property
    def links(self) -> SmallFabric:
        return replace(self, crowd_s=0.0)

    def seconds(self, transport: Transport, payload_bytes: int, ring: Ring) -> float:
        alone_s = super().seconds(transport, payload_bytes, ring)
        return alone_s + self.crowd_s if ring.sharing > 2 else alone_s


def test_collectives_beside_others_count_too() -> None:
    plan, gpt = parse_plan("z=2,dp=2,mbs=1", batch=16), replace(TINY, layers=4)
    few, many = Crowded(), Crowded(crowd_s=1e-3)
    with Session():
        base, changed = (simulate_step(gpt, plan, SmallCosts(), each) for each in (few, many))
    assert changed.parts_ticks != base.parts_ticks
    assert changed == simulate_step(gpt, plan, SmallCosts(), many)


def test_messages_of_all_stages_count_too() -> None:
    """One message of five crosses nodes: that of the fourth stage, which is like the second."""
    plan, gpt = parse_plan("tp=2,pp=6,mbs=1", batch=16), replace(TINY, layers=6)
    other = with_settings(MACHINE, {"software.send_recv.efficiency_across": 0.5})
    with Session():
        base, changed = (predict(gpt, plan, machine) for machine in (MACHINE, other))
    assert changed.step_s != base.step_s
    assert changed.step_s == predict(gpt, plan, other).step_s


def test_a_session_lets_go_of_the_steps_it_was_not_asked_for_longest() -> None:
    def asked(*seconds: int) -> int:
        runs: list[str] = []
        for each in seconds:
            prices = Prices(SmallCosts(launch_s=each), network)
            known.step("a step", prices, sorts, lambda: runs.append("a run"))
        return len(runs)

    program = lower(TINY, parse_plan("dp=2", batch=2))
    sorts, known = [columns_of(program.outline).sorts], KnownSteps()
    network = classes_of([program], SmallFabric())
    assert asked(*range(MOST)) == MOST
    assert asked(0, MOST, 0, *range(2, MOST)) == 1  # the second made room
    assert asked(1) == 1
