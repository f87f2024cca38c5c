"""DualPipe: two copies of the model from either end of the stages, by hand and as published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulator.pipeline.schedule_sim import schedule_of, simulate_schedule
from tests.messages import names
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import find_model
from workload.grid import OPPOSITE, Grid
from workload.lowering import lower
from workload.op import EMBED, HEAD, PARAMETER_GATHER, layer_part
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.pairs import pairs_of
from workload.pipeline.schedule import FORWARD, WEIGHT, Slot, slots
from workload.pipeline.slot import INPUT
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import turned_parts

FOUR = replace(find_model("tiny-30k"), layers=4)
PLAN = "pp=4,schedule=dualpipe,mbs=1"
# Of four stages and ten micro-batches, five in each direction: f0.3 is the forward pass of the
# third one behind the first that entered at the first stage, i its gradients of inputs, w those of
# weights; 1 is the other direction. Passes in brackets run in turns.
FIRST = (
    "f0.0 f0.1 f0.2 f1.0 i1.0 w1.0 f1.1 (f0.3 i1.1 w1.1) (f1.2 i0.0 w0.0) (f0.4 i1.2 w1.2) "
    "(f1.3 i0.1 w0.1) i1.3 w1.3 (f1.4 i0.2 w0.2) i1.4 w1.4 i0.3 w0.3 i0.4 w0.4"
)
SECOND = (
    "f0.0 f1.0 f0.1 f1.1 f0.2 i1.0 w1.0 (f1.2 i0.0 w0.0) (f0.3 i1.1 w1.1) (f1.3 i0.1 w0.1) "
    "(f0.4 i1.2 w1.2) (f1.4 i0.2 w0.2) i1.3 w1.3 i0.3 w0.3 i1.4 i0.4 w1.4 w0.4"
)


def orders(stages: int, half: int) -> list[tuple[Slot, ...]]:
    return [slots("dualpipe", stage, stages, half).slots for stage in range(stages)]


def text(stage: int) -> str:
    order = orders(4, 5)[stage]
    words = [f"{slot.work[0]}{slot.chunk}.{slot.micro_batch}" for slot in order]
    for pair in pairs_of(order, stage, 4, in_v=True):
        words[pair[0]], words[pair[-1]] = f"({words[pair[0]]}", f"{words[pair[-1]]})"
    return " ".join(words)


def test_four_stages_and_ten_micro_batches_worked_out_by_hand() -> None:
    """Cells of the published figure with a border around both are pairs here."""
    other_way = str.maketrans({"0": "1", "1": "0"})

    def turned(words: str) -> str:
        found = [f"{head}{way.translate(other_way)}.{rest}" for head, way, rest in split(words)]
        return " ".join(found)

    assert [text(stage) for stage in range(4)] == [FIRST, SECOND, turned(SECOND), turned(FIRST)]


def split(words: str) -> Iterator[tuple[str, str, str]]:
    """Each word's letter with a bracket before it, its direction, and the rest."""
    for word in words.split():
        before, rest = word.split(".")
        yield before[:-1], before[-1], rest


class Published:
    """What one rank does in `DualPipe.step`, part by part, with the names it has there.

    Source: deepseek-ai/DualPipe, dualpipe/dualpipe.py.
    """

    def __init__(self, rank: int, num_ranks: int, num_chunks: int) -> None:
        self.is_in_second_half = rank >= num_ranks // 2
        self.done: dict[tuple[str, int], int] = {}
        self.weights: list[Slot] = []
        self.slots: list[Slot] = []
        half_ranks, half_rank = num_ranks // 2, min(rank, num_ranks - 1 - rank)
        self.step(half_ranks, half_rank, num_chunks // 2 - num_ranks + half_rank + 1)

    def step(self, half_ranks: int, half_rank: int, step_4: int) -> None:
        for _ in range((half_ranks - half_rank - 1) * 2):
            self.forward(0)
        for _ in range(half_rank + 1):
            self.forward(0)
            self.forward(1)
        for _ in range(half_ranks - half_rank - 1):
            self.backward(1, enable_zb=True)
            self.weight()
            self.forward(1)
        for _ in range(step_4):
            self.forward(0)
            self.backward(1)
            self.forward(1)
            self.backward(0)
        for _ in range(half_ranks - half_rank - 1):
            self.backward(1)
            self.forward(1)
            self.backward(0)
        self.end(half_ranks, half_rank)

    def end(self, half_ranks: int, half_rank: int) -> None:
        step_6, enable_zb = half_rank + 1, False
        for i in range(step_6):
            enable_zb |= i == step_6 // 2 and half_rank % 2 == 1
            self.backward(1, enable_zb)
            enable_zb |= i == step_6 // 2 and half_rank % 2 == 0
            self.backward(0, enable_zb)
        for _ in range(half_ranks - half_rank - 1):
            self.weight()
            self.backward(0, enable_zb=True)
        for _ in range(half_rank + 1):
            self.weight()
        assert not self.weights

    def forward(self, phase: int) -> None:
        self.slots.append(self.next(FORWARD, phase))

    def backward(self, phase: int, enable_zb: bool = False) -> None:
        own = self.next(INPUT, phase)
        weight = replace(own, work=WEIGHT)
        self.slots.append(own)
        (self.weights if enable_zb else self.slots).append(weight)

    def weight(self) -> None:
        self.slots.append(self.weights.pop(0))

    def next(self, work: str, phase: int) -> Slot:
        phase ^= self.is_in_second_half
        number = self.done.get((work, phase), 0)
        self.done[work, phase] = number + 1
        return Slot(work, int(phase), number)


@pytest.mark.parametrize("stages", [2, 4, 6, 8, 16])
def test_orders_are_those_of_the_published_step(stages: int) -> None:
    for half in (stages, stages + 1, 3 * stages):
        found = [Published(rank, stages, 2 * half).slots for rank in range(stages)]
        assert orders(stages, half) == [tuple(each) for each in found]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_all_stages_hold_one_part_more_than_there_are_and_pause_as_long(stages: int) -> None:
    """A slot takes a tick, a message none: 6 ticks for a micro-batch in each direction. The
    activations of stages + 1 parts are those of the published table."""
    for half in (stages, 2 * stages + 1):
        ticks, links = [[1] * 6 * half] * stages, [(0, 0)] * stages
        schedule = schedule_of(orders(stages, half), ticks, links, "ahead", half, in_v=True)
        times = simulate_schedule(schedule).stages
        near = [min(stage, stages - 1 - stage) for stage in range(stages)]
        assert [own.start[0] for own in times] == near
        assert {own.end[-1] for own in times} == {6 * half + stages // 2 - 1}
        for order in schedule.orders:
            level = [0]
            for slot in order:
                level.append(level[-1] + {FORWARD: 1, INPUT: 0, WEIGHT: -1}[slot.work])
            assert max(level) == stages + 1


def test_each_stage_has_a_part_of_either_copy_and_messages_pass_within_a_copy() -> None:
    places = ChunkPlaces(4, 2, in_v=True, two_way=True)
    assert [places.numbers(stage) for stage in range(4)] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert [places.parts(stage) for stage in range(4)] == [[0, 3], [1, 2], [1, 2], [0, 3]]
    assert [n for n in range(8) if places.begins(n)] == [0, 4]
    assert [n for n in range(8) if places.ends(n)] == [3, 7]
    assert [n for n in range(9) if places.has_message(n)] == [1, 2, 3, 5, 6, 7]
    assert not any(map(places.meets, range(8)))
    plan = parse_plan(f"{PLAN},batch=8")
    assert [turned_parts(FOUR, plan, stage) for stage in range(4)] == [
        {layer_part(3), HEAD},
        {layer_part(2)},
        {layer_part(1)},
        {layer_part(0), EMBED},
    ]
    further = FOUR.changed(positions="rope", mtp_layers=2)
    assert turned_parts(further, plan, 0) == {layer_part(n) for n in (3, 4, 5)} | {HEAD}
    assert turned_parts(FOUR, parse_plan("pp=4,batch=8,mbs=1"), 3) == frozenset()


def test_opposite_stages_are_pairs() -> None:
    grid = Grid(dp=2, pp=4)
    assert grid.groups(OPPOSITE).tolist() == [[0, 6], [1, 7], [2, 4], [3, 5]]
    stages_first = replace(grid, order="pp-tp-dp")
    assert stages_first.groups(OPPOSITE).tolist() == [[0, 3], [1, 2], [4, 7], [5, 6]]


def programs(words: str = "") -> list[Program]:
    return [lower(FOUR, parse_plan(f"{PLAN}{words}", batch=16), stage) for stage in range(4)]


@pytest.mark.parametrize("words", ["", ",dp=2,overlap=none", ",dp=2,zero=2"])
def test_parameters_are_held_twice_and_their_gradients_summed_at_the_end(words: str) -> None:
    every = programs(words)
    counts = [[b for b in p.buffers.values() if b.role == "parameters"] for p in every]
    assert sum(buffer.elements for own in counts for buffer in own) == 2 * FOUR.parameters
    held = [{buffer.name for buffer in own} for own in counts]
    assert held[0] == held[3]
    assert held[1] == held[2]
    assert not held[0] & held[1]
    for stage, program in enumerate(every):
        (summed,) = [op for op in program.ops if op.axes == (OPPOSITE,)]
        (other,) = [op for op in every[3 - stage].ops if op.axes == (OPPOSITE,)]
        assert summed.reads == other.reads
        parameters = {program.buffers[name].parameter for name in summed.reads}
        assert parameters == held[stage]
        at = {op.name: number for number, op in enumerate(program.ops)}
        assert at[summed.name] < at["norm.squares"]
        of_data = [op for op in program.ops if op.axes == ("dp",)]
        before = [op for op in of_data if op.purpose != PARAMETER_GATHER]
        assert all(at[op.name] < at[summed.name] for op in before)
        assert not [op for op in program.ops if "ends" in op.axes]


def test_scales_of_earlier_steps_follow_the_largest_values_of_both_copies() -> None:
    """Opposite stages sum the same buffers in the same order, before the scales are made of them;
    every rank that has a layer, in either copy, holds the same scales."""
    every = programs(",dp=2,recipe=fp8-delayed")
    for stage, program in enumerate(every):
        ours, theirs = (
            [op for op in each.ops if op.label == "amaxes.copies.reduce"]
            for each in (program, every[3 - stage])
        )
        assert [op.reads for op in ours] == [op.reads for op in theirs]
        (largest,) = ours
        assert (largest.axes, largest.attributes["reduction"]) == ((OPPOSITE,), "max")
        parts = {f"{layer_part(stage)}", f"{layer_part(3 - stage)}"}
        assert set(largest.reads) == {f"{part}.amaxes" for part in parts}
        made = [at for at, op in enumerate(program.ops) if op.kind == "update_scales"]
        assert program.ops.index(largest) < min(made)
        assert program.buffers[largest.reads[0]].replicas == 2 * 2


@pytest.mark.parametrize(
    ("words", "kind", "named"),
    [
        ("pp=3", PlanError, ("vpp=1", "pp=3")),
        ("pp=1", PlanError, ("schedule=dualpipe", "pp=1")),
        ("pp=2,vpp=2", PlanError, ("vpp=2",)),
        ("pp=2,optimizer=mezo", PlanError, ("optimizer=mezo", "none")),
        (
            "pp=2,stage_layers=1+1+1+1",
            PlanError,
            ("stage_layers", "4", "pp=2", "vpp=1", "2"),
        ),
        ("pp=2,dp=2,batch=6", PlanCannotRunError, ("batch=6", "dp=2", "4", "8")),
        (
            "pp=2,mbs=2,batch=6",
            PlanCannotRunError,
            ("mbs=2", "3", "batch=6", "1", "3"),
        ),
        ("pp=4,batch=6", PlanCannotRunError, ("2*pp=8", "6")),
        ("pp=4,batch=9", PlanCannotRunError, ("batch=9", "8", "10")),
    ],
)
def test_what_has_no_two_directions_is_refused_by_name(
    words: str, kind: type[Exception], named: tuple[str, ...]
) -> None:
    given = {"batch": "8", "mbs": "1", "schedule": "dualpipe"}
    given |= dict(word.split("=") for word in words.split(","))
    with pytest.raises(kind, check=names(*named)):
        parse_plan(",".join(f"{key}={value}" for key, value in given.items()))
