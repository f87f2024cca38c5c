"""What calibration plays of messages between pipeline stages: pairs of ranks that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from executor.calibrating.microbenchmarks import Sample, sizes, small_model
from workload.op import ITEM_BYTES, Buffer, Op
from workload.op_attributes import Attributes
from workload.program import Program


def messages(rank: int, ranks: int, *, quick: bool) -> Iterator[Sample]:
    """A message from one rank of a pair to the other and, in the next turn, back; every pair at
    once. With an odd number of ranks one would be left over, and nothing is measured."""
    if ranks % 2 == 0:
        for nbytes in sizes(quick=quick):
            features = {"ranks": 2.0, "bytes": float(nbytes)}
            yield Sample("send_recv", features, _turns(rank, ranks, nbytes))


def _turns(rank: int, ranks: int, nbytes: int) -> Callable[[int], Program]:
    """The program of a rank: so many messages, each waited for before the next."""
    gpt, plan = small_model("fp32")
    plan = replace(plan, y=1, z=1, pp=ranks, batch=plan.mbs)
    shape = (max(nbytes // ITEM_BYTES["fp32"], 1),)
    buffers = {
        name: Buffer(name, shape, "fp32", "activations", persistent=True)
        for name in ("sent", "received")
    }
    later = rank % 2

    def build(count: int) -> Program:
        ops: list[Op] = []
        tokens: dict[str, Buffer] = {}
        for turn in range(count):
            token = f"token#{turn}"
            sends = turn % 2 == later
            tokens[token] = Buffer(token, (0,), "fp32", "workspace")
            reads, writes = (("sent",), (token,)) if sends else ((), ("received",))
            kind = "send" if sends else "recv"
            how = Attributes(tag=f"{turn}", peer=-1 if later else 1, link=rank - later)
            way = "forward" if turn % 2 == 0 else "backward"
            ops += [
                Op(
                    f"message#{turn}",
                    kind,
                    reads,
                    writes,
                    stream=f"{kind}.{way}",
                    axes=("pp",),
                    nbytes=nbytes,
                    dtype="fp32",
                    attributes=how,
                ),
                Op(f"over#{turn}", "fence", writes, (), dtype="fp32"),
            ]
        return Program(gpt, plan, tuple(ops), {**buffers, **tokens}, {})

    return build
