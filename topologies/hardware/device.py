"""One device: what a single rank owns, with its peak rates and how much of them is reached."""

from __future__ import annotations

import math
from dataclasses import field
from itertools import pairwise
from typing import Annotated

import numpy as np

from topologies.errors import MachineError
from topologies.files.keys import Key
from topologies.files.units import format_quantity
from topologies.hardware.attention import Attention
from topologies.hardware.scan import Scan
from topologies.records import record

DTYPES = ("nvfp4", "mxfp8", "fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
FORMS = ("NN", "NT", "TN")
ALIGNMENTS = ("odd", "even")
MEASURED_KINDS = (
    "layernorm", "layernorm_grad", "gelu", "gelu_grad", "softmax", "softmax_grad",
    "dropout", "dropout_grad", "eager_norm", "general_norm", "general_norm_grad",
)  # fmt: skip


@record(slots=False)
class Matmul:
    """How fast a matmul of a given shape runs; m x k times k x n.

    t = launch + max(2 m n k / (peak * e), bytes / (memory_fraction * memory bandwidth)), with
    e = e_max * m/(m+m0) * n/(n+n0) * k/(k+k0), for every dtype's own peak.

    Source: fit to 20,080 measured points each of A100 and H100 (microsoft/vidur). Not modelled:
    the steps that tiles and kernel choice make (mean error 7 to 9 %).

    `forms` multiplies e for matmuls of a form (T: that operand is stored transposed, row by row);
    one that is not named has 1, so that without measurements all forms cost alike. They hold for
    matmuls whose n and k are `forms_from` at least: which kernel a library takes depends on both.
    `sustained` is the rate of a long run over that of the short one in which matmuls are timed,
    where the device's power limits it. `unaligned` multiplies e where rows of an operand or of the
    product have an odd number of elements, or an even one that is no multiple of 8: 16 bytes are
    loaded at once only where rows begin at multiples of them. `fp8` is the share of its peak that
    a deep fp8 matmul reaches over that of a bf16 one of the same shape; a shallow one reaches
    k/(k+fp8_k0) of it, since the product is written as slowly as in bf16. `nvfp4` is that share of
    4-bit matmuls, of their own peak; 0 where nobody measured it, so that `fp8` counts. `grouped` is
    how many rows an expert must have for its own product in a grouped matmul to reach half of that
    rate.
    """

    e_max: Annotated[float, Key("e_max", share=True)]
    m0: Annotated[float, Key("m0", zero=True)]
    n0: Annotated[float, Key("n0", zero=True)]
    k0: Annotated[float, Key("k0", zero=True)]
    launch_s: Annotated[float, Key("launch", "s")]
    memory_fraction: Annotated[float, Key("memory_fraction", share=True)]
    best_flops_per_s: Annotated[float | None, Key("best", "FLOP/s")] = None
    forms: Annotated[dict[str, float], Key("forms", names=FORMS)] = field(
        default_factory=dict, hash=False
    )
    forms_from: Annotated[int, Key("forms_from", zero=True)] = 0
    sustained: Annotated[float, Key("sustained", share=True)] = 1.0
    unaligned: Annotated[dict[str, float], Key("unaligned", names=ALIGNMENTS)] = field(
        default_factory=dict, hash=False
    )
    fp8: Annotated[float, Key("fp8")] = 1.0
    fp8_k0: Annotated[float, Key("fp8_k0", zero=True)] = 0.0
    nvfp4: Annotated[float, Key("nvfp4", zero=True)] = 0.0
    grouped: Annotated[float, Key("grouped", zero=True)] = 0.0


@record(slots=False)
class Draw:
    """What one device draws idle and at most, and which share of its maximum where it waits in a
    collective, whose kernel spins: as idle where the file says nothing of that."""

    idle_w: Annotated[float, Key("idle", "W")]
    max_w: Annotated[float, Key("max", "W")]
    waiting: Annotated[float, Key("waiting", zero=True, share=True)] = 0.0

    @property
    def waiting_w(self) -> float:
        """What it draws in a step while it does not compute."""
        return max(self.waiting * self.max_w, self.idle_w)


@record(slots=False)
class Variability:
    """How far compute times of like devices vary, as shares of durations.

    `noise` is the standard deviation of one op's time on one device, `spread` that of devices'
    means; besides, each device is slower by `slow_by` with probability `slow_share`. What noise
    does to a step: `simulator/noise/`.
    """

    noise: Annotated[float, Key("noise", zero=True, share=True)] = 0.0
    slow_share: Annotated[float, Key("slow_share", zero=True, share=True)] = 0.0
    slow_by: Annotated[float, Key("slow_by", zero=True, share=True)] = 0.0
    spread: Annotated[float, Key("spread", zero=True, share=True)] = 0.0


@record(slots=False)
class Device:
    """What one rank owns: a GPU, or one GCD of an MI250X.

    An elementwise kernel takes launch_s + bytes / (memory_efficiency * memory_bytes_per_s): that
    sum also follows the measured fall of the rate towards small sizes. `best` of the matmul is
    the highest rate anyone measured for a single one, for information. `vector_flops` are peaks
    without matrix cores, at which 16-bit batched matmuls with unaligned rows run. `efficiency_of`
    has kinds of kernels that reach another share of the memory's bandwidth; `eager_norm` is that of
    the elementwise kernels and reductions, one by one, that a norm is made of where none is fused,
    `general_norm` that of one of a width for which a stack has no kernel of its own.
    `scan` is there where kernels of Mamba-2 were timed.
    `slowest` lists [devices, rate]: how fast the slowest of that many devices is, relative to the
    mean device. `reserve` is the memory that no program's tensors get: the driver's context and
    communicators' buffers. `like` is the device of the library whose rates hold for it, whatever
    its name. `variability` is there where somebody measured it.
    """

    name: Annotated[str, Key("name")]
    memory_bytes: Annotated[float, Key("memory", "bytes")]
    memory_bytes_per_s: Annotated[float, Key("memory_bandwidth", "bytes/s")]
    memory_efficiency: Annotated[float, Key("memory_efficiency", share=True)]
    launch_s: Annotated[float, Key("launch", "s")]
    matmul: Annotated[Matmul, Key("matmul")]
    attention: Annotated[Attention, Key("attention")]
    peak_flops_per_s: Annotated[dict[str, float], Key("peak_flops", "FLOP/s", names=DTYPES)] = (
        field(hash=False)
    )
    vector_flops_per_s: Annotated[dict[str, float], Key("vector_flops", "FLOP/s", names=DTYPES)] = (
        field(default_factory=dict, hash=False)
    )
    efficiency_of: Annotated[
        dict[str, float], Key("efficiency_of", names=MEASURED_KINDS, share=True)
    ] = field(default_factory=dict, hash=False)
    scan: Annotated[Scan | None, Key("scan")] = None
    power: Annotated[Draw | None, Key("power")] = None
    variability: Annotated[Variability | None, Key("variability")] = None
    slowest: Annotated[tuple[tuple[float, float], ...], Key("slowest")] = ()
    reserve_bytes: Annotated[float, Key("reserve", "bytes", zero=True)] = 0.0
    like: Annotated[str, Key("like")] = ""

    @property
    def known_as(self) -> str:
        """The name by which stacks and published runs know it."""
        return self.like or self.name

    @property
    def usable_bytes(self) -> int:
        """Memory that is there for a program's tensors."""
        return int(self.memory_bytes - self.reserve_bytes)

    def __post_init__(self) -> None:
        """Refuses a table of the slowest devices that does not fall from the mean device on, and a
        reserve that leaves no memory."""
        if self.reserve_bytes >= self.memory_bytes:
            raise MachineError(
                f"device.reserve = {format_quantity(self.reserve_bytes, 'bytes', binary=True)} "
                "must be less than device.memory"
            )
        devices = [1.0, *(row[0] for row in self.slowest)]
        rates = [1.0, *(row[1] for row in self.slowest)]
        falls = all(a < b for a, b in pairwise(devices)) and all(a >= b for a, b in pairwise(rates))
        if not falls or rates[-1] <= 0:
            raise MachineError(
                f"device.slowest = {[list(row) for row in self.slowest]} must be rows of [devices, "
                "rate] with ever more devices and rates that fall from 1"
            )

    def slowest_of(self, devices: int) -> float:
        """The rate of the slowest of that many devices over the mean: what a step waits for.

        Linear in log(devices) between the rows of `slowest`, and constant above the last; 1 for
        one device, or where nobody measured it. Not modelled: spread from one run to the next.
        """
        if devices <= 1 or not self.slowest:
            return 1.0
        known = [math.log(row[0]) for row in self.slowest]
        return float(
            np.interp(math.log(devices), [0.0, *known], [1.0, *(r for _, r in self.slowest)])
        )
