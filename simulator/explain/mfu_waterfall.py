"""The MFU waterfall: from 100 % of the peak down to the utilisation that the stack's log prints.

A step of T seconds on the device whose step is broken down consists of stretches: matrix products,
attention, elementwise kernels, waits for collectives and for other stages. Of a stretch of t
seconds that does F of the FLOPs that the log counts, t - F / peak seconds are lost, which is
(t - F / peak) / T of the peak. Stretches fill the step. Half of attention under a causal mask is a
gain where the log counts it. What is then left to the logged utilisation is shown as the work that
the device does beyond the mean device's, such as that of a stage with more layers, so the losses
and the utilisation sum to 1 by construction; tests compare this rest with the programs' FLOPs.

Cost: the compute ops of the step are simulated once more (`compute_ops.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.attribution.compute_ops import OpTime
from simulator.attribution.critical_path import cause_of
from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import worked_share
from simulator.engine.stream_graph import HOST, PIPE
from simulator.engine.ticks import to_seconds
from simulator.explain.changed_plan import Change, can_run
from simulator.explain.roofline import compute_ops_of
from simulator.predict import Prediction
from simulator.stacks.logged import CAUSAL, FULL, HARDWARE
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from workload.grid import AXES
from workload.kinds import ATTENTIONS, BY_THEMSELVES, Work
from workload.op import Op
from workload.plan import Plan, text_of
from workload.recipes.table import NO_RECIPE

MATMULS, ATTENTION, ELEMENTWISE = (
    each.value for each in (Work.MATMULS, Work.ATTENTION, Work.ELEMENTWISE)
)
THEMSELVES = [work.value for work in BY_THEMSELVES]
FASTER, RECOMPUTATION, OPTIMIZER = "matmuls in fewer bits", "recomputation", "optimizer"
UNEVEN, MASKED = "beyond the mean device", "masked half"
WORK = (MATMULS, ATTENTION, ELEMENTWISE, *THEMSELVES, RECOMPUTATION, HOST)
NAMES = {
    FASTER: "gain of linears in fewer bits",
    MATMULS: "matmul efficiency",
    ATTENTION: "attention efficiency",
    HOST: "waiting for the host",
    PIPE: "pipeline bubble",
    UNEVEN: "more work than the mean device",
    MASKED: "masked half of attention, counted",
}
USUAL = {
    MATMULS: "larger matmuls",
    ATTENTION: "a faster kernel",
    ELEMENTWISE: "fused kernels",
    RECOMPUTATION: "less of it, if other changes free memory",
    OPTIMIZER: "a larger batch",
    HOST: "a larger mbs, CUDA graphs",
    PIPE: "a larger batch, fewer stages",
    UNEVEN: "layers spread evenly over stages",
}
LEAST_WON = 0.1  # of a loss: a change that wins back less is not named for it
WORTH = 0.0005  # of the peak: less is not printed, and no change is named for it


@record
class Loss:
    """A step of the waterfall: `seconds` of the training step, of which the FLOPs that are counted
    take `useful_s` at the peak. `remedy` says what would win it back, with `regained` the MFU
    that a simulation of that change has."""

    key: str
    name: str
    seconds: float
    useful_s: float
    remedy: str = ""
    regained: float | None = None

    @property
    def lost_s(self) -> float:
        """Seconds of the peak that are lost; negative where it gains some."""
        return self.seconds - self.useful_s


@record(slots=False)
class MfuWaterfall:
    """The losses from 1 down to `end`, the utilisation that counts FLOPs as `counts` says, one of
    `logged.COUNTS`; `is_logged` if the stack's log prints it so."""

    losses: Sequence[Loss]
    step_s: float
    end: float
    counts: str
    is_logged: bool

    def share(self, loss: Loss) -> float:
        """A loss as a share of the peak."""
        return loss.lost_s / self.step_s

    @property
    def levels(self) -> list[float]:
        """What is left of the peak after each loss."""
        found, left = [], 1.0
        for loss in self.losses:
            left -= self.share(loss)
            found.append(left)
        return found

    def scaled(self, factor: float) -> MfuWaterfall:
        """The waterfall of a step whose every part takes `factor` times as long."""
        losses = [
            replace(
                loss,
                seconds=loss.seconds * factor,
                regained=None if loss.regained is None else loss.regained / factor,
            )
            for loss in self.losses
        ]
        return replace(self, losses=losses, step_s=self.step_s * factor, end=self.end / factor)

    def with_changes(self, changes: Mapping[str, MfuWaterfall]) -> MfuWaterfall:
        """Each loss with the change, in words, that shrinks it most, by at least a tenth, among
        those whose utilisation is higher."""
        better = {words: each for words, each in changes.items() if each.end > self.end}

        def best(loss: Loss) -> Loss:
            won = {words: self.share(loss) - each.of(loss.key) for words, each in better.items()}
            words = max(won, key=lambda each: won[each], default="")
            if not words or won[words] < max(WORTH, LEAST_WON * abs(self.share(loss))):
                return loss
            return replace(loss, remedy=words, regained=better[words].end)

        return replace(self, losses=[best(loss) for loss in self.losses])

    def of(self, key: str) -> float:
        """The share of the peak that the loss of this key takes; 0 where there is none."""
        return sum(self.share(loss) for loss in self.losses if loss.key == key)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON; shares are of the peak."""
        return {
            "utilisation": self.end,
            "counts": self.counts,
            "as_in_the_log": self.is_logged,
            "losses": [
                {
                    "name": loss.name,
                    "share": self.share(loss),
                    "left": level,
                    "remedy": loss.remedy,
                    "with_remedy": loss.regained,
                }
                for loss, level in zip(self.losses, self.levels, strict=True)
            ],
        }


def mfu_waterfall(
    prediction: Prediction, machine: Machine, placement: Placement, tried: Collection[str] = ()
) -> MfuWaterfall:
    """The waterfall of a prediction on its machine, which no anchor has scaled. Changes in `tried`
    were simulated by the caller, so they are not named as remedies."""
    log = prediction.logged
    counts, end = (FULL, prediction.mfu) if log is None else (log.counts, log.share)
    peak = prediction.peak_flops_per_s
    counted = _Counted(counts, peak, machine)
    for each in compute_ops_of(prediction, machine, placement).ops:
        counted.add(each)
    stretches = dict(counted.seconds)
    for key, seconds in prediction.breakdown_s.items():
        if key not in ("compute", "optimizer"):
            stretches[key] = stretches.get(key, 0.0) + seconds
    useful = dict(counted.useful_s)
    useful[UNEVEN] = end * prediction.step_s - sum(useful.values())
    lost = {key: stretches.get(key, 0.0) for key in (*stretches, *useful)}
    losses = [
        Loss(
            key,
            _name(key, prediction),
            seconds,
            useful.get(key, 0.0),
            prediction.in_words(_remedy(key, prediction, machine, tried)),
        )
        for key, seconds in sorted(lost.items(), key=lambda item: _order(item[0]))
        if seconds or useful.get(key)
    ]
    return MfuWaterfall(losses, prediction.step_s, end, counts, log is not None)


def waterfall_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """A waterfall as JSON has it as rows of text: name, what would win it back, change, and what is
    left, in per cent of the peak. Levels are rounded and changes are the differences of rounded
    levels, so that the figures add up as they stand; rows that change nothing are left out."""
    rows, left = [("peak FLOP/s", "", "", "100.0 %")], 1000
    for loss in record["losses"]:
        before, left = left, round(1000 * loss["left"])
        if left != before:
            after = loss.get("with_remedy")
            remedy = loss["remedy"] if after is None else f"{loss['remedy']}: {100 * after:.1f} %"
            change = f"{(left - before) / 10:+.1f} %"
            rows.append((loss["name"], remedy, change, f"{left / 10:.1f} %"))
    logged = record.get("as_in_the_log")
    name = f"MFU ({record['counts']}{', as in the log' if logged else ' attention'})"
    if record["counts"] == HARDWARE:
        name = "HFU (as in the log)"
    return [*rows, (name, "", "", f"{left / 10:.1f} %")]


@dataclass
class _Counted:
    """Seconds by what they go to, and seconds that the FLOPs which a log counts take at the peak;
    differences between what is done and counted are under keys of their own."""

    counts: str
    peak_flops_per_s: float
    machine: Machine
    seconds: dict[str, float] = field(default_factory=dict)
    useful_s: dict[str, float] = field(default_factory=dict)

    def add(self, timed: OpTime) -> None:
        """Count an op as often as it runs."""
        op, key = timed.op, self._key(timed.op)
        self.seconds[key] = self.seconds.get(key, 0.0) + to_seconds(timed.ticks)
        if key == RECOMPUTATION or (key == OPTIMIZER and self.counts != HARDWARE):
            return
        flops = float(timed.count * op.flops)
        if op.kind in ATTENTIONS:
            worked = worked_share(op, 0)
            if self.counts != CAUSAL:
                self._use(MASKED, (1 - worked) * flops / self.peak_flops_per_s)
            flops *= worked
        at_peak_s = flops / self.peak_flops_per_s
        if flops and (own := peak_flops_per_s(self.machine, op.dtype)) > self.peak_flops_per_s:
            self._use(FASTER, at_peak_s - flops / own)
            at_peak_s = flops / own
        self._use(key, at_peak_s)

    def _use(self, key: str, seconds: float) -> None:
        self.useful_s[key] = self.useful_s.get(key, 0.0) + seconds

    def _key(self, op: Op) -> str:
        if op.block.is_recomputed and self.counts != HARDWARE:
            return RECOMPUTATION
        return ATTENTION if op.kind == "batched_matmul" else cause_of(op).work


def _order(key: str) -> tuple[int, str]:
    """First what the device computes, then what it waits for inside a stage, for other stages, and
    for other replicas."""
    if key == FASTER:
        return 0, ""
    if key in WORK:
        return 1 + WORK.index(key), ""
    after = len(WORK) + 1
    last = {PIPE: 1, UNEVEN: 2, OPTIMIZER: 4, "idle": 5, MASKED: 6}
    return after + last.get(key, 3 if "dp" in key.split("+") else 0), key


def _name(key: str, prediction: Prediction) -> str:
    waits = key not in (*WORK, OPTIMIZER, "idle")
    usual = f"exposed {prediction.in_words(key)} communication" if waits else key
    return NAMES.get(key, usual)


def _remedy(key: str, prediction: Prediction, machine: Machine, tried: Collection[str]) -> str:
    """What usually wins a loss back, not simulated: those changes of the plan that the stack runs,
    or else general words; empty where there is nothing to change."""
    tries = _tries(key, prediction.plan, machine)
    found = [w for w, change in tries.items() if w not in tried and can_run(prediction, change)]
    return " or ".join(found) or USUAL.get(key) or _usual_of_waits(key)


def _usual_of_waits(key: str) -> str:
    axes = [axis for axis in key.split("+") if axis in (*AXES, "ep")]
    if "dp" in axes:
        return "a larger batch"
    return f"a smaller {' or '.join(axes)}, faster links" if axes else ""


def _tries(key: str, plan: Plan, machine: Machine) -> dict[str, Change]:
    """Changes of the plan that may shrink a loss, by what they are called."""
    axes = key.split("+")
    if key == MATMULS:
        twice: Change = {"mbs": 2 * plan.mbs}
        fp8 = "fp8" in machine.device.peak_flops_per_s and plan.training.recipe == NO_RECIPE
        return {
            _words(twice): twice,
            **({"fp8": {"recipe": "fp8-tensorwise"}} if fp8 else {}),
        }
    changes: dict[str, list[Change]] = {
        ATTENTION: [{"attention": "flash"}] if plan.training.attention != "flash" else [],
        ELEMENTWISE: [{"sp": True}] if plan.tp > 1 and not plan.sp else [],
        OPTIMIZER: [{"zero": 1}] if plan.dp > 1 and not plan.zero else [],
        PIPE: [{"vpp": 2}] if plan.vpp == 1 else [],
    }
    if key in changes:
        return {_words(change): change for change in changes[key]}
    hidden = {"ep": "a2a", "dp": "dp"}
    names = [
        name for axis, name in hidden.items() if axis in axes and name not in plan.training.overlap
    ]
    return {f"add {name} to overlap": {"overlap": (*plan.training.overlap, name)} for name in names}


def _words(change: Change) -> str:
    return ", ".join(f"{field}={text_of(value)}" for field, value in change.items())
