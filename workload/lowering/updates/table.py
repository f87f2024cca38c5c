"""The ops of each update, by the name that its rule gives it (`workload/rules`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.lowering.updates import muon, simple, zeroth_order
from workload.op import Part
from workload.rules.zeroth_order import UPDATE

# Given an owner, its parameters and the names of their clipped gradients, or of what stands there.
Emit = Callable[[Builder, Part, Sequence[Parameter], Sequence[str]], None]
EMITTED: Mapping[str, Emit] = {
    "adamw": simple.emit_adamw,
    "sgd": simple.emit_sgd,
    "sgd-momentum": simple.emit_sgd_with_momentum,
    "muon": muon.emit,
    "lomo": simple.emit_lomo,
    UPDATE: zeroth_order.emit_update,
}
