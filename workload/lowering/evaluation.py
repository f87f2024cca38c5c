"""Forward passes alone: the program of an evaluation, on the parameters of a training step.

It is what the lowering emits for the forward slots of the plan's schedule, in their order, without
dropout and without what only a backward pass would read. So every stage sends and receives in the
order in which it does in training, and every kernel is one of training.
"""

from __future__ import annotations

from workload.dataflow import needed_for
from workload.gpt import GPT
from workload.lowering import optimizer
from workload.lowering.builder import Builder
from workload.lowering.chunk import Chunks
from workload.lowering.lower import declare, emitted
from workload.lowering.recipes.casts import in_recipe
from workload.models import mtp
from workload.op import STEP
from workload.passes.matmul_forms import PLAIN, Forms
from workload.pipeline.schedule import FORWARD, slots
from workload.plan import Plan
from workload.program import Program

LOSS = "loss"


def lower_forward(gpt: GPT, plan: Plan, stage: int = 0, *, forms: Forms = PLAIN) -> Program:
    """The program of a rank that evaluates one batch; it leaves its mean loss over all tokens, also
    of a model with Goldfish loss or further losses, in `loss`.

    Its persistent buffers are buffers of `lower`'s program, of the same names and shapes.
    """
    alone = mtp.without(gpt).changed(dropout=0.0, goldfish_k=0, balance_loss=0.0)
    b = Builder(alone, plan, stage)
    every = slots(plan.pipeline.schedule, stage, plan.pp, plan.micro_batches, plan.vpp)
    order = [slot for slot in every if slot.work == FORWARD]
    chunks = Chunks(b)
    declare(b, chunks)
    ops, slot_of = emitted(b, chunks, order, forms)
    ops = in_recipe(b, ops, trains=False)
    b.ops, b.block = [], STEP
    optimizer.sum_loss(b)
    kept = needed_for({LOSS}, [*ops, *b.ops])
    names = {name for op in kept for name in (*op.reads, *op.writes)}
    buffers = {name: buffer for name, buffer in b.buffers.items() if name in names}
    layouts = {name: layout for name, layout in b.layouts.items() if name in names}
    return Program(b.gpt, plan, tuple(kept), buffers, layouts, {}, stage, slot_of)
