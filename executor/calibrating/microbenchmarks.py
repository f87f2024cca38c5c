"""What calibration plays: programs of one op, repeated, over the sizes that training meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import log2
from typing import Any

from executor.calibrating.sample_models import models
from topologies.records import record
from workload.gpt import GPT
from workload.grid import Grid
from workload.kinds import KINDS, RING_SHIFT, Sampled
from workload.lowering import lower
from workload.op import COMPUTE, FORMS, ITEM_BYTES, Buffer, Op
from workload.op_attributes import Attributes
from workload.passes.matmul_forms import matmul_of, with_forms
from workload.plan import Plan
from workload.program import Program

FOOTPRINT = 1 << 26  # bytes that the repeats of an op may touch; each has operands of its own
OVERLAPPED_BYTES = 1 << 22
BETWEEN = (512, 512, 512)  # a matmul of a few milliseconds on a CPU's core
_ENDS = {
    "all_gather": ("part", "whole"),
    "reduce_scatter": ("whole", "part"),
    "all_reduce": ("whole", "whole"),
    "all_to_all": ("whole", "other"),
    RING_SHIFT: ("whole", "other"),
}


@record
class Sample:
    """One measurement: the table it goes to, its features, and the program of `count` repeats.

    With `meets`, its collectives alone are timed, and what runs between them is not. `peak_bytes`
    is the peak of the step that its op comes from, which says how large the kernels' slices are;
    `grid` the ranks over which that step splits sequences or experts, where it does.
    """

    key: str
    features: dict[str, float]
    program: Callable[[int], Program]
    meets: bool = False
    peak_bytes: int = 0
    grid: Grid | None = None


def kernels(precision: str, *, quick: bool) -> Iterator[Sample]:
    """Every kernel kind in one precision: matmuls on a grid, others as small GPTs have them."""
    yield from _matmuls(precision, quick=quick)
    yield from _transposes(precision, quick=quick)
    seen: set[tuple[str, str, int]] = set()
    for gpt, plan in models(precision, quick=quick):
        program = lower(gpt, plan)
        for op in program.ops:
            # Sizes closer than a factor of 1.4 tell a curve nothing new.
            kernel, form = op.kernel, op.attributes.get("form", "")
            signature = (kernel, form, round(2 * log2(max(op.nbytes, 1))))
            if signature in seen or not _is_sampled(op, plan):
                continue
            seen.add(signature)
            about: dict[str, Any] = {"peak_bytes": program.peak.total_bytes}
            about["grid"] = plan.grid if plan.cp > 1 or plan.ep > 1 else None
            yield Sample(kernel, _features(op, program), repeats(op, program), **about)


def _is_sampled(op: Op, plan: Plan) -> bool:
    """Whether an op is measured as it stands in the program of such a plan."""
    sampled = KINDS[op.kind].sampled
    if plan.cp > 1:
        return sampled is Sampled.CONTEXT or op.kernel != op.kind
    if plan.ep > 1:
        return sampled is Sampled.EXPERTS
    return sampled is not Sampled.NEVER


def collectives(ranks: int, *, quick: bool) -> Iterator[Sample]:
    """Every collective in groups of each size that divides the ranks, all groups at once.

    A matmul runs before each, as in a training step: ranks then come to it at slightly different
    times, and whoever waits, waits for the last of them.
    """
    for group in (g for g in range(2, ranks + 1) if ranks % g == 0):
        gpt, plan = small_model("fp32")
        plan = replace(plan, dp=group, z=ranks // group, batch=ranks * plan.mbs)
        for kind in _ENDS:
            for nbytes in sizes(quick=quick):
                op, buffers = _collective(kind, nbytes, group)
                program = Program(gpt, plan, (op,), buffers, {})
                features = {"ranks": float(group), "bytes": float(nbytes)}
                yield Sample(kind, features, _met(op, program), meets=True)


def _met(op: Op, program: Program) -> Callable[[int], Program]:
    matmul, buffers = _matmul("NN", BETWEEN, "fp32")
    plain = Program(program.gpt, program.plan, (matmul,), buffers, {})

    def build(count: int) -> Program:
        first, second = repeats(matmul, plain)(count), repeats(op, program)(count)
        ops = [each for pair in zip(first.ops, second.ops, strict=True) for each in pair]
        every = {**first.buffers, **second.buffers}
        return Program(program.gpt, program.plan, tuple(ops), every, {})

    return build


def sizes(*, quick: bool) -> list[int]:
    """The bytes of the collectives and messages that are measured."""
    return [1 << power for power in (range(10, 26, 5) if quick else range(10, 27, 2))]


def small_model(precision: str) -> tuple[GPT, Plan]:
    """A model and a plan for programs written by hand."""
    return models(precision, quick=True)[0]


def overlapped(ranks: int, precision: str) -> tuple[Sample, Sample, Sample]:
    """Matmuls alone, all-gathers alone, and both at once: what a collective takes from compute.

    Each all-gather is issued before a matmul and awaited before the one after the next.
    """
    gpt, plan = small_model(precision)
    plan = replace(plan, dp=ranks, batch=ranks * plan.mbs)
    matmul, matmul_buffers = _matmul("NN", (512, 1024, 1024), precision)
    gather, gather_buffers = _collective("all_gather", OVERLAPPED_BYTES, ranks)
    buffers = {**matmul_buffers, **gather_buffers}
    turns = {"compute": (matmul,), "network": (gather,), "both": (gather, matmul)}

    def build(ops: tuple[Op, ...]) -> Callable[[int], Program]:
        alone = len(ops) == 1

        def program(count: int) -> Program:
            every = tuple(
                replace(op, name=f"{op.name}#{turn}", stream=COMPUTE if alone else _stream(op))
                for turn in range(count)
                for op in ops
            )
            return Program(gpt, plan, every, buffers, {})

        return program

    first, second, third = (Sample(key, {}, build(ops)) for key, ops in turns.items())
    return first, second, third


def _stream(op: Op) -> str:
    return "dp" if op.is_collective else COMPUTE


def _matmuls(precision: str, *, quick: bool) -> Iterator[Sample]:
    """Every form on the same shapes, one right after the other: a choice among forms compares them,
    and a machine that is busier for a while should be so for all three."""
    widths = (64, 256, 1024) if quick else (32, 128, 512, 2048)
    # Tokens are rows of the output or, in dW, summed over: either may be the long dimension.
    sides = widths if quick else (*widths, 4096)
    gpt, plan = small_model(precision)
    for m, n, k in product(sides, widths, sides):
        for code, form in enumerate(FORMS):
            op, buffers = _matmul(form, (m, n, k), precision)
            sizes = {"form": float(code), "m": float(m), "n": float(n), "k": float(k)}
            program = Program(gpt, plan, (op,), buffers, {})
            yield Sample("matmul", sizes, repeats(op, program))


def _matmul(form: str, shape: tuple[int, int, int], precision: str) -> tuple[Op, dict[str, Buffer]]:
    m, n, k = shape
    a = Buffer("a", (m, k) if form[0] == "N" else (k, m), precision, "activations", True)
    b = Buffer("b", (k, n) if form[1] == "N" else (n, k), precision, "activations", True)
    c = Buffer("c", (m, n), precision, "activations")
    how = Attributes(form=form, m=m, n=n, k=k)
    op = Op("matmul", "matmul", ("a", "b"), ("c",), dtype=precision, attributes=how)
    return op, {"a": a, "b": b, "c": c}


def _transposes(precision: str, *, quick: bool) -> Iterator[Sample]:
    """Transposes of operands as matmuls have them, each with as many bytes as no other."""
    shapes = [(64, 64), (256, 256), (1024, 1024)]
    if not quick:
        shapes = [(32, 64), (128, 128), (512, 256), (512, 1024), (2048, 1024), (4096, 2048)]
    gpt, plan = small_model(precision)
    for rows, columns in shapes:
        matmul, buffers = _matmul("NN", (rows, 64, columns), precision)
        (op, _), copies = with_forms([matmul], buffers, {matmul_of(matmul): "TN"})
        program = Program(gpt, plan, (op,), {**buffers, **copies}, {})
        yield Sample("transpose", {"nbytes": float(op.nbytes)}, repeats(op, program))


def _collective(kind: str, nbytes: int, group: int) -> tuple[Op, dict[str, Buffer]]:
    elements = max(nbytes // ITEM_BYTES["fp32"] // group, 1)
    whole = Buffer("whole", (elements * group,), "fp32", "activations", True)
    part = Buffer("part", (elements,), "fp32", "activations", True)
    other = replace(whole, name="other")
    read, write = _ENDS[kind]
    op = Op(kind, kind, (read,), (write,), axes=("dp",), nbytes=nbytes)
    return op, {"whole": whole, "part": part, "other": other}


def _features(op: Op, program: Program) -> dict[str, float]:
    if op.kind in ("attention", "attention_grad"):
        rows = program.plan.mbs * program.gpt.sequence // program.plan.cp
        shape = {key: float(op.attributes[key]) for key in ("heads", "width", "sequence")}
        return {"rows": float(rows), **shape}
    if op.kind == "batched_matmul":
        code = FORMS.index(op.attributes["form"])
        return {"form": float(code), "flops": float(op.flops)}
    return {"nbytes": float(op.nbytes)}


def repeats(op: Op, program: Program) -> Callable[[int], Program]:
    """The program that performs one op so many times, on operands that take turns."""

    def build(count: int) -> Program:
        buffers: dict[str, Buffer] = {}
        held = sum(program.buffers[name].nbytes for name in {*op.reads, *op.writes})
        sets = min(max(FOOTPRINT // max(held, 1), 2), count)

        def name(old: str, turn: int, *, lasting: bool) -> str:
            new = f"{old}#{turn}"
            own = replace(program.buffers[old], name=new, persistent=lasting, rows_of="")
            buffers[new] = own
            return new

        ops = []
        for turn in range(count):
            kept = turn % sets
            reads = tuple(name(old, kept, lasting=True) for old in op.reads)
            writes = tuple(
                name(old, kept, lasting=True)
                if old in op.reads or program.buffers[old].persistent
                else name(old, sets + turn, lasting=False)
                for old in op.writes
            )
            ops.append(replace(op, name=f"{op.name}#{turn}", reads=reads, writes=writes))
        return Program(program.gpt, program.plan, tuple(ops), buffers, {})

    return build
