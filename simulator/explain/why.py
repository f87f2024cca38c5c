"""Why a step takes as long as it does: its critical path, what it is sensitive to, what would help.

Every figure comes from a simulation of this step, or of the step on a changed machine or under a
changed plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.attribution.critical_path import Cause, PathPiece, cause_of
from simulator.attribution.time_shares import TimeShares, shares_of
from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_seconds
from simulator.explain.algorithm_switches import AllReduce, all_reduces, sentence, switches
from simulator.explain.bottleneck_link import limiting_link
from simulator.explain.error_budget import ErrorBudget, error_budget
from simulator.explain.mfu_waterfall import MfuWaterfall, mfu_waterfall
from simulator.explain.sensitivity import Elasticity, MachineParameter, elasticity, parameters
from simulator.explain.what_if import WhatIf, neighbours, twice_as_good
from simulator.predict import Prediction, predict
from simulator.ranks.fabric import MachineFabric
from simulator.uncertainty.anchors import Anchoring
from topologies.machine import Machine
from topologies.machine_files import with_settings
from topologies.placement import Placement
from topologies.records import record
from topologies.session import gc_paused
from workload.kinds import Work
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE, recipe_of

Changed = tuple[WhatIf, Prediction, Machine]  # a change with the step that was simulated for it
PATH = "critical path"  # along which a step's time is told
LONGEST = 8  # ops named one by one
WORTH = 0.005  # of a step: less is not worth a word


@record(slots=False)
class Why:
    """What was found about a predicted step. `links` says for each axes which links they wait on,
    `unfit` how many neighbouring plans were left out because they do not fit into memory; `tuner`
    is the machine's, which picks the algorithms of all-reduces. `budget` says what the step's error
    may come from, `mfu` where the rest of the peak goes."""

    prediction: Prediction
    shares: TimeShares
    links: Mapping[str, str]
    elasticities: tuple[Elasticity, ...]
    better: tuple[WhatIf, ...]
    plans: tuple[WhatIf, ...]
    unfit: int
    tuner: str
    budget: ErrorBudget
    mfu: MfuWaterfall

    def scaled(self, by: Anchoring) -> Why:
        """The explanation of the step scaled by what anchors make of it, as are the times that it
        is compared with."""
        return replace(
            self,
            prediction=self.prediction.scaled(by),
            shares=self.shares.scaled(by.factor),
            better=tuple(each.scaled(by.factor) for each in self.better),
            plans=tuple(each.scaled(by.factor) for each in self.plans),
            mfu=self.mfu.scaled(by.factor),
        )

    @property
    def bends(self) -> list[str]:
        """Where the library's tuner switches algorithms within a change, so that the step's time
        jumps: each such change, and what the tuner takes after it."""
        changes = [(each.words, each.switches) for each in self.better]
        changes += [(e.parameter.difference, e.switches) for e in self.elasticities]
        return [
            f"{words}: {sentence(self.tuner, switches)}" for words, switches in changes if switches
        ]

    def place(self, cause: Cause) -> str:
        """A cause with the links that it crosses: `z all-gathers across NICs`."""
        words = self.prediction.in_words(str(cause))
        return f"{words} {self.links[cause.axes]}" if cause.axes in self.links else words

    @property
    def longest(self) -> list[PathPiece]:
        """The longest ops of the critical path."""
        return sorted(self.shares.path, key=lambda piece: -piece.ticks)[:LONGEST]

    @property
    def sentence(self) -> str:
        """The answer in one sentence, of simulated figures alone."""
        step_s = self.shares.step_s
        largest = list(self.shares.seconds.items())[:3]
        parts = [
            f"{100 * seconds / step_s:.0f} % in {self.place(cause)}"
            for cause, seconds in largest
            if seconds / step_s >= WORTH
        ]
        spent = f"The {PATH} spends {_and(parts)}"
        return f"{spent}; {_best(self.better)}; {self._best_plan()}{self._even()}."

    def _even(self) -> str:
        """What even use of experts would save, where it is uneven."""
        load = self.prediction.load
        saving = 0.0 if load is None else 1 - load.balanced_step_s / self.prediction.step_s
        return f"; even use of all experts saves {100 * saving:.0f} %" if saving >= WORTH else ""

    def _best_plan(self) -> str:
        best = max(self.plans, key=lambda each: each.saving, default=None)
        if best is not None and best.saving >= WORTH:
            return f"{best.words} would be {100 * best.saving:.0f} % faster"
        return f"none of {len(self.plans)} neighbouring plans that fit is faster by half a per cent"

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON; shares are of the step."""
        step_s, anchoring = self.shares.step_s, self.prediction.anchoring
        factor = 1.0 if anchoring is None else anchoring.factor
        return {
            "sentence": self.sentence,
            "path": [
                {
                    "axes": cause.axes,
                    "work": cause.work,
                    "links": self.links.get(cause.axes, ""),
                    "seconds": seconds,
                    "share": seconds / step_s,
                }
                for cause, seconds in self.shares.seconds.items()
            ],
            "along": PATH,
            "path_basis": self.shares.basis,
            "longest_ops": [_op_record(piece, factor) for piece in self.longest],
            "mfu_waterfall": self.mfu.as_dict(),
            "error_budget": self.budget.as_dict(),
            "sensitivity": [each.as_dict() for each in self.elasticities],
            "better_machines": [each.as_dict() for each in self.better],
            "tuner": self.tuner,
            "tuner_switches": self.bends,
            "neighbouring_plans": [each.as_dict() for each in self.plans],
            "neighbours_that_do_not_fit": self.unfit,
        }


@gc_paused()
def why(
    prediction: Prediction,
    machine: Machine,
    placement: Placement,
    progress: Callable[[str], None] = lambda _: None,
    *,
    pure: bool = False,
) -> Why:
    """Explain a prediction by simulating the step again and again, a little changed; with `pure`
    its sensitivities include those to the machine's numbers without a unit."""
    plan = prediction.plan
    fabric = MachineFabric(machine, plan.grid.ranks, placement)
    kernels = prediction.stack.kernels(prediction.gpt, plan, machine)
    costs = compute_costs(machine, fabric.ranks_per_node, plan.grid.ranks, kernels)
    progress("walking the critical path")
    shares = shares_of(prediction, costs, fabric, kernels.behaviour)
    seconds_on = partial(_seconds_on, prediction, placement)
    known = parameters(machine, *_precisions(plan), pure=True)
    asked = all_reduces(prediction, machine, fabric)
    elasticities = _elasticities(known, machine, seconds_on, asked, progress)
    shown = [p for p in known if pure or not p.is_pure]
    better = _better(prediction, shown, asked, machine, placement, progress)
    plans, unfit = _plans(prediction, machine, placement, progress)
    progress("losses of MFU")
    tried = [words for words, _ in neighbours(prediction.gpt, plan, prediction.stack)]
    mfu = mfu_waterfall(prediction, machine, placement, tried)
    for changes in (better, plans):
        mfu = mfu.with_changes(_waterfalls(prediction, changes, placement))
    return Why(
        prediction=prediction,
        shares=shares,
        links=_links(shares, machine, placement, plan),
        elasticities=tuple(each for each in elasticities if each.parameter in shown),
        better=_most_first(better),
        plans=_most_first(plans),
        unfit=unfit,
        tuner=machine.software.tuner,
        budget=error_budget(machine, elasticities),
        mfu=mfu,
    )


def _better(
    prediction: Prediction,
    shown: Sequence[MachineParameter],
    asked: Sequence[AllReduce],
    machine: Machine,
    placement: Placement,
    progress: Callable[[str], None],
) -> list[Changed]:
    """Machines twice as good in one respect."""
    base_s, found = prediction.step_s, []
    for each in twice_as_good(list(shown)):
        progress(each.words)
        other = with_settings(machine, each.settings(machine))
        step = _again(prediction, prediction.plan, other, placement)
        bent = switches(asked, machine, other)
        found.append((WhatIf(each.words, step.step_s, base_s, switches=bent), step, other))
    if prediction.stack.kernels(prediction.gpt, prediction.plan, machine).host_s:
        halved = prediction.stack.with_hosts(1 / 2)
        question = prediction.gpt, prediction.plan, machine
        step = predict(*question, placement=placement, stack=halved)
        words = "halving the host's time for kernels"
        found.append((WhatIf(words, step.step_s, base_s), step, machine))
    return found


def _most_first(changes: Sequence[Changed]) -> tuple[WhatIf, ...]:
    """The changes that save most first."""
    return tuple(sorted((change for change, *_ in changes), key=lambda each: -each.saving))


def _waterfalls(
    prediction: Prediction, changes: Sequence[Changed], placement: Placement
) -> dict[str, MfuWaterfall]:
    """The MFU waterfalls of changes that save time and leave the peak as it is."""
    peak = prediction.peak_flops_per_s
    return {
        change.words: mfu_waterfall(step, machine, placement)
        for change, step, machine in changes
        if change.saving >= WORTH and step.peak_flops_per_s == peak
    }


def _seconds_on(prediction: Prediction, placement: Placement, machine: Machine) -> float:
    return _again(prediction, prediction.plan, machine, placement).step_s


def _again(
    prediction: Prediction, plan: Plan, machine: Machine, placement: Placement
) -> Prediction:
    """The prediction of its model on its stack, with another plan or machine."""
    stack = prediction.stack
    return predict(prediction.gpt, plan, machine, placement=placement, stack=stack)


def _links(
    shares: TimeShares, machine: Machine, placement: Placement, plan: Plan
) -> dict[str, str]:
    """For each axes that the path waits on, the links that hold their longest wait back."""
    waits = sorted(shares.seconds.items(), key=lambda item: item[1])
    longest = {cause.axes: cause.work for cause, _ in waits if cause.axes}
    pairs = {axes: work == Work.ALL_TO_ALLS.value for axes, work in longest.items()}
    axes = dict.fromkeys(cause.axes for cause in shares.seconds if cause.axes)
    return {
        each: limiting_link(machine, placement, plan.grid, each, pairs=pairs[each]) for each in axes
    }


def _elasticities(
    known: Sequence[MachineParameter],
    machine: Machine,
    seconds_on: Callable[[Machine], float],
    asked: Sequence[AllReduce],
    progress: Callable[[str], None],
) -> list[Elasticity]:
    found = []
    for number, parameter in enumerate(known, start=1):
        progress(f"sensitivity to {parameter.name} ({number} of {len(known)})")
        found.append(elasticity(parameter, machine, seconds_on, asked))
    return sorted(found, key=lambda each: -abs(each.value))


def _plans(
    prediction: Prediction, machine: Machine, placement: Placement, progress: Callable[[str], None]
) -> tuple[list[Changed], int]:
    """The neighbouring plans that fit, and how many do not."""
    found, unfit = [], 0
    for words, plan in neighbours(prediction.gpt, prediction.plan, prediction.stack):
        progress(f"neighbouring plan: {words}")
        other = _again(prediction, plan, machine, placement)
        if other.memory.is_as_sure_as(prediction.memory):
            change = WhatIf(words, other.step_s, prediction.step_s, plan, other.stack)
            found.append((change, other, machine))
        else:
            unfit += 1
    return found, unfit


def _best(better: tuple[WhatIf, ...]) -> str:
    if not better or better[0].saving < WORTH:
        return "no hardware that is 2x better in one respect would be much faster"
    saved = [
        f"{each.words} saves {100 * each.saving:.0f} %"
        for each in better[:2]
        if each.saving >= WORTH
    ]
    return " and ".join(saved)


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _op_record(piece: PathPiece, factor: float) -> dict[str, Any]:
    return {
        "op": piece.op.name,
        "cause": str(cause_of(piece.op)),
        "rank": piece.rank,
        "start_s": to_seconds(piece.start_ticks) * factor,
        "seconds": to_seconds(piece.ticks) * factor,
        "bytes": piece.op.nbytes,
    }


def _precisions(plan: Plan) -> tuple[str, ...]:
    """The precisions in which matrices are multiplied."""
    return plan.training.precision, *(
        (recipe_of(plan.training.recipe).dtype,) if plan.training.recipe != NO_RECIPE else ()
    )
