"""A prediction as a file holds it, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validation.report.reading import Reader

WHY_ROWS = {
    "path": (("axes", "work", "links"), ("seconds", "share")),
    "sensitivity": (("key", "unit"), ("value", "elasticity")),
    "better_machines": (("change",), ("step_s", "saving")),
    "neighbouring_plans": (("change",), ("step_s", "saving")),
}


@dataclass(frozen=True)
class Answer:
    """A prediction as it stands in a file.

    FLOP/s are those of the model on all devices. `settings` are keys of the machine that were set,
    `cost` is there where the file has it, and `why` is what `simgpt why` found besides, or empty.
    `label` tells the points of a sweep apart.
    """

    origin: str
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
    placement: str
    settings: Mapping[str, Any]
    cost: Mapping[str, float]
    why: Mapping[str, Any]
    label: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits into memory."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def command(self) -> str:
        """The command that gives this answer, as far as the file tells."""
        placed = "" if self.placement == "scheduler" else f" --placement {self.placement}"
        placed += "".join(f' --set {key}="{value}"' for key, value in self.settings.items())
        return (
            f"simgpt predict {self.model} -m {self.machine} -n {self.devices} "
            f"--plan {self.plan} --batch {self.batch}{placed}"
        )


def prediction_of(document: Mapping[str, Any], origin: str) -> Answer:
    """Read a prediction; a ReportError says what is missing."""
    of = Reader(document, origin)
    memory = Reader(of.table("memory"), origin)
    why, placement, settings = (document.get(key) for key in ("why", "placement", "settings"))
    policy = placement.get("policy") if isinstance(placement, dict) else None
    return Answer(
        origin=origin,
        model=of.text("model"),
        machine=of.text("machine"),
        devices=of.whole("devices"),
        plan=of.text("plan_string"),
        batch=Reader(of.table("plan"), origin).whole("batch"),
        step_s=of.positive("step_s"),
        tokens_per_s=of.number("tokens_per_s"),
        flops_per_s=of.whole("devices") * of.positive("model_flops_per_s_per_device"),
        mfu=of.number("mfu"),
        hfu=of.number("hfu"),
        peak_bytes=memory.whole("peak_bytes"),
        capacity_bytes=memory.whole("capacity_bytes"),
        breakdown_s=of.numbers("breakdown_s"),
        placement=str(policy or "scheduler"),
        settings=settings if isinstance(settings, dict) else {},
        cost=of.numbers("cost") if isinstance(document.get("cost"), dict) else {},
        why=_why(why, f"{origin}: why") if isinstance(why, dict) else {},
    )


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
    return document
