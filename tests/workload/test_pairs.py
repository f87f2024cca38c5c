"""Passes of a pipeline that run in turns, and gradients of weights that are put off, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.pipeline.schedule_sim import schedule_of, simulate_schedule
from tests.messages import names
from tests.workload.test_experts import TWO
from tests.workload.test_passes import values_read
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import find_model
from workload.lowering import lower, lower_slots
from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH, WEIGHT_GRAD, Op
from workload.passes.stack import StackBehaviour
from workload.pipeline.pairs import pairs_of
from workload.pipeline.schedule import FORWARD, slots
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import stage_slots

RING = "pp=2,vpp=2,dp=2,ep=2"
V = f"{RING},schedule=dualpipe-v"
FOUR = replace(TWO, layers=4)


def plan_of(words: str, overlap: str, micro_batches: int = 4) -> Plan:
    plan = parse_plan(f"{words},mbs=2,overlap={overlap}", batch=64)
    return plan.with_micro_batches(micro_batches)


def program_of(words: str, overlap: str, stage: int = 0) -> Program:
    return lower(FOUR, plan_of(words, overlap), stage)


def text(schedule: str, stage: int) -> str:
    """The slots of one of two stages and of four micro-batches, with pairs in brackets; whole
    backward passes in two halves have both."""
    order = slots(schedule, stage, 2, 4, 2, more=1)
    pairs = pairs_of(order, stage, 2, in_v=schedule != "1f1b")
    words = [f"{slot.work[0]}{slot.chunk}.{slot.micro_batch}" for slot in order]
    for pair in pairs:
        words[pair[0]], words[pair[-1]] = f"({words[pair[0]]}", f"{words[pair[-1]]})"
    return " ".join(words)


def test_1f1b_pairs_what_stands_between_a_warm_up_one_longer_and_the_end() -> None:
    assert text("1f1b", 0) == (
        "f0.0 f0.1 f1.0 f1.1 f0.2 (f0.3 b1.0) (f1.2 b1.1) (f1.3 b0.0) b0.1 b1.2 b1.3 b0.2 b0.3"
    )
    assert text("1f1b", 1) == (
        "f0.0 f0.1 f1.0 (f1.1 b1.0) (f0.2 b1.1) (f0.3 b0.0) (f1.2 b0.1) (f1.3 b1.2) b1.3 b0.2 b0.3"
    )


def test_dualpipe_v_pairs_passes_through_both_chunks_but_for_the_last_stages_first() -> None:
    assert text("dualpipe-v", 0) == (
        "f0.0 f0.1 f0.2 f1.0 i1.0 w1.0 f1.1 (f0.3 i1.1 w1.1) (f1.2 i0.0 w0.0) "
        "i1.2 w1.2 (f1.3 i0.1 w0.1) i1.3 w1.3 i0.2 w0.2 i0.3 w0.3"
    )
    assert text("dualpipe-v", 1).count("(") == 3


def test_a_pair_is_one_slot_of_the_schedule() -> None:
    """F takes 1, B 2, both in turns 2: two stages of two chunks pass four micro-batches in 22."""
    orders = [slots("1f1b", stage, 2, 4, 2, more=1) for stage in range(2)]
    ticks = [[1 if slot.work == FORWARD else 2 for slot in order] for order in orders]
    for stage, order in enumerate(orders):
        for pair in pairs_of(order, stage, 2, in_v=False):
            ticks[stage][pair.start : pair.stop] = [2, 0]
    for messages in ("awaited", "ahead", "megatron-interleaved"):
        schedule = schedule_of(orders, ticks, [(0, 0)] * 2, messages, 4, paired=True)
        first, last = simulate_schedule(schedule).stages
        assert (first.over, last.over) == (22, 20)
        assert first.start[:6].tolist() == [0, 1, 2, 3, 4, 6]
        assert last.start[:5].tolist() == [1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("words", "overlap"),
    [
        (f"{RING},zero=3", "a2a"),
        (f"{V},z=2,recompute=full", "all+a2a"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (RING, "a2a"),
                (RING, "all+a2a"),
                (f"{RING},zero=3", "all+a2a"),
                (f"{V},z=2,recompute=full", "a2a"),
            )
        ),
    ],
)
def test_turns_keep_every_op_and_the_values_it_reads(words: str, overlap: str) -> None:
    plan = plan_of(words, overlap)
    for stage in range(2):
        turns = lower(FOUR, plan, stage)
        plain = lower_slots(FOUR, plan, stage, stage_slots(plan, stage))
        assert [op.name for op in turns.ops] != [op.name for op in plain.ops]
        assert_same(turns, plain)


@pytest.mark.parametrize("words", ["dp=2,ep=2", f"{RING},zero=3", "z=2,dp=2,ep=2"])
def test_putting_off_keeps_every_op_and_the_values_it_reads(words: str) -> None:
    for more in ("none", "all"):
        overlap = "wgrad" if more == "none" else f"{more}+wgrad"
        assert_same(program_of(words, overlap), program_of(words, more))


def test_what_was_put_off_behind_the_embedding_is_added_behind_it() -> None:
    """A first layer without experts leaves the next one's gradients of weights to the pass's end,
    behind those of the embedding."""
    plan = plan_of("z=2,dp=2,ep=2", "all+wgrad", 2)
    program = lower(find_model("tiny-deepseek-2m"), plan)
    there = {name for name, buffer in program.buffers.items() if buffer.persistent}
    for op in program.ops:
        there.update(op.writes)
        assert there.issuperset(op.reads), op.name


def assert_same(one: Program, other: Program) -> None:
    assert Counter(op.name for op in one.ops) == Counter(op.name for op in other.ops)
    assert values_read(one.ops) == values_read(other.ops)
    assert one.comm_bytes == other.comm_bytes


def short(op: Op) -> str:
    return f"{op.micro_batch}.{op.part}.{op.label.removesuffix('.exchange')}"


def test_each_goes_as_far_as_its_next_all_to_all() -> None:
    """The last stage's first pair: micro-batch 0 back through layer 3, and 1 forward through it."""
    moved = [op for op in program_of(RING, "a2a", 1).ops if op.stream == "ep"]
    assert [short(op) for op in moved[:6]] == [
        "0.l3.combine.grad",
        "1.l3.dispatch",
        "1.l3.dispatch.scores",
        "0.l3.dispatch.grad",
        "0.l3.dispatch.scores.grad",
        "1.l3.combine",
    ]


def test_gradients_of_weights_run_beside_the_next_all_to_all() -> None:
    """Those of experts beside the gradients of rows on their way back, those of attention at the
    end, or beside what the next layer gets."""
    purposes = (EXPERT_DISPATCH, EXPERT_COMBINE, WEIGHT_GRAD)
    plan = plan_of("dp=2,ep=2", "wgrad", 1)
    ops = [op for op in lower(TWO, plan).ops if op.block.work != FORWARD]
    found = [f"{op.part}.{op.label}" for op in ops if op.purpose in purposes and op.part.is_layer]
    found = [word.removesuffix(".exchange") for word in found]
    first = found.index("l1.dispatch.grad")
    assert found[0] == "l1.combine.grad"
    assert found[first : first + 4] == [
        "l1.dispatch.grad",
        "l1.dispatch.scores.grad",
        "l1.experts.down.grad.weight",
        "l1.experts.up.grad.weight",
    ]
    second = found.index("l0.combine.grad")
    assert {"l1.qkv.grad.weight", "l1.out.grad.weight"} <= set(found[second:])


EXPERTS_BACK = [
    *("experts.down.grad.input", "experts.up.grad.input", "dispatch.grad"),
    *("dispatch.scores.grad", "experts.down.grad.weight", "experts.up.grad.weight"),
]
INPUTS_BACK = ["router.grad.input", "out.grad.input", "attention.grad", "qkv.grad.input"]
WEIGHTS_BACK = ["router.grad.weight", "out.grad.weight", "qkv.grad.weight"]
ATTENTION_AHEAD = ["qkv.matmul", "attention", "out.matmul", "router.matmul"]


@pytest.mark.parametrize(
    ("words", "stage", "back", "ahead"),
    [
        ("dp=2,ep=2,overlap=a2a+wgrad", 0, "0.l3", "1.l0"),
        (f"{RING},overlap=a2a+wgrad", 1, "0.l3", "1.l3"),
        (f"{V},overlap=a2a", 0, "1.l3", "3.l0"),
    ],
)
def test_gradients_of_weights_stand_in_turns_in_front_of_the_other_pass(
    words: str, stage: int, back: str, ahead: str
) -> None:
    """Each kind of pair: those of experts behind the rows' way back, so beside it, and in front of
    what the forward pass multiplies; those of attention at the layer's end, where the next one's
    exchange of rows is on its way. Of both passes what multiplies and what is sent beside it, by
    hand, from the first exchange of the pair on."""
    plan = parse_plan(f"{words},mbs=2", batch=64).with_micro_batches(4)
    ops = [op for op in lower(FOUR, plan, stage).ops if op.part.is_layer]
    busy = [short(op) for op in ops if op.flops or op.stream == "ep"]
    expected = [
        f"{pass_}.{label}"
        for pass_, labels in (
            (back, ["combine.grad"]),
            (ahead, [*ATTENTION_AHEAD, "dispatch", "dispatch.scores"]),
            (back, EXPERTS_BACK),
            (ahead, ["experts.up.matmul", "experts.down.matmul", "combine"]),
            (back, INPUTS_BACK + WEIGHTS_BACK),
        )
        for label in labels
    ]
    first = busy.index(expected[0])
    found = [name for name in busy[first + 1 :] if not name.endswith("combine.grad")]
    assert found[: len(expected) - 1] == expected[1:]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "pp=2,dp=2,ep=2,overlap=a2a",
            ("overlap=a2a", "pp=2", "vpp=1", "schedule=1f1b", "dualpipe-v"),
        ),
        ("pp=2,vpp=2,dp=2,overlap=a2a", ("overlap=a2a", "ep=1")),
        ("pp=2,vpp=2,dp=2,ep=2,schedule=zb-v,overlap=a2a", ("ep=2",)),
        ("dp=2,overlap=wgrad", ("overlap=wgrad", "ep=1")),
        (
            "pp=2,dp=2,ep=2,schedule=zb-h1,overlap=wgrad",
            ("overlap=wgrad", "schedule=zb-h1", "schedule=1f1b", "gpipe"),
        ),
    ],
)
def test_what_has_nothing_to_take_turns_with_is_refused(words: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, check=names(*named)):
        parse_plan(f"{words},batch=8,mbs=1")


def test_deepspeeds_engine_has_no_pairs() -> None:
    with pytest.raises(PlanCannotRunError, check=names("overlap=a2a", "DeepSpeed", "a2a")):
        lower(FOUR, plan_of(RING, "a2a"), behaviour=StackBehaviour(messages="deepspeed"))
