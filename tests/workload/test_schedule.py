"""Pipeline schedules as pure functions, and the programs that follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from tests.messages import names
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.pipeline.schedule import BACKWARD, FORWARD, STRAIGHT, WEIGHT, Slot, slots
from workload.pipeline.slot import INPUT
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import chunk_layers

TINY = find_model("tiny-30k")
LETTERS = {FORWARD: "f", BACKWARD: "b", INPUT: "i", WEIGHT: "w"}
PLAIN = STRAIGHT


def text(schedule: str, stage: int, stages: int, micro_batches: int) -> str:
    order = slots(schedule, stage, stages, micro_batches)
    return " ".join(f"{LETTERS[slot.work]}{slot.micro_batch}" for slot in order)


def test_schedules_are_those_of_their_papers() -> None:
    assert text("gpipe", 0, 2, 3) == "f0 f1 f2 b0 b1 b2"
    assert text("1f1b", 0, 4, 5) == "f0 f1 f2 f3 b0 f4 b1 b2 b3 b4"
    assert text("1f1b", 3, 4, 3) == "f0 b0 f1 b1 f2 b2"
    assert text("zb-h1", 3, 4, 5) == "f0 i0 f1 i1 f2 i2 f3 i3 w0 f4 i4 w1 w2 w3 w4"
    assert text("zb-h1", 0, 4, 4) == "f0 f1 f2 f3 i0 w0 i1 w1 i2 w2 i3 w3"


def test_chunks_take_turns_as_in_megatron() -> None:
    order = slots("1f1b", 1, 2, 2, 2)
    assert [(LETTERS[slot.work], slot.chunk, slot.micro_batch) for slot in order] == [
        ("f", 0, 0),
        ("f", 0, 1),
        ("f", 1, 0),
        ("b", 1, 0),
        ("f", 1, 1),
        ("b", 1, 1),
        ("b", 0, 0),
        ("b", 0, 1),
    ]


def cases() -> st.SearchStrategy[tuple[str, int, int, int]]:
    """A schedule, its stages, micro-batches and chunks, which take turns by whole rounds."""
    straight = st.tuples(st.sampled_from(PLAIN), st.integers(1, 4), st.integers(1, 8), st.just(1))
    in_turn = st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(2, 3))
    return straight | in_turn.map(lambda drawn: ("1f1b", drawn[0], drawn[0] * drawn[1], drawn[2]))


@given(cases())
def test_every_pass_of_every_micro_batch_stands_once_and_in_order(
    case: tuple[str, int, int, int],
) -> None:
    schedule, stages, micro_batches, chunks = case
    for stage in range(stages):
        order = slots(schedule, stage, stages, micro_batches, chunks)
        assert len(set(order)) == len(order)
        works = {slot.work for slot in order} - {FORWARD}
        assert works in ({BACKWARD}, {INPUT, WEIGHT})
        assert len(order) == (1 + len(works)) * chunks * micro_batches
        place = {slot: number for number, slot in enumerate(order)}
        for slot in order:
            if slot.work == WEIGHT:
                assert place[slot] > place[replace(slot, work=INPUT)]
            elif slot.work != FORWARD:
                assert place[slot] > place[replace(slot, work=FORWARD)]
            if slot.micro_batch:
                before = replace(slot, micro_batch=slot.micro_batch - 1)
                assert place[before] < place[slot]


def held(order: tuple[Slot, ...]) -> int:
    """The most micro-batches of a chunk whose activations a stage holds at once."""
    level = most = 0
    for slot in order:
        level += {FORWARD: 1, INPUT: 0}.get(slot.work, -1)
        most = max(most, level)
    return most


@given(stages=st.integers(2, 8), turns=st.integers(1, 4))
def test_schedules_hold_as_many_micro_batches_as_their_papers_say(stages: int, turns: int) -> None:
    count = turns * 2 * stages
    most = {
        schedule: [held(slots(schedule, stage, stages, count).slots) for stage in range(stages)]
        for schedule in PLAIN
    }
    assert most["gpipe"] == [count] * stages
    assert most["1f1b"] == list(range(stages, 0, -1))
    assert most["zb-h1"] == [stages] * stages
    assert most["zb-1p"] == [stages] * stages
    assert most["zb-2p"] == [2 * stages] * stages


def waited(schedule: str, stages: int, micro_batches: int) -> list[int]:
    """For each stage the slots between its first and its last pass in which it runs nothing, where
    every pass takes one and messages none."""
    orders = [[*slots(schedule, stage, stages, micro_batches)] for stage in range(stages)]
    done: list[dict[tuple[str, int], int]] = [{} for _ in range(stages)]
    while any(len(ends) < len(order) for ends, order in zip(done, orders, strict=True)):
        for stage, order in enumerate(orders):
            if len(done[stage]) == len(order):
                continue
            slot = order[len(done[stage])]
            key, arrived = (slot.work, slot.micro_batch), max(done[stage].values(), default=0)
            giver = {FORWARD: stage - 1, INPUT: stage + 1}.get(slot.work, stage)
            if slot.work != WEIGHT and 0 <= giver < stages:
                if key not in done[giver]:
                    continue
                arrived = max(arrived, done[giver][key])
            done[stage][key] = arrived + 1
    return [max(d.values()) - min(d.values()) + 1 - len(d) for d in done]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_zb_2p_waits_nowhere_and_zb_1p_waits_for_the_stages_behind(stages: int) -> None:
    """Twice the micro-batches in flight fill what ZB-1p leaves empty: the bubbles are zero."""
    assert waited("zb-2p", stages, 2 * stages) == [0] * stages
    assert waited("zb-1p", stages, 2 * stages)[0] == stages - 1
    assert waited("zb-h1", stages, 2 * stages) == list(range(stages - 1, -1, -1))


@few_and_many(8, 25, settings(), case=cases(), overlap=st.sampled_from(("all", "none")))
def test_no_stage_waits_for_a_send_that_nobody_will_receive(
    case: tuple[str, int, int, int], overlap: str
) -> None:
    """Sends and receives only end together, as NCCL's and gloo's large ones do."""
    schedule, stages, micro_batches, chunks = case
    plan = parse_plan(
        f"pp={stages},vpp={chunks},schedule={schedule},mbs=1,overlap={overlap}",
        batch=micro_batches,
    )
    gpt = replace(TINY, layers=stages * chunks)
    assert left_over([lower(gpt, plan, stage) for stage in range(stages)]) == []


def left_over(programs: list[Program]) -> list[str]:
    """Ops that can never start, when every op takes no time."""
    done: list[set[int]] = [set() for _ in programs]
    queues: list[dict[str, list[int]]] = [{} for _ in programs]
    for stage, program in enumerate(programs):
        for index, op in reversed([*enumerate(program.ops)]):
            queues[stage].setdefault(op.stream, []).append(index)
    moved, waiting = True, dict[str, tuple[int, str]]()
    while moved:
        moved = False
        for stage, program in enumerate(programs):
            for stream, queue in queues[stage].items():
                while queue and done[stage].issuperset(program.waits[queue[-1]]):
                    op = program.ops[queue[-1]]
                    if op.is_message:
                        here, tag = (stage, stream), op.attributes["tag"]
                        there = waiting.setdefault(tag, here)
                        if there == here:
                            break
                        done[there[0]].add(queues[there[0]][there[1]].pop())
                    done[stage].add(queue.pop())
                    moved = True
    return [
        programs[s].ops[i].name for s, every in enumerate(queues) for q in every.values() for i in q
    ]


def model(layers: int) -> GPT:
    return replace(TINY, layers=layers)


def counts(plan: str, layers: int) -> list[int]:
    return [len(part) for part in chunk_layers(model(layers), parse_plan(plan))]


def test_layers_are_split_evenly_or_as_the_plan_says() -> None:
    assert counts("pp=4", 8) == [2, 2, 2, 2]
    assert counts("pp=4,ends_as_layers=true", 6) == [1, 2, 2, 1]
    assert counts("pp=3,stage_layers=1+0+4", 5) == [1, 0, 4]
    parts = chunk_layers(model(8), Plan(batch=2, mbs=1, pp=2, vpp=2))
    assert [list(part) for part in parts[1::2]] == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("plan", "layers", "named"),
    [
        ("pp=4", 6, ("tiny-30k", "6", "pp*vpp=4", "ends_as_layers=true")),
        ("pp=4", 7, ("stage_layers=2+2+2+1",)),
        ("pp=3", 7, ("ends_as_layers=true",)),
        ("pp=3", 8, ("stage_layers=3+3+2",)),
        ("pp=3,ends_as_layers=true", 8, ("stage_layers=3+3+2",)),
        ("pp=4", 3, ("tiny-30k", "3", "pp*vpp=4")),
        ("pp=2,stage_layers=3+4", 8, ("7", "layers", "tiny-30k", "8")),
    ],
)
def test_layers_that_cannot_be_split_are_refused_with_what_would_do(
    plan: str, layers: int, named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        counts(plan, layers)


def test_the_payload_of_a_pipeline_is_what_each_stage_sends() -> None:
    """Activations one way and their gradients the other, each sent once by one of two stages; and
    8 bytes of sums over the stages, of the loss and of the gradient's norm."""
    gpt = find_model("gpt-5b")
    plan = Plan(pp=3, batch=4, mbs=1)
    message = gpt.sequence * gpt.hidden * 2  # bf16
    sent = [lower(gpt, plan, stage).comm_bytes["pp"] for stage in range(3)]
    assert sent == [4 * message + 8, 2 * 4 * message + 8, 4 * message + 8]
