"""The order of a step: the slots of the pipeline's schedule, then the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from topologies.session import current_session
from workload.dataflow import needed_for
from workload.gpt import GPT
from workload.lowering import optimizer
from workload.lowering.builder import Builder
from workload.lowering.chunk import Chunks, Keeps
from workload.lowering.divisibility import check
from workload.lowering.few_layers import FewLayers
from workload.lowering.held.buckets import with_buckets
from workload.lowering.held.kept import with_kept
from workload.lowering.held.loss import with_copies_of_logits
from workload.lowering.held.narrow_weights import with_narrow_weights
from workload.lowering.host_share import keep_rest_here
from workload.lowering.in_turns import alone, with_pairs
from workload.lowering.layer_copies import KeptLayers
from workload.lowering.layers import goldfish, mtp, vocabulary
from workload.lowering.layers.mixers.experts import balance
from workload.lowering.messages import Messages
from workload.lowering.recipes.casts import in_recipe
from workload.op import Block, Buffer, Op
from workload.passes.activations import ACTIVATIONS, on_host
from workload.passes.matmul_forms import PLAIN, Forms, with_forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour, with_behaviour
from workload.passes.table import overlap_slot, overlap_step
from workload.pipeline.schedule import Slot
from workload.plan import Plan
from workload.program import Program
from workload.rules.zeroth_order import LOSSES
from workload.stages import stage_slots


def lower(
    gpt: GPT,
    plan: Plan,
    stage: int = 0,
    *,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    keeps: Keeps | None = None,
    few: FewLayers | None = None,
) -> Program:
    """The program of a rank of one pipeline stage for one step of `gpt` under `plan`.

    Every rank of a stage performs the same ops on buffers of the same shapes. A PlanCannotRunError
    says which width the plan does not divide. `forms` is the choice that `matmul_forms=tuned` asks
    for; a machine makes it. `behaviour` is the software stack's. Ops that `keeps`, given the
    buffers, says no to are left out, and overlaps and casts of recipes know nothing of them. Of
    layers that are alike a `few` may stand for all.
    """
    slots = stage_slots(plan, stage)
    return with_pairs(lower_slots(gpt, plan, stage, slots, forms, behaviour, keeps, few))


def lower_stages(gpt: GPT, plan: Plan, forms: Forms, behaviour: StackBehaviour) -> list[Program]:
    """The programs of every pipeline stage for one step, in their order, as `lower` makes them."""
    return [lower(gpt, plan, stage, forms=forms, behaviour=behaviour) for stage in range(plan.pp)]


def lower_slots(
    gpt: GPT,
    plan: Plan,
    stage: int,
    order: Sequence[Slot],
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    keeps: Keeps | None = None,
    few: FewLayers | None = None,
    *,
    apart: bool = False,
) -> Program:
    """The program of a stage that runs these slots alone, each by itself, then the optimizer; of
    all layers, or of a `few` that stand for them. Where slots stand `apart`, what is in flight from
    one to another is not looked at, and messages are awaited where they are posted."""
    assert not forms or plan.training.matmul_forms == "tuned", (
        "a plan of plain matmuls leaves no choice"
    )
    check(gpt, plan)
    once = behaviour.once_a_step and plan.pp > 1 and plan.zero > 1
    b = Builder(gpt, plan, stage, behaviour.held, few, once_a_step=once)
    written = None
    if few is not None:
        key = gpt, plan, behaviour.held, behaviour.early_stop, once
        written = current_session().the(KeptLayers).of(key)
    chunks = Chunks(b, written, early_stop=behaviour.early_stop, keeps=keeps)
    declare(b, chunks)
    keep_rest_here(b)
    ops, slot_of = emitted(b, chunks, order, forms, behaviour, apart=apart)
    if b.rule.zeroth_order:
        ops = needed_for(LOSSES, ops)
    b.ops = []
    optimizer.finish(b, behaviour.launches_of_slice)
    # What is reduced behind the last backward pass of a stage has nothing to run beside.
    beside = tuple(each for each in alone(plan) if each != "dp" or not once)
    every = overlap_step([*ops, *chunks.kept(b.ops)], beside, b.buffers, slot_of)
    every = in_recipe(b, every, behaviour.casts)
    every, added = with_behaviour(every, b.buffers, behaviour)
    b.buffers |= added
    every = with_kept(b, with_buckets(b, every), transposes=behaviour.casts.transposes)
    every = with_narrow_weights(b, every, transposes=behaviour.casts.transposes)
    every = with_copies_of_logits(b, every)
    if plan.training.offload == ACTIVATIONS:
        every, copies = on_host(every, b.buffers, chunks.following)
        b.buffers |= copies
    return Program(gpt, plan, tuple(every), b.buffers, b.layouts, b.states, stage, slot_of)


def emitted(
    b: Builder,
    chunks: Chunks,
    order: Sequence[Slot],
    forms: Forms,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    *,
    apart: bool = False,
) -> tuple[list[Op], dict[Block, Slot]]:
    """The ops of all slots with their messages, and to which slot each block belongs; the overlaps
    within slots are applied."""
    messages = Messages(b, chunks, order, behaviour, apart=apart)
    ops: list[Op] = []
    slot_of: dict[Block, Slot] = {}
    for number, slot in enumerate(order):
        before = messages.before(number)
        following = order[number + 1] if number + 1 < len(order) else None
        gathered, source = messages.gathered(number)
        plain = [*gathered, *chunks.emit(slot, following, source), *messages.scattered(number)]
        own = overlap_slot(plain, b.plan.training.overlap)
        own, copies = with_forms(own, b.buffers, forms)
        b.buffers |= copies
        ops += [*before, *own, *messages.after(number)]
        last = None
        for op in own:
            if op.block is not last:  # mostly it is, and a block is hashed slowly
                last = op.block
                slot_of[last] = slot
    return ops, slot_of


def declare(b: Builder, chunks: Chunks) -> None:
    """Declare the parameters of the stage's chunks with their states, and the loss."""
    if chunks.has_embedding:
        vocabulary.declare_embedding(b)
    if chunks.has_head:
        vocabulary.declare_head(b)
    for name in LOSSES if b.rule.zeroth_order else LOSSES[:1]:
        b.add(Buffer(name, (1,), b.wide, "workspace", True, b.grid.ranks))
    goldfish.declare(b)
    balance.declare_total(b)
    chunks.declare()
    if chunks.has_head and b.gpt.mtp.layers:
        mtp.declare(b)
