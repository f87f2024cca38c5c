"""The answers of `simgpt search`, in words and in JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from simgpt import tables
from simgpt.advice import none_fits
from simgpt.near_batches import FASTER, words_of
from simgpt.question_options import fields_asked
from simgpt.question_rows import ROWS
from topologies.files.units import format_energy
from topologies.records import record
from workload.expert_loads.histogram import RoutedGPT
from workload.grid import AXES

if TYPE_CHECKING:
    from simgpt.question import Question
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from simulator.search.baselines import Ranked
    from simulator.uncertainty.difference import DifferenceError
    from simulator.uncertainty.ranking import Rankings
    from simulator.uncertainty.step_range import StepRange
    from topologies.machine import Machine

ALIKE = 0.005  # of a step: plans on the same axes that differ by less are listed as one
OF_FAMILIES = ("step", "80 % range", "MFU", "tokens/s/dev", "to spare")
OF_FASTEST = ("step", "MFU", "to spare")
OF_FRONTS = ("devices", "step", "80 % range", "MFU", "memory", "to spare", "node-h")
TITLES = {"memory_front": "less and less memory", "devices_front": "time or node-hours"}


@record(slots=False)
class Found:
    """What a search for the best plans in an `objective` found, and what those along its fronts
    did; the search was to end where the best may miss the optimum by a share `enough` at most.
    `next_words` are commands to go on with the best plan, `chosen` says why it is that stack, where
    nobody names one."""

    problem: SearchProblem
    machine: Machine
    state: Progress
    objective: str
    enough: float
    fronts: dict[str, list[Prediction]]
    remarks: Sequence[str] = ()  # on what is assumed of the machine
    faster: Sequence[int] = ()  # batches near this one with plans that are faster per token
    next_words: Sequence[str] = ()
    chosen: str = ""

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
            "certificate": self._certified(),
            "plans": [self._as_dict(prediction) for prediction in state.found],
            "variants": variants(state.found),
            "difference_error": None if self.difference is None else self.difference.share,
            "published_order": self._published_order.as_dict(),
            "undecided": self.undecided,
            **{name: [each.as_dict() for each in front] for name, front in self.fronts.items()},
            **self._faster_record(),
            "families": [
                {"family": name, "usual": name in self._usual, **self._as_dict(each)}
                for name, each in state.families.items()
            ],
            "far_from_published": bool(self._far_words()),
            "unproved": state.unproved or None,
            "plans_around": state.around,
            "ranks": self._ranks,
            "next": list(self.next_words),
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
        head += f"\nstack {stack.name} ({stack.title}{self.chosen and f', {self.chosen}'})"
        if isinstance(problem.gpt, RoutedGPT):
            head += "\nexperts are chosen as the histogram says"
        if assumes_balance(problem.gpt):
            head += f"\n{EVENLY}"
        parts = ["\n".join([head, *self.remarks]), self.certificate()]
        parts += self._families_table()
        best = "lowest-energy plans" if self.objective == "energy" else "fastest plans"
        groups = variants(self.state.found)
        rows = [_group(self.state.found, group) for group in groups]
        ranks = [str(self._ranks[group[0]]) for group in groups]
        parts += self._table(best, rows, OF_FASTEST, ("rank", ranks))
        parts += anchoring(self.state.found[0]) if self.state.found else []
        parts += [self._range_words(), self._spare_words()] if self.state.found else []
        parts += mfu_words(each.as_dict() for each in self.state.found)
        parts += [tables.paragraph(self._decided())] if self.difference is not None else []
        parts += [tables.paragraph(words)] if (words := self._far_words()) else []
        parts += self._faster_words()
        for name, front in self.fronts.items():
            plans = [(each.plan_text, each) for each in front]
            parts += self._table(f"fastest for {TITLES[name]}", plans, OF_FRONTS)
        parts += ["next:\n" + "\n".join(f"  {each}" for each in self.next_words)] * bool(
            self.next_words
        )
        return "\n\n".join(parts)

    @cached_property
    def _usual(self) -> Mapping[str, int]:
        """The families of published runs of like size, and how many of these are of each."""
        from simulator.search.usual import usual_families

        return usual_families(self.problem)

    def _families_table(self) -> list[str]:
        """The best plan of each family, those that are usual marked."""
        families = self.state.families
        if not families:
            return []
        names = [f"{name} *" if name in self._usual else name for name in families]
        rows = [(each.plan_text, each) for each in families.values()]
        parts = self._table("its best plan", rows, OF_FAMILIES, ("family", names))
        count = sum(self._usual.values())
        if count and not {*self._usual}.isdisjoint(families):
            runs = "published run" if count == 1 else f"{count} published runs"
            parts.append(f"* usual: families of the nearest {runs}")
        return parts

    @cached_property
    def _ranks(self) -> list[int]:
        """The rank of each plan: those closer to the first of a rank than can be told share it."""
        share = 0.0 if self.difference is None else self.difference.share
        ranks: list[int] = []
        first, values = 0, [each.step_s for each in self.state.found]
        for at, value in enumerate(values):
            if at and value >= values[first] * (1 + share):
                first = at
            ranks.append(first + 1)
        return ranks

    def _is_far(self, each: Prediction) -> bool:
        """Whether published runs of like size have plans of other families than a plan's."""
        from simulator.search.families import family_of

        return bool(self._usual) and family_of(each.plan) not in self._usual

    def _range_of(self, each: Prediction) -> StepRange:
        """A step's range, wider where nobody published such a plan at that size."""
        from simulator.uncertainty.step_range import OTHER_KIND

        return each.range_at(OTHER_KIND if self._is_far(each) else 0.0)

    def _as_dict(self, each: Prediction) -> dict[str, Any]:
        return each.as_dict() | self._range_of(each).as_dict()

    def _far_words(self) -> str:
        """What to say of a best plan of a family of which no published run of like size is."""
        from simulator.search.families import family_of

        if not self.state.found or not self._is_far(self.state.found[0]):
            return ""
        name, usual = family_of(self.state.found[0].plan), " and ".join(self._usual)
        return (
            f"no published run of like size is of the family {name} (usual: {usual}), so the "
            "range of the best plan is wider: benchmark it beside the best usual one"
        )

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
        self,
        title: str,
        rows: Sequence[tuple[str, Prediction]],
        figures: Sequence[str],
        first: tuple[str, Sequence[str]] | None = None,
    ) -> list[str]:
        """A table of plans with these figures, behind a column that comes `first`; none of no
        plans."""
        if not rows:
            return []
        figures = [*figures, *(["energy"] if self.objective == "energy" else [])]
        cells = [(words, *map(self._cells(each).__getitem__, figures)) for words, each in rows]
        titles = [title, *figures]
        if first is not None:
            cells = [(own, *row) for own, row in zip(first[1], cells, strict=True)]
            titles = [first[0], *titles]
        return [tables.table(titles, cells, left=1 if first is None else 2)]

    def _cells(self, each: Prediction) -> Mapping[str, str]:
        """What a plan says of itself, by the titles of columns."""
        own = self._range_of(each)
        spare = each.memory.room.most_bytes(self.problem.p_fits) - each.memory.peak_bytes
        return {
            "devices": f"{each.devices:,}",
            "step": tables.seconds(each.step_s),
            "80 % range": tables.between(own.low_s, own.high_s),
            "MFU": tables.percent(each.mfu),
            "tokens/s/dev": f"{each.tokens_per_s / each.devices:,.0f}",
            "memory": tables.gib(each.memory.peak_bytes),
            "to spare": tables.gib(spare),
            "node-h": tables.hours(each.cost.node_s_per_step),
            "energy": _energy(each),
        }

    def _range_words(self) -> str:
        """Where the range of the best plan's step comes from."""
        words = f"80 % range of the fastest plan: {self._range_of(self.state.found[0]).words}"
        return tables.paragraph(words, indent="  ")

    def _spare_words(self) -> str:
        """How likely the best plan fits, and what it leaves to spare."""
        from simulator.uncertainty.fitting import words_of

        memory = self.state.found[0].memory
        room = memory.room.most_bytes(self.problem.p_fits)
        least = tables.percent(self.problem.p_fits)
        words = (
            f"memory of the best plan: {words_of(memory.p_fits)}; to spare is what is left of "
            f"{tables.gib(room)}, at which a run is {least} likely to fit"
        )
        return tables.paragraph(words, indent="  ")

    def _decided(self) -> str:
        """Which of the plans a prediction can tell apart, and how well it orders plans."""
        assert self.difference is not None
        count, order = len(self.undecided), self._published_order
        assert order.plan_tau is not None
        assert order.plan_regret is not None
        whose = " of models with experts" if self.problem.gpt.moe.experts else ""
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

        return published_order(experts=bool(self.problem.gpt.moe.experts))

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
        return tables.paragraph(self._certified())

    def _certified(self) -> str:
        state = self.state
        if state.unproved:
            none = "" if state.found else ", none of which fits"
            return (
                f"{state.around:,} plans simulated around the usual ones{none}; not proved, since "
                f"no bounds are known of {state.unproved}"
            )
        return f"{self._counts()}: {self._end()}"

    def _counts(self) -> str:
        state = self.state
        fitting = f", at most {state.may_fit:,} fit" if state.bound and state.may_fit else ""
        counts = f"{state.considered:,} plans in the core space{fitting}"
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
            better = "needs less energy" if self.objective == "energy" else "is faster"
            return (
                f"proved over the core space, no {those} of these {better} than the best one; "
                f"searched around it, {state.around:,} plans simulated"
            )
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


def next_commands(problem: SearchProblem, state: Progress, question: Question) -> list[str]:
    """Commands that write the settings of the best plan, and a job that runs it."""
    from simgpt.commands import export
    from simgpt.commands.jobs import sbatch
    from simgpt.sites.launches import USUAL

    if not state.found:
        return []
    best, stack = state.found[0], problem.stack
    framework = USUAL.get(stack.name) or USUAL.get(stack.family)
    told = question.changed(
        plan=best.plan_text, batch=problem.batch, stack=question.stack or stack.name
    )
    found = []
    if framework is not None:
        words = told.changed(devices=None).as_words(without=_not_asked(export.command))
        found.append(["export", *words, "--to", framework])
    if framework is not None or stack.name == "simgpt":
        found.append(["sbatch", *told.as_words(without=_not_asked(sbatch.command))])
    return [shlex.join(["simgpt", *each]) for each in found]


def _not_asked(command: click.Command) -> list[str]:
    """The fields of a question that a command has no option for."""
    return [name for name in ROWS if name not in fields_asked(command)]
