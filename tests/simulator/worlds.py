"""Small worlds to simulate: a fabric and costs with round numbers, and programs written by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.blocks import BLOCK
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE, MODEL, NO_ATTRIBUTES, NONE, Buffer, Op, layer_part
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.sizes.arrays import Indices
from workload.transport import Transport

TINY = GPT.of(name="tiny", layers=2, hidden=32, heads=8, ffn=64, sequence=16, vocab=64)


@dataclass(frozen=True)
class Ring:
    """A ring over so many nodes, with so many groups sharing a node."""

    ranks: int
    nodes: int
    sharing: int


@dataclass(frozen=True)
class SmallFabric:
    """Nodes of a few devices; a group's bandwidth is shared by the groups on its busiest node.

    With `axes_share` these are the groups of all axes that are active at once. `node_of` has each
    rank's node; without it ranks fill node after node.
    """

    bytes_per_s: float = 1e6
    launch_s: float = 1e-6
    devices_per_node: int = 4
    compute_share: float = 0.0
    axes_share: bool = True
    node_of: tuple[int, ...] = ()

    @property
    def links(self) -> SmallFabric:
        return replace(self, bytes_per_s=1.0, launch_s=0.0, compute_share=0.0)

    def rings(
        self, together: Sequence[Indices], pairs: Sequence[bool] = ()
    ) -> list[tuple[Sequence[Ring], Indices]]:
        if not self.axes_share and len(together) > 1:
            return [self.rings([groups])[0] for groups in together]
        touching = [[set(row) for row in self.nodes(groups).tolist()] for groups in together]
        busy = Counter(node for axis in touching for touched in axis for node in touched)
        found: list[tuple[Sequence[Ring], Indices]] = []
        for groups, axis in zip(together, touching, strict=True):
            ranks = groups.shape[1]
            every = [Ring(ranks, len(nodes), max(busy[node] for node in nodes)) for nodes in axis]
            unique = sorted(set(every), key=lambda ring: (ring.nodes, ring.sharing))
            index = np.array([unique.index(ring) for ring in every], dtype=np.int64)
            found.append((unique, index))
        return found

    def nodes(self, ranks: Indices) -> Indices:
        return np.array(self.node_of)[ranks] if self.node_of else ranks // self.devices_per_node

    def slowest(self, rings: Sequence[Ring]) -> Sequence[Ring]:
        return rings

    def seconds(self, transport: Transport, payload_bytes: int, ring: Ring) -> float:
        rounds = 2 if transport.kind == "all_reduce" else 1
        moved = payload_bytes * (ring.ranks - 1) / ring.ranks * ring.sharing * rounds
        return self.launch_s * ring.nodes + moved / self.bytes_per_s


@dataclass(frozen=True)
class SmallCosts:
    """A device that multiplies and moves at so many FLOP/s and bytes/s."""

    flops_per_s: float = 1e9
    bytes_per_s: float = 1e9
    launch_s: float = 1e-6
    issue_s: float = 0.0

    def host_s(self, op: Op) -> float:
        return self.issue_s

    def seconds(self, op: Op) -> float:
        return self.launch_s + op.flops / self.flops_per_s + op.nbytes / self.bytes_per_s


class GivenSeconds:
    """Costs of compute ops by name, for programs written by hand."""

    def host_s(self, op: Op) -> float:
        return 0.0

    def __init__(self, **by_name: float) -> None:
        self.by_name = by_name

    def seconds(self, op: Op) -> float:
        return self.by_name[op.name]


def standing(op: Op) -> Op:
    """The op where its name says that it stands, as in "m0.l3.work" or "l3.one"."""
    found = re.fullmatch(r"(?:m(?P<m>\d+)\.)?(?:l(?P<layer>\d+)\.)?(?P<label>.+)", op.name)
    assert found is not None
    part = MODEL if found["layer"] is None else layer_part(int(found["layer"]))
    micro_batch = NONE if found["m"] is None else int(found["m"])
    return replace(op, micro_batch=micro_batch, part=part, label=found["label"])


def compute(name: str, reads: str = "", writes: str = "", stream: str = COMPUTE) -> Op:
    """A compute op on buffers named by single words."""
    operands = tuple(reads.split()), tuple(writes.split())
    return standing(Op(name, "add", *operands, BLOCK, stream))


def reduce(name: str, buffer: str, axis: str, nbytes: int, stream: str = COMPUTE) -> Op:
    """An all-reduce in place."""
    names = (buffer,)
    op = Op(
        name,
        "all_reduce",
        names,
        names,
        BLOCK,
        stream,
        (axis,),
        nbytes,
        0,
        1,
        "fp32",
        NO_ATTRIBUTES,
    )
    return standing(op)


def by_hand(text: str, *ops: Op) -> Program:
    """A program of these ops on the grid of a plan."""
    names = dict.fromkeys(name for op in ops for name in (*op.reads, *op.writes))
    buffers = {name: Buffer(name, (1,), "fp32", "activations") for name in names}
    return Program(TINY, plan_of(text), ops, buffers, {})


def plan_of(text: str, micro_batches: int = 1) -> Plan:
    """A plan of that many micro-batches of one sequence."""
    plan = parse_plan(text if "mbs=" in text else f"{text},mbs=1")
    return plan.with_micro_batches(micro_batches)


def lowered(gpt: GPT, text: str, micro_batches: int = 1) -> Program:
    """The program of a plan's text."""
    return lower(gpt, plan_of(text, micro_batches))
