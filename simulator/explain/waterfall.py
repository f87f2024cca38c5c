"""Why one job is slower than another: the settings in which they differ, changed one by one.

The reference (the other job) is predicted first. Then one differing setting after another, in the
order of `CAUSES`, is changed to this job's value, and the step is predicted again. The change of
the model FLOP/s per device is that cause's effect. Effects add up by construction, since each rate
is the start of the next change. If the reference's rate is measured, all predicted rates are
multiplied by the reference's measured / predicted, so that the first rate is the measured one. The
difference between the last rate and this job's measured one is "not explained".

An effect depends on the changes made before it. A change that cannot run alone is made together
with the next one. Cost: one prediction per cause.

Not modelled: whether the intermediate plans fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from simulator.predict import Prediction
from simulator.stacks.stack import Stack
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import check
from workload.plan import Plan, text_of

MACHINE, MODEL, SEQUENCE, STACK, DEVICES, BATCH = (
    *("machine", "model", "sequence", "stack", "devices", "batch"),
)
OF_PLAN = tuple(Plan.KEYS)
GPT_ = "gpt"  # the model with its sequence
WITHIN = ("tp", "y", "z", "cp", "pp")  # whose product, times data, are the devices
# Causes of the plan, by the fields that change together; after them all other fields one by one.
TOGETHER: Sequence[tuple[str, ...]] = (
    ("tp", "y", "z", "sp"),
    ("pp", "vpp", "schedule", "stage_layers", "ends_as_layers"),
    ("cp", "context_kind", "context_heads", "context_latents"),
    ("ep", "etp", "dispatcher", "fp8_dispatch"),
    ("mbs",),
)
LATER: Sequence[tuple[str, ...]] = (
    ("zero", "shard", "reshard"),
    ("precision", "recipe", "fp8_swiglu_input"),
    ("recompute",),
    ("overlap",),
)
CAUSES: Sequence[tuple[str, ...]] = (
    *((MACHINE,), (MODEL,), (SEQUENCE,), (STACK,), (DEVICES,)),
    *TOGETHER,
    (BATCH,),
    *LATER,
)


@record(slots=False)
class Side:
    """A job as it is predicted; `machine_name` and the model's name stand in sentences."""

    gpt: GPT
    plan: Plan
    machine: Machine
    machine_name: str
    stack: Stack


@record
class Fall:
    """A cause in words, and the model FLOP/s per device before and after it."""

    words: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """The change of the rate."""
        return self.after - self.before


@record(slots=False)
class Waterfall:
    """From the reference's rate to this job's: model FLOP/s per device. `factor` is measured over
    predicted of the reference, 1 where it is not measured; the last fall is not explained."""

    reference: float
    measured: float
    factor: float
    falls: tuple[Fall, ...]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON; shares are of the reference's rate."""
        return {
            "reference_flops_per_s": self.reference,
            "measured_flops_per_s": self.measured,
            "reference_measured_over_predicted": self.factor,
            "causes": [
                {
                    "cause": each.words,
                    "flops_per_s_before": each.before,
                    "flops_per_s_after": each.after,
                    "change": each.change,
                    "share": each.change / self.reference,
                }
                for each in self.falls
            ],
        }


UNEXPLAINED = "not explained"


def waterfall(
    reference: Side,
    job: Side,
    predict: Callable[[Side], Prediction],
    *,
    measured: float,
    reached: float | None = None,
) -> Waterfall:
    """The changes from a reference to a job with `measured` model FLOP/s per device; `reached` is
    the reference's measured rate, if known."""
    first = predict(reference).model_flops_per_s_per_device
    factor = 1.0 if reached is None else reached / first
    before = first if reached is None else reached
    start, falls = before, []
    for words, prediction in _predicted(reference, job, predict):
        after = prediction.model_flops_per_s_per_device * factor
        falls.append(Fall(words, before, after))
        before = after
    falls.append(Fall(UNEXPLAINED, before, measured))
    return Waterfall(start, measured, factor, tuple(falls))


def _predicted(
    reference: Side, job: Side, predict: Callable[[Side], Prediction]
) -> Iterator[tuple[str, Prediction]]:
    """The causes, and the prediction with each of them and all before it."""
    reached, pending = _values(reference), []
    own = _values(job)
    if _is_like(reference, job):
        own[MODEL] = reached[MODEL]
    others = tuple((key,) for key in own if key != GPT_ and not any(key in c for c in CAUSES))
    for cause in (*CAUSES, *others):
        names = [name for name in cause if reached[name] != own[name]]
        if not names:
            continue
        pending.append(", ".join(_words(name, reached, own) for name in names))
        reached = _changed(reached, own, names)
        is_last = all(reached[name] == own[name] for name in own if name != GPT_)
        try:
            prediction = predict(job if is_last else _side(reached))
        except SimgptError:
            if is_last:
                raise
            continue
        yield " and ".join(pending), prediction
        pending = []


def _values(side: Side) -> dict[str, Any]:
    """All that a job is made of, by name: fields of its plan without data, and the rest."""
    plan = {name: side.plan.value(name) for name in OF_PLAN if name != "dp"}
    return {
        **plan,
        MACHINE: (side.machine_name, side.machine),
        MODEL: side.gpt,
        SEQUENCE: side.gpt.sequence,
        STACK: side.stack,
        DEVICES: side.plan.grid.ranks,
        GPT_: side.gpt,
    }


def _is_like(reference: Side, job: Side) -> bool:
    """Whether both train the same model, but for its sequence, its labels and the rows by which
    tensor parallelism pads its vocabulary."""
    padded = (
        reference.stack.model(job.gpt, reference.plan.tp),
        job.stack.model(reference.gpt, job.plan.tp),
    )
    vocabs = padded[0].vocab == reference.gpt.vocab or padded[1].vocab == job.gpt.vocab
    unlabelled = [_unlabelled(each.gpt) for each in (reference, job)]
    return vocabs and unlabelled[0] == unlabelled[1]


def _unlabelled(gpt: GPT) -> GPT:
    """The model without its labels, and without what no step's time depends on."""
    labels = replace(gpt, name="", source="", sequence=1, vocab=1)
    return labels.changed(norm_eps=1e-5, rope_scaling="none", rope_base=10_000)


def _changed(
    values: Mapping[str, Any], own: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """The values with some changed to the job's. With other devices the batch per device stays the
    same, if it can."""
    changed = {**values, **{name: own[name] for name in names}}
    if MODEL in names:
        changed[GPT_] = replace(own[GPT_], sequence=values[SEQUENCE])
    if SEQUENCE in names:
        changed[GPT_] = replace(changed[GPT_], sequence=own[SEQUENCE])
    if DEVICES in names:
        batch, rest = divmod(values[BATCH] * own[DEVICES], values[DEVICES])
        changed[BATCH] = batch if batch and not rest else own[BATCH]
    return changed


def _side(values: Mapping[str, Any]) -> Side:
    """The job of some values; a SimgptError where it cannot run."""
    known = {name: values[name] for name in OF_PLAN if name in values}
    data, rest = divmod(values[DEVICES], prod(values[name] for name in WITHIN))
    if rest or not data:
        raise SimgptError(f"{values[DEVICES]} devices are not split evenly")
    plan, stack = Plan.of(**known, dp=data), values[STACK]
    gpt = stack.model(values[GPT_], plan.tp)
    stack.check(plan, gpt)
    check(gpt, plan)
    name, machine = values[MACHINE]
    return Side(gpt, plan, machine, name, stack)


def _words(name: str, before: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What differs, as `tp 4 → 8`."""
    texts = [_text(name, values) for values in (before, own)]
    return f"{name.replace('_', ' ')} {texts[0]} → {texts[1]}"


def _text(name: str, values: Mapping[str, Any]) -> str:
    if name == MACHINE:
        return str(values[name][0])
    if name == STACK:
        return str(values[name].name)
    if name == MODEL:
        return str(values[GPT_].name)
    value = values[name]
    return f"{value:,}" if type(value) is int else text_of(value)
