"""A software stack: the plan that it has by default, what it can run, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from simulator.costs.attention import Halves
from simulator.costs.kernels import Kernels
from simulator.stacks.apart import Apart
from simulator.stacks.effects import has_effect
from simulator.stacks.held import held_of
from simulator.stacks.host import host_times, of_gpu, with_hosts
from simulator.stacks.runs import Runs
from simulator.stacks.stage_split import SPLIT, spread
from simulator.stacks.where import NOTHING, Said, defaults_of
from topologies.errors import MachineError, SimgptError
from topologies.files.units import quantity
from topologies.hardware.device_library import family_of, gpu_of
from topologies.machine import Machine
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.exchange.kernels import ExchangeKernels, KernelRates, exchange_kernels
from workload.exchange.sent_bytes import (
    gathered_copies,
    gathered_payloads,
    on_nodes,
    share_sent_once,
)
from workload.exchange.table import ALL_TO_ALL, DISPATCHERS, OF_STACKS, USUAL, Exchange, exchange_of
from workload.gpt import GPT
from workload.grid import AXES
from workload.op import BACKWARD, FORWARD
from workload.passes.stack import TRAINING, StackBehaviour
from workload.pipeline.message_order import DEEPSPEED
from workload.pipeline.schedule import OPPOSED, STRAIGHT
from workload.plan import Plan, in_axonn_words, text_of
from workload.plan_fields import PlanFields
from workload.recipes.cast_kernels import INSIDE, CastKernels
from workload.recipes.table import FP8
from workload.recomputation.parts import SELECTIVE


class StackError(SimgptError):
    """A stack that is not known, or whose file cannot be read as one."""


@record(slots=False)
class Stack:
    """What a software stack makes of a model and a plan (keys: `simulator/stacks/usual.toml`).

    Stacks of a `family` err alike (`simulator/uncertainty`). `options` are what may stand behind
    its name, and what each is. `tabled` says that matmuls are interpolated in published tables.
    """

    name: str
    title: str
    source: str
    family: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    own_kernels: Mapping[str, Any] = field(default_factory=dict)
    can: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    log: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    tabled: bool = False

    def plan_defaults(self, layers: int, said: Said = NOTHING) -> dict[str, Any]:
        """The keys of a plan that the stack gives where the user, who `said` others, does not, for
        chunks of so many layers."""
        keys = defaults_of(self.plan, said)
        if "recompute" in keys:
            keys["recompute"] = self.recompute(keys["recompute"])
        return keys

    def spread(self, plan: Plan, gpt: GPT, said: Container[str] = ()) -> Plan:
        """The plan with its layers on stages as the stack has them, unless the user `said` how."""
        return spread(plan, self.model(gpt, plan.tp), str(self.plan.get(SPLIT, "")), said)

    def text(self, plan: Plan) -> str:
        """The plan in the one grammar, so that it is the same plan where the stack reads it: what
        stands at its default, but not at the stack's, is said too, and overlaps are not where they
        are the stack's. AxoNN's stacks have AxoNN's words."""
        text = self.in_words(plan, plan.text())
        said = dict(word.split("=") for word in text.split(","))
        for key, default in self.plan_defaults(1, plan).items():
            value = plan.value(key)
            same = value == default or (key == "overlap" and set(value) == set(default))
            if key == "overlap" and same:
                said.pop(key, None)
            elif key not in said and not same and has_effect(key, plan):
                said[key] = text_of(value)
        if plan.training.recipe == FP8:  # which stands last
            said["precision"] = said.pop("precision")
        return ",".join(f"{key}={value}" for key, value in said.items())

    def in_words(self, plan: Plan, text: str) -> str:
        """A text about a plan with axes as the stack's users call them: tp is x for AxoNN's, and
        for all stacks where tensor parallelism has further axes."""
        return in_axonn_words(text) if plan.is_3d or self.family == AXONN else text

    def recompute(self, asked: str) -> str:
        """What the stack recomputes where it is asked for this."""
        return str(self.plan.get(SELECTIVE, asked)) if asked == SELECTIVE else asked

    def vocab(self, size: int, x: int) -> int:
        """The vocabulary that the model has under the stack: padded, or cut, for x to divide."""
        multiple = int(self.vocabulary.get("multiple", 1))
        multiple *= x if self.vocabulary.get("times_tp") else 1
        rounded = math.floor if self.vocabulary.get("cut") else math.ceil
        return rounded(size / multiple) * multiple

    def model(self, gpt: GPT, x: int) -> GPT:
        """The model as it is under the stack: with its vocabulary."""
        vocab = self.vocab(gpt.vocab, x)
        return gpt if vocab == gpt.vocab else replace(gpt, vocab=vocab)

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The dispatchers of experts that the stack has, its usual one first."""
        return tuple(self.can.get("dispatchers", (USUAL,)))

    @property
    def searched_dispatchers(self) -> tuple[str, ...]:
        """The dispatchers that a search tries unless others are asked for. Some have no bounds."""
        tried = self.can.get("searched_dispatchers", ())
        return tuple(
            each for each in self.dispatchers if each in tried and not DISPATCHERS[each].with_places
        )

    @property
    def usual_exchange(self) -> Exchange:
        """How rows get to experts on the stack where a plan does not say it."""
        return OF_STACKS[self.own_kernels.get("exchange", ALL_TO_ALL.in_stacks)]

    def exchange(self, plan: PlanFields) -> Exchange:
        """How a plan's rows get to experts on the stack."""
        return exchange_of(plan, self.usual_exchange)

    def library_bytes(self, machine: Machine) -> int:
        """Workspaces that the stack's libraries take of the memory for tensors."""
        held = of_gpu(self.memory.get("libraries", {}), _gpu(machine))
        return 0 if held is None else int(quantity(held, "bytes"))

    @property
    def messages(self) -> str:
        """In whose order messages between stages are posted and awaited, one of FRAMEWORKS."""
        return str(self.own_kernels.get("messages", ""))

    @property
    def blocks(self) -> bool:
        """Whether compute waits for every message between stages, one after another."""
        return self.messages == DEEPSPEED

    def stands_over(self, machine: Machine) -> tuple[str, ...]:
        """The tables of a machine's file in whose place the stack has rates of its own."""
        own = of_gpu(self.own_kernels.get("attention", {}), _gpu(machine))
        return () if own is None else ("device.attention",)

    @property
    def apart(self) -> Sequence[Apart]:
        """Values of a plan's keys that the stack does not run together."""
        return tuple(self.can.get("apart", ()))

    @property
    def runs(self) -> Runs:
        """What the stack can run."""
        return Runs(f"the stack {self.name}", self.can, self.messages)

    def check_value(self, key: str, given: Any) -> None:
        """Refuse a value of a key that no plan of the stack has."""
        if why := self.runs.value_refusal(key, given):
            raise PlanCannotRunError(why)

    def check(self, plan: Plan, gpt: GPT | None = None) -> None:
        """Refuse a plan that the stack does not run, of a model if it is known."""
        if why := self.runs.refusal(plan, gpt):
            raise PlanCannotRunError(why)

    def check_dispatcher(self, name: str) -> None:
        """Refuse a dispatcher that the stack has not."""
        if why := self.runs.dispatcher_refusal(name):
            raise PlanCannotRunError(why)

    def kernels(self, gpt: GPT, plan: Plan, machine: Machine) -> Kernels:
        """The stack's kernels for a plan on a machine: by GPU, or else by family of GPUs."""
        gpu, own = _gpu(machine), self.own_kernels
        shares = of_gpu(own.get("attention", {}), gpu)
        copies, element_s = dict(own.get("copies", {})), self._times("element_times", gpu)
        in_fp8 = plan.training.recipe == FP8
        payloads = dict(own.get("fp8_payloads" if in_fp8 else "payloads", {}))
        exchange = self.exchange(plan)
        sending: ExchangeKernels | None = None
        if exchange.once:
            in_a_row = bool(own.get("choices_in_a_row", False))
            per_node = machine.segments(plan.grid.ranks).per_node
            within, nodes = on_nodes(plan.grid, plan.expert_axes, per_node)
            parts = exchange.copies.parts(plan.ep, nodes)
            share = share_sent_once(gpt, parts, in_a_row=in_a_row)
            payloads["all_to_all"] = share
            if exchange.kernels and (rates := self.kernel_rates(machine)) is not None:
                sending = exchange_kernels(gpt, within, nodes, rates, share)
        if own.get("scores_of_all", False):
            payloads |= gathered_payloads(gpt, plan.training.precision, exchange)
            copies |= gathered_copies(plan.training.precision, exchange)
        switches: dict[str, Any] = {key: bool(own.get(key, False)) for key in SWITCHES}
        kernels = Kernels(
            **host_times(own, gpu, experts=bool(gpt.moe.experts)),
            graphs=tuple(own.get("graphs", ())),
            attention=None if shares is None else (shares[0], shares[1]),
            halves=None if shares is None else self._halves(gpu),
            pace=float(own.get("pace", 1.0)),
            memory_shares=self._memory_shares(gpu),
            place_s=self._times("place_times", gpu),
            element_s=element_s,
            tuned_norms=tuple(own.get("tuned_norms", ())),
            tabled=self.tabled,
            behaviour=StackBehaviour(
                fused=tuple(own.get("fused", ())),
                casts=self._casts(gpu) if in_fp8 else INSIDE,
                passes=tuple(own.get("passes", {}).items()),
                payloads=tuple(payloads.items()),
                launches=tuple(own.get("launches", {}).items()),
                scatter_gather=DIRECTIONS[own.get("scatter_gather", False)],
                messages=self.messages,
                own_rows=exchange.own_rows,
                exchange_kernels=sending,
                launches_of_slice=int(own.get("launches_of_slice", 0)),
                reduce_dtype=self._reduce_dtype(plan),
                **switches,
                held=held_of(self.memory),
                copies=tuple((key, (each[0], each[1])) for key, each in copies.items()),
                counted=tuple(name for name, _ in element_s),
            ),
        )
        unfused = plan.training.attention == "unfused" and "softmax" in own
        return _with_softmax(kernels, own["softmax"], gpt, plan) if unfused else kernels

    def kernel_rates(self, machine: Machine) -> KernelRates | None:
        """What the stack's kernels that send experts' rows themselves reach on a machine; None if
        the stack has no such kernels."""
        tables = self.own_kernels.get("exchange_kernels")
        if tables is None:
            return None
        found = of_gpu(tables, _gpu(machine)) or {}
        return KernelRates(
            there=_by_size(found.get("there", {})),
            back=_by_size(found.get("back", {})),
            there_across=_by_size(found.get("there_across", {})),
            back_across=_by_size(found.get("back_across", {})),
            back_row_s=quantity(found["back_row"], "s") if "back_row" in found else 0.0,
            all_probabilities=found.get("all_probabilities", False),
        )

    def _reduce_dtype(self, plan: Plan) -> str:
        """In what gradients are reduced: where the plan sums them in fp32, in what the stack says,
        else in the dtype of training, whatever that of the part that a rank keeps."""
        wide = plan.training.gradients == "fp32"
        return str(self.own_kernels.get("reduce_dtype", TRAINING)) if wide else TRAINING

    def _halves(self, gpu: tuple[str, ...]) -> Halves | None:
        found = [
            of_gpu(self.own_kernels.get(key, {}), gpu)
            for key in ("attention_half", "attention_half_unmasked")
        ]
        if None in found:
            return None
        masked, unmasked = ((float(each[0]), float(each[1])) for each in found)
        return Halves(masked, unmasked)

    def _memory_shares(self, gpu: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
        found = of_gpu(self.own_kernels.get("memory_shares", {}), gpu)
        return () if found is None else tuple(found.items())

    def _times(self, key: str, gpu: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
        """What a table of durations has for such GPUs, in seconds."""
        found = of_gpu(self.own_kernels.get(key, {}), gpu) or {}
        return tuple((kind, quantity(each, "s")) for kind, each in found.items())

    def with_hosts(self, factor: float) -> Stack:
        """The stack with hosts that take so many times as long."""
        return replace(self, own_kernels=with_hosts(self.own_kernels, factor))

    def _casts(self, gpu: tuple[str, ...]) -> CastKernels:
        """The kernels that cast for linears in fp8 on such GPUs."""
        nbytes, kernels = of_gpu(self.own_kernels.get("fp8_casts", {}), gpu) or (0, 0)
        transposes = any(each in TRANSPOSING for each in gpu)
        pads = bool(self.own_kernels.get("fp8_pads", False))
        return CastKernels(transposes, nbytes, kernels, pads)


AXONN = "axonn"  # the family of its stacks
SWITCHES = (
    "early_stop",
    "gathers_ahead",
    "coalesced",
    "one_by_one",
    "whole_owners",
    "context_steps",
    "once_a_step",
)
TRANSPOSING = ("h100",)  # families of devices whose fp8 matmuls take one layout alone
DIRECTIONS = {False: (), True: (FORWARD, BACKWARD), FORWARD: (FORWARD,)}  # of cut messages
EXECUTOR = Stack(
    name="simgpt",
    title="simgpt's own executor",
    source="executor/: one kernel for every op of the program, as `simgpt run` runs it",
    can={
        "axes": list(AXES),
        "schedules": [*STRAIGHT, *OPPOSED],
        "zero": [0, 1, 2, 3],
        "dispatchers": [name for name in DISPATCHERS if name != ALL_TO_ALL.name],
        "searched_dispatchers": [USUAL],
    },
)


def _gpu(machine: Machine) -> tuple[str, ...]:
    """The names under which a stack's file may have the machine's device."""
    try:
        return str(gpu_of(machine.device.known_as)["name"]), family_of(machine.device.known_as)
    except MachineError:
        return ()


def _by_size(shares: Mapping[str, float]) -> dict[int, float]:
    return {int(size): share for size, share in shares.items()}


def _with_softmax(kernels: Kernels, softmax: Mapping[str, Any], gpt: GPT, plan: Plan) -> Kernels:
    """The kernels with the fused softmax of causal squares, or with one in steps where that does
    not serve: it wants heads in multiples, those of all sequences of a micro-batch together, and
    short sequences."""
    heads, behaviour = plan.mbs * gpt.attention.heads // plan.tp, kernels.behaviour
    if not heads % softmax["multiple"] and gpt.sequence <= softmax["longest"]:
        passes, launches = softmax["fused"], {}
    else:
        passes, launches = softmax["steps"], softmax["launches"]
    behaviour = replace(
        behaviour,
        passes=(*behaviour.passes, *passes.items()),
        launches=(*behaviour.launches, *launches.items()),
    )
    return replace(kernels, behaviour=behaviour)
