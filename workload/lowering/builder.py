"""The pen that every part of the lowering writes with: it collects ops, buffers and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from workload.gpt import GPT
from workload.layout import Layout
from workload.op import COMPUTE, ITEM_BYTES, NO_ATTRIBUTES, Buffer, Op
from workload.plan import Plan


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter's place in the optimizer step.

    `owner` is the block whose AdamW updates it. `sharded` tells a weight whose gradient arrives by
    reduce-scatter over z from a small one whose gradient is summed over z and data at the end.
    `copies` ranks of an x*y*z*pipe cell hold the same values (they share its square in the norm).
    """

    name: str
    owner: str
    sharded: bool
    copies: int
    decays: bool


class Builder:
    """Ops, buffers and parameters of the program being written."""

    def __init__(self, gpt: GPT, plan: Plan, stage: int) -> None:
        self.gpt = gpt
        self.plan = plan
        self.stage = stage
        self.grid = plan.grid
        self.rows = plan.micro_batch * gpt.sequence
        self.dtype = plan.precision
        self.wide = "fp64" if plan.precision == "fp64" else "fp32"
        self.ops: list[Op] = []
        self.buffers: dict[str, Buffer] = {}
        self.layouts: dict[str, Layout] = {}
        self.parameters: dict[str, Parameter] = {}
        self.block = ""

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str = "", role: str = "activations"
    ) -> str:
        """A buffer that lives within the step; returns its name."""
        self.buffers[name] = Buffer(name, shape, dtype or self.dtype, role)
        return name

    def state(self, name: str, shape: tuple[int, ...], dtype: str, role: str, copies: int) -> str:
        """A persistent buffer, held in `copies` equal copies over the whole grid."""
        self.buffers[name] = Buffer(name, shape, dtype, role, persistent=True, replicas=copies)
        return name

    def op(
        self,
        name: str,
        kind: str,
        reads: Sequence[str],
        writes: Sequence[str],
        *,
        nbytes: int = -1,
        flops: int = 0,
        replicas: int = 1,
        **attributes: Any,
    ) -> None:
        """Append a compute op; its memory traffic is that of its operands unless given."""
        if nbytes < 0:
            nbytes = sum(self.buffers[b].nbytes for b in (*reads, *writes))
        self.ops.append(
            Op(
                name,
                kind,
                tuple(reads),
                tuple(writes),
                self.block,
                nbytes=nbytes,
                flops=flops,
                replicas=replicas,
                dtype=self.dtype,
                attributes=attributes or NO_ATTRIBUTES,
            )
        )

    def collective(
        self,
        name: str,
        kind: str,
        read: Sequence[str],
        write: Sequence[str],
        *axes: str,
        **how: Any,
    ) -> None:
        """Append a blocking collective over the axes that have more than one rank."""
        wide = tuple(axis for axis in axes if self.grid.size(axis) > 1)
        payload = write if kind == "all_gather" else read
        self.ops.append(
            Op(
                name,
                kind,
                tuple(read),
                tuple(write),
                self.block,
                stream=COMPUTE,
                axes=wide,
                nbytes=sum(self.buffers[b].nbytes for b in payload),
                dtype=self.buffers[read[0]].dtype,
                attributes=how or NO_ATTRIBUTES,
            )
        )

    def message(
        self, name: str, kind: str, tag: str, reads: Sequence[str], writes: Sequence[str], peer: int
    ) -> None:
        """Append a send or a receive on a stream of its own; `peer` is 1 for the next stage, -1 for
        the previous one."""
        direction = "forward" if (peer > 0) == (kind == "send") else "backward"
        moved = self.buffers[(reads or writes)[0]]
        link = (self.stage + min(peer, 0)) % self.grid.pipe
        self.ops.append(
            Op(
                name,
                kind,
                tuple(reads),
                tuple(writes),
                self.block,
                stream=f"{kind}.{direction}",
                axes=("pipe",),
                nbytes=moved.nbytes,
                dtype=moved.dtype,
                attributes={"tag": tag, "peer": peer, "link": link},
            )
        )

    def all_reduce(self, name: str, buffer: str, *axes: str, **how: Any) -> None:
        """Append an all-reduce in place, if the axes have more than one rank between them."""
        if self.grid.size(*axes) > 1:
            self.collective(name, "all_reduce", [buffer], [buffer], *axes, **how)

    def parameter(
        self, name: str, owner: str, layout: Layout, *, sharded: bool, stages: int = 1
    ) -> str:
        """A parameter with its gradient and optimizer state, cut as the layout says.

        In bf16 the gradient, AdamW's moments and a master copy are fp32 (AxoNN, Megatron); in fp32
        and fp64 everything has the one dtype and there is no master copy. `stages` of the pipeline
        hold it.
        """
        self.layouts[name] = layout
        tile = [
            n // self.grid.size(*axes) for n, axes in zip(layout.padded, layout.split, strict=True)
        ]
        shape = (prod(tile) // self.grid.z,) if layout.flat else tuple(tile)
        parts = self.grid.size(*(axis for axes in layout.split for axis in axes))
        parts *= self.grid.z if layout.flat else 1
        copies = self.grid.ranks // self.grid.pipe // parts * stages
        self.state(name, shape, self.dtype, "parameters", copies)
        self.state(f"{name}.grad", shape, self.wide, "gradients", copies)
        for moment in ("m", "v") if self.dtype != "bf16" else ("m", "v", "master"):
            self.state(f"{name}.{moment}", shape, self.wide, "optimizer", copies)
        cell = self.grid.size("x", "y", "z") // parts * stages
        self.parameters[name] = Parameter(name, owner, sharded, cell, len(layout.shape) > 1)
        return name

    def grad_writes(self, name: str, micro_batch: int) -> tuple[list[str], list[str]]:
        """How an op adds to a parameter's gradient: (reads, writes); the first one overwrites."""
        grad = f"{name}.grad"
        return ([grad] if micro_batch else []), [grad]

    def item_bytes(self) -> int:
        """Bytes of one element in the compute precision."""
        return ITEM_BYTES[self.dtype]
