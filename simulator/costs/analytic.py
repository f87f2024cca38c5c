"""How long a compute op takes: one interface, and the analytic model behind it.

Letters of the matmul model: m, n, k are the call's shape, e the share of the peak it reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from simulator.costs import scans
from simulator.costs.attention import HEAD, PACKED, WINDOW, attention_s
from simulator.costs.calibrated import CalibratedCosts
from simulator.costs.graph_scopes import issued
from simulator.costs.kernels import PLAIN_KERNELS, Kernels
from topologies.errors import MachineError
from topologies.hardware.attention import Attention
from topologies.hardware.device import Device
from topologies.machine import Machine
from workload.kinds import KINDS, MATMULS, Costs
from workload.op import BUSIEST, CAUSAL, COUNTED, ELEMENTS, KERNELS, LONGEST, PLACES, QUERIES, Op

BATCHED, GROUPED = "batched_matmul", "grouped_matmul"
NARROW = FP8, MXFP8, NVFP4 = ("fp8", "mxfp8", "nvfp4")
ROWS = {"NN": "kn", "NT": "kn", "TN": "mn"}  # whose lengths the rows of operands and product have
UNSAID: tuple[tuple[str, object], ...] = (
    *(("count", 1), ("width", HEAD), ("value_width", 0)),
    *(("sequence", 0), (WINDOW, 0), (CAUSAL, True), ("columns", 0)),
    *((PACKED, ""), (BUSIEST, 1.0), (LONGEST, 0.0), (QUERIES, 0), (KERNELS, 0), (PLACES, 0)),
    *((ELEMENTS, 0), (COUNTED, "")),
)
EAGER_NORM = "eager_norm"


class ComputeCosts(Protocol):
    """Answers how long an op that is no collective takes on a device."""

    def host_s(self, op: Op) -> float:
        """Seconds that the host takes to issue the op; 0 where it never holds the device up."""
        ...

    def seconds(self, op: Op) -> float:
        """Seconds from the op's start to its end, alone on its device."""
        ...


def compute_costs(
    machine: Machine, ranks_per_node: int, devices: int, kernels: Kernels = PLAIN_KERNELS
) -> ComputeCosts:
    """The best costs at hand: those of the machine's profile if it has one, else the model's.

    `ranks_per_node` is how many ranks of one node are busy at once, `devices` how many work on a
    step in all. A profile's times are those of the very devices that it was measured on, the
    slowest included, so nothing is added to them for the spread of a fleet.
    """
    if machine.profile is not None and machine.profile.kernels:
        host = machine.node.host
        rates = host.bytes_per_s, host.update_bytes_per_s
        return CalibratedCosts(machine.profile, ranks_per_node, *rates)
    return AnalyticCosts(machine, devices, kernels)


class AnalyticCosts:
    """A roofline with a shape-dependent matmul rate, from the numbers of the machine's file.

    A step waits for the slowest of its devices, whose rate of multiplying matrices counts for all;
    for memory-bound ops no such spread was measured.

    Not modelled: steps that tiles and kernel choice make in a matmul's rate, caches that keep an
    operand between two ops, clocks that fall under load, an elementwise op's arithmetic, and
    devices that share the way to their host.
    """

    def __init__(
        self, machine: Machine, devices: int = 1, kernels: Kernels = PLAIN_KERNELS
    ) -> None:
        self._machine = machine
        self._kernels = kernels
        self._slowest = machine.device.slowest_of(devices)
        self._updating = min(devices, machine.devices_per_node)  # which share a host's processors
        own = kernels.attention  # of other kernels than the machine's, whose shapes are not theirs
        self._attending = (
            replace(machine.device, attention=Attention(*own)) if own else machine.device
        )
        self._shares, self._place_s = dict(kernels.memory_shares), dict(kernels.place_s)
        self._element_s = dict(kernels.element_s)
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(self, op: Op) -> float:
        """Seconds that the op takes; ops of the same kind, dtype and size are worked out once."""
        how = op.attributes
        shape = (how["form"], *op.mnk) if op.kind in MATMULS else ()
        if not op.launches and not op.nbytes:
            return 0.0
        asked = tuple(how.get(key, unsaid) for key, unsaid in UNSAID)
        key = (op.kind, op.dtype, shape, op.nbytes, op.flops, op.launches, asked)
        if key not in self._known:
            by_bytes_s = self._seconds(op) / self._kernels.pace
            self._known[key] = max(by_bytes_s, self._by_elements_s(op))
        return self._known[key]

    def _by_elements_s(self, op: Op) -> float:
        """How long kernels take that a time for each element binds, not bytes."""
        elements = float(op.attributes.get(ELEMENTS, 0))
        return elements * self._element_s[op.attributes[COUNTED]] if elements else 0.0

    def _seconds(self, op: Op) -> float:
        device = self._machine.device
        costs = KINDS[op.kind].costs
        if costs is Costs.PRODUCT:
            return matmul_s(device, self._sustained(op.dtype) * share_of_bf16(device, op), op)
        if costs is Costs.LAUNCH:
            return float(op.attributes["count"]) * device.launch_s
        if costs is Costs.ATTENTION:
            return attention_s(
                self._attending, self._peak(op.dtype), op, halves=self._kernels.halves
            )
        if costs in (Costs.SCAN, Costs.CONVOLUTION):
            return scans.seconds(device, self._sustained(op.dtype), op)
        if costs is Costs.GROUP_NORM_GRAD and (known := scans.norm_grad_s(device, op)) is not None:
            return known
        if costs is Costs.HOST_COPY:
            return device.launch_s + op.nbytes / self._machine.node.host.bytes_per_s
        if costs is Costs.HOST:
            return op.nbytes * self._updating / self._machine.node.host.update_bytes_per_s
        if op.kind in self._shares:
            return self._moved_s(op)
        return memory_bound_s(device, op, self._kernels.tuned_norms)

    def _moved_s(self, op: Op) -> float:
        """t = launches + bytes / (share of the stack's kernel * bandwidth) + places * s."""
        device = self._machine.device
        moved_s = op.nbytes / (self._shares[op.kind] * device.memory_bytes_per_s)
        searched_s = op.attributes.get(PLACES, 0) * self._place_s.get(op.kind, 0.0)
        return op.launches * device.launch_s + moved_s + float(searched_s)

    def host_s(self, op: Op) -> float:
        """As the stack says, for each call of the op that is not within a graph, and for each
        kernel that a call issues for an expert."""
        own = self._kernels
        calls = issued(op, own.graphs) if own.host_s else 0
        if not calls:
            return 0.0
        of_expert_s = own.narrow_host_of_expert_s if op.dtype in NARROW else own.host_of_expert_s
        return own.host_s * calls + of_expert_s * _kernels_of_experts(op)

    def _peak(self, dtype: str) -> float:
        return peak_flops_per_s(self._machine, dtype) * self._slowest

    def _sustained(self, dtype: str) -> float:
        """The peak of which a matmul reaches its share in a long run, at the device's power."""
        return self._peak(dtype) * self._machine.device.matmul.sustained


def _kernels_of_experts(op: Op) -> int:
    """How many kernels one call issues for experts: a matmul for each, or what a pass says."""
    return int(op.attributes["count"] if op.kind == GROUPED else op.attributes.get(KERNELS, 0))


def peak_flops_per_s(machine: Machine, dtype: str) -> float:
    """A device's peak for a dtype; a MachineError says which dtypes the machine knows."""
    peaks = machine.device.peak_flops_per_s
    if dtype not in peaks:
        raise MachineError(
            f"{machine.name} has no device.peak_flops.{dtype}; it knows {', '.join(peaks)}"
        )
    return peaks[dtype]


def share_of_bf16(device: Device, op: Op) -> float:
    """The share of its dtype's peak that a matmul reaches, over that of a bf16 one of its shape.
    Of mxfp8 it is that of fp8, of which nobody measured the difference; so is that of nvfp4 but
    where the device's file has another."""
    if op.dtype not in NARROW:
        return 1.0
    k, model = float(op.attributes["k"]), device.matmul
    share = model.nvfp4 if op.dtype == NVFP4 and model.nvfp4 else model.fp8
    return share * k / (k + model.fp8_k0)


def matmul_s(device: Device, peak_flops_per_s: float, op: Op) -> float:
    """t = launch + max(2 m n k / (peak * e), bytes / (f * memory bandwidth)), e by the shape.

    The products of a batched matmul and of stacks fill the device together, so their rows count
    together in e; of a grouped one, whose products are kernels of their own, the rows of one count
    besides.
    Source: topologies/hardware/device.py, class Matmul. Not modelled: tiles, kernel choice.
    """
    model = device.matmul
    m, n, k = map(float, op.mnk)
    rows = k if op.attributes["form"] == "TN" else m  # of one product
    m *= float(op.attributes.get("count", 1))
    e = model.e_max * m / (m + model.m0) * n / (n + model.n0) * k / (k + model.k0)
    if min(n, k) >= model.forms_from:
        e *= model.forms.get(op.attributes["form"], 1.0)
    e *= aligned(device, op)
    if op.kind == GROUPED and model.grouped:
        e *= rows / (rows + model.grouped)
    memory_s = op.nbytes / (model.memory_fraction * device.memory_bytes_per_s)
    return model.launch_s + max(op.flops / (peak_flops_per_s * e), memory_s)


def aligned(device: Device, op: Op) -> float:
    """The share of its rate that a 16-bit matmul keeps, by how long the rows in memory are.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, section 2.2: tensor cores want
    multiples of 16 bytes. The rows are those of both operands and the product, as the form stores
    them. Batched products of such rows (unfused attention with heads of, say, 100 columns) have no
    kernel on matrix cores, and run at the peak of the others where the machine's file has it. Not
    modelled: bands of a fused tensor, whose rows are longer.
    """
    rows = ROWS[op.attributes["form"]] if op.dtype in (*NARROW, "bf16", "fp16") else ""
    lengths = {op.mnk["mnk".index(letter)] for letter in rows}
    if not any(length % 8 for length in lengths):
        return 1.0
    if op.kind == BATCHED and op.dtype in device.vector_flops_per_s:
        return device.vector_flops_per_s[op.dtype] / device.peak_flops_per_s[op.dtype]
    odd = any(length % 2 for length in lengths)
    return device.matmul.unaligned.get("odd" if odd else "even", 1.0)


def memory_bound_s(device: Device, op: Op, tuned_norms: Sequence[int] = ()) -> float:
    """t = launches + bytes / achieved memory bandwidth, for everything that multiplies no matrices.

    Norms and GELU reach shares of their own where a machine gives them; a norm of several kernels
    is an eager one. An op inside a neighbour's kernel has no launch. Source:
    topologies/hardware/device.py, class Device. `tuned_norms` are the widths for which a stack has
    norms of their own; none where it has but one norm. Not modelled: operands still in a cache,
    atomics of the embedding's gradient.
    """
    row = KINDS[op.kind]
    eager = op.launches > 1 and row.is_norm
    known_as = EAGER_NORM if eager else row.share or op.kind
    share = device.efficiency_of.get(known_as, device.memory_efficiency)
    general = bool(tuned_norms) and op.attributes.get("columns") not in tuned_norms
    if general and not eager and row.share_otherwise:
        share = device.efficiency_of.get(row.share_otherwise, share)
    launches = int(op.attributes.get(KERNELS, 0)) or op.launches
    return launches * device.launch_s + op.nbytes / (share * device.memory_bytes_per_s)
