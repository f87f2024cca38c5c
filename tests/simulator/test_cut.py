"""Programs of all layers from those of a few: op by op what the lowering writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simulator.engine.columns import Columns, columns_of
from simulator.engine.cut import IrregularError, with_all_layers
from simulator.engine.whole_program import whole_program, with_every_layer
from simulator.pipeline.slot_ops import SlotOps, StageKind, kind_of
from tests.examples import one_in
from tests.simulator.drawn_steps import of_one_stage
from tests.simulator.worlds import TINY, by_hand, compute, plan_of
from topologies.session import Session
from workload.gpt import GPT
from workload.held import NOTHING_HELD, Held
from workload.lowering import lower, lower_slots
from workload.lowering.few_layers import FewLayers, Run, few_layers
from workload.op import FORWARD, NORM_REDUCE, Block, Op, Part
from workload.passes.matmul_forms import PLAIN
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import samples, stage_slots

WHOLE = 21
GRIDS = ("tp=1", "z=4", "tp=2,y=2,z=2,dp=2", "tp=4,sp=true", "tp=2,dp=4,zero=1")
RESTS = (
    "zero=0",
    "zero=2",
    "zero=3",
    "zero=3,reshard=false",
    "offload=optimizer",
    "offload=update",
    "zero=3,offload=parameters",
    "offload=activations",
    "reshard=false",
    "optimizer=muon",
)
RECOMPUTES = ("none", "full", "selective", "full:9")
OVERLAPS = ("none", "oar", "oag", "dp", "oar+ors+oag", "all")
EVERY = 13  # of all combinations, so that each pair of values occurs
QUICK = 24  # of these again; the others are slow tests
OPERANDS = 15  # where a sort's key has how many an op reads: of a sum over layers fewer are written


def assert_same(found: Columns, expected: Program) -> None:
    """That columns are those of a program, operand by operand."""
    other = columns_of(expected.outline)
    assert [key[:OPERANDS] + key[OPERANDS + 1 :] for key in _keys(found)] == [
        key[:OPERANDS] + key[OPERANDS + 1 :] for key in _keys(other)
    ]
    for name in ("layer", "micro_batch", "of_slot"):
        assert np.array_equal(getattr(found, name), getattr(other, name)), name
    assert names(found, range(found.count)) == names(other, range(other.count))
    for name in ("reads", "writes"):
        assert np.array_equal(getattr(found, name).offsets, getattr(other, name).offsets), name
    for name in ("block", "slot"):
        begins = [np.diff(getattr(each, name)) != 0 for each in (found, other)]
        assert np.array_equal(*begins), name
    waits = ([sorted(own) for own in each.flow.waits.lists] for each in (found, other))
    assert next(waits) == next(waits)
    sizes = [[buffer.nbytes for buffer in each.buffers] for each in (found, other)]
    pairs = zip(found.lives.changes(sizes[0]), other.lives.changes(sizes[1]), strict=True)
    assert all(np.array_equal(one, another) for one, another in pairs)
    assert np.array_equal(found.persistent(sizes[0]), other.persistent(sizes[1]))
    assert np.array_equal(found.inputs(sizes[0]), other.inputs(sizes[1]))


def _keys(columns: Columns) -> list[tuple[object, ...]]:
    keys = columns.sorts.keys
    return [keys[number] for number in columns.sort.tolist()]


def plans() -> list[str]:
    rows = [
        f"{grid},{rest},recompute={recompute},overlap={overlap}"
        for grid, rest, recompute, overlap in product(GRIDS, RESTS, RECOMPUTES, OVERLAPS)
        if not ("zero=" in grid and "zero=" in rest)
    ]
    return rows[::EVERY]


@pytest.mark.parametrize("text", one_in(QUICK, plans()))
def test_a_program_of_all_layers_is_the_one_that_is_lowered_whole(text: str) -> None:
    gpt, plan = replace(TINY, layers=WHOLE), plan_of(text, 2)
    found, expected = whole_program(gpt, plan), lower(gpt, plan)
    assert len(found.program.ops) < len(expected.ops)
    assert_same(found.columns, expected)
    assert found.peak(0) == expected.peak


BEHAVIOURS = {
    "one by one": StackBehaviour(one_by_one=True),
    "coalesced": StackBehaviour(coalesced=True, payloads=(("all_gather", 0.75),)),
    "whole owners": StackBehaviour(whole_owners=True),
    "kept": StackBehaviour(held=Held(gradients_until_end=True, inner_activations=("gelu",))),
    "buckets": StackBehaviour(held=Held(bucket=1000, step_copies=True, temporaries=3)),
    "no gradients": StackBehaviour(held=Held(frees_gradients=True, gradient_buckets=True)),
    "reduced wide": StackBehaviour(reduce_dtype="gradients", early_stop=True),
}


LOWERED_WHOLE = ("one by one", "buckets")  # parameters are numbered, or updated together


@pytest.mark.parametrize("text", ["dp=4", "tp=2,dp=2,zero=1,recompute=full", "dp=4,zero=2"])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_programs_of_stacks_have_all_layers_too(name: str, text: str) -> None:
    gpt = replace(TINY, layers=WHOLE)
    for overlap in ("none", "all"):
        plan = plan_of(f"{text},overlap={overlap},precision=bf16", 2)
        found = whole_program(gpt, plan, behaviour=BEHAVIOURS[name])
        assert name in LOWERED_WHOLE or len(found.program.ops) < found.columns.count
        assert_same(found.columns, lower(gpt, plan, behaviour=BEHAVIOURS[name]))


def assert_stages_are_whole(
    gpt: GPT, plan: Plan, behaviour: StackBehaviour = PLAIN_BEHAVIOUR, *, shared: bool = False
) -> None:
    """That slots of all stages, and what closes the step, are as in stages that are lowered whole;
    if `shared` chunks stand for each other."""
    for stage in range(plan.pp):
        order = stage_slots(plan, stage)
        kind = kind_of(gpt, plan, stage, order, PLAIN, behaviour)
        like = () if kind.few is None else kind.few.like
        assert (len(set(like)) < len(like)) == shared
        slots = [slot for slot in order if slot.micro_batch in samples(plan)]
        program = lower_slots(gpt, plan, stage, slots, behaviour=behaviour, apart=True)
        whole = StageKind(plan, program, columns_of(program.outline), slots)
        for slot in slots:
            assert_same_part(kind.part(slot), whole.part(slot))
        assert_same_part(kind.end, whole.end)
        assert np.array_equal(kind.persistent(9), whole.persistent(9))
        for count in (len(samples(plan)), 9):
            assert kind.totals(count) == whole.totals(count)


def assert_same_part(found: SlotOps, expected: SlotOps) -> None:
    """That the ops are the same, what they wait for among themselves, and what they allocate."""
    keys = [
        [each.columns.sorts.keys[n] for n in each.graph.sort.tolist()] for each in (found, expected)
    ]
    own = [[key[:OPERANDS] + key[OPERANDS + 1 :] for key in every] for every in keys]
    assert own[0] == own[1]
    waits = ([sorted(each) for each in part.graph.waits] for part in (found, expected))
    assert next(waits) == next(waits)
    assert all(map(np.array_equal, found.memory[:2], expected.memory[:2]))


@pytest.mark.parametrize(
    "text",
    [
        "pp=2,tp=2,dp=2,overlap=all",
        "pp=2,dp=4,zero=2,recompute=full,overlap=dp",
        "pp=3,z=2,vpp=2,overlap=oar+ors,recompute=full:4",
        "pp=2,vpp=2,schedule=zb-v,dp=2,overlap=none",
        "pp=2,vpp=6,tp=2,dp=2,overlap=dp",
        "pp=2,vpp=6,dp=2,zero=1,overlap=dp",
        "pp=2,vpp=9,z=2,overlap=all,recompute=full:1",
        "pp=2,schedule=zb-h1,z=2,overlap=all,recompute=selective",
    ],
)
def test_slots_of_all_layers_are_those_that_are_lowered_whole(text: str) -> None:
    plan = parse_plan(f"{text},batch=24,mbs=1")
    assert_stages_are_whole(replace(TINY, layers=36), plan, shared=plan.vpp > 2)


def test_chunks_whose_gradients_stay_until_all_are_through_do_not_stand_for_each_other() -> None:
    plan = parse_plan("pp=2,vpp=6,dp=2,batch=24,mbs=1,overlap=none")
    for name in ("kept", "reduced wide"):
        shared = not BEHAVIOURS[name].held.gradients_until_end
        assert_stages_are_whole(replace(TINY, layers=36), plan, BEHAVIOURS[name], shared=shared)


def test_what_layers_write_is_kept_by_all_that_it_follows_from() -> None:
    gpt, plan = replace(TINY, layers=WHOLE), plan_of("dp=2,zero=3,recompute=full,precision=bf16", 2)
    with Session():
        for early_stop, held in product((False, True), (NOTHING_HELD, Held(sharded_masters=True))):
            behaviour = StackBehaviour(early_stop=early_stop, held=held)
            found = whole_program(gpt, plan, behaviour=behaviour)
            assert_same(found.columns, lower(gpt, plan, behaviour=behaviour))


@pytest.mark.slow
def test_drawn_programs_of_all_options_repeat() -> None:
    """Of a few layers come all, op by op, and no program is irregular."""
    chosen = 0
    for step in of_one_stage(seed=7):
        plan = step.plan.with_micro_batches(min(3, step.plan.micro_batches))
        if step.gpt.layers < WHOLE or not list(few_layers(step.gpt, plan)):
            continue
        whole = whole_program(step.gpt, plan)
        expected = lower(step.gpt, plan)
        assert len(whole.program.ops) < len(expected.ops)
        assert_same(whole.columns, expected)
        chosen += 1
        if chosen == 200:
            return


def kept(count: int, more: int) -> Run:
    """So many layers that are lowered, and so many that these stand for too."""
    half = count // 2
    lowered = (*range(half), *range(half + more, count + more))
    return Run(lowered, tuple(range(half, half + more)), 1)


def of_hand(run: Run, *ops: Op) -> Columns:
    """A program by hand, whose layers are those that are lowered, with the others."""
    own = [replace(op, part=_placed(op.part, run), block=_moved(op.block, run)) for op in ops]
    return with_all_layers(columns_of(by_hand("tp=1", *own).outline), run)


def _placed(part: Part, run: Run) -> Part:
    return part._replace(layer=run.lowered[part.layer]) if part.is_layer else part


def _moved(block: Block, run: Run) -> Block:
    return block._replace(part=_placed(block.part, run))


def names(columns: Columns, places: Sequence[int]) -> list[str]:
    return [columns.name(at) for at in places]


def test_what_ops_wait_for_keeps_its_distance_or_its_end_of_the_model() -> None:
    """Work of layer n waits for the gather of layer n, and for one that all wait for."""
    gathers = [compute(f"m0.l{n}.gather", writes=f"p{n}", stream="z") for n in range(4)]
    works = [compute(f"m0.l{n}.work", reads=f"p{n} b", writes=f"q{n}") for n in range(4)]
    begin = compute("m0.begin", writes="b", stream="y")
    found = of_hand(kept(4, 3), begin, *gathers, *works)
    assert found.layer.tolist() == [-1, *range(7), *range(7)]
    assert [sorted(own) for own in found.flow.waits.lists][-7:] == [[0, n + 1] for n in range(7)]


def test_a_sum_over_all_layers_waits_for_the_last_and_keeps_what_all_made() -> None:
    works = [compute(f"m0.l{n}.work", writes=f"q{n}", stream="z") for n in range(4)]
    found = of_hand(kept(4, 3), *works, compute("m0.sum", reads="q0 q1 q2 q3", writes="s"))
    assert names(found, found.flow.waits.of_one(7)) == ["m0.l6.work"]
    assert len(found.reads.of_one(7)) == 7
    assert (found.flow.gone[found.reads.of_one(7)] == 7).all()


def test_ops_ahead_and_behind_stay_with_their_layers() -> None:
    """In each layer's turn stands the gather of the next layer, and the end of the last one."""
    ops = [compute("m0.l0.gather", writes="p0", stream="z")]
    for n in range(6):
        ops += [compute(f"m0.l{n + 1}.gather", writes=f"p{n + 1}", stream="z")] * (n < 5)
        ops += [compute(f"m0.l{n}.work", reads=f"p{n}", writes=f"q{n}")]
        ops += [compute(f"m0.l{n - 2}.end", reads=f"q{n - 2}", writes=f"r{n - 2}")] * (n > 1)
    ops += [compute(f"m0.l{n}.end", reads=f"q{n}", writes=f"r{n}") for n in (4, 5)]
    found = of_hand(kept(6, 4), *ops)
    turn = [name for n in range(10) for name in turn_of(n, 10)]
    last = ["m0.l8.end", "m0.l9.end"]
    assert names(found, range(found.count)) == ["m0.l0.gather", *turn, *last]


def turn_of(n: int, count: int) -> list[str]:
    """What stands in a layer's turn."""
    ahead, behind = [f"m0.l{n + 1}.gather"], [f"m0.l{n - 2}.end"]
    return [*ahead * (n + 1 < count), f"m0.l{n}.work", *behind * (n > 1)]


def test_a_layer_in_the_middle_that_is_another_is_refused() -> None:
    for other in (1, 2):
        ops = [
            compute(f"m0.l{n}.{what}", writes=f"q{n}{what}")
            for n in range(4)
            for what in ("one", "other" if n == other else "two")
        ]
        with pytest.raises(IrregularError):
            of_hand(kept(4, 3), *ops)


def test_something_between_two_layers_in_the_middle_is_refused() -> None:
    """Behind the second of four layers it is; behind the third it stands near the end."""
    for place in (1, 2):
        ops = []
        for n in range(4):
            ops += [compute(f"m0.l{n}.{what}", writes=f"q{n}{what}") for what in ("one", "two")]
            ops += [compute("m0.pause", writes="p")] * (n == place)
        if place == 1:
            with pytest.raises(IrregularError):
                of_hand(kept(4, 3), *ops)
        else:
            assert names(of_hand(kept(4, 3), *ops), [12]) == ["m0.pause"]


def test_an_op_that_stands_twice_in_a_layer_is_refused() -> None:
    ops = [compute(f"m0.l{n}.work", writes=f"q{n}{at}") for at, n in enumerate((0, 1, 1, 2, 3))]
    with pytest.raises(IrregularError):
        of_hand(kept(4, 3), *ops)


def test_what_reaches_back_to_an_end_from_one_of_two_layers_is_refused() -> None:
    """The second layer's work reads what is before all layers, the third what the first made."""
    with pytest.raises(IrregularError):
        of_hand(kept(4, 3), *_of_two_before(4))
    assert of_hand(kept(6, 3), *_of_two_before(6)).layer.tolist() == list(range(9))


def _of_two_before(count: int) -> list[Op]:
    return [
        compute(f"m0.l{n}.work", reads=f"q{n - 2}" if n > 1 else "b", writes=f"q{n}")
        for n in range(count)
    ]


def test_what_the_first_layer_alone_gets_from_elsewhere_is_no_stream_through_all() -> None:
    """Of two layers the first reads what is there before, the second what it made itself."""
    ops = [compute(f"m0.l{n}.make", writes=f"r{n}") for n in (0, 1)]
    works = [
        compute(f"m0.l{n}.work", reads=read, writes=f"q{n}") for n, read in ((0, "b"), (1, "r1"))
    ]
    with pytest.raises(IrregularError):
        of_hand(kept(2, 3), ops[0], works[0], ops[1], works[1])
    works[1] = compute("m0.l1.work", reads="q0", writes="q1")
    found = of_hand(kept(2, 3), ops[0], works[0], ops[1], works[1])
    assert [found.flow.gone[at] for at in found.reads.places.tolist()] == [1, 3, 5, 7, 9]


def test_what_all_layers_read_is_no_stream_through_them() -> None:
    """The first work gets from before all layers what it would get from the one beside it, and
    another op of each layer reads that too."""
    ops = [
        compute("m0.l0.other", reads="b", writes="r0"),
        compute("m0.l0.work", reads="b", writes="q0"),
        compute("m0.l1.other", reads="b", writes="r1"),
        compute("m0.l1.work", reads="q0", writes="q1"),
    ]
    with pytest.raises(IrregularError):
        of_hand(kept(2, 3), *ops)


def test_an_op_of_no_layer_that_works_on_one_in_the_middle_is_refused() -> None:
    works = [compute(f"m0.l{n}.work", writes=f"q{n}") for n in range(4)]
    with pytest.raises(IrregularError):
        of_hand(kept(4, 3), *works, compute("m0.late", reads="q1", writes="s"))
    found = of_hand(kept(4, 3), *works, compute("m0.late", reads="q3", writes="s"))
    assert found.flow.gone[found.writes.of_one(6)].tolist() == [7]


def test_the_gather_of_the_next_layer_begins_that_layers_block() -> None:
    ops = [compute("m0.l0.gather", writes="p0", stream="z")]
    for n in range(4):
        ahead = compute(f"m0.l{n + 1}.gather", writes=f"p{n + 1}", stream="z")
        ops += [compute(f"m0.l{n}.work", reads=f"p{n}", writes=f"q{n}"), *[ahead] * (n < 3)]
    found = of_hand(kept(4, 3), *(replace(op, block=Block(0, op.part, FORWARD)) for op in ops))
    blocks = [found.block_layers[number] for number in found.block.tolist()]
    assert blocks == found.layer.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_a_program_that_does_not_repeat_is_lowered_whole() -> None:
    """What closes the step reads parameters of the first two layers alone."""
    gpt, plan = replace(TINY, layers=WHOLE), plan_of("dp=4,z=2,overlap=none")

    def lowered(few: FewLayers | None) -> Program:
        program = lower(gpt, plan, few=few)
        late = [op.purpose == NORM_REDUCE for op in program.ops].index(True)
        early = [name for name in program.buffers if name.startswith(("l0.", "l1."))]
        last = replace(program.ops[late], reads=(*program.ops[late].reads, *early))
        return replace(program, ops=(*program.ops[:late], last, *program.ops[late + 1 :]))

    program, columns, found = with_every_layer(lowered, few_layers(gpt, plan), "")
    assert found is None
    assert len(program.ops) == columns.count == len(lower(gpt, plan).ops)
