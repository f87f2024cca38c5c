"""A prediction as a file holds it, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.answer_words import BALANCED, peak_of_mfu
from simulator.stacks.logged import COUNTS
from simulator.uncertainty.fitting import DOES_NOT_FIT, FITS, VERDICTS
from validation.report.answer_files import Reader, ReportError
from validation.report.provenance import (
    Fields,
    changes,
    files_in,
    is_fp8,
    named,
    question_in,
    shown,
    without_fp8,
    without_usual_variant,
)
from workload.plan import in_axonn_words

OF_AXONN = re.compile(r"(?:^|,)[xyz]=")
WHY_ROWS = {
    "path": (("axes", "work", "links"), ("seconds", "share")),
    "sensitivity": (("key", "unit"), ("value", "elasticity")),
    "better_machines": (("change",), ("step_s", "saving")),
    "neighbouring_plans": (("change",), ("step_s", "saving")),
}

NOT_KNOWN = ("energy_j_per_step", "power_w", "energy_j")  # null where no file says the power
NOISE_NUMBERS = ("median_step_s", "mean_cost", "seed")
TRAINING = ("tokens", "steps", "time_s", "node_s")


@dataclass(frozen=True, eq=False)
class Answer:
    """A prediction as it stands in a file.

    FLOP/s are those of the model on all devices. `asked` has the fields of the question that it
    answers, and `files` digests of the files that it names. `cost` is there where the file has it,
    None in it where it is not known, as has `training`, what training on so many tokens takes.
    `efficiency` is that of a rung of a scaling study, `why` is what `simgpt why` found besides, or
    empty, `variability` what steps with noise were like, or empty, `label` is what a search calls
    the plan, and `front` the list of the search's that it is in.
    `range_s` is within which the step is expected, from low to high
    (simulator/uncertainty/step_range.py), or None where the file does not say it; so is
    `mfu_causal`, the MFU without what a causal mask leaves out. `basis` says where the
    range comes from, `mfu_peak` of which precision's peak the MFU is, where linears have another,
    `is_balanced` that experts are taken to be used evenly.
    """

    origin: str
    asked: Fields
    files: Mapping[str, str]
    model: str
    machine: str
    devices: int
    plan: str
    batch: int
    step_s: float
    tokens_per_s: float
    flops_per_s: float
    mfu: float
    hfu: float
    peak_bytes: int
    capacity_bytes: int
    breakdown_s: Mapping[str, float]
    cost: Mapping[str, float | None]
    why: Mapping[str, Any]
    variability: Mapping[str, Any]
    training: Mapping[str, float | None]
    efficiency: float | None
    label: str
    range_s: tuple[float, float] | None = None
    mfu_causal: float | None = None
    mfu_peak: str = ""
    is_balanced: bool = False
    basis: str = ""
    verdict: str = ""
    front: str = ""

    @property
    def fits(self) -> bool:
        """Whether it may fit into memory."""
        return self.verdict != DOES_NOT_FIT


def _verdict(memory: Reader) -> str:
    """The verdict on the memory; answers of older versions have none, and say two things."""
    if "verdict" not in memory.document:
        fits = memory.whole("peak_bytes") <= memory.whole("capacity_bytes")
        return FITS if fits else DOES_NOT_FIT
    return memory.word("verdict", VERDICTS)


def prediction_of(
    document: Mapping[str, Any], origin: str, label: str = "", front: str = ""
) -> Answer:
    """Read a prediction; a ReportError says what is missing."""
    of = Reader(document, origin)
    memory = Reader(of.table("memory"), origin)
    asked = question_in(document, origin)
    model, machine = names_of(of, asked)
    why, noise = document.get("why"), document.get("variability")
    plan = without_fp8(of.text("plan_string"))
    return Answer(
        origin=origin,
        asked=asked,
        files=files_in(document),
        model=model,
        machine=machine,
        devices=of.whole("devices"),
        plan=plan,
        batch=Reader(of.table("plan"), origin).whole("batch"),
        step_s=of.positive("step_s"),
        tokens_per_s=of.number("tokens_per_s"),
        flops_per_s=of.whole("devices") * of.positive("model_flops_per_s_per_device"),
        mfu=of.number("mfu"),
        hfu=of.number("hfu"),
        peak_bytes=memory.whole("peak_bytes"),
        capacity_bytes=memory.whole("capacity_bytes"),
        breakdown_s={words_of(plan)(part): s for part, s in of.numbers("breakdown_s").items()},
        cost=of.known("cost", NOT_KNOWN) if isinstance(document.get("cost"), dict) else {},
        why=_why(why, f"{origin}: why") if isinstance(why, dict) else {},
        variability=_variability(of) if isinstance(noise, dict) else {},
        training=_training(of) if isinstance(document.get("training"), dict) else {},
        efficiency=_efficiency(document.get("scaling"), origin),
        label=label,
        front=front,
        range_s=_range(of) if document.get("low_step_s") is not None else None,
        mfu_causal=of.number("mfu_causal") if "mfu_causal" in document else None,
        basis=_basis(document.get("range")),
        verdict=_verdict(memory),
        is_balanced=document.get("routing_assumed") == BALANCED,
        mfu_peak=peak_of_mfu({**document, "fp8": is_fp8(asked)}),
    )


def words_of(plan: str) -> Callable[[str], str]:
    """What names axes in a text as a plan's text does: in AxoNN's words if it is of a 3D plan."""
    return in_axonn_words if OF_AXONN.search(plan) else str


def _range(of: Reader) -> tuple[float, float]:
    low, step, high = (of.positive(key) for key in ("low_step_s", "step_s", "high_step_s"))
    if not low <= step <= high:
        raise ReportError(
            f"{of.origin}: step_s = {step:.6g} should lie between low_step_s = {low:.6g} and "
            f"high_step_s = {high:.6g}"
        )
    return low, high


def _basis(found: Any) -> str:
    """Where a range comes from; "" where a file does not say it."""
    return str(found.get("basis") or "") if isinstance(found, dict) else ""


def _training(of: Reader) -> Mapping[str, float | None]:
    for key in TRAINING:
        of.within("training").positive(key)
    return of.known("training", NOT_KNOWN)


def _variability(of: Reader) -> Mapping[str, Any]:
    """What steps with noise were like, once everything that a report shows of it is known to be
    there."""
    found = of.within("variability")
    for key in NOISE_NUMBERS:
        found.number(key)
    found.positive("noise_free_step_s")
    for key in ("noise", "excess_s"):
        found.numbers(key)
    slow = found.within("one_slow_device")
    for key in ("slower_by", "step_s", "cost"):
        slow.number(key)
    found.list_of_numbers("interval_step_s", 2)
    found.list_of_numbers("steps_s", 1)
    return found.document


def _efficiency(scaling: Any, origin: str) -> float | None:
    if not isinstance(scaling, dict) or scaling.get("efficiency") is None:
        return None
    return Reader(scaling, f"{origin}: scaling").positive("efficiency")


def names_of(of: Reader, asked: Fields) -> tuple[str, str]:
    """Model and machine as a page speaks of them: with their file, and what was changed."""
    model = _changed(named(of.text("model"), asked["model"]), asked["model_set"])
    machine = without_usual_variant(named(of.text("machine"), asked["machine"]))
    return model, _changed(machine, changes(asked))


def _changed(name: str, values: Mapping[str, Any]) -> str:
    changes = ", ".join(f"{key}={shown(value)}" for key, value in values.items())
    return f"{name} with {changes}" if changes else name


def _why(document: Mapping[str, Any], origin: str) -> Mapping[str, Any]:
    """What `simgpt why` found, once everything that a report shows of it is known to be there."""
    of = Reader(document, origin)
    for key in ("sentence", "along", "path_basis"):
        of.text(key)
    for key, (words, numbers) in WHY_ROWS.items():
        for row in of.rows(key):
            for name in words:
                row.text(name)
            for name in numbers:
                row.number(name)
    if "mfu_waterfall" in document:
        _check_waterfall(of.within("mfu_waterfall"))
    return document


def _check_waterfall(of: Reader) -> None:
    of.word("counts", COUNTS)
    for row in of.rows("losses"):
        row.text("name")
        row.text("remedy")
        row.number("left")
        if row.document.get("with_remedy") is not None:
            row.number("with_remedy")
