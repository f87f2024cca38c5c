"""Updates element by element: each rank updates its part, and gathers it where it holds more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.op import HOST, PARAMETER_GATHER, Part


def elementwise(
    b: Builder,
    kind: str,
    owner: Part,
    parameters: Sequence[Parameter],
    reads: Sequence[str],
    states: Sequence[str],
    **how: Any,
) -> None:
    """Emit one op that updates an owner's parameters; parts of parameters are gathered afterwards.

    It reads what `reads` names (gradients, or what was made of them), then the states, one kind of
    state after the other, and what is trained; it writes the states, what is trained and its copies
    in the compute precision.
    """
    kept = [at_hand(b, f"{p.name}.{state}") for state in states for p in parameters]
    trained = [at_hand(b, p.trained) for p in parameters]
    copied = [_copy(b, p) for p in parameters]
    copies = [name for name in copied if name]
    scales = [name for state in kept if (name := f"{state}.scale") in b.buffers]
    b.op(
        kind,
        kind,
        [*reads, *kept, *trained, *(n for n in copies if b.buffers[n].persistent), *scales],
        [*kept, *trained, *copies, *scales],
        parameters=tuple(p.name for p in parameters),
        decays=tuple(p.decays for p in parameters),
        copied=tuple(map(bool, copied)),
        part=owner,
        **how,
    )
    updated = [copy or part for copy, part in zip(copied, trained, strict=True)]
    gather_parts(b, owner, parameters, updated)


def gather_parts(
    b: Builder, owner: Part, parameters: Sequence[Parameter], updated: Sequence[str]
) -> None:
    """Emit the gathers of an owner's parameters that ranks updated a part each of, from these."""
    pairs = [(p, part) for p, part in zip(parameters, updated, strict=True) if p.apart]
    for sharding in dict.fromkeys(p.sharding for p, _ in pairs):
        parts = [part for p, part in pairs if p.sharding == sharding]
        whole = [p.name for p, _ in pairs if p.sharding == sharding]
        named = {b.sharding_of_experts: "experts.params.gather", b.sharding: "params.gather"}
        label = named.get(sharding, "rows.params.gather")
        gathered = label, "all_gather", parts, whole
        b.collective(*gathered, *sharding.over, part=owner, purpose=PARAMETER_GATHER)


def at_hand(b: Builder, state: str) -> str:
    """The name under which an update finds a state."""
    return f"{state}.staged" if b.buffers[state].role == HOST else state


def _copy(b: Builder, parameter: Parameter) -> str:
    """Where an update puts what it trained, if that is a copy; what is gathered needs none in the
    same precision."""
    if parameter.trained == parameter.name or (b.dtype != "bf16" and parameter.apart):
        return ""
    if not parameter.apart:
        return parameter.name
    shape = b.buffers[parameter.trained].shape
    return b.of_parameter(parameter, f"{parameter.name}.updated", shape, b.dtype, "workspace")
