"""The builder of a program: to ops and buffers it adds parameters, by who holds which part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from workload.gpt import GPT
from workload.grid import Axes, Grid
from workload.held import NOTHING_HELD, Held
from workload.layout import Layout
from workload.lowering.few_layers import FewLayers
from workload.lowering.op_writer import OpWriter
from workload.lowering.parameter import Parameter
from workload.lowering.sharding import Sharding, sharding_of
from workload.op import (
    HOST,
    ITEM_BYTES,
    Buffer,
    Part,
)
from workload.pipeline.schedule import ways
from workload.plan import Plan
from workload.rules.table import rule_of
from workload.splits import states


class Builder(OpWriter):
    """Ops, buffers and parameters of the program that the lowering writes.

    With `once_a_step` data reduces gradients of weights at the end of the step alone, and weights
    stay whole from one micro-batch to another.
    """

    def __init__(
        self,
        gpt: GPT,
        plan: Plan,
        stage: int,
        held: Held = NOTHING_HELD,
        few: FewLayers | None = None,
        *,
        once_a_step: bool = False,
    ) -> None:
        super().__init__(gpt, plan, stage, few)
        self.held, self.once_a_step = held, once_a_step
        self.sharding = sharding_of(plan, sums_whole=once_a_step)
        self.sharding_of_experts = sharding_of(plan, of_experts=True, sums_whole=once_a_step)
        self.expert_axes, self.expert_tensor_axes = plan.expert_axes, plan.expert_tensor_axes
        self.tokens = gpt.sequence // plan.cp  # of a sequence, on one rank
        self.rows = plan.mbs * self.tokens
        self.wide = "fp64" if plan.training.precision == "fp64" else "fp32"
        self.summed = "bf16" if plan.training.gradients == "bf16" else self.wide
        self.masters = states.master_dtype(plan, self.wide)
        self.rule = rule_of(plan.training.optimizer)
        self.kept = HOST if plan.training.offload in states.ON_HOST else "optimizer"
        self.away = plan.training.offload == states.PARAMETERS  # weights, and their gradients
        self.sent: list[str] = []  # sums of gradients on their way to the host, not awaited
        self.copies = ways(plan.pipeline.schedule)  # of each parameter, on as many stages
        self.layouts: dict[str, Layout] = {}
        self.states: dict[str, Layout] = {}
        self.parameters: dict[str, Parameter] = {}
        self.gathered: dict[tuple[int, str], str] = {}
        self.adds = False  # whether an earlier block of the micro-batch had the same parameters

    def of_parameter(
        self, owner: Parameter, name: str, shape: tuple[int, ...], dtype: str, role: str
    ) -> str:
        """A buffer for what belongs to a parameter, within the step; returns its name."""
        return self.add(Buffer(name, shape, dtype, role, parameter=owner.name, part=owner.owner))

    def parameter(
        self,
        name: str,
        owner: Part,
        layout: Layout,
        *,
        sharded: bool,
        stages: int = 1,
        of_experts: bool = False,
        terms: Axes = (),
    ) -> str:
        """A parameter with its gradient and optimizer state, cut as the layout says; if `sharded`,
        each of them over the axes of its own that its sharding says: that of other weights, or
        `of_experts`. Its gradient is a sum over `terms` too (`Parameter`). `stages` hold it.

        In bf16 the gradient (unless the plan says bf16), the rule's states and a master copy are
        fp32 (AxoNN, Megatron); in fp32 and fp64 everything has the one dtype, and there is a master
        copy only of a rank's part.
        """
        how = self._sharding(terms if sharded else (), of_experts=of_experts)
        held, summed, kept = self._cut(layout, how, sharded=sharded)
        apart = held.flat != kept.flat
        master = apart or self.rule.trains_masters(self.dtype)
        is_master = master and self._keeps_masters(held, kept)
        dtype, of_sum = (self.wide, self.wide) if is_master else (self.dtype, self.summed)
        master = master and not is_master
        self.layouts[name], self.states[name] = held, kept
        mine = name, owner, stages
        weights, gradients = (HOST, HOST) if self.away and sharded else ("parameters", "gradients")
        self._held(mine, [name], held, dtype, weights)
        if not (self.rule.zeroth_order or (sharded and self.rule.in_backward)):
            stays = not self.held.frees_gradients
            self._held(mine, [f"{name}.grad"], summed, of_sum, gradients, stays=stays)
        own = self._described(mine, kept, how, sharded=sharded, of_experts=of_experts)
        reduced = own.reduced if summed == kept else f"{own.reduced}.shard"
        trained = f"{name}.master" if master else name
        own = replace(own, reduced=reduced, trained=trained, apart=apart, terms=terms)
        moments = states.moment_dtype(self.plan, self.wide, sharded=sharded)
        self._held(mine, [f"{name}.{each}" for each in own.update.states], kept, moments, self.kept)
        self._held(mine, [f"{name}.master"] * master, kept, self.masters, self.kept)
        self._scales_of(own)
        self.parameters[name] = own
        return name

    def _scales_of(self, own: Parameter) -> None:
        """Declare the scales of a parameter's moments, if these are of 8 bits."""
        for each in own.update.states:
            of = self.buffers[f"{own.name}.{each}"]
            if count := states.scales(self.plan, of.elements, sharded=own.sharded):
                scale = replace(of, name=f"{of.name}.scale", shape=(count,), dtype=self.wide)
                self.add(scale)

    def _cut(self, layout: Layout, how: Sharding, *, sharded: bool) -> Iterator[Layout]:
        """The layouts of a parameter, of its gradient and of its states."""
        tail = _tail(self.grid, how, prod(self._tile(layout))) if sharded else 0
        over = (how.parameters, how.gradients, how.optimizer)
        flat = [how.flat(axes) if sharded else () for axes in over]
        cut = {axes: replace(layout, flat=axes, tail=tail) for axes in dict.fromkeys(flat)}
        return (cut[axes] for axes in flat)

    def _keeps_masters(self, held: Layout, kept: Layout) -> bool:
        """Whether the part that a rank holds of a parameter is the master copy itself: where that
        is all it keeps, and the stack has `sharded_masters`; its gradient is of the same dtype."""
        sharded = held.flat == kept.flat and self.grid.size(*held.flat) > 1
        return self.held.sharded_masters and sharded

    def _sharding(self, terms: Axes, *, of_experts: bool) -> Sharding:
        how = self.sharding_of_experts if of_experts else self.sharding
        return replace(how, copies=(*terms, *how.copies)) if terms else how

    def _described(
        self,
        mine: tuple[str, Part, int],
        kept: Layout,
        how: Sharding,
        *,
        sharded: bool,
        of_experts: bool,
    ) -> Parameter:
        """A parameter whose states are cut as `kept` says, in one precision and updated whole."""
        name, owner, stages = mine
        matrix = sharded and len(kept.shape) == 2 + of_experts and owner.is_layer
        update = self.rule.matrices if matrix else self.rule.others
        norm = self.grid.size(*self.norm_axes) * stages * self.copies
        return Parameter(
            name,
            owner,
            sharded,
            copies=norm // self._parts(kept),
            decays=len(kept.shape) > 1,
            reduced=f"{name}.grad",
            trained=name,
            apart=False,
            update=update,
            sharding=how,
        )

    @cached_property
    def norm_axes(self) -> Axes:
        """The axes over which squares of gradients are summed: ranks hold different parts, or do
        not; stages of the pipeline besides."""
        own = self.shards_of("weights")
        split = *self.expert_tensor_axes, *self.expert_axes
        held = self.grid.dimensions(*own)
        experts = tuple(axis for axis in split if not self.grid.dimensions(axis) <= held)
        return *own, *(self.sharding.over or experts)

    @property
    def at_end(self) -> list[Parameter]:
        """The parameters that are updated at the end of the step, not in the backward pass."""
        early = self.rule.in_backward
        return [p for p in self.parameters.values() if not (early and p.sharded)]

    def _held(
        self,
        mine: tuple[str, Part, int],
        names: Sequence[str],
        layout: Layout,
        dtype: str,
        role: str,
        *,
        stays: bool = True,
    ) -> None:
        parameter, owner, stages = mine
        shape = self._tile(layout)
        if layout.flat:
            shape = ((prod(shape) + layout.tail) // self.grid.size(*layout.flat),)
        copies = self.grid.ranks // self.grid.pp // self._parts(layout) * stages * self.copies
        for name in names:
            self.add(Buffer(name, shape, dtype, role, stays, copies, parameter, owner))

    def _tile(self, layout: Layout) -> tuple[int, ...]:
        """The shape of what x and y leave of a parameter."""
        pairs = zip(layout.padded, layout.split, strict=True)
        return tuple(n // self.grid.size(*axes) for n, axes in pairs)

    def whole_tile(self, weight: str, *shape: int) -> tuple[int, ...]:
        """The shape of a weight's gathered tile, or of its gradient: flat if zeros follow it."""
        tail = _tail(self.grid, self.parameters[weight].sharding, prod(shape))
        return (prod(shape) + tail,) if tail else shape

    def _parts(self, layout: Layout) -> int:
        """How many different parts of a tensor there are."""
        return self.grid.size(*(a for axes in (*layout.split, layout.flat) for a in axes))

    def grad_writes(self, name: str, micro_batch: int) -> tuple[list[str], list[str]]:
        """How an op adds to a parameter's gradient: (reads, writes); the first one overwrites."""
        grad = f"{name}.grad"
        return ([grad] if micro_batch or self.adds else []), [grad]

    @property
    def starts(self) -> bool:
        """Whether gradients of the block's parameters overwrite what is there of the last step."""
        return self.block.micro_batch == 0 and not self.adds

    def shards_of(self, what: str) -> Axes:
        """The axes whose ranks hold different parts of something (`workload/grid.py`)."""
        return self.grid.shards_of(what)

    def item_bytes(self) -> int:
        """Bytes of one element in the compute precision."""
        return ITEM_BYTES[self.dtype]


def _tail(grid: Grid, sharding: Sharding, elements: int) -> int:
    """How many zeros make a tile of so many elements split evenly among all that shard it."""
    return -elements % grid.size(*sharding.optimizer)
