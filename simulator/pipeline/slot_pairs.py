"""What stands for pairs of slots that run in turns, from what stands for each of them alone.

The first slot of a pair gets the ops of all of it, in turns, the others none: nothing stands
between them, so in the schedule a pair is one slot. What a pair holds beyond what it begins with
comes and goes as alone, but that an op which now has a stream of its own lets go of its operands
only where it is awaited. This is exact as slots are closed (`pipeline_step.py`). The buffers of the
forward pass get names of their own, since one micro-batch may stand for those of both passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.engine.columns import columns_of
from simulator.pipeline.slot_ops import Parts, SlotOps
from workload.op import ROLES, Op
from workload.passes.exchanges.pairs import in_turns_of
from workload.pipeline.order import Order
from workload.pipeline.pairs import pairs_of
from workload.pipeline.schedule import OPPOSED
from workload.plan import Plan
from workload.sizes.arrays import Bytes
from workload.structure import Structure, memoized_on

AHEAD = ".ahead"  # behind the names of the forward pass' buffers


def parts_in_pairs(alone: Sequence[Parts], orders: Sequence[Order], plan: Plan) -> list[Parts]:
    """What stands for the slots of each stage, given what does `alone`."""
    known: dict[tuple[SlotOps, ...], list[SlotOps]] = {}
    found = []
    for stage, (parts, order) in enumerate(zip(alone, orders, strict=True)):
        own = parts.each
        for pair in pairs_of(order.slots, stage, plan.pp, in_v=plan.pipeline.schedule in OPPOSED):
            slots = tuple(own[place] for place in pair)
            if slots not in known:
                nothing = replace(slots[0], places=slots[0].places[:0])
                known[slots] = [_in_turns(slots), *[nothing] * (len(slots) - 1)]
            own[pair.start : pair.stop] = known[slots]
        found.append(Parts.of(own))
    return found


def _in_turns(slots: Sequence[SlotOps]) -> SlotOps:
    """A pair, as a program of its own."""
    program, (forward, *back) = slots[0].program, slots
    renamed = {name: f"{name}{AHEAD}" for name in _transient(forward)}
    further = {new: program.buffers[name] for name, new in renamed.items()}
    ops = tuple(in_turns_of([_with_names(forward.ops, renamed), *(slot.ops for slot in back)]))
    outline = Structure(ops, {**program.buffers, **further})
    born, gone = set[str](), set[str]()
    for slot, names in zip(slots, [renamed, *({} for _ in back)], strict=True):
        first, last = _changing(slot)
        born |= {names.get(name, name) for name in first}
        gone |= {names.get(name, name) for name in last}
    size = dict(zip(program.buffers, program.nbytes, strict=True))
    size |= {new: size[name] for name, new in renamed.items()}
    own = replace(program, ops=ops, buffers=outline.buffers, like=outline)
    every = np.arange(len(ops), dtype=np.int64)
    return SlotOps(own, columns_of(outline), every, *_changes(outline, size, born, gone))


def _transient(slot: SlotOps) -> list[str]:
    """The buffers that a slot touches and that do not exist before the step."""
    touched = dict.fromkeys(name for op in slot.ops for name in (*op.reads, *op.writes))
    return [name for name in touched if not slot.program.buffers[name].persistent]


def _with_names(ops: Sequence[Op], names: Mapping[str, str]) -> list[Op]:
    """Ops on buffers of other names."""

    def renamed(used: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in used)

    return [replace(op, reads=renamed(op.reads), writes=renamed(op.writes)) for op in ops]


def _changing(slot: SlotOps) -> tuple[set[str], set[str]]:
    """The buffers that a slot allocates alone, and those that it frees."""
    outline, inside = slot.program.outline, set(slot.places.tolist())
    first = first_writers(outline)
    born = {name for op in slot.ops for name in op.writes if first.get(name) in inside}
    return born, {name for place in inside for name in outline.releases[place]}


@memoized_on
def first_writers(outline: Structure) -> dict[str, int]:
    """For each buffer that does not exist before the step the place of the op that makes it."""
    first: dict[str, int] = {}
    for place, op in enumerate(outline.ops):
        for name in op.writes:
            if not outline.buffers[name].persistent:
                first.setdefault(name, place)
    return first


def _changes(
    outline: Structure, size: Mapping[str, int], born: set[str], gone: set[str]
) -> tuple[Bytes, Bytes]:
    """Bytes by role, (roles, ops of the pair), that each op allocates and frees, if the pair
    allocates the buffers `born` and frees those that are `gone`."""
    coming, going = (np.zeros((len(ROLES), len(outline.ops)), dtype=np.int64) for _ in range(2))
    left = set(born)
    for at, (op, freed) in enumerate(zip(outline.ops, outline.releases, strict=True)):
        for name in left.intersection(op.writes):
            coming[ROLES.index(outline.buffers[name].role), at] += size[name]
        left.difference_update(op.writes)
        for name in gone.intersection(freed):
            going[ROLES.index(outline.buffers[name].role), at] += size[name]
    return coming, going
