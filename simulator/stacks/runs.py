"""What a stack can run: the table `can` of its file, by which predictions, searches and exports go.

A rule has keys of a plan or of its model under `when`, and under `needs` what others must be then.
A value is itself, ">1" any number above 1, and a list any of its values; of a key that names
several things, as `overlap` and `recompute` do, it is one of them. `can.needs` has a stack's rules.
A key of `can` that is one of a plan, such as `zero = [0, 3]`, is the rule that a plan has one of
these values where the key has an effect.

Numbers may be arrays, an entry for each plan of a search: so a search leaves out by the same rules
what a prediction refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from simulator.stacks.apart import not_run, together
from simulator.stacks.effects import EFFECTIVE, in_effect, meets, same_order
from topologies.records import record
from workload.exchange.table import ALL_TO_ALL, USUAL
from workload.gpt import GPT
from workload.grid import AXES
from workload.pipeline.message_order import DEEPSPEED
from workload.plan import Plan, text_of
from workload.plan_text import KEYS
from workload.recomputation.parts import CORE, SELECTIVE, parts_of

Values = Mapping[str, Any]
Field = Callable[[str], Any]
APART_FROM_RULES = ("order", "overlap", "recompute")  # whose values are texts of several words
SOME_LAYERS = "full:N"


@record
class Rule:
    """What some keys need where others have some values; `names` says that a stack has these values
    of the key alone."""

    when: Values
    needs: Values
    names: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it is about."""
        return *self.when, *self.needs

    def allows(self, of: Field) -> Any:
        """Whether plans with these fields are run."""
        concerned: Any = True
        for key, wanted in self.when.items():
            concerned = concerned & meets(key, wanted, of(key))
        kept: Any = True
        for key, wanted in self.needs.items():
            kept = kept & meets(key, wanted, of(key))
        return kept | (concerned ^ True)

    def refusal(self, by: str, of: Field) -> str:
        """Why a plan is not run; "" if it is."""
        if self.allows(of):
            return ""
        key = next(each for each, want in self.needs.items() if not meets(each, want, of(each)))
        value, able = f"{key}={text_of(of(key))}", _words(self.needs[key])
        if self.names:
            return f"{by} has no {value}; it has {', '.join(able)}"
        said = " and ".join(
            f"{each}={text_of(of(each) if each != 'overlap' else want)}"
            for each, want in self.when.items()
        )
        return f"{by} runs {said} with {key}={' or '.join(able)} alone, not {value}"


@record(slots=False)
class Runs:
    """What can be run, by whom: `by` in words, a stack's table `can`, and in whose order its
    messages are posted (`StackBehaviour.messages`)."""

    by: str
    can: Mapping[str, Any]
    messages: str = ""
    known: dict[str, tuple[Rule, ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules of the table."""
        if "rules" not in self.known:
            self.known["rules"] = tuple(self._rules())
        return self.known["rules"]

    def _rules(self) -> Iterator[Rule]:
        for key, able in self.can.items():
            own = {"schedules": "schedule"}.get(key, key)
            if own in KEYS and own not in APART_FROM_RULES:
                yield Rule(EFFECTIVE.get(own, {}), {own: list(able)}, names=True)
        for rule in self.can.get("needs", ()):
            yield Rule(rule["when"], rule["needs"])

    def value_refusal(self, key: str, given: Any) -> str:
        """Why no plan has a value of a key; "" where some may have it."""
        if key == "recompute":
            return recompute_refusal(self.by, self.can, given)
        for switch in given if key == "overlap" and "overlap" in self.can else ():
            if switch not in self.can["overlap"]:
                return self._no_overlap(switch)
        for rule in self.rules:
            if rule.names and key in rule.needs and not meets(key, rule.needs[key], given):
                return Rule({}, rule.needs, names=True).refusal(self.by, {key: given}.__getitem__)
        return ""

    def refusal_beside(self, overlap: Collection[str]) -> str:
        """Why no plan has such overlaps together; "" where some have."""
        said = {"overlap": tuple(overlap)}
        blocked = "pp" in overlap and self.messages == DEEPSPEED
        found = [rule for rule in self.rules if {*rule.keys} == {"overlap"}]
        why = [rule.refusal(self.by, said.__getitem__) for rule in found]
        return (
            next(filter(None, why), "")
            or (together(self.can.get("apart", ()), said.get))
            or (f"the messages of {self.by} block, so nothing hides them" if blocked else "")
        )

    def refusal(self, plan: Plan, gpt: GPT | None = None) -> str:
        """Why a plan is not run; "" if it is. Without a model, what depends on one is not told."""
        of = _fields(plan, gpt)
        can, by = self.can, self.by
        for axis in AXES:
            if plan.value(axis) > 1 and axis not in can["axes"]:
                return f"{by} has no axis {axis}; it has {', '.join(can['axes'])}"
        for rule in self.rules:
            known = gpt is not None or all(key in KEYS for key in rule.keys)
            if known and (why := rule.refusal(by, of)):
                return why
        if both := together(can.get("apart", ()), of):
            return not_run(by, both)
        return (
            self.order_refusal(plan.order, [axis for axis in AXES if plan.value(axis) > 1])
            or self._layers_refusal(plan)
            or recompute_refusal(by, can, plan.training.recompute)
            or self._overlap_refusal(plan, gpt)
            or self._experts_refusal(plan)
            or self._blocking_refusal(plan)
        )

    def dispatcher_refusal(self, name: str) -> str:
        """Why no plan has a dispatcher of experts; "" where some may have it."""
        known = dict.fromkeys((*self.can.get("dispatchers", (USUAL,)), ALL_TO_ALL.name))
        return (
            ""
            if name in known
            else f"{self.by} has no dispatcher={name}; it has {', '.join(known)}"
        )

    def _blocking_refusal(self, plan: Plan) -> str:
        if self.messages != DEEPSPEED or plan.pp == 1:
            return ""
        if plan.vpp > 1 or plan.pipeline.schedule != "1f1b":
            return (
                f"the messages of {self.by} block, as those of 1F1B with one chunk a stage can; "
                "use schedule=1f1b and vpp=1"
            )
        if "pp" in plan.training.overlap:
            return (
                f"the messages of {self.by} block, so nothing hides them; leave pp out of overlap"
            )
        return ""

    def order_refusal(self, order: str, wide: Collection[str]) -> str:
        """Why ranks do not stand in an order, where these axes have several ranks."""
        if self.has_order(order, wide):
            return ""
        return f"{self.by} has no order={order}; it has {', '.join(self.can['order'])}"

    def has_order(self, order: str, wide: Collection[str]) -> bool:
        """Whether ranks stand in an order, as far as axes of several ranks tell."""
        return any(same_order(each, order, wide) for each in self.can.get("order", [order]))

    def _overlap_refusal(self, plan: Plan, gpt: GPT | None) -> str:
        able = self.can.get("overlap", plan.training.overlap)
        used = in_effect(plan, gpt, self.messages)
        lacking = [switch for switch in used if switch not in able]
        if lacking:
            return self._no_overlap(lacking[0])
        always = able if self.can.get("overlaps_always") else ()
        every = in_effect(plan.changed(overlap=tuple(always)), gpt, self.messages)
        left_out = [switch for switch in every if switch not in plan.training.overlap]
        if not left_out:
            return ""
        has = text_of([*plan.training.overlap])
        return f"{self.by} always runs overlap={left_out[0]}, so not overlap={has} alone"

    def _no_overlap(self, switch: str) -> str:
        return f"{self.by} has no overlap={switch}; it has {', '.join(self.can['overlap'])}"

    def _layers_refusal(self, plan: Plan) -> str:
        if not self.can.get("even_layers") or len({*plan.pipeline.stage_layers}) <= 1:
            return ""
        return (
            f"{self.by} has no stage_layers={text_of(plan.pipeline.stage_layers)}; its chunks "
            "have as many "
            "layers each, or with ends_as_layers=true one less at both ends"
        )

    def _experts_refusal(self, plan: Plan) -> str:
        split = plan.ep > 1 or plan.experts.dispatcher != USUAL
        if split and (why := self.dispatcher_refusal(plan.experts.dispatcher)):
            return why
        if not fills_axes(self.can, _fields(plan, None)):
            return (
                f"{self.by} splits an expert over no rank or over all of tp={plan.tp}, and has "
                f"different ones on all ranks of cp={plan.cp} and of tp that do not, not "
                f"ep={plan.ep} with etp={plan.etp}"
            )
        return ""


def fills_axes(can: Mapping[str, Any], of: Field) -> Any:
    """Whether experts are split over all ranks of context, and of x where none of these has part of
    one, which `can.experts_fill_axes` asks for."""
    if not can.get("experts_fill_axes"):
        return True
    x, tensor = of("tp"), of("etp")
    ranks = of("cp") * (1 + (tensor == 1) * (x - 1))
    alike = (tensor == 0) | (tensor == x)
    one = (of("ep") == 1) & alike
    return one | ((of("ep") > 1) & (alike | (tensor == 1)) & (of("ep") % ranks == 0))


def recompute_refusal(by: str, can: Mapping[str, Any], recompute: str) -> str:
    """Why this is not recomputed; "" if it is."""
    able = can.get("recompute")
    word, colon, _ = recompute.partition(":")
    named = [SOME_LAYERS] if colon else sorted(parts_of(word) - {CORE}) or [word]
    if CORE in parts_of(word) and word != SELECTIVE:
        named.append(SELECTIVE)
    if able is None or set(named) <= {*able}:
        return ""
    return f"{by} has no recompute={recompute}; it has {', '.join(able)}"


def _fields(plan: Plan, gpt: GPT | None) -> Field:
    return lambda key: plan.value(key) if gpt is None or key in KEYS else gpt.value(key)


def _words(value: Any) -> list[str]:
    return [text_of(each) for each in value] if isinstance(value, list) else [text_of(value)]
