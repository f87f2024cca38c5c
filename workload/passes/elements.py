"""Ops whose kernels take a time for each element, so that their bytes do not say how long they run.

Such are sums by atomic additions: rows that are added to those of a smaller tensor by number, as
PyTorch's index_add and scatter_add do, wait for the caches' arithmetic, not for the memory. An op
then carries how many elements it has, those of its larger side, and the name under which the stack
has the time of one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from workload.op import COUNTED, ELEMENTS, Buffer, Op, altered
from workload.passes.copies import name_of


def with_elements(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], known: Container[str]
) -> list[Op]:
    """The ops, with the number of their elements where the stack has a time for one; an op that
    another kernel does has no bytes, and none."""

    def counted(op: Op) -> Op:
        name = name_of(op, known) if op.nbytes else None
        if name is None:
            return op
        most = max(buffers[each].elements for each in (op.reads[0], op.writes[0]))
        return altered(op, attributes={**op.attributes, ELEMENTS: most, COUNTED: name})

    return [counted(op) for op in ops]
