"""Fits fused attention to every other shape measured on a B200; prints it as keys of a GPU.

    python -m benchmarks.fit_b200_attention b200_bf16_ceperm.json

The file is configs/system/b200_bf16_ceperm.json of MooreThreads/SimuMax@4dcaae5: bf16 attention of
Transformer Engine under a causal mask. Its efficiencies are of 2,250 TFLOP/s and of the whole
square's FLOPs, forward 2 matmuls of it and backward 5 (simu_tools/efficency_test,
test_fa_efficiency.py). Tensors that lie apart and ones in one piece are one shape here, of their
mean time. The shapes left out judge the fit. Heads of 128 columns and latent attention's of 192 and
128 are there, so `softmax` and `wide` cannot be told apart, and `uneven` is not seen: `softmax` is
0, `uneven` stays. A block's rows are 128, 256 or 512, what the kernels may take together.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fit_matmuls import b200
from benchmarks.fit_network import Vector, simplex
from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s
from topologies.hardware.attention import Attention, Shape
from topologies.machine import Machine
from workload.op import Op

PEAK_FLOPS_PER_S = 2250e12  # of which the efficiencies are
PASSES = (("forward", "attention", "sdp_fwd", 2), ("backward", "attention_grad", "sdp_bwd", 5))
UNITS, ROWS = 148, (128, 256, 512)  # streaming multiprocessors of a B200
STARTS = ((0.6, 0.8, 5.0), (0.5, 0.9, 30.0))
Row = tuple[Op, float]


def rows_of(path: Path, kind: str) -> list[Row]:
    """The measured shapes of a pass as ops, with their seconds."""
    key, matmuls = next((key, count) for _, each, key, count in PASSES if each == kind)
    table = json.loads(path.read_text())["accelerator"]["op"][key]["accurate_efficient_factor"]
    found: dict[tuple[int, ...], list[float]] = {}
    for text, efficiency in table.items():
        numbers = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}
        batch, sequence, heads = (numbers[name] for name in ("batch", "seq_len", "head_num"))
        shape = (batch, sequence, heads, numbers["qk_head_dim"], numbers["v_head_dim"])
        flops = matmuls * batch * heads * sequence**2 * sum(shape[3:])
        found.setdefault((*shape, numbers["kv_head_num"]), []).append(
            flops / (efficiency * PEAK_FLOPS_PER_S)
        )
    return [(op_of(kind, *shape[:5]), statistics.fmean(each)) for shape, each in found.items()]


def op_of(kind: str, batch: int, sequence: int, heads: int, width: int, values: int) -> Op:
    """The program's op: the whole square, backward counted twice."""
    flops = 2 * batch * heads * sequence**2 * (width + values)
    how = {"width": width, "value_width": values, "sequence": sequence}
    return Op("op", kind, (), (), attributes=how, flops=flops * (1 if kind == "attention" else 2))


def error(machine: Machine, rows: Sequence[Row]) -> float:
    """The mean absolute error of rows on a machine."""
    device, peak = machine.device, peak_flops_per_s(machine, "bf16")
    ratios = (attention_s(device, peak, op) / seconds for op, seconds in rows)
    return statistics.fmean(abs(ratio - 1) for ratio in ratios)


def fitted(machine: Machine, kind: str, rows: int, values: Iterable[float]) -> Machine:
    """The machine whose attention has these rows in a block, and of one pass these constants."""
    share, wide, memory = map(float, values)
    own = machine.device.attention
    assert own.shape is not None
    way = next(way for way, each, *_ in PASSES if each == kind)
    change = replace(getattr(own.shape, way), softmax=0.0, wide=wide, memory=memory)
    shape = Shape(UNITS, rows, own.shape.forward, own.shape.backward)
    attention: Attention = replace(own, **{way: share}, shape=replace(shape, **{way: change}))
    return replace(machine, device=replace(machine.device, attention=attention))


def fit(machine: Machine, kind: str, rows: int, seen: Sequence[Row]) -> tuple[float, Vector]:
    """The error and the constants of a pass with so many rows in a block."""

    def judged(logs: Vector) -> float:
        if max(logs[0], logs[1]) > 0:
            return math.inf
        return error(fitted(machine, kind, rows, np.exp(logs)), seen)

    best, logs = min(
        (simplex(judged, np.log(start), 400) for start in STARTS), key=lambda found: found[0]
    )
    return best, np.exp(logs)


def main(path: Path) -> None:
    """Fits both passes with the rows in a block that serve both best."""
    machine, kinds = b200(), [each for _, each, *_ in PASSES]
    measured = {kind: rows_of(path, kind) for kind in kinds}
    tried = {
        rows: {kind: fit(machine, kind, rows, measured[kind][::2]) for kind in kinds}
        for rows in ROWS
    }
    rows = min(ROWS, key=lambda rows: sum(tried[rows][kind][0] for kind in kinds))
    for each in ROWS:
        print(f"# rows {each}:", *(f"{tried[each][kind][0]:.3f}" for kind in kinds))
    print(f"rows = {rows}")
    for way, kind, *_ in PASSES:
        best, values = tried[rows][kind]
        unseen = error(fitted(machine, kind, rows, values), measured[kind][1::2])
        print(f"# {way}: error {best:.3f}, of those left out {unseen:.3f}")
        for name, value in zip(("share", "wide", "memory"), values, strict=True):
            print(f"{name} = {value:.3g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
