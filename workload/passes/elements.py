"""Ops whose kernels are bound by a time per element, not by their memory traffic.

These are sums by atomic additions, as in PyTorch's index_add and scatter_add: rows are added to
rows of a smaller tensor by index, limited by the caches' atomic units, not by the memory. Such an
op carries its number of elements (of the larger of what it reads and writes) and the name under
which the stack has the time per element.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from workload.op import COUNTED, ELEMENTS, Buffer, Op, altered
from workload.passes.copies import names_in


def with_elements(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], known: Container[str]
) -> list[Op]:
    """The ops, with the number of their elements where the stack has a time for one; an op that
    another kernel does has no bytes, and none."""
    name_of = names_in(known)

    def counted(op: Op) -> Op:
        name = name_of(op) if op.nbytes else None
        if name is None:
            return op
        most = max(buffers[each].elements for each in (op.reads[0], op.writes[0]))
        return altered(op, attributes={**op.attributes, ELEMENTS: most, COUNTED: name})

    return [counted(op) for op in ops]
