"""The two engines beside each other: drawn plans, simulated by both, op by op."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import process_time

from simulator.engine.engines import COMPILED, ENGINES, SIMPY, using
from simulator.engine.known_steps import KnownSteps
from simulator.predict import Prediction, predict
from topologies.machine import Machine
from topologies.records import record
from topologies.session import current_session, in_session
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.lowering import check
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.recomputation.parts import RECOMPUTES

MODELS = ("gpt-5b", "gpt-10b", "llama-2-7b")  # in their widths, with fewer layers
LAYERS = (1, 2, 5, 8)
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MICRO_BATCHES = (1, 2, 3, 5, 8)
SIZES = (1, 1, 2, 4, 8)
WARM = 3  # predictions after which nothing more is kept from one to the next


@record(slots=False)
class EngineRow:
    """One plan on both engines: the spans of all rank classes compared, and CPU seconds of a
    prediction on each.

    `equal`: the prediction is the same in every part, and every op starts and ends at the same
    picosecond.
    """

    machine: str
    model: str
    plan: str
    spans: int
    equal: bool
    compiled_s: float
    simpy_s: float


@in_session
def validate_engines(
    machines: Sequence[Machine],
    count: int,
    seed: int,
    tick: Callable[[int], None] = lambda done: None,
) -> list[EngineRow]:
    """Simulate that many drawn plans on both engines; `tick` hears how many are done."""
    rows = []
    for number, (gpt, plan, machine) in zip(range(count), drawn(machines, seed), strict=False):
        rows.append(_compared(gpt, plan, machine))
        tick(number + 1)
    return rows


def drawn(machines: Sequence[Machine], seed: int) -> Iterator[tuple[GPT, Plan, Machine]]:
    """Plans of all options, without end."""
    chance = random.Random(seed)
    while True:
        machine = chance.choice(machines)
        gpt = replace(find_model(chance.choice(MODELS)), layers=chance.choice(LAYERS))
        devices = min(chance.choice(DEVICES), machine.devices)
        try:
            plan = _drawn_plan(chance, devices).with_micro_batches(chance.choice(MICRO_BATCHES))
            check(gpt, plan)
        except (PlanError, PlanCannotRunError):
            continue
        yield gpt, plan, machine


def _drawn_plan(chance: random.Random, devices: int) -> Plan:
    sizes = {axis: chance.choice(SIZES) for axis in ("tp", "y", "z", "pp")}
    fields: dict[str, object] = {**sizes, "dp": "rest", "mbs": 1}
    fields["schedule"] = chance.choice(STRAIGHT)
    fields["recompute"] = chance.choice(RECOMPUTES)
    fields["zero"] = chance.choice((0, 0, 1, 2, 3))
    fields["overlap"] = "+".join(o for o in OVERLAPS if chance.random() < 0.6) or "none"
    return parse_plan(fields, devices=devices)


def _compared(gpt: GPT, plan: Plan, machine: Machine) -> EngineRow:
    found: dict[str, Prediction] = {}
    seconds: dict[str, float] = {}
    for _ in range(WARM):  # rings and lowered programs are kept from here on
        predict(gpt, plan, machine)
    for engine in ENGINES:
        with using(engine):
            current_session().the(KnownSteps).forget()
            begin = process_time()
            predict(gpt, plan, machine)
            seconds[engine] = process_time() - begin
            found[engine] = predict(gpt, plan, machine, timeline=True)
    one, other = found[COMPILED], found[SIMPY]
    spans = len(one.timeline.spans) if one.timeline is not None else 0
    equal = one == other
    return EngineRow(
        machine.name, gpt.name, str(plan), spans, equal, seconds[COMPILED], seconds[SIMPY]
    )
