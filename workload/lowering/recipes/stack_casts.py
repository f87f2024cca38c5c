"""The recipe `fp8`: linears of layers in fp8 as a software stack has it.

Source: NVIDIA Transformer Engine, user guide, FP8 primer, and transformer_engine/pytorch/module:
activations and gradients are cast as they come, mostly inside the kernel before, so that a cast
launches no kernel of its own. Where rows are split over tensor parallelism they are cast first and
gathered in fp8. For the gradient of its weight a linear keeps its input in fp8 alone. Weights are
cast once in a step, which is left out, as are scaling factors; the classifier, attention and a
router stay in 16 bits, and sums and exchanges over ranks too. Linears of experts are grouped ones.

Hopper multiplies in fp8 only what lies row by row along the sum. The gradient of a weight sums over
the rows of its operands, so it needs both transposed: a cast writes two copies, and what was
gathered in fp8 is transposed behind the gather. Source: NVIDIA Transformer Engine, user guide,
low-precision training, performance considerations, "Handling transposes". Blackwell does without.

What linears of experts multiply may be cast in kernels of their own, which read it once, or twice
where its largest value must be known before, and write one or two copies: a stack says how many
bytes that is for an element, and how many kernels one call then issues for each expert. It is the
stack that is read for all this, so that no program says how values are scaled, and none runs.

Tensor cores want a multiple of 16 rows, or 32 with scales of blocks, so that rows of experts that
have as many as the routing says are copied to places that are padded in front of their linears, and
back behind them, in both passes; kept is none of it but what is cast. Source: NVIDIA/Megatron-LM
core_v0.15.0, transformer/moe/experts.py, TEGroupedMLP.forward. Not modelled: the rows of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workload.naming import op_name
from workload.op import (
    BACKWARD,
    BY_MASKS,
    COMPUTE,
    KERNELS,
    PARAMETER_GATHER,
    STEP,
    WEIGHT_GATHER,
    WEIGHT_GRAD,
    Buffer,
    Op,
    altered,
)
from workload.recipes.cast_kernels import INSIDE, CastKernels

Buffers = dict[str, Buffer]
CAST_BYTES = 3  # an element is read in 16 bits and written in 8
BOTH_BYTES = 4  # and written once more, transposed
TRANSPOSE_BYTES = 2
PADDING_BYTES = 4  # an element is read and written in 16 bits
GROUPED = "grouped_matmul"
PADDED = ("experts.up.matmul", "experts.down.grad.input")  # rows that their first linears read
UNPADDED = ("experts.down.matmul", "experts.up.grad.input")  # and those that their last ones make
LINEARS = ("matmul", GROUPED)
# Of a router, which Megatron-Core multiplies in fp32 or as it comes (transformer/moe/router.py).
ROUTERS = ("router.matmul", "router.grad.input", "router.grad.weight")
# Of a module for further tokens, as one of whose layers it counts. Megatron-Core has one classifier
# for all tokens, of its own tensor_parallel.ColumnParallelLinear, not of Transformer Engine
# (models/gpt/gpt_model.py, output_layer; transformer/multi_token_prediction.py, process_mtp_loss).
CLASSIFIER = ("head.matmul", "head.grad.input", "head.grad.weight")


def cast_by_stack(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], kernels: CastKernels = INSIDE
) -> tuple[list[Op], Buffers]:
    """The ops with linears in fp8, and the buffers that casts write or that are smaller."""
    given = _padded(ops, buffers) if kernels.pads else ops
    return _Casts(given, buffers, kernels).rewritten()


def _padded(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with copies of experts' rows around their linears, where their numbers differ."""
    result: list[Op] = []
    for op in ops:
        ragged = op.kind == GROUPED and not op.attributes["even"]
        if ragged and op.label in PADDED:
            result.append(_copied(op, buffers[op.reads[0]], "pad_rows"))
        result.append(op)
        if ragged and op.label in UNPADDED:
            result.append(_copied(op, buffers[op.writes[0]], "unpad_rows"))
    return result


def _copied(op: Op, rows: Buffer, kind: str) -> Op:
    label = f"{op.label}.{kind}"
    name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
    nbytes = PADDING_BYTES * rows.elements
    return _Casts.kernel(op, name, kind, label, rows.name, rows.name, nbytes=nbytes)


class _Casts:
    """A program's casts. `_copies` has the fp8 copies of linears' inputs, which live on for the
    backward pass, `_wholes` what was gathered in fp8, `added` the buffers that are new or of fewer
    bytes."""

    def __init__(
        self, ops: Sequence[Op], buffers: Mapping[str, Buffer], kernels: CastKernels
    ) -> None:
        self._ops = ops
        self._kernels = kernels
        self._buffers = buffers
        self._wholes: set[str] = set()
        self._operands = {name for op in ops if is_linear(op) for name in op.reads}
        self._copies: dict[str, str] = {}
        self.added: Buffers = {}

    def rewritten(self) -> tuple[list[Op], Buffers]:
        """The new ops and buffers."""
        result: list[Op] = []
        for op in self._ops:
            if is_linear(op):
                result += self._multiplied(op)
            elif self._gathers_rows(op):
                result += self._gathered(op)
            else:
                result.append(op)
        return result, self.added

    def _gathers_rows(self, op: Op) -> bool:
        """Whether an op gathers rows for a linear of a layer, and not a weight or parts of one."""
        gathers = op.kind == "all_gather" and op.purpose not in (WEIGHT_GATHER, PARAMETER_GATHER)
        return gathers and op.writes[0] in self._operands

    def _multiplied(self, op: Op) -> list[Op]:
        op = altered(op, reads=tuple(self._copies.get(name, name) for name in op.reads))
        source, before = op.reads[0], list[Op]()
        if self._kernels.transposes and op.purpose == WEIGHT_GRAD:
            before, op = self._transposed(op)
        if self._is_cast(source):
            return [*before, altered(op, dtype="fp8")]
        nbytes = BOTH_BYTES if self._kernels.transposes else CAST_BYTES
        apart = self._kernels.expert_bytes if op.kind == GROUPED else 0
        cast = self._cast(op, source, kept=not op.purpose, nbytes=apart or nbytes)
        if apart:
            count = self._kernels.expert_kernels * int(op.attributes["count"])
            cast = altered(cast, launches=1, attributes={KERNELS: count})
        return [*before, cast, altered(op, reads=(cast.writes[0], *op.reads[1:]), dtype="fp8")]

    def _transposed(self, op: Op) -> tuple[list[Op], Op]:
        """The transposes of those operands of a weight's gradient that were gathered in fp8, and
        the matmul of them."""
        found, reads = list[Op](), list(op.reads)
        for place, whole in enumerate(op.reads):
            if whole not in self._wholes:
                continue
            label = f"{op.label}.transpose{place}"
            name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
            copy = self.added[f"{name}.o"] = replace(self.added[whole], name=f"{name}.o")
            reads[place] = copy.name
            nbytes = TRANSPOSE_BYTES * copy.elements
            found.append(self.kernel(op, name, "transpose", label, whole, copy.name, nbytes=nbytes))
        return found, altered(op, reads=tuple(reads))

    def _gathered(self, op: Op) -> list[Op]:
        """The gather of rows in fp8, behind their cast where there is none yet."""
        source, casts = op.reads[0], list[Op]()
        if source not in self._copies:
            if op.stream != COMPUTE:
                return [op]
            kept = op.block.phase != BACKWARD
            casts = [self._cast(op, source, kept=kept, nbytes=CAST_BYTES)]
        copy = casts[0].writes[0] if casts else self._copies[source]
        whole = self._buffers[op.writes[0]]
        self.added[whole.name] = replace(whole, dtype="fp8")
        self._wholes.add(whole.name)
        return [*casts, altered(op, reads=(copy,), nbytes=op.nbytes // 2, dtype="fp8")]

    def _is_cast(self, name: str) -> bool:
        return name in self.added and self.added[name].dtype == "fp8"

    def _cast(self, op: Op, source: str, *, kept: bool, nbytes: int) -> Op:
        """The cast of what an op reads first, of so many bytes an element; its copy lives on if it
        is `kept`."""
        label = f"{op.label}.cast"
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        whole = self._buffers[source]
        role = "activations" if kept else "workspace"
        copy = self.added[f"{name}.o"] = Buffer(f"{name}.o", whole.shape, "fp8", role)
        if kept:
            self._copies[source] = copy.name
        cast = self.kernel(
            op, name, "cast", label, source, copy.name, nbytes=nbytes * whole.elements
        )
        return altered(cast, launches=0)

    @staticmethod
    def kernel(
        op: Op, name: str, kind: str, label: str, source: str, copy: str, *, nbytes: int
    ) -> Op:
        """A kernel in front of an op, from one buffer into another."""
        return altered(
            op,
            name=name,
            kind=kind,
            reads=(source,),
            writes=(copy,),
            axes=(),
            nbytes=nbytes,
            flops=0,
            attributes={},
            label=label,
            purpose="",
            launches=1,
        )


def is_linear(op: Op) -> bool:
    """Whether a matmul is a linear of a layer, which fp8 training runs in fp8; a router is none,
    nor is a classifier or a product with a mask."""
    multiplies = op.kind in LINEARS and op.label not in (*ROUTERS, *CLASSIFIER)
    return multiplies and op.part.is_layer and op.block != STEP and op.purpose != BY_MASKS
