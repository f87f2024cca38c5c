"""A prediction as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from simgpt import tables
from simulator.answer_words import EVENLY, assumes_balance
from simulator.economics import NO_POWER
from simulator.predict import is_much_masked
from simulator.stacks.logged import CAUSAL, FULL, HARDWARE
from simulator.uncertainty.fitting import words_of
from topologies.files.units import J_PER_MWH, format_energy, format_quantity
from workload.expert_loads.capacity import mean_dropped
from workload.pipeline.schedule import ways
from workload.recipes.table import NO_RECIPE
from workload.splits.states import PARAMETERS, UPDATE

if TYPE_CHECKING:
    from simulator.economics import Cost, Training
    from simulator.explain.assumed import Granted, Otherwise
    from simulator.predict import Prediction
    from simulator.stacks.job import Job
    from simulator.step_memory import Memory
    from simulator.uncertainty.anchored_memory import MemoryAnchoring
    from simulator.uncertainty.anchors import Used
    from topologies.hardware.run_to_run import Band

PARTS = {
    **{name: name for name in ("compute", "optimizer", "idle")},
    "pp": "waiting for other stages",
    "host": "waiting for the host",
    "host_adamw": "the update on the host",
    "to_host": "copies to the host",
    "to_device": "copies from the host",
}
OF_DEVICES = "(devices only)"
STAND_IN = "host is a stand-in, of which nothing was measured: simgpt calibrate measures yours"
ON_HOST = (
    "the update runs on the host, at a rate of its processors that is assumed unless the machine's "
    "file has node.host.update"
)
LABELS = 30  # characters of the tables' first column


def describe(
    prediction: Prediction,
    placed: str,
    reach: Mapping[str, str],
    job: Job | None = None,
    remedy: str = "",
    *,
    runs: Band | None = None,
    granted: Granted | None = None,
    further: str = "",
) -> str:
    """The prediction as a person reads it, with what was assumed of the job and taken for
    `granted`, a `remedy` where the plan does not fit, and the band of such `runs`; `placed` is the
    placement asked for, `further` a text behind it."""
    memory, within, where = prediction.memory, prediction.range, f"placement: {placed}"
    parts = [
        (name, tables.seconds(value), tables.percent(value / prediction.step_s))
        for name, value in time_parts(prediction)
    ]
    held = [
        (role, tables.gib(nbytes), tables.percent(nbytes / memory.peak_bytes))
        for role, nbytes in memory_parts(prediction)
    ]
    reached = [(f"groups of {prediction.in_words(axes)}", words) for axes, words in reach.items()]
    return "\n\n".join(
        [
            headline(prediction, job),
            *([tables.table([where, ""], reached, left=2, first=LABELS)] if reached else []),
            tables.table([], facts(prediction), left=2, first=LABELS),
            *([tables.paragraph(f"this plan {remedy}", indent="  ")] if remedy else []),
            *([tables.paragraph(ON_HOST, indent="  ")] if _is_on_host(prediction) else []),
            *anchoring(prediction),
            tables.paragraph(f"80 % range: {within.words}", indent="  "),
            *taken_for_granted(granted),
            *run_to_run(prediction, runs),
            tables.table(["where the step goes", "time", "share"], parts, first=LABELS),
            tables.table([f"peak memory, at {memory.op}", "bytes", "share"], held, first=LABELS)
            + further,
        ]
    )


def _is_on_host(prediction: Prediction) -> bool:
    return prediction.plan.training.offload in (UPDATE, PARAMETERS)


def anchoring(prediction: Prediction) -> list[str]:
    """A paragraph for each anchor that was given: how far it moved the step, or why not."""
    found = prediction.anchoring
    if found is None:
        return []
    lines = [f"not anchored to {name}: {why}" for name, why in found.unused.items()]
    if found.used:
        blind = tables.seconds(prediction.step_s / found.factor)
        names = ", ".join(_anchor(each) for each in found.used)
        lines = [f"anchored: predicted {blind}, times {found.factor:.3f} to match {names}", *lines]
    if found.memory is not None:
        lines.append(_anchored_memory(found.memory))
    return [tables.paragraph(line, indent="  ") for line in lines]


def _anchored_memory(by: MemoryAnchoring) -> str:
    """How far anchors moved the memory, and from which peaks."""
    moved = []
    if by.factor != 1:
        moved.append(f"activations times {by.factor:.3f}")
    if by.beside_bytes:
        more = "more" if by.beside_bytes > 0 else "less"
        moved.append(f"{tables.gib(abs(by.beside_bytes))} {more} beside tensors")
    peaks = ", ".join(
        f"{each.name} ({each.peak.measure}: measured {tables.gib(each.peak.measured_bytes)}, "
        f"predicted {tables.gib(each.peak.predicted_bytes)}"
        f"{'; too far off, kept within limits' if each.peak.is_kept else ''})"
        for each in by.peaks
    )
    narrower = f"P(fits) comes to {tables.percent(by.weight)} from runs that had an anchor too"
    return f"memory anchored: {' and '.join(moved) or 'as predicted'} to match {peaks}; {narrower}"


def _anchor(used: Used) -> str:
    anchor, distance = used.anchor, used.distance
    beside = f"measured {tables.seconds(anchor.measured_s)}"
    told = f"predicted {tables.seconds(anchor.predicted_s)}"
    differs = f"; {', '.join(distance.differs)}" if distance.differs else ""
    far = f"{distance.total:.1f} doublings away" if distance.differs else "the same question"
    ran = f", {anchor.software}" if anchor.software else ""
    return f"{anchor.name} ({beside}, {told}{ran}; {far}{differs})"


def taken_for_granted(found: Granted | None) -> list[str]:
    """A paragraph on what is assumed of the software, and the step otherwise; none without."""
    if found is None or not (found.assumed or found.otherwise):
        return []
    others = [f"{_span(each)} {each.words}" for each in found.otherwise or ()]
    told = [f"assumed: {', '.join(found.assumed)}"] if found.assumed else []
    text = "; ".join([*told, *others])
    return [tables.paragraph(text if told else f"otherwise {text}", indent="  ")]


def _span(other: Otherwise) -> str:
    if other.low_s == other.high_s:
        return tables.seconds(other.low_s)
    return tables.between(other.low_s, other.high_s)


def run_to_run(prediction: Prediction, runs: Band | None) -> list[str]:
    """A paragraph on how the step differs from run to run; none where no runs are known."""
    if runs is None:
        return []
    span = tables.between(*runs.around(prediction.step_s))
    text = f"run to run: 80 % of runs take {span}, from {runs.words}"
    return [tables.paragraph(text, indent="  ")]


def time_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """What the step's time goes to and the seconds of each, the longest first."""
    return [
        (PARTS.get(name) or f"exposed communication {prediction.in_words(name)}", value)
        for name, value in _largest_first(prediction.breakdown_s)
    ]


def memory_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """What the peak memory is of and the bytes of each, the largest first."""
    return _largest_first(prediction.memory.parts)


def facts(prediction: Prediction) -> list[tuple[str, str]]:
    """The step and what follows from it, as rows of a table."""
    memory, within = prediction.memory, prediction.range
    return [
        ("step", tables.seconds(prediction.step_s)),
        *_load_facts(prediction),
        (
            "80 % range",
            tables.between(within.low_s, within.high_s),
        ),
        ("tokens/s", f"{prediction.tokens_per_s:,.0f}"),
        ("model FLOP/s per device", tables.rate(prediction.model_flops_per_s_per_device)),
        *_utilisation(prediction),
        ("peak memory per device", tables.gib(memory.peak_bytes)),
        ("memory for tensors", tables.gib(memory.capacity_bytes)),
        ("memory reserve", tables.gib(memory.reserve_bytes)),
        ("fits", verdict(prediction)),
        *([("memory of its host", _of_host(memory))] if memory.host_bytes else []),
        *cost_facts(prediction.cost),
    ]


def _of_host(memory: Memory) -> str:
    """What a device keeps in its host's memory and, if known, its share of that memory."""
    if math.isinf(most := memory.host_capacity_bytes):
        return tables.gib(memory.host_bytes)
    words = "" if memory.host_bytes <= most else ": does not fit there"
    return f"{tables.gib(memory.host_bytes)} of {tables.gib(int(most))}{words}"


def verdict(prediction: Prediction) -> str:
    """Whether the plan fits, how likely that is, and what is to spare."""
    memory = prediction.memory
    if memory.is_sure:
        below = (
            f"{tables.gib(memory.spare_bytes)} below the limit of {tables.gib(memory.sure_bytes)}"
        )
        return f"yes: {words_of(memory.p_fits)}, {below}"
    return memory.words if memory.fits else f"no: {words_of(memory.p_fits)}"


def _utilisation(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Shares of the peak, where linears have a higher one of which: of model FLOPs with all of
    attention, without what a causal mask leaves out of it, and with what is recomputed. The one
    that the stack's log prints comes first, with its FLOP/s; where it is not known, the second only
    if it is much less."""
    log, shown = prediction.logged, {}
    shares = {FULL: prediction.mfu, CAUSAL: prediction.mfu_causal, HARDWARE: prediction.hfu}
    if log is None or log.counts == HARDWARE:
        much = is_much_masked(prediction.mfu, prediction.mfu_causal)
        shown = {FULL: "MFU", **({CAUSAL: "MFU (causal attention)"} if much else {})}
    elif log.counts == CAUSAL:
        shown = {CAUSAL: "MFU (causal, as in the log)", FULL: "MFU (full attention)"}
    else:
        shown = {FULL: "MFU (full, as in the log)", CAUSAL: "MFU (causal attention)"}
    printed = "as in the log" if log is not None and log.counts == HARDWARE else ""
    shown[HARDWARE] = f"HFU ({printed or 'recomputation counted'})"
    of = f" of the peak of {prediction.plan.training.precision}"
    narrow = of if prediction.plan.training.recipe != NO_RECIPE else ""
    for counts, label in shown.items():
        rate = tables.rate(log.flops_per_s) if log is not None and log.counts == counts else ""
        yield label, f"{tables.percent(shares[counts])}{narrow}{rate and f', {rate}'}"


def _load_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """How unevenly experts are used, where that is known, as rows of a table."""
    load = prediction.load
    if load is None:
        lost = mean_dropped(prediction.gpt, prediction.plan)
        return [("dropped of a layer's choices", tables.percent(lost))] if lost else []
    over = f"{load.most_over_mean:.2f} in layer {load.layer}, {load.mean_over_mean:.2f} on average"
    even = ("if experts were used evenly", tables.seconds(load.balanced_step_s))
    what = "choices" if prediction.gpt.moe.capacity else "rows"
    found = [even, (f"most {what} of a rank / mean", over)]
    if prediction.gpt.moe.capacity:
        most = f"{tables.percent(load.dropped)}, {tables.percent(load.most_dropped)} at most"
        found.append(("dropped of a layer's choices", most))
    return found


def cost_facts(cost: Cost) -> list[tuple[str, str]]:
    """What a step costs, as rows of a table."""
    charged = f"{tables.hours(cost.node_s_per_step)} on {tables.several(cost.nodes, 'node')}"
    nodes = ("node-hours per step", charged)
    if cost.energy_j_per_step is None or cost.power_w is None:
        known = _of_devices(cost.devices_energy_j_per_step, format_energy)
        return [nodes, ("energy per step", known)]
    drawn = f"{format_energy(cost.energy_j_per_step)} at {format_quantity(cost.power_w, 'W')}"
    return [nodes, ("energy per step", drawn)]


def _of_devices(joules: float | None, words: Callable[[float], str]) -> str:
    """What is known of an energy of which the nodes' part is not."""
    return NO_POWER if joules is None else f"{words(joules)} {OF_DEVICES}"


def describe_training(run: Training) -> str:
    """What a training run takes, as a person reads it."""
    of_devices = _of_devices(run.devices_energy_j, _megawatt_hours)
    energy = of_devices if run.energy_j is None else _megawatt_hours(run.energy_j)
    is_short = run.time_s < 864
    time = tables.seconds(run.time_s) if is_short else f"{tables.amount(run.time_s / 86_400)} days"
    facts = [
        ("steps", f"{run.steps:,}"),
        ("time without a break", time),
        ("node-hours", tables.hours(run.node_s)),
        ("energy", energy),
    ]
    return tables.table(
        [f"{tables.count(int(run.tokens))} tokens", ""], facts, left=2, first=LABELS
    )


def _megawatt_hours(joules: float) -> str:
    """An energy as bills have it, if it is worth one."""
    value = joules / J_PER_MWH
    return f"{tables.amount(value)} MWh" if value >= 0.01 else format_energy(joules)


def headline(prediction: Prediction, job: Job | None, answer: str = "") -> str:
    """The question, and what is taken for granted; the first line ends with an `answer`."""
    gpt, plan = prediction.gpt, prediction.plan
    batch = f"batch of {tables.several(plan.batch, 'sequence')} of {gpt.sequence:,} tokens"
    each = f"mbs={plan.mbs}, {tables.several(plan.micro_batches, 'micro-batch')} per rank"
    each += " in each of two directions" * (ways(plan.pipeline.schedule) > 1)
    return "\n".join(
        [
            f"{gpt.name} on {tables.several(prediction.devices, 'device')} of {prediction.machine}"
            f"{answer}",
            plan_line(prediction),
            f"{batch}, {each}, {precision_words(prediction)}",
            *([tuned] if (tuned := tuned_forms(prediction)) else []),
            *([STAND_IN] if prediction.machine == "host" else []),
            *(tables.paragraph(line, indent=" " * 5) for line in _assumptions(job)),
        ]
    )


def precision_words(prediction: Prediction) -> str:
    """The precision, and that of the layers' linears where it is another."""
    plan = prediction.plan
    linears = f", linears in {plan.training.recipe}" if plan.training.recipe != NO_RECIPE else ""
    return plan.training.precision + linears


def plan_line(prediction: Prediction) -> str:
    """The plan as `--plan` takes it."""
    return tables.paragraph(f"plan {prediction.plan_text}", indent=" " * 5)


def _assumptions(job: Job | None) -> Iterator[str]:
    """What the answer takes for granted: the stack, and what of the plan was not given."""
    if job is None:
        return
    assumed = ", ".join(f"{key}={value}" for key, value in job.assumed)
    stack = f"stack {job.stack.name} ({job.stack.title}{job.chosen and f', {job.chosen}'})"
    yield stack + (f"; assumed: {assumed}" if assumed else "")
    yield from job.remarks
    if assumes_balance(job.gpt):
        yield EVENLY


def tuned_forms(prediction: Prediction) -> str:
    """What the choice of matmul forms does, where the plan asks for one."""
    tuning = prediction.tuning
    if tuning is None:
        return ""
    share = f"matmul forms: {len(tuning.transposed)} of {len(tuning.forms)} transposed"
    if not tuning.transposed:
        return f"{share}, none would be faster for it"
    return f"{share}, saves {tables.seconds(tuning.compute_s)} of compute"


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return [item for item in sorted(parts.items(), key=lambda item: -item[1]) if item[1] > 0]
