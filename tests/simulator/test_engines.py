"""Both engines give the same starts and ends, to the tick, and refuse the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import reject, settings
from hypothesis import strategies as st

from simulator.engine import core
from simulator.engine.engines import (
    COMPILED,
    ENGINES,
    SIMPY,
    engine_name,
    is_makeshift,
    using,
)
from simulator.engine.simulate import Prices, rank_tasks, simulate_tasks
from simulator.engine.streams import OpTicks, RankTask
from simulator.predict import predict
from simulator.ranks.classes import classes_of, until_consistent
from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.drawn_steps import BANDWIDTHS
from tests.simulator.test_whole_step import plans
from tests.simulator.worlds import TINY, GivenSeconds, SmallCosts, SmallFabric, by_hand, compute
from topologies.machine_files import load_machine
from topologies.session import Session
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.lowering import check, lower
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.recomputation.parts import RECOMPUTES

needs_compiled = pytest.mark.skipif(not core.is_built(), reason="built without a C compiler")
SMALL = TINY.changed(hidden=48, heads=12, ffn=96)
MODELS = ("gpt-5b", "gpt-10b", "llama-2-7b")
LAYERS = (1, 2, 5, 8)
NUMBERS = (1, 2, 3, 5, 8)  # of micro-batches
SIZES = ("tp", "y", "z", "dp", "pp")
PIPELINES = (
    "pp=2,z=2",
    "pp=4,schedule=zb-h1",
    "pp=2,vpp=2,overlap=all",
    "pp=2,vpp=2,schedule=zb-v",
    "pp=2,tp=2,dp=2,schedule=gpipe,overlap=pp+dp",
)


def times(programs: list[Program], fabric: SmallFabric) -> list[OpTicks]:
    return until_consistent(
        lambda contended: classes_of(programs, fabric, contended=contended),
        lambda network: simulate_tasks(
            rank_tasks(programs, network), Prices(SmallCosts(), network)
        ),
    )


def assert_equal(plan: Plan, layers: int, fabric: SmallFabric) -> None:
    gpt = replace(SMALL, layers=layers)
    programs = [lower(gpt, plan, stage) for stage in range(plan.pp)]
    found = []
    for engine in ENGINES:
        with using(engine):
            found.append(times(programs, fabric))
    assert found[0] == found[1]


@needs_compiled
@few_and_many(
    30,
    150,
    settings(deadline=None, derandomize=True),
    plan=plans(st.integers(1, 4)),
    layers=st.integers(1, 6),
    bytes_per_s=st.sampled_from(BANDWIDTHS),
    share=st.sampled_from((0.0, 0.2)),
)
def test_starts_and_ends_are_equal(
    plan: Plan, layers: int, bytes_per_s: float, share: float
) -> None:
    assert_equal(plan, layers, SmallFabric(bytes_per_s=bytes_per_s, compute_share=share))


@needs_compiled
@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        pytest.param(text, each, marks=() if (at - number) % 3 == 0 else pytest.mark.slow)
        for number, text in enumerate(PIPELINES)
        for at, each in enumerate(BANDWIDTHS[1::2])
    ],
)
def test_stages_that_meet_by_messages_are_equal(text: str, bytes_per_s: float) -> None:
    plan = parse_plan(f"{text},mbs=1", batch=4 * (4 if "dp" in text or "z" in text else 1))
    assert_equal(plan, 8, SmallFabric(bytes_per_s=bytes_per_s))


@needs_compiled
@pytest.mark.parametrize(
    ("machine", "devices", "text"),
    [
        ("frontier", 64, "tp=2,y=2,z=4,dp=rest,mbs=1"),
        ("perlmutter", 64, "pp=4,z=4,dp=rest,mbs=1,overlap=all"),
        ("alps", 64, "tp=4,dp=rest,zero=3,mbs=1,reshard=false"),
    ],
)
def test_predictions_are_equal(machine: str, devices: int, text: str) -> None:
    plan, gpt = (
        parse_plan(text, devices=devices, batch=128),
        replace(find_model("gpt-5b"), layers=4),
    )
    found = []
    for engine in ENGINES:
        with using(engine):
            found.append(predict(gpt, plan, load_machine(machine)))
    assert found[0] == found[1]


@st.composite
def cases(draw: st.DrawFn) -> tuple[GPT, Plan]:
    """Models of a few layers in their widths, and plans that they can have."""
    gpt = replace(find_model(draw(st.sampled_from(MODELS))), layers=draw(st.sampled_from(LAYERS)))
    fields: dict[str, object] = {key: draw(st.sampled_from((1, 1, 2, 4))) for key in SIZES}
    fields["schedule"] = draw(st.sampled_from(STRAIGHT))
    fields["recompute"] = draw(st.sampled_from(RECOMPUTES))
    fields["zero"] = draw(st.sampled_from((0, 0, 1, 2, 3)))
    fields["overlap"] = "+".join(draw(st.lists(st.sampled_from(OVERLAPS), unique=True))) or "none"
    try:
        plan = parse_plan(fields | {"mbs": 1}).with_micro_batches(draw(st.sampled_from(NUMBERS)))
        check(gpt, plan)
    except (PlanError, PlanCannotRunError):
        reject()
    return gpt, plan


@needs_compiled
@few_and_many(
    12,
    400,
    settings(deadline=None, derandomize=True),
    case=cases(),
    machine=st.sampled_from(("frontier", "perlmutter", "alps")),
)
def test_drawn_plans_are_predicted_alike_in_every_op(case: tuple[GPT, Plan], machine: str) -> None:
    found = []
    for engine in ENGINES:
        with using(engine), Session():
            found.append(predict(*case, load_machine(machine), timeline=True))
    assert found[0].timeline is not None
    assert found[0] == found[1]


def task_of(**floors: int) -> tuple[list[RankTask], Program]:
    """Two ops, which start no sooner than given."""
    program = by_hand("tp=1", compute("one", writes="a"), compute("two", writes="b"))
    (task,) = rank_tasks([program], classes_of([program], SmallFabric()))
    own = np.array([floors.get(op.name, 0) for op in program.ops], dtype=np.int64)
    return [replace(task, floors=own)], program


@pytest.mark.parametrize("engine", [pytest.param(COMPILED, marks=needs_compiled), SIMPY])
def test_an_op_starts_no_sooner_than_its_floor(engine: str) -> None:
    tasks, program = task_of(one=5, two=7)
    costs, network = GivenSeconds(one=1e-12, two=1e-12), classes_of([program], SmallFabric())
    with using(engine):
        assert simulate_tasks(tasks, Prices(costs, network)) == [([5, 7], [6, 8])]


@pytest.mark.parametrize("engine", [pytest.param(COMPILED, marks=needs_compiled), SIMPY])
def test_a_step_of_more_than_63_bits_of_picoseconds_is_refused(engine: str) -> None:
    tasks, program = task_of()
    network = classes_of([program], SmallFabric())
    with using(engine):
        for seconds in (GivenSeconds(one=5e6, two=5e6), GivenSeconds(one=1e7, two=1.0)):
            with pytest.raises(PlanCannotRunError, match="106 days"):
                simulate_tasks(tasks, Prices(seconds, network))


def test_an_engine_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with using("simula"), pytest.raises(PlanError, check=names("simula", COMPILED, SIMPY)):
        engine_name()
    monkeypatch.setattr(core, "core", None)
    monkeypatch.delenv("SIMGPT_ENGINE", raising=False)
    assert (engine_name(), is_makeshift()) == (SIMPY, True)
    with using(SIMPY):
        assert not is_makeshift()
    with (
        using(COMPILED),
        pytest.raises(PlanCannotRunError, check=names(COMPILED, SIMPY)),
    ):
        engine_name()


def test_the_environment_chooses_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGPT_ENGINE", SIMPY)
    assert engine_name() == SIMPY
    if core.is_built():
        with using(COMPILED):
            assert engine_name() == COMPILED


@needs_compiled
def test_an_error_of_the_network_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations under contention are asked for by the compiled engine in the middle of its work."""
    program = lower(SMALL, parse_plan("tp=2,z=2,mbs=1,overlap=all").with_micro_batches(1))
    network = classes_of([program], SmallFabric())
    asked = type(network).ticks

    def ticks(self: object, op: object, in_flight: tuple[object, ...] = ()) -> list[int]:
        if len(in_flight) > 1:
            raise ZeroDivisionError("too much")
        return asked(self, op, in_flight)  # type: ignore[arg-type]

    monkeypatch.setattr(type(network), "ticks", ticks)
    with using(COMPILED), pytest.raises(ZeroDivisionError, match="too much"):
        simulate_tasks(rank_tasks([program], network), Prices(SmallCosts(), network))


def test_times_are_arrays_of_whole_ticks() -> None:
    tasks, program = task_of()
    network = classes_of([program], SmallFabric())
    (found,) = simulate_tasks(tasks, Prices(GivenSeconds(one=1.0, two=1.0), network))
    assert np.array(found).tolist() == [[0, 10**12], [10**12, 2 * 10**12]]
