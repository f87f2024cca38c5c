"""How long the parts of a Mamba-2 layer between its linears take: kernel by kernel.

Letters: H heads of width P, G groups of N numbers of a state, Q tokens of a chunk, all of one rank;
numbers are for each token. What is not listed as fp32 has the op's own precision.

A scan is a handful of kernels that leave what is between them in memory: the sums of decays, the
states of all chunks (H P N / Q for a token), the products C B^T of each chunk (G Q). Each takes as
long as its traffic, at the memory's achieved rate, and its products after that: a program works on
one head of one chunk, or on few of a group, and its two to four steps do not hide what they load.
Sources: Dao and Gu (2405.21060), section 6, for the products; state-spaces/mamba@e9594ce,
mamba_ssm/ops/triton/ssd_combined.py (_mamba_chunk_scan_combined_fwd and _bwd), for the kernels and
what each reads and writes: the gradient's states are in fp32, and sums over one part are copies.
A convolution is one kernel for rows as they lie, and one of its gradients. Megatron-Core's rows are
those of all sequences in turn (megatron/core/ssm/mamba_mixer.py, _ssm_training), so that with
several sequences in a micro-batch the first linear's output and the scan's are turned by copies.
Checked by: `python -m tools.scan_kernels`.
Not modelled: products that a kernel leaves out above the diagonal, tiles, tensors of which two
kernels in a row find a part in a cache, and what a gate adds to a row of a norm's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from topologies.hardware.device import Device
from topologies.records import record
from workload.op import ITEM_BYTES, Op

WIDE = ITEM_BYTES["fp32"]
# Shares of the memory's bandwidth where a machine's file has none: the H100's (dgx-h100.toml).
CONVOLUTIONS = {"ssd_conv": 0.46, "ssd_conv_grad": 0.37}
WARPS, COLUMNS_OF_WARP, MOST_WARPS = 4, 256, 8  # of the gradients of a norm (norm_grad_s)
Product = tuple[float, int, int]  # FLOPs for a token, and the columns and depth of each product


@record
class Kernel:
    """A kernel's bytes for each token, and its products."""

    nbytes: float
    products: tuple[Product, ...] = ()


def seconds(device: Device, flops_per_s: float, op: Op) -> float:
    """How long a scan, a convolution or their gradients take at a rate of full matmuls."""
    achieved = device.memory_efficiency * device.memory_bytes_per_s
    if op.kind in CONVOLUTIONS:
        share = _convolution(device, op.kind)
        return device.launch_s + op.nbytes / (share * device.memory_bytes_per_s)
    rows = float(op.attributes["rows"])
    total = 0.0
    for kernel in kernels(op):
        products_s = sum(
            flops / _rate(device, flops_per_s, rows, n, k) for flops, n, k in kernel.products
        )
        total += device.launch_s + rows * (kernel.nbytes / achieved + products_s)
    return total


def norm_grad_s(device: Device, op: Op) -> float | None:
    """How long the gradients of a norm of groups take that programs find row by row: a program for
    each group and as many rows as fill the multiprocessors with four warps, of which it has one for
    256 columns. None where nobody timed that kernel.

    Source: state-spaces/mamba@e9594ce, mamba_ssm/ops/triton/layernorm_gated.py, _layer_norm_bwd.
    """
    if device.scan is None:
        return None
    rows, groups = float(op.attributes["rows"]), int(op.attributes["groups"])
    columns = 1 << math.ceil(math.log2(int(op.attributes["columns"])))
    warps = min(max(columns // COLUMNS_OF_WARP, 1), MOST_WARPS)
    programs = math.ceil(device.scan.units * math.ceil(WARPS / warps) / groups)
    return device.launch_s + math.ceil(rows / programs) * device.scan.norm_row_s


def _convolution(device: Device, kind: str) -> float:
    if device.scan is None:
        return CONVOLUTIONS[kind]
    forward = kind == "ssd_conv"
    return device.scan.convolution if forward else device.scan.convolution_grad


def _rate(device: Device, flops_per_s: float, rows: float, n: int, k: int) -> float:
    """How fast products of n columns and depth k are made, all of them together: in proportion to
    the peaks of other dtypes than bf16, or where nobody timed them as a batched matmul's."""
    model = device.matmul
    if device.scan is not None:
        sustained = device.peak_flops_per_s["bf16"] * model.sustained
        return device.scan.products_flops_per_s * flops_per_s / sustained
    share = model.e_max * rows / (rows + model.m0) * n / (n + model.n0) * k / (k + model.k0)
    return flops_per_s * share


def kernels(op: Op) -> Iterator[Kernel]:
    """The kernels of a scan, or of its gradients, in the order in which they run."""
    sizes = _Sizes(op)
    if op.kind == "ssd":
        yield from sizes.turned(sizes.made)
        yield from _states(sizes, sizes.states)
        yield sizes.scan()
        yield from sizes.turned(sizes.x)
        return
    yield from sizes.turned(sizes.x)
    yield from _states(sizes, WIDE * sizes.elements)
    yield from _gradients(sizes)
    yield from sizes.turned(sizes.made)


class _Sizes:
    """An op's sizes: bytes for a token of x (`x`), B (`b`), all chunks' states (`states`), fp32
    C B^T (`cb`), two fp32 numbers of each head (`steps`) and the first linear's output (`made`);
    and products."""

    def __init__(self, op: Op) -> None:
        how = op.attributes
        self.h, self.g, self.p = how["heads"], how["groups"], how["width"]
        self.n, self.q = how["state"], how["chunk"]
        self.item = ITEM_BYTES[op.dtype]
        self.x, self.b = self.item * self.h * self.p, self.item * self.g * self.n
        self.elements = self.h * self.p * self.n / self.q
        self.states, self.cb = self.item * self.elements, WIDE * self.g * self.q
        self.steps = 2 * WIDE * self.h
        self.made = 2 * self.x + 2 * self.b + self.item * self.h
        self.together = int(op.attributes["rows"]) > int(op.attributes["sequence"])

    def within(self) -> Product:
        """A product of a chunk's tokens with all of them, for each head: Q x Q by Q x P."""
        return 2.0 * self.q * self.h * self.p, self.p, self.q

    def between(self) -> Product:
        """A product of a chunk's tokens with its state, for each head: Q x N by N x P."""
        return 2.0 * self.n * self.h * self.p, self.p, self.n

    def of_groups(self) -> Product:
        """C B^T, or a product of its gradient with B or C, for each group: Q x N by N x Q."""
        return 2.0 * self.q * self.g * self.n, self.q, self.n

    def turned(self, nbytes: float) -> Iterator[Kernel]:
        """What turns rows of several sequences between theirs and Megatron's order."""
        if self.together:
            yield Kernel(2 * nbytes)

    def scan(self) -> Kernel:
        """The outputs, before the gate and behind it, of C B^T, x, z, C and states."""
        nbytes = self.cb + 4 * self.x + self.b + self.states + self.steps
        return Kernel(nbytes, (self.within(), self.between()))


def _states(s: _Sizes, passed: float) -> Iterator[Kernel]:
    """Sums of decays; the states of chunks, in fp32; their recurrence, which writes so many bytes
    for a token; C B^T."""
    yield Kernel(s.item * s.h + s.steps)
    yield Kernel(s.b + s.x + s.steps + WIDE * s.elements, (s.between(),))
    yield Kernel(WIDE * s.elements + passed)
    yield Kernel(2 * s.b + s.cb, (s.of_groups(),))


def _gradients(s: _Sizes) -> Iterator[Kernel]:
    """Of gate and skip; of states, and their recurrence, which casts both; of x; of B, C and C B^T,
    each with a copy; of both through the latter; of decays, with what sums them; of steps."""
    within, between = s.within(), s.between()
    wide = WIDE * s.elements
    yield Kernel(6 * s.x)
    yield Kernel(s.b + s.x + s.steps + wide, (between,))
    yield Kernel(2 * wide + 2 * s.states)
    yield Kernel(3 * s.x + s.b + s.states + s.cb + s.steps, (within, between))
    own = WIDE * s.g * s.n  # fp32 of B or of C
    for _ in "BC":
        yield Kernel(s.x + s.b + s.states + s.steps + own, (between,))
        yield Kernel(2 * own)
    yield Kernel(2 * s.x + s.steps + s.cb, (within,))
    yield Kernel(2 * s.cb)
    for _ in "BC":
        yield Kernel(s.cb + 2 * s.b + own, (s.of_groups(),))
    yield Kernel(2 * s.x + s.cb + s.steps, (within,))
    for passes in (1.0, 1.0, 1.0, 1.5, 1.5):  # turned, summed and turned back; two sums
        yield Kernel(passes * s.steps)
    yield Kernel(3 * s.steps)
