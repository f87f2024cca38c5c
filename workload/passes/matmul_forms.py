"""Matmul forms as a pass: a matmul in another form than its operands' layouts ask for.

A form's two letters say of either operand whether it is stored as it is multiplied (N) or
transposed (T), rows one after the other: NN is A B, NT is A B^T, TN is A^T B. BLAS counts columns
first and so calls our NT "TN", and our TN "NT".
Source: AxoNN (SC24), tuning of matmul kernels. Not modelled: the transposed product (B^T A^T)^T,
which AxoNN tries too, and one transposed copy that serves two matmuls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from workload.naming import op_name
from workload.op import Buffer, Op, altered
from workload.op_attributes import Attributes

Matmul = tuple[str, int, int, int, str]
Forms = Mapping[Matmul, str]
PLAIN: Forms = MappingProxyType({})
SIDES = ("left", "right")


def matmul_of(op: Op) -> Matmul:
    """What tells a matmul from others as to its time: (form, m, n, k, dtype)."""
    return (op.attributes["form"], *op.mnk, op.dtype)


def with_forms(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], forms: Forms
) -> tuple[list[Op], dict[str, Buffer]]:
    """The ops with each matmul that `forms` names in the form it gives, and the buffers it takes.

    Before such a matmul stands, for each operand whose layout differs, an op that copies the
    operand transposed into a workspace.
    """
    if not forms:
        return list(ops), {}
    result: list[Op] = []
    added: dict[str, Buffer] = {}
    for op in ops:
        wanted = forms.get(matmul_of(op)) if op.kind == "matmul" else None
        if wanted is not None and wanted != op.attributes["form"]:
            reads = list(op.reads)
            for side, transpose, copy in _transposes(op, buffers, wanted):
                result.append(transpose)
                added[copy.name] = copy
                reads[side] = copy.name
            how: Attributes = {**op.attributes, "form": wanted}
            result.append(altered(op, reads=tuple(reads), attributes=how))
        else:
            result.append(op)
    return result, added


def _transposes(
    op: Op, buffers: Mapping[str, Buffer], wanted: str
) -> Iterator[tuple[int, Op, Buffer]]:
    """For each operand to be transposed its place, the op that does it, and the copy."""
    form, m, n, k, dtype = matmul_of(op)
    as_multiplied = ((m, k), (k, n))
    for side, shape in enumerate(as_multiplied):
        if form[side] == wanted[side]:
            continue
        rows, columns = shape if form[side] == "N" else shape[::-1]
        source, label = op.reads[side], f"{op.label}.{SIDES[side]}"
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        copy = Buffer(f"{name}.copy", (columns, rows), dtype, "workspace")
        yield (
            side,
            Op(
                name,
                "transpose",
                (source,),
                (copy.name,),
                op.block,
                nbytes=2 * copy.nbytes,
                replicas=op.replicas,
                dtype=dtype,
                attributes={"rows": rows, "columns": columns},
                micro_batch=op.micro_batch,
                part=op.part,
                label=label,
                module=op.module,
            ),
            copy,
        )
