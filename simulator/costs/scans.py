"""How long the parts of a Mamba-2 layer between its linears take: kernel by kernel.

Letters: H heads of width P, G groups of N numbers of a state, Q tokens of a chunk, all of one rank;
numbers are for each token. What is not listed as fp32 has the op's own precision.

A scan is a handful of kernels that leave what is between them in memory: the sums of decays, the
states of all chunks (H P N / Q for a token), the products C B^T of each chunk (G Q). Each takes as
long as its traffic, at the memory's achieved rate, or as its products, at the rate of batched
matmuls of that shape, whichever is longer. Sources: Dao and Gu (2405.21060), section 6, for the
products; state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py (_mamba_chunk_scan_combined_fwd
and _bwd), for the kernels, what each reads and writes, and for the copies around the convolution.
Not modelled: products that a kernel leaves out above the diagonal, tiles, tensors of which two
kernels in a row find a part in a cache. Measured is the forward scan alone, at 1.05 to 1.28 of what
is said here (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topologies.hardware.device import Device
from workload.op import ITEM_BYTES, Op

WIDE = ITEM_BYTES["fp32"]
SCANS = ("ssd", "ssd_grad")
# Kernels of a convolution, and of its gradients: copies that turn rows into columns beside it; and
# the passes of its traffic that they make for each one of its own.
CONVOLUTIONS = {"ssd_conv": (2, 2.0), "ssd_conv_grad": (4, 3.0)}
KINDS = (*SCANS, *CONVOLUTIONS)
Product = tuple[float, int, int]  # FLOPs for a token, and the columns and depth of each product


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's bytes for each token, and its products."""

    nbytes: float
    products: tuple[Product, ...] = ()


def seconds(device: Device, flops_per_s: float, op: Op) -> float:
    """How long a scan, a convolution or their gradients take at a rate of full matmuls."""
    achieved = device.memory_efficiency * device.memory_bytes_per_s
    if op.kind in CONVOLUTIONS:
        launches, passes = CONVOLUTIONS[op.kind]
        return launches * device.launch_s + passes * op.nbytes / achieved
    rows = float(op.attributes["rows"])
    total = 0.0
    for kernel in kernels(op):
        products_s = sum(
            flops / (flops_per_s * _share(device, rows, n, k)) for flops, n, k in kernel.products
        )
        total += device.launch_s + rows * max(kernel.nbytes / achieved, products_s)
    return total


def kernels(op: Op) -> Iterator[Kernel]:
    """The kernels of a scan, or of its gradients, in the order in which they run."""
    sizes = _Sizes(op)
    if op.kind == "ssd":
        yield from _states(sizes)
        yield sizes.scan()
        return
    yield from _states(sizes)
    yield from _gradients(sizes)


class _Sizes:
    """An op's sizes: bytes for a token of x (`x`), B (`b`), all chunks' states (`states`), fp32
    C B^T (`cb`) and two fp32 numbers of each head (`steps`); and products."""

    def __init__(self, op: Op) -> None:
        keys = ("heads", "groups", "width", "state", "chunk")
        self.h, self.g, self.p, self.n, self.q = (int(op.attributes[key]) for key in keys)
        self.item = ITEM_BYTES[op.dtype]
        self.x, self.b = self.item * self.h * self.p, self.item * self.g * self.n
        self.elements = self.h * self.p * self.n / self.q
        self.states, self.cb = self.item * self.elements, WIDE * self.g * self.q
        self.steps = 2 * WIDE * self.h

    def within(self) -> Product:
        """A product of a chunk's tokens with all of them, for each head: Q x Q by Q x P."""
        return 2.0 * self.q * self.h * self.p, self.p, self.q

    def between(self) -> Product:
        """A product of a chunk's tokens with its state, for each head: Q x N by N x P."""
        return 2.0 * self.n * self.h * self.p, self.p, self.n

    def of_groups(self) -> Product:
        """C B^T, or a product of its gradient with B or C, for each group: Q x N by N x Q."""
        return 2.0 * self.q * self.g * self.n, self.q, self.n

    def scan(self) -> Kernel:
        """The outputs, before the gate and behind it, of C B^T, x, z, C and states."""
        nbytes = self.cb + 4 * self.x + self.b + self.states + self.steps
        return Kernel(nbytes, (self.within(), self.between()))


def _states(s: _Sizes) -> Iterator[Kernel]:
    """Sums of decays; the states of chunks, in fp32; their recurrence; C B^T."""
    yield Kernel(s.item * s.h + s.steps)
    yield Kernel(s.b + s.x + s.steps + WIDE * s.elements, (s.between(),))
    yield Kernel(WIDE * s.elements + s.states)
    yield Kernel(2 * s.b + s.cb, (s.of_groups(),))


def _gradients(s: _Sizes) -> Iterator[Kernel]:
    """Of gate and skip; of states and their recurrence, with a copy of the states; of x; of B, of C
    and of C B^T; of both through the latter; of decays; of steps."""
    within, between = s.within(), s.between()
    yield Kernel(6 * s.x)
    yield Kernel(s.b + s.x + s.steps + s.states, (between,))
    yield Kernel(4 * s.states)
    yield Kernel(3 * s.x + s.b + s.states + s.cb + s.steps, (within, between))
    own = WIDE * s.g * s.n  # fp32 of B or of C
    yield Kernel(s.x + s.b + s.states + s.steps + own, (between,))
    yield Kernel(s.x + s.b + s.states + s.steps + own, (between,))
    yield Kernel(2 * s.x + s.steps + s.cb, (within,))
    for _ in "BC":
        yield Kernel(s.cb + 2 * s.b + own, (s.of_groups(),))
    yield Kernel(2 * s.x + s.cb + s.steps, (within,))
    yield Kernel(3 * s.steps)


def _share(device: Device, rows: float, n: int, k: int) -> float:
    """The share of the peak that products of n columns and depth k reach, all of them together."""
    model = device.matmul
    return model.e_max * rows / (rows + model.m0) * n / (n + model.n0) * k / (k + model.k0)
