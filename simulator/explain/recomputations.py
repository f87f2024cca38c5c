"""What of its layers a plan may recompute, by the compute time that it costs, and what it saves.

Both come from programs of one layer of each kind, for one micro-batch, of which a part each runs
again; parts together cost and save what they do alone, and layers whole what each of them does.

Not modelled: collectives that run again (those of `moe` and of whole layers, over x, context or
experts). So this orders and picks what is then counted to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from simulator.costs.analytic import ComputeCosts, compute_costs
from simulator.ranks.fabric import fabric_of
from simulator.search.bounds.layer_kinds import base_of, kind_of, name_of
from simulator.stacks.stack import Stack
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import lower
from workload.models.moe import layers_with_experts
from workload.op import FORWARD, RECOMPUTE
from workload.plan import Plan
from workload.program import Program
from workload.recomputation.parts import (
    CORE,
    FULL,
    NONE,
    PARTS,
    SELECTIVE,
    model_refusal,
    parts_of,
)

Counts = Mapping[str, float]  # of layers by their kind


@record
class Recomputation:
    """What runs again, in the words of a plan: parts of all layers, or some layers or all whole;
    the `seconds` of compute ops that it costs a device for a micro-batch of the whole model, and
    the `saved_bytes` of this that are not kept for its backward pass."""

    words: str
    of_layers: bool
    seconds: float
    saved_bytes: float


@record
class _Layer:
    """By kind of layer, how long compute ops take that run again, and what is kept."""

    seconds: Counts
    kept_bytes: Counts

    def less(self, other: _Layer, counts: Counts) -> tuple[float, float]:
        """How many more seconds so many layers take, and how many bytes fewer they keep, than
        those of another."""
        seconds = sum(n * (self.seconds[k] - other.seconds[k]) for k, n in counts.items())
        kept = sum(n * (other.kept_bytes[k] - self.kept_bytes[k]) for k, n in counts.items())
        return seconds, kept


def recomputations(
    gpt: GPT, plan: Plan, stack: Stack, machine: Machine
) -> tuple[Recomputation, ...]:
    """All that a plan may recompute beside what it does, the least costly first; nothing where
    layers run again whole already, or where none is known to save anything."""
    if plan.training.recompute.partition(":")[0] == FULL:
        return ()
    asked = _Asked(gpt, plan, stack, machine)
    own, whole = asked.layer(plan.training.recompute), asked.layer(FULL)
    if own is None or whole is None:
        return ()
    parts = [Recomputation(words, False, *each) for words, each in _sets(asked, own)]
    some = [
        Recomputation(words, True, *whole.less(own, counts))
        for words, counts in _layers(gpt, plan, asked.counts)
    ]
    useful = (each for each in (*parts, *some) if each.saved_bytes > 0)
    return tuple(sorted(useful, key=lambda each: (each.seconds, each.words)))


def estimated_bytes(
    what: Recomputation,
    whole: Recomputation,
    plan: Plan,
    layers: int,
    *,
    most_bytes: int,
    least_bytes: int,
) -> float:
    """About what a device of a plan has in memory at most where something runs again, from its
    peak as it is, and with all `layers` of the model `whole`.

    In a pipeline several micro-batches are kept in part, so a share is saved of what whole layers
    save. Else one is, and what of a layer runs again is there besides while it does: by how much
    that makes another peak is known of whole layers. The first layers run again last, when nothing
    of the others is kept.
    """
    if plan.pp > 1:
        return most_bytes - what.saved_bytes / whole.saved_bytes * (most_bytes - least_bytes)
    left, missing = most_bytes - what.saved_bytes, whole.saved_bytes - what.saved_bytes
    if what.of_layers and what != whole:
        return left
    beside = least_bytes - (most_bytes - whole.saved_bytes)
    return left + max(beside - missing / layers, 0.0)


def _layers(gpt: GPT, plan: Plan, every: Counts) -> Iterator[tuple[str, Counts]]:
    """The first layers of each chunk, if nothing of any runs again yet, and all of them."""
    chunks = plan.pp * plan.vpp
    layers = max(plan.pipeline.stage_layers, default=-(-gpt.layers // chunks))
    for count in range(1, layers) if plan.training.recompute == NONE else ():
        share = {kind: n * count / layers for kind, n in every.items()}
        first = Counter(name_of(gpt, layer) for layer in range(count))
        yield f"{FULL}:{count}", share if chunks > 1 else first
    yield FULL, every


def _sets(asked: _Asked, own: _Layer) -> Iterator[tuple[str, tuple[float, float]]]:
    """Sets of parts that the model has, those that run again already among them, each with the
    seconds that it costs and the bytes that it saves."""
    before = parts_of(asked.plan.training.recompute)
    if asked.stack.recompute(SELECTIVE) != SELECTIVE:
        return
    those = [part for part in PARTS if part not in before and not asked.refusal({*before, part})]
    known = ((part, asked.layer(_words({*before, part}))) for part in those)
    alone = {part: each.less(own, asked.counts) for part, each in known if each is not None}
    for count in range(1, len(alone) + 1):
        for parts in combinations(alone, count):
            if not asked.refusal({*before, *parts}):
                seconds, saved = zip(*map(alone.__getitem__, parts), strict=True)
                yield _words({*before, *parts}), (sum(seconds), sum(saved))


def _words(parts: set[str]) -> str:
    """Parts in the words of a plan, in their usual order."""
    return SELECTIVE if parts == {CORE} else "+".join(part for part in PARTS if part in parts)


class _Asked:
    """A plan on a machine, of which programs of few layers tell what recomputation costs."""

    def __init__(self, gpt: GPT, plan: Plan, stack: Stack, machine: Machine) -> None:
        self.gpt, self.plan, self.stack = gpt, plan, stack
        kernels, ranks = stack.kernels(gpt, plan, machine), plan.grid.ranks
        node = fabric_of(machine, ranks).ranks_per_node
        self._costs: ComputeCosts = compute_costs(machine, node, ranks, kernels)
        self._behaviour = kernels.behaviour
        self._base = gpt if gpt.pattern else base_of(gpt)  # hybrids have more kinds of layers
        self._few, self.counts = (
            Counter(name_of(each, layer) for layer in range(each.layers))
            for each in (self._base, gpt)
        )

    def refusal(self, parts: set[str]) -> str:
        """Why the model has nothing of some parts."""
        dense = self.gpt.layers - layers_with_experts(self.gpt)
        return model_refusal(self.gpt, dense, _words(parts))

    def layer(self, recompute: str) -> _Layer | None:
        """A layer of each kind of which this runs again; None where some of it is not known."""
        one: dict[str, Any] = {"pp": 1, "vpp": 1, "schedule": "1f1b", "overlap": ()}
        one |= {"stage_layers": (), "ends_as_layers": False, "recompute": recompute}
        cells = self.plan.z * self.plan.dp
        try:
            plan = self.plan.changed(**one, batch=cells * self.plan.mbs)
            program = lower(self._base, plan, behaviour=self._behaviour)
            seconds = self._seconds(program)
        except SimgptError:
            return None
        kept = _kept_bytes(program, self._base)
        few = self._few.items()
        return _Layer({k: seconds[k] / n for k, n in few}, {k: kept[k] / n for k, n in few})

    def _seconds(self, program: Program) -> dict[str, float]:
        """By kind of layer, how long compute ops of all of them take that run again."""
        found = dict.fromkeys((*self._few, ""), 0.0)
        for op in program.ops:
            if op.block.phase == RECOMPUTE and not op.communicates:
                kind = kind_of(op.block.part, self._base)
                found[kind if kind in self._few else ""] += self._costs.seconds(op)
        return found


def _kept_bytes(program: Program, gpt: GPT) -> Counter[str]:
    """By kind of layer, what forward passes leave to others than themselves."""
    born: dict[str, str] = {}
    kept = Counter[str]()
    for op, gone in zip(program.ops, program.releases, strict=True):
        if op.block.part.is_layer and op.block.phase == FORWARD:
            kind = kind_of(op.block.part, gpt)
            own = (name for name in op.writes if not program.buffers[name].persistent)
            born |= {name: born.get(name, kind) for name in own}
        else:
            for name in filter(born.__contains__, gone):
                kept[born[name]] += program.buffers[name].nbytes
    return kept
