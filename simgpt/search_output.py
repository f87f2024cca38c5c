"""The answers of `simgpt search`, in words and in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from simgpt import tables
from simgpt.advice import none_fits
from simgpt.near_batches import FASTER, words_of
from topologies.files.units import format_energy
from topologies.records import record
from workload.expert_loads.histogram import RoutedGPT
from workload.grid import AXES

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from simulator.search.baselines import Ranked
    from simulator.uncertainty.difference import DifferenceError
    from simulator.uncertainty.ranking import Rankings
    from topologies.machine import Machine

ALIKE = 0.005  # of a step: plans on the same axes that differ by less are listed as one
TITLES = {"memory_front": "less and less memory", "devices_front": "time or node-hours"}


@record(slots=False)
class Found:
    """What a search for the best plans in an `objective` found, and what those along its fronts
    and, if they were asked for, in each of the `families` did (None: no plan fits); the search was
    to end where the best may miss the optimum by a share `enough` at most."""

    problem: SearchProblem
    machine: Machine
    state: Progress
    objective: str
    enough: float
    fronts: dict[str, list[Prediction]]
    families: Mapping[str, Prediction | None] = field(default_factory=dict)
    remarks: Sequence[str] = ()  # on what is assumed of the machine
    faster: Sequence[int] = ()  # batches near this one with plans that are faster per token

    @property
    def difference(self) -> DifferenceError | None:
        """The error of a difference between two of the plans; None for energies, of which nobody
        published two that could be compared, and for fewer than two plans."""
        plans = self.state.found
        if self.objective == "energy" or len(plans) < 2:
            return None
        return plans[0].difference_error

    @property
    def undecided(self) -> list[int]:
        """Which plans cannot be told from the best, that one included."""
        steps_s = [each.step_s for each in self.state.found]
        return [] if self.difference is None else self.difference.undecided(steps_s)

    def as_record(self) -> dict[str, Any]:
        """The answer as it stands in JSON; bounds are in seconds, or in joules for the energy.

        Where the search came to its end, nothing in it depends on how long that took or on how many
        processes it had, as the number of plans simulated does.
        """
        state = self.state
        return {
            "model": self.problem.gpt.name,
            "machine": self.machine.name,
            "stack": self.problem.stack.name,
            "software": self.machine.variant or None,
            "devices": self.problem.devices,
            "batch": self.problem.batch,
            "objective": self.objective,
            "plans_considered": state.considered,
            "plans_fitting": state.may_fit,
            "plans_unpredicted": state.unpredicted,
            "unpredicted_reason": state.reason or None,
            "optimal": state.is_optimal,
            "p_fits": self.problem.p_fits,
            "room_bytes": self.problem.room_bytes(self.machine),
            "bound": state.bound if state.found and state.bound else None,
            "gap": state.gap,
            "certificate": f"{self._counts()}: {self._end()}",
            "plans": [prediction.as_dict() for prediction in state.found],
            "variants": variants(state.found),
            "difference_error": None if self.difference is None else self.difference.share,
            "published_order": self._published_order.as_dict(),
            "undecided": self.undecided,
            **{name: [each.as_dict() for each in front] for name, front in self.fronts.items()},
            **self._faster_record(),
            "families": [
                {"family": name, **each.as_dict()} for name, each in self.families.items() if each
            ],
        }

    def describe(self) -> str:
        """The answer as a person reads it."""
        from simgpt.commands.prediction_text import anchoring
        from simulator.answer_words import EVENLY, assumes_balance, mfu_words

        problem = self.problem
        head = (
            f"{problem.gpt.name} on {tables.several(problem.devices, 'device')} of "
            f"{self.machine.name}, {tables.several(problem.batch, 'sequence')} a step"
        )
        stack = problem.stack
        head += f"\nstack {stack.name} ({stack.title})"
        if isinstance(problem.gpt, RoutedGPT):
            head += "\nexperts are chosen as the histogram says"
        if assumes_balance(problem.gpt):
            head += f"\n{EVENLY}"
        parts = ["\n".join([head, *self.remarks]), self.certificate()]
        best = "lowest-energy plans" if self.objective == "energy" else "fastest plans"
        best += "" if self.state.is_optimal else " so far"
        rows = [_group(self.state.found, group) for group in variants(self.state.found)]
        parts += self._table(best, rows)
        parts += anchoring(self.state.found[0]) if self.state.found else []
        parts += [self._range_words(), self._spare_words()] if self.state.found else []
        parts += mfu_words(each.as_dict() for each in self.state.found)
        parts += [tables.paragraph(self._decided())] if self.difference is not None else []
        parts += self._faster_words()
        for name, front in self.fronts.items():
            plans = [(each.plan_text, each) for each in front]
            parts += self._table(f"fastest for {TITLES[name]}", plans, of_devices=True)
        known = [
            (f"{name}: {each.plan_text}", each) for name, each in self.families.items() if each
        ]
        parts += self._table("fastest of each family", known)
        lacking = [name for name, each in self.families.items() if each is None]
        if lacking:
            parts.append(tables.paragraph(f"no plan fits of: {'; '.join(lacking)}"))
        return "\n\n".join(parts)

    def _faster_words(self) -> list[str]:
        """A paragraph on near batches with faster plans, if there are any."""
        if not self.faster:
            return []
        given = words_of(self.faster, self.problem.gpt.sequence)
        less = "cheaper" if self.objective == "energy" else "faster"
        devices = tables.several(self.problem.devices, "device")
        words = (
            f"{self.problem.batch:,} sequences share few factors with {devices}; the best plan "
            f"with --batch-tokens {given} is more than {tables.percent(FASTER)} {less} per token"
        )
        return [tables.paragraph(words)]

    def _faster_record(self) -> dict[str, Any]:
        """The near batches with faster plans as JSON, if there are any."""
        sequence = self.problem.gpt.sequence
        found = [
            {"batch": batch, "batch_tokens": batch * sequence, "faster_per_token": FASTER}
            for batch in self.faster
        ]
        return {"faster_batches": found} if found else {}

    def _table(
        self, title: str, rows: Sequence[tuple[str, Prediction]], *, of_devices: bool = False
    ) -> list[str]:
        """A table of plans, each with what it says of itself; none of no plans."""
        return [_table(title, rows, of_devices, self.objective == "energy")] if rows else []

    def _range_words(self) -> str:
        """Where the range of the best plan's step comes from."""
        words = f"80 % range of the fastest plan: {self.state.found[0].range.words}"
        return tables.paragraph(words, indent="  ")

    def _spare_words(self) -> str:
        """How likely the best plan fits, and what it leaves to spare."""
        from simulator.uncertainty.fitting import words_of

        memory = self.state.found[0].memory
        room = memory.room.most_bytes(self.problem.p_fits)
        least = tables.percent(self.problem.p_fits)
        words = (
            f"memory of the best plan: {words_of(memory.p_fits)}, "
            f"{tables.gib(room - memory.peak_bytes)} below the limit of {tables.gib(room)}, at "
            f"which a run is {least} likely to fit"
        )
        return tables.paragraph(words, indent="  ")

    def _decided(self) -> str:
        """Which of the plans a prediction can tell apart, and how well it orders plans."""
        assert self.difference is not None
        count, order = len(self.undecided), self._published_order
        assert order.plan_tau is not None
        assert order.plan_regret is not None
        whose = " of models with experts" if self.problem.gpt.experts else ""
        error = tables.percent(self.difference.share)
        said = (
            f"{self._told_apart()} are closer than simgpt can tell apart ({error}): benchmark them"
            if count
            else f"the fastest plan leads by more than simgpt's error between two plans ({error})"
        )
        return (
            f"{said} (for {order.plans:,} published plans{whose} in {order.plan_groups} groups, "
            f"the predicted order has Kendall's tau {order.plan_tau:.2f}; on average its pick is "
            f"{tables.percent(order.plan_regret)} slower than the true best)"
        )

    @property
    def _published_order(self) -> Rankings:
        from simulator.uncertainty.difference import published_order

        return published_order(experts=bool(self.problem.gpt.experts))

    def _told_apart(self) -> str:
        """The undecided plans as the table shows them, which has several plans in a row."""
        count = len(self.undecided)
        rows = sum(not set(self.undecided).isdisjoint(each) for each in variants(self.state.found))
        is_all = count == len(self.state.found)
        if rows == count:
            return f"{'these' if is_all else 'the top'} {count} plans"
        if rows == 1:
            return f"the {count} plans of {'this' if is_all else 'the top'} row"
        return f"{'these' if is_all else 'the top'} {rows} rows ({count} plans)"

    def certificate(self) -> str:
        """What is known of the plans that were not simulated."""
        simulated = f"; only {self.state.simulated:,} had to be simulated"
        return tables.paragraph(f"{self._counts(simulated)}: {self._end()}")

    def _counts(self, simulated: str = "") -> str:
        state = self.state
        fitting = f"; at most {state.may_fit:,} fit" if state.bound and state.may_fit else ""
        counts = f"{state.considered:,} valid plans{fitting}{simulated}"
        if state.unpredicted:
            counts += f", {state.unpredicted:,} cannot be predicted ({state.reason})"
        return counts

    def _end(self) -> str:
        state = self.state
        those = "plan that can be predicted" if state.unpredicted else "plan"
        if not state.found:
            if not state.is_optimal:
                return "none found yet"
            return f"no {those} fits{none_fits(self.problem, self.machine, state)}"
        if state.is_optimal:
            return "proved optimal within simgpt's model and search space"
        if not state.bound:
            return "stopped before anything was known of the others, which may be better"
        stopped = f"stopped at a gap of {tables.percent(self.enough)}"
        stopped = stopped if 0 < self.enough >= state.gap else "stopped early"
        return (
            f"{stopped}, no {those} takes less than {value_of(state.bound, self.objective)}, so "
            f"the best may miss the optimum by {tables.percent(state.gap)}"
        )


def moment(state: Progress, objective: str) -> str:
    """How far a search is, for those that wait for it."""
    found = f"best {value_of(state.best, objective)}" if state.found else "none found yet"
    if state.bounded < 1:
        share = tables.percent(state.bounded)
        return f"{state.considered:,} plans, {found}, bounding the space: {share}"
    below = f", lower bound {value_of(state.bound, objective)}" if state.bound else ""
    return f"{state.considered:,} plans, {state.simulated:,} simulated, {found}{below}"


def variants(found: Sequence[Prediction]) -> list[list[int]]:
    """Plans in groups, by their numbers: a plan on the same axes as one before it, and slower by
    no more than `ALIKE`, belongs to that one's group."""
    groups: list[list[int]] = []
    for number, each in enumerate(found):
        for group in groups:
            first = found[group[0]]
            same = all(getattr(first.plan, axis) == getattr(each.plan, axis) for axis in AXES)
            if same and each.step_s <= first.step_s * (1 + ALIKE):
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _group(found: Sequence[Prediction], group: Sequence[int]) -> tuple[str, Prediction]:
    """The first plan of a group, with how many there are like it and what they differ in."""
    first, others = found[group[0]], [found[at] for at in group[1:]]
    if not others:
        return first.plan_text, first
    fields = [each.plan.as_dict() for each in (first, *others)]
    differing = [key for key in fields[0] if any(own[key] != fields[0][key] for own in fields)]
    within = tables.percent(max(each.step_s for each in others) / first.step_s - 1)
    like = f"and {len(others)} within {within} that differ in {', '.join(differing)}"
    return f"{first.plan_text} ({like})", first


def _table(
    title: str, rows: Sequence[tuple[str, Prediction]], of_devices: bool, of_energy: bool
) -> str:
    cells = [
        (
            words,
            *([f"{each.devices:,}"] if of_devices else []),
            tables.seconds(each.step_s),
            tables.between(each.range.low_s, each.range.high_s),
            tables.percent(each.mfu),
            f"{each.tokens_per_s / each.devices:,.0f}",
            tables.gib(each.memory.peak_bytes),
            tables.hours(each.cost.node_s_per_step),
            *([_energy(each)] if of_energy else []),
        )
        for words, each in rows
    ]
    devices, energy = ["devices"] if of_devices else [], ["energy"] if of_energy else []
    figures = ["step", "80 % range", "MFU", "tokens/s/dev", "memory", "node-h"]
    return tables.table([title, *devices, *figures, *energy], cells)


def _energy(prediction: Prediction) -> str:
    energy_j = prediction.cost.energy_j_per_step
    return "unknown" if energy_j is None else value_of(energy_j, "energy")


def value_of(value: float, objective: str) -> str:
    """An objective's value: seconds, or an energy."""
    return format_energy(value) if objective == "energy" else tables.seconds(value)


def describe_ranking(ranked: list[Ranked], tau: float | None) -> str:
    """AxoNN's ranking as a person reads it; one grid alone has no rank correlation."""
    rows = [
        (
            str(each.prediction.plan),
            tables.seconds(each.communication_s),
            tables.seconds(each.prediction.step_s),
        )
        for each in ranked
    ]
    title = "grids by AxoNN's model"
    table = tables.table([title, "its communication", "simulated step"], rows)
    if tau is None:
        return table
    return f"{table}\n\nrank correlation of the two (Kendall's tau): {tau:.2f}"
