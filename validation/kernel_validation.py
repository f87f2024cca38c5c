"""Measured kernels beside the kernel model, by device and op."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.costs.analytic import matmul_s, memory_bound_s, peak_flops_per_s
from simulator.costs.attention import attention_s
from simulator.costs.published import MatmulTable, half_matmul
from topologies.errors import MachineError, SimgptError
from topologies.files.reading import TABLE_BYTES, UserFile, shipped_text
from topologies.hardware.measured_matmuls import Shape
from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.records import record
from topologies.session import session_cached
from workload.op import Op
from workload.op_attributes import Attributes
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour, with_behaviour

NEEDED = ("device", "op", "M", "N", "K", "batch", "heads", "seq", "head_dim", "seconds")
# Which machine's device a table was measured on, by words in its name.
MACHINES = {"a100": "dgx-a100", "gh200": "alps", "h100": "dgx-h100", "mi250": "frontier"}
KINDS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "gelu": "gelu", "res_add": "add"}
EAGER = "RMSlayernorm"  # the tables' name of an RMSNorm without a fused kernel
KINDS |= {EAGER: "rmsnorm"}
# The kernels of the RMSNorm that those tables timed, as PyTorch runs them one by one. Forward 20
# bytes an element, counted in fp32, for the 4 of a fused kernel: the 2-norm of rows 4, the quotient
# 8, the product with the weight 8. Backward 96 for 6, chosen on the A100's rows of 256 MB and more,
# so that the GH200's judge it: autograd's kernels count 70 with input of 16 bit, 108 in fp32, and
# which of them ran is not said. 5 and 15 kernels by torch.profiler. Source: EleutherAI/gpt-neox,
# megatron/model/norms.py; DebarghaG/estimate-train-time, Kernel_sampling/target_functions.py.
EAGER_NORM = StackBehaviour(
    passes=(("rmsnorm", 5.0), ("rmsnorm_grad", 16.0)),
    launches=(("rmsnorm", 5), ("rmsnorm_grad", 15)),
)
HALF = 2  # bytes of an element: all tables are fp16 or bf16
LARGE_FLOPS = 1e9
MOST_DIGITS = 9  # of a side of a matmul
SHORTEST_S, LONGEST_S = 1e-12, 86_400.0  # no kernel takes less, none as long
FORWARD, BACKWARD = "forward", "backward"


class KernelsError(SimgptError):
    """A file of measured kernels that cannot be read as such."""


_FILE = UserFile("table of kernels", KernelsError, TABLE_BYTES)


@record
class KernelGroup:
    """The rows of one op on one device. `p95` is the 95th percentile of the absolute error."""

    device: str
    op: str
    rows: int
    mape: float
    p95: float
    bias: float

    def as_dict(self) -> dict[str, Any]:
        """The group as it stands in JSON."""
        return {
            "device": self.device,
            "op": self.op,
            "rows": self.rows,
            "mape": self.mape,
            "p95": self.p95,
            "bias": self.bias,
        }


def validate_kernels(path: Path | None = None) -> list[KernelGroup]:
    """A group for every device and op of a file; without a file, of the table that comes with
    simgpt. Linears of less than 1 GFLOP stand apart, and so do backward passes. The others' forward
    passes are predicted a second time, interpolated in every other shape of the file."""
    errors: dict[tuple[str, str], list[float]] = {}
    linears: dict[str, dict[Shape, list[float]]] = {}
    for row, place in _rows(path):
        for name, error in _errors(row, place):
            errors.setdefault((row["device"], name), []).append(error)
        if row["op"] == "linear":
            m, n, k = (_whole(row, key, place) for key in "MNK")
            measured = linears.setdefault(row["device"], {}).setdefault((m, n, k), [])
            measured.append(_seconds(row, "seconds", place))
    for device, shapes in linears.items():
        if found := interpolated_errors(machine_of(device, "the table"), shapes):
            errors[device, "linear, interpolated"] = found
    return [_group(device, op, found) for (device, op), found in sorted(errors.items())]


def _group(device: str, op: str, errors: list[float]) -> KernelGroup:
    sizes = sorted(map(abs, errors))
    p95 = sizes[math.ceil(0.95 * len(sizes)) - 1]
    mape, bias = statistics.fmean(sizes), statistics.fmean(errors)
    return KernelGroup(device, op, len(errors), mape, p95, bias)


def _rows(path: Path | None) -> Iterator[tuple[dict[str, str], str]]:
    if path is None:
        shipped = shipped_text("validation", "data/kernels.csv")
        yield from _checked(shipped.splitlines(), "kernels.csv")
        return
    try:
        yield from _checked(_FILE.lines(path), path.name)
    except csv.Error as error:
        raise KernelsError(f"{path.name} is not a CSV file: {error}") from None


def _checked(lines: Iterable[str], origin: str) -> Iterator[tuple[dict[str, str], str]]:
    reader = csv.DictReader(lines)
    missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        raise KernelsError(f"{origin} has no column {missing[0]}; it needs {', '.join(NEEDED)}")
    count = 0
    for count, row in enumerate(reader, start=1):
        yield (
            {key: (cell or "").strip() for key, cell in row.items() if key},
            (f"{origin}, line {count + 1}"),
        )
    if not count:
        raise KernelsError(f"{origin} holds no rows below its header")


def _errors(row: Mapping[str, str], place: str) -> Iterator[tuple[str, float]]:
    """The relative errors of a row's forward pass and, if it was measured, of its backward."""
    machine = machine_of(row["device"], place)
    op = row["op"]
    if op == "linear":
        sides = tuple(_whole(row, key, place) for key in "MKN")
        predicted = _linear(machine, *sides)
        size = 2 * math.prod(sides)
        op = "linear" if size >= LARGE_FLOPS else "linear below 1 GFLOP"
    elif op == "flash_attention":
        shape = tuple(_whole(row, key, place) for key in ("batch", "heads", "seq", "head_dim"))
        predicted = _attention(machine, *shape)
    elif op in KINDS:
        elements = _whole(row, "M", place) * _whole(row, "N", place)
        elements = 4 * elements // _whole(row, "heads", place) if op == "gelu" else elements
        behaviour = EAGER_NORM if op == EAGER else PLAIN_BEHAVIOUR
        predicted = _pointwise(machine, KINDS[op], elements, behaviour)
        op = f"{KINDS[op]}, eager" if op == EAGER else op
    else:
        known = ", ".join(("linear", "flash_attention", *KINDS))
        raise KernelsError(f"{place}: op = {op!r} is not known; known: {known}")
    for way, column in ((FORWARD, "seconds"), (BACKWARD, "backward_seconds")):
        if row.get(column) or way == FORWARD:
            measured_s = _seconds(row, column, place)
            name = op if way == FORWARD else f"{op} backward"
            yield name, predicted[way] / measured_s - 1


def _linear(machine: Machine, m: int, k: int, n: int) -> dict[str, float]:
    """Forward m x k times k x n; backward the gradients of its input and of its weight."""

    def seconds(m: int, n: int, k: int) -> float:
        op = half_matmul(m, n, k)
        return matmul_s(machine.device, peak_flops_per_s(machine, "bf16"), op)

    return {FORWARD: seconds(m, n, k), BACKWARD: seconds(m, k, n) + seconds(k, n, m)}


def interpolated_errors(machine: Machine, shapes: Mapping[Shape, Sequence[float]]) -> list[float]:
    """Errors of all rows of 1 GFLOP or more, each predicted from a table that has neither its shape
    nor every other one: even shapes from odd ones, odd ones from even."""
    ordered = sorted(shapes)
    peak = peak_flops_per_s(machine, "bf16")
    errors = []
    for asked, known in ((ordered[::2], ordered[1::2]), (ordered[1::2], ordered[::2])):
        if not known:
            return []
        table = MatmulTable(machine, {at: statistics.median(shapes[at]) for at in known})
        for m, n, k in asked:
            if 2 * m * n * k >= LARGE_FLOPS:
                model_s = matmul_s(machine.device, peak, half_matmul(m, n, k))
                predicted_s = model_s * table.correction(m, n, k).factor
                errors += [predicted_s / measured - 1 for measured in shapes[m, n, k]]
    return errors


def _attention(machine: Machine, batch: int, heads: int, seq: int, width: int) -> dict[str, float]:
    """Not causal, as the tables are."""
    flops = 4 * batch * heads * seq * seq * width
    peak, how = peak_flops_per_s(machine, "bf16"), Attributes(width=width, sequence=seq)
    ops = {
        FORWARD: Op("op", "attention", (), (), flops=flops, attributes=how),
        BACKWARD: Op("op", "attention_grad", (), (), flops=2 * flops, attributes=how),
    }
    return {way: attention_s(machine.device, peak, op, causal=False) for way, op in ops.items()}


def _pointwise(
    machine: Machine, kind: str, elements: int, behaviour: StackBehaviour
) -> dict[str, float]:
    """Bytes as our ops move them: an addition reads two and writes one, backward copies nothing
    more; norms and GELU read one and write one, backward read two and write one. An eager norm
    makes that many passes and launches by the stack's own pass over the program."""
    counts = {FORWARD: 3, BACKWARD: 3} if kind == "add" else {FORWARD: 2, BACKWARD: 3}
    names = {FORWARD: kind, BACKWARD: kind if kind == "add" else f"{kind}_grad"}
    ops = [Op(kind, names[way], (), (), nbytes=counts[way] * HALF * elements) for way in counts]
    performed, _ = with_behaviour(ops, {}, behaviour)
    seconds = (memory_bound_s(machine.device, op) for op in performed)
    return dict(zip(counts, seconds, strict=True))


def machine_of(device: str, place: str) -> Machine:
    """The machine whose device a table names."""
    for word, name in MACHINES.items():
        if word in device.lower():
            return _loaded(name)
    raise MachineError(f"{place}: device {device!r} is none of {', '.join(MACHINES)}")


_loaded = session_cached(8)(load_machine)


def _whole(row: Mapping[str, str], column: str, place: str) -> int:
    text = row[column]
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        wanted = f"a whole number of 1 or more, in at most {MOST_DIGITS} digits"
        raise KernelsError(f"{place}: {column} = {text!r} must be {wanted}")
    return int(text)


def _seconds(row: Mapping[str, str], column: str, place: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value < LONGEST_S:
        wanted = f"seconds, of {SHORTEST_S:g} or more and below a day"
        raise KernelsError(f"{place}: {column} = {row[column]!r} must be {wanted}")
    return value
