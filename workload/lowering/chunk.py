"""One stage's chunks of the model: the ops of a slot of the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from workload.lowering.builder import Builder
from workload.lowering.layer_copies import LayerCopies, Written, WrittenLayers
from workload.lowering.layers import layer, mtp, per_op, vocabulary
from workload.lowering.layers.mixers.experts import balance
from workload.lowering.recompute import recomputed
from workload.lowering.update import by_owner
from workload.lowering.updates import zeroth_order
from workload.lowering.zero_bubble import put_off, split
from workload.models.mtp import every_layer
from workload.op import AROUND_DEPTH, EMBED, HEAD, RECOMPUTE, Block, Buffer, Op, Part, layer_part
from workload.pipeline.schedule import BACKWARD, FORWARD, TURNS_LATE, WEIGHT, Slot
from workload.pipeline.slot import INPUT, PERTURB
from workload.recomputation.parts import FULL, PER_OP
from workload.stages import chunk_layers, kind_of, places_of

Place = tuple[int, int]
Layer = Written[layer.AllSaved]
Keeps = Callable[[Op, Mapping[str, Buffer]], bool]


class Chunks:
    """The stage's chunks, and what slots already emitted left for those to come.

    With `early_stop` a layer is recomputed up to the last value that its backward pass needs. With
    dropout that is the mask behind the last linear, so nothing is left out.
    `outputs` has the residual stream, or its gradient, that a slot hands to the next chunk. Ops
    that `keeps`, given the buffers, says no to are left out of slots, before gradients of weights
    are told from those of inputs.
    """

    def __init__(
        self,
        b: Builder,
        written: WrittenLayers | None = None,
        *,
        early_stop: bool = False,
        keeps: Keeps | None = None,
    ) -> None:
        self._b, self._keeps = b, keeps
        self._whole = bool(b.gpt.dropout) or not early_stop
        self._parts = b.few.parts
        self._every_part = chunk_layers(b.gpt, b.plan)
        self.places = places_of(b.plan)
        self._copies = LayerCopies(b, written or WrittenLayers())
        self._kinds = {index: kind_of(b.gpt, index) for index in self.layers}
        self._first = balance.first_layer(b)
        self._saved: dict[Place, list[tuple[str, Layer]]] = {}
        self._given: dict[tuple[Place, int], dict[str, per_op.Outputs]] = {}
        self._embedded: dict[Place, vocabulary.Kept] = {}
        self._heads: dict[Place, tuple[vocabulary.Head, bool]] = {}
        self._further: dict[Place, list[mtp.Saved]] = {}
        self._weights: dict[Place, list[Op]] = {}
        self.outputs: dict[Slot, str] = {}

    @property
    def has_embedding(self) -> bool:
        """Whether the model begins in this stage."""
        return any(map(self.places.begins, self.places.numbers(self._b.stage)))

    @property
    def has_head(self) -> bool:
        """Whether the model ends in this stage."""
        return self._b.has_head

    @property
    def layers(self) -> list[int]:
        """The layers of all chunks, in the model's order."""
        return [n for part in self.places.parts(self._b.stage) for n in self._parts[part]]

    @property
    def following(self) -> dict[Part, Part]:
        """The layer behind each of the chunks' layers that are lowered, those that predict further
        tokens behind the model's last one."""
        found: dict[Part, Part] = {}
        for part in self.places.parts(self._b.stage):
            own = list(map(layer_part, self._parts[part]))
            if own and own[-1].layer == self._b.gpt.layers - 1:
                own += map(layer_part, every_layer(self._b.gpt)[self._b.gpt.layers :])
            found |= dict(pairwise(own))
        return found

    def number(self, chunk: int) -> int:
        """The chunk's number among those of all stages."""
        return self.places.number(self._b.stage, chunk)

    def declare(self) -> None:
        """Declare the parameters of all layers."""
        for index in self.layers:
            part = layer_part(index)
            self._copies.declare(self._kinds[index], part, partial(layer.declare, self._b, part))

    def is_first(self, chunk: int) -> bool:
        """Whether the model begins with this chunk."""
        return self.places.begins(self.number(chunk))

    def is_last(self, chunk: int) -> bool:
        """Whether the model ends with this chunk."""
        return self.places.ends(self.number(chunk))

    def emit(self, slot: Slot, following: Slot | None, source: str) -> list[Op]:
        """The ops of a slot on what arrived, in plain order; `following` is the next slot."""
        self._b.ops = []
        place = slot.chunk, slot.micro_batch
        if slot.work == FORWARD:
            back = [Slot(work, *place) for work in (BACKWARD, INPUT)]
            late = self._b.plan.pipeline.schedule in TURNS_LATE or self._b.plan.in_pairs
            kept = following in back and not late
            self.outputs[slot] = self._forward(place, source, kept=kept)
        elif slot.work == WEIGHT:
            return self._weights.pop(place)
        elif slot.work == PERTURB:
            self._perturb(slot.micro_batch)
        else:
            self.outputs[slot] = self._backward(place, source)
            if slot.work != BACKWARD:
                now, later = split(self.kept(self._b.ops), self.outputs[slot])
                self._weights[place] = later
                return now
            if "wgrad" in self._b.plan.training.overlap:
                return put_off(self.kept(self._b.ops), self.outputs[slot])
        return self.kept(self._b.ops)

    def kept(self, ops: list[Op]) -> list[Op]:
        """The given ops without the ones that are left out."""
        keeps = self._keeps
        return ops if keeps is None else [op for op in ops if keeps(op, self._b.buffers)]

    def _perturb(self, micro_batch: int) -> None:
        """Move all parameters of the stage to where the pass that begins with a micro-batch wants
        them."""
        for owner, parameters in by_owner(self._b).items():
            self._b.block = Block(micro_batch, owner, PERTURB)
            label = PERTURB if owner.is_layer else f"{owner}.{PERTURB}"
            zeroth_order.emit_perturbation(self._b, label, parameters)

    def _range(self, chunk: int) -> Sequence[int]:
        """The layers of a chunk that are lowered."""
        return self._parts[self.places.part(self.number(chunk))]

    def _every(self, chunk: int) -> range:
        """All layers of a chunk."""
        return self._every_part[self.places.part(self.number(chunk))]

    def _forward(self, place: Place, source: str, *, kept: bool) -> str:
        """Through the chunk; `kept` says that its backward pass comes next."""
        b, (chunk, m) = self._b, place
        if self.is_first(chunk):
            b.block = Block(m, EMBED, FORWARD)
            vocabulary.inputs(b, "tokens")
            source, self._embedded[place] = vocabulary.embed(b)
        self._saved[place] = []
        for index in self._range(chunk):
            start = len(b.ops)
            saved = self._layer(Block(m, layer_part(index), FORWARD), source)
            self._saved[place].append((source, saved))
            source = saved.out
            if b.plan.training.recompute == PER_OP:
                self._given[place, index] = per_op.keep(b, start)
        if self.is_last(chunk):
            b.block = Block(m, HEAD, FORWARD)
            vocabulary.inputs(b, "targets")
            self._heads[place] = vocabulary.head(b, source), kept
            if b.gpt.mtp.layers:
                self._further[place] = mtp.forward(b, source)
        return source

    def _layer(self, block: Block, source: str) -> Layer:
        """Through a layer, or through it once more."""
        b, whole = self._b, self._whole or block.phase == FORWARD
        b.block = block
        key = block.phase, self._kinds[block.part.layer], self._starts(block)
        write = partial(layer.forward, b, block.part, source, whole=whole)
        return self._copies.written(key, (source,), write)

    def _layer_back(self, block: Block, source: str, kept: Layer, grad: str, again: str) -> str:
        """Back through a layer, from `grad`; returns the gradient of its input."""
        b = self._b
        b.block = block

        def write() -> tuple[str, None]:
            return layer.backward(b, block.part, kept.saved, grad, again=again), None

        key = kept.like, self._starts(block)  # what runs again whole is not like what does not
        return self._copies.written(key, (source, grad), write).out

    def _starts(self, block: Block) -> tuple[bool, bool]:
        """Whether a layer overwrites gradients, and losses of experts, of the step before."""
        first = block.micro_batch == 0
        return first, first and block.part.layer == self._first

    def _backward(self, place: Place, grad: str) -> str:
        """Back through the chunk, recomputing if asked; returns the gradient of its input."""
        b, (chunk, m) = self._b, place
        if self.is_last(chunk):
            b.block = Block(m, HEAD, BACKWARD)
            head, gathered = self._heads.pop(place)
            grad = vocabulary.head_backward(b, head, gathered=gathered)
            if b.gpt.mtp.layers:
                again = recomputed(b.plan, len(self._every(chunk)))
                more = mtp.backward(b, self._further.pop(place), again)
                with b.within(AROUND_DEPTH):
                    b.op("mtp.add.grad", "add", [grad, more], [grad])
        every = self._saved.pop(place)
        first = self._every(chunk).start
        for index in reversed(self._range(chunk)):
            again = recomputed(b.plan, index - first)
            (source, kept), start = every.pop(), len(b.ops)
            if again == FULL:
                kept = self._layer(Block(m, layer_part(index), RECOMPUTE), source)
            back = Block(m, layer_part(index), BACKWARD)
            grad = self._layer_back(back, source, kept, grad, again)
            if given := self._given.pop((place, index), None):
                per_op.again(b, start, given)
        if self.is_first(chunk):
            b.block = Block(m, EMBED, BACKWARD)
            vocabulary.embed_backward(b, grad, self._embedded.pop(place))
        return grad
