"""Megatron-LM's arguments that fuse kernels and capture CUDA graphs, and the stack that has what
they turn on.

Source: NVIDIA/Megatron-LM@d98e8a6, megatron/training/arguments.py, transformer_config.py (what goes
with CUDA graphs) and docs/user-guide/features/cuda_graph.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simgpt.frameworks.reading import Reading
from simulator.costs.graph_scopes import ATTENTION, ROUTER, WHOLE
from simulator.stacks import load_stack
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.recomputation.parts import EXPERTS, parts_of

FAMILY = "megatron-core"  # of stacks whose files say which kernels are not fused
IMPL, BY_ENGINE = "cuda-graph-impl", "transformer_engine"
CAPTURES = (IMPL, "enable-cuda-graph", "external-cuda-graph")
SCOPES = ("cuda-graph-scope", "cuda-graph-modules")  # later releases take the first, too
IMPLS = ("none", "local", BY_ENGINE)
LAYERS, MAMBA = "full", "mamba"  # scopes; the second goes with attention (graph_scopes.py)
GENERATOR = "te-rng-tracker"  # of random numbers: Megatron-LM turns it on itself, recipes do not


@record
class TurnedOn:
    """What arguments turn on, or what a stack has: fused kernels by their arguments, and scopes of
    CUDA graphs."""

    fused: frozenset[str]
    graphs: frozenset[str]

    def unlike(self, other: TurnedOn) -> int:
        """How many of them one has and the other has not."""
        return len(self.fused ^ other.fused) + len(self.graphs ^ other.graphs)


def turned_on(kernels: Mapping[str, Any], table: Mapping[str, Any], *, experts: bool) -> TurnedOn:
    """What a stack of Megatron-Core's has by its `kernels`, of a model with experts or without."""
    named = [each for each, own in table["fusions"].items() if experts or not own["of_experts"]]
    steps = {each: kernels.get(table["fusions"][each]["key"], {}) for each in named}
    fused = {each for each in named if table["fusions"][each]["kind"] not in steps[each]}
    graphs = {each for each in kernels.get("graphs", ()) if experts or each == ATTENTION}
    return TurnedOn(frozenset(fused), frozenset(graphs))


def read(reading: Reading) -> None:
    """Take the stack that has all that is turned on for a model with experts, if there is one;
    else say what is not carried, and by which stack it nearly is."""
    experts, fusions = int(reading.of_model("experts")) > 1, reading.table["fusions"]
    named = [name for name, own in fusions.items() if experts or not own["of_experts"]]
    said = [name for name in named if reading.text(name)]
    reading.word(IMPL, "", (*IMPLS, WHOLE))
    for name in CAPTURES[1:]:
        reading.switch(name)
    captures = [name for name in CAPTURES if reading.given(name)]
    taken, by_usage = reading.taken_stack, reading.table.get("fused_unless_said", False)
    usual = frozenset[str]()
    if by_usage:
        usual = turned_on(load_stack(taken).own_kernels, reading.table, experts=experts).fused
    fused = [name for name in named if reading.switch(name, default=name in usual)]
    if not (said if by_usage else fused) and not captures:
        return
    graphs = _graphs(reading) if captures and experts else frozenset[str]()
    asked = TurnedOn(frozenset(fused), graphs)
    if reading.asked_stack or taken not in reading.table["with_fusions"]:
        _say(reading, asked, taken, {taken: _of_stack(reading, taken, experts=experts)}, captures)
        return
    stacks = _stacks(reading, experts=experts)
    nearest = min(stacks, key=lambda name: stacks[name].unlike(asked))
    paced = _pace(nearest) != _pace(taken)
    has_all = stacks[nearest] == asked and (experts or not captures)
    if (experts or by_usage or not paced) and has_all:
        if not by_usage or nearest != taken:
            on = (said if by_usage else fused) + captures
            spelled = ", ".join(map(reading.spelled, on))
            words = f"has what {spelled} {'turn' if len(on) > 1 else 'turns'} on"
            words += ", at the pace of NVIDIA's own runs" if paced else ""
            reading.stack_words = f"{words}; --stack names another" if by_usage else words
        reading.stack = nearest
        return
    _say(reading, asked, nearest, stacks, captures)


def _say(
    reading: Reading,
    asked: TurnedOn,
    nearest: str,
    stacks: Mapping[str, TurnedOn],
    captures: Sequence[str],
) -> None:
    """Say what of all that is turned on, or off, the stack does not have as it is asked for, and
    what the nearest stack has of it."""
    found, own = stacks[nearest], reading.taken_stack
    has = stacks[own] if own in stacks else TurnedOn(frozenset(), frozenset())
    more = ", ".join(map(reading.spelled, sorted(found.fused - asked.fused)))
    beside = f", and {more}" if more else ""
    for name in [*sorted(asked.fused - has.fused), *captures]:
        why = reading.table["changes"][name]
        if name in has.fused or (name in captures and asked.graphs == has.graphs != frozenset()):
            continue
        if name in found.fused:
            why = f"{why}; the stack {nearest} has it{beside}"
        elif name in captures and found.graphs:
            why = f"{why}; the stack {nearest} captures {', '.join(sorted(found.graphs))}{beside}"
        reading.differs(name, why)
    for name in sorted(has.fused - asked.fused):
        if reading.text(name):
            reading.differs(name, f"the stack {own} has it fused")


def _pace(stack: str) -> Any:
    return load_stack(stack).own_kernels.get("pace")


def _of_stack(reading: Reading, name: str, *, experts: bool) -> TurnedOn:
    return turned_on(load_stack(name).own_kernels, reading.table, experts=experts)


def _stacks(reading: Reading, *, experts: bool) -> dict[str, TurnedOn]:
    """What stacks have that send experts' rows as the one does that is read so far."""
    own = {name: load_stack(name).own_kernels for name in reading.table["with_fusions"]}
    kind = own[reading.stack].get("exchange")
    return {
        name: turned_on(kernels, reading.table, experts=experts)
        for name, kernels in own.items()
        if kernels.get("exchange") == kind
    }


def _graphs(reading: Reading) -> frozenset[str]:
    """The scopes of CUDA graphs that are asked for."""
    text = " ".join([reading.text(IMPL), *map(reading.text, SCOPES)])
    words = set(re.findall(r"\w+", text))
    return frozenset({WHOLE} if WHOLE in words else words - {MAMBA, *IMPLS} or {LAYERS})


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that turn on what a stack of Megatron-Core's has; whole steps in one graph are
    left out (`notes`)."""
    if fields["family"] != FAMILY:
        return {}
    experts, table = bool(fields["experts"]), fields["table"]
    own = turned_on(fields["kernels"], table, experts=experts)
    named = [name for name, each in table["fusions"].items() if experts or not each["of_experts"]]
    by_usage = table.get("fused_unless_said", False)
    settings: dict[str, Any] = {
        name: name in own.fused for name in named if by_usage or name in own.fused
    }
    scopes = [each for each in fields["kernels"].get("graphs", ()) if each in own.graphs]
    if not scopes or WHOLE in scopes:
        return settings
    _check(fields, own.graphs)
    return settings | {IMPL: BY_ENGINE, SCOPES[0]: scopes, GENERATOR: True}


def _check(fields: Mapping[str, Any], graphs: frozenset[str]) -> None:
    """Refuse what Megatron-LM does not run again where parts of layers are captured."""
    again = fields["recompute"]
    whole = again.partition(":")[0] == "full"
    if whole or (ROUTER in graphs and EXPERTS in parts_of(again)):
        raise PlanCannotRunError(
            f"Megatron-LM captures no parts of layers in CUDA graphs, as {fields['stack']} does, "
            f"with recompute={again}; leave it out, or take a stack without graphs"
        )


def notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences on what a stack has that is not written."""
    found, kernels = [], fields["kernels"]
    if fields["experts"] and WHOLE in kernels.get("graphs", ()):
        found.append(
            f"the stack {fields['stack']} captures the whole step in one CUDA graph, which is not "
            "written: --cuda-graph-impl full_iteration needs experts' rows in places of a fixed "
            "number (--moe-paged-stash, --moe-expert-rank-capacity-factor), which no plan says"
        )
    if fields["exchange"].once and "exchange_kernels" in kernels:
        found.append(
            f"the stack {fields['stack']} has HybridEP's kernels on Blackwell: there "
            "--moe-flex-dispatcher-backend is hybridep"
        )
    return tuple(found)
