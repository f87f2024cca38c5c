"""The plan: how a GPT and its batch are split over ranks, and what overlaps what."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError
from workload.exchange.table import dispatcher_refusal, fp8_refusal
from workload.grid import AXES, Grid
from workload.pipeline.schedule import TURNS_LATE, TWO_WAY, V_SHAPED, ways
from workload.plan_fields import KEYS, PlanFields
from workload.recipes.table import FP8, NO_RECIPE, params_refusal, recipe_refusal
from workload.rules.table import rule_of
from workload.splits import context as contexts
from workload.splits import experts, states
from workload.splits.plan_values import ALONE, check_value

_ALONE = [(key, KEYS[key].get) for key in ALONE]


@record(kw_only=True)
class Plan(PlanFields):
    """A plan whose fields go together (see `PlanFields`); an error names those that do not."""

    def __post_init__(self) -> None:
        for key, get in _ALONE:
            check_value(key, get(self))
        self._check_sharding()
        contexts.check(self)
        experts.check(self)
        self._check_pipeline()
        self._check_batch()
        if why := rule_of(self.training.optimizer).refusal(self):
            raise PlanCannotRunError(f"optimizer={self.training.optimizer} {why}")
        if why := recipe_refusal(self):
            raise PlanCannotRunError(f"recipe={self.training.recipe} {why}")
        if self.training.fp8_params and (why := params_refusal(self)):
            raise PlanError(f"fp8_params=true {why}")
        if why := dispatcher_refusal(self):
            raise PlanCannotRunError(f"dispatcher={self.experts.dispatcher} {why}")
        if why := fp8_refusal(self):
            raise PlanError(f"fp8_dispatch=true {why}")

    def _check_sharding(self) -> None:
        if self.shard and not self.zero:
            raise PlanError(f"shard={self.shard} needs zero=1, 2 or 3")
        if self.shard and self.dp % self.shard:
            raise PlanCannotRunError(f"shard={self.shard} does not divide dp={self.dp}")
        if self.training.gradients == "bf16" and self.training.precision != "bf16":
            raise PlanError(f"gradients=bf16 needs precision=bf16, not {self.training.precision}")
        states.check(self)
        if self.training.offload == "activations" and (why := self._keeps_activations()):
            raise PlanError(f"offload=activations {why}")
        if self.sp and self.y > 1:
            raise PlanError(
                f"sp=true works with y=1, not y={self.y}: y splits the residual stream "
                "and its norms by columns already"
            )

    def _keeps_activations(self) -> str:
        """Why activations do not go to the host and back; "" if they may."""
        if self.pp > 1:
            return f"copies them between a micro-batch's passes on one stage, not on pp={self.pp}"
        if {"a2a", "wgrad"} & {*self.training.overlap}:
            return "has each layer's passes as a whole, which overlap=a2a and wgrad cut"
        if self.passes > 1:
            return f"needs backward passes, and optimizer={self.training.optimizer} has none"
        return ""

    @property
    def folds_experts(self) -> bool:
        """Whether experts are split over other ranks than other weights are."""
        return experts.is_folded(self)

    @property
    def expert_tensor_axes(self) -> tuple[str, ...]:
        """The axes whose ranks hold parts of the same experts' matrices, the fastest first."""
        return experts.axes_of_tensor(self)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The axes whose ranks hold different experts, the fastest first."""
        return experts.axes_of_experts(self)

    @property
    def expert_copies(self) -> tuple[str, ...]:
        """The axes of x, context and data whose ranks hold the same experts."""
        return experts.axes_of_copies(self)

    def _check_pipeline(self) -> None:
        if self.pipeline.schedule in TWO_WAY:
            self._check_two_ways()
        in_v = self.pipeline.schedule in V_SHAPED
        if in_v and (self.pp == 1 or self.vpp != 2):
            raise PlanError(
                f"schedule={self.pipeline.schedule} needs pp > 1 and vpp=2: each stage holds two "
                "chunks, of which the second ones stand in the opposite order"
            )
        if self.vpp > 1 and not in_v and (self.pp == 1 or self.pipeline.schedule != "1f1b"):
            raise PlanError(f"vpp={self.vpp} needs pp > 1 and schedule=1f1b")
        if self.pipeline.stage_layers and len(self.pipeline.stage_layers) != self.pp * self.vpp:
            raise PlanError(
                f"stage_layers names {len(self.pipeline.stage_layers)} chunks, but pp={self.pp} "
                "times "
                f"vpp={self.vpp} makes {self.pp * self.vpp}"
            )
        if self.pipeline.stage_layers and (
            self.pipeline.ends_as_layers or min(self.pipeline.stage_layers) < 0
        ):
            raise PlanError("stage_layers must be numbers of 0 or more, without ends_as_layers")

    def _check_two_ways(self) -> None:
        what = f"schedule={self.pipeline.schedule}"
        if self.pp % 2 or self.vpp != 1:
            raise PlanError(
                f"{what} needs an even pp and vpp=1, not pp={self.pp} and vpp={self.vpp}: each "
                "stage holds a part of each of two copies of the model, which begin at either end"
            )
        if self.passes > 1:
            raise PlanError(
                f"{what} needs backward passes, and optimizer={self.training.optimizer} has none"
            )

    def _check_batch(self) -> None:
        per_rank, left = divmod(self.batch, self.cells)
        over = f"z*dp={self.z * self.dp}" if self.z > 1 else f"dp={self.dp}"
        both = ", in each of two directions" if self.pipeline.schedule in TWO_WAY else ""
        if left or not per_rank:
            raise PlanCannotRunError(
                f"batch={self.batch} is not divisible by {over} ranks{both}; "
                f"try batch={_nearest_multiples(self.batch, self.cells)}"
            )
        if per_rank % self.mbs:
            raise PlanCannotRunError(
                f"mbs={self.mbs} does not divide a rank's {per_rank} sequences "
                f"(batch={self.batch} over {over}{both}); "
                f"try {_divisors_text(per_rank)}"
            )
        every = self.micro_batches * ways(self.pipeline.schedule)
        if self.pipeline.schedule in TURNS_LATE and every < 2 * self.pp:
            fewer = "zb-h1" if both else "zb-v"
            raise PlanCannotRunError(
                f"schedule={self.pipeline.schedule} needs at least 2*pp={2 * self.pp} "
                "micro-batches, "
                f"not {every}; schedule={fewer} runs fewer"
            )
        in_v = self.pipeline.schedule in V_SHAPED
        if self.vpp > 1 and not in_v and self.micro_batches < self.pp:
            enough = per_rank // self.pp
            smaller = f"; try mbs={_largest_divisor(per_rank, enough)}" if enough else ""
            raise PlanCannotRunError(
                f"vpp={self.vpp} needs at least pp={self.pp} micro-batches per rank, not "
                f"{self.micro_batches} of mbs={self.mbs}{smaller}"
            )

    @property
    def grid(self) -> Grid:
        """The rank grid of this plan."""
        sizes = {axis: getattr(self, axis) for axis in AXES}
        return Grid(
            **sizes,
            shard=self.shard,
            order=self.order,
            **experts.runs_of_data(self),
            cp_runs=contexts.runs_of(self),
            tp_runs=experts.runs_of_x(self),
        )

    @property
    def passes(self) -> int:
        """How many forward passes over the batch a step makes; micro-batches of a second one are
        numbered on from those of the first."""
        return rule_of(self.training.optimizer).passes

    def with_micro_batches(self, count: int) -> Plan:
        """The plan for a step of `count` micro-batches."""
        return replace(self, batch=count * self.cells * self.mbs)

    def __str__(self) -> str:
        """The plan in the one grammar, without the batch and without what stands at its default."""
        return self.text()

    def text(self, *, as_axonn: bool = False) -> str:
        """The plan in the one grammar; tp is called x in AxoNN's words, which 3D plans have too."""
        words = []
        for key, default in _DEFAULTS.items():
            value = self.value(key)
            if key == "mbs" and self.micro_batches > 1:
                words.append(f"mbs={value}")
            elif (key == "context_kind" and self.cp == 1) or (key, value) == ("recipe", FP8):
                continue
            elif key != "mbs" and (value != default or self._is_said(key)):
                words.append(f"{key}={text_of(value)}")
        words += [f"precision={FP8}"] if self.training.recipe == FP8 else []
        text = ",".join(words if self.grid.ranks > 1 else ["dp=1", *words])
        return in_axonn_words(text) if as_axonn or self.is_3d else text

    def _is_said(self, axis: str) -> bool:
        """Whether an axis is printed although its size is 1: with a key that only matters above 1,
        since that key without the axis would be read as asking for sizes above 1."""
        other = WITHOUT_EFFECT.get(axis, "")
        return bool(other) and self.is_given(other)

    def as_dict(self) -> dict[str, Any]:
        """The plan's keys and values, as they stand in TOML and JSON."""
        lists = {
            "overlap": list(self.training.overlap),
            "stage_layers": list(self.pipeline.stage_layers),
        }
        return {**self.flat(), **lists}

    def in_answer(self) -> dict[str, Any]:
        """These keys and values as an answer in JSON has them, in which `fp8` stands beside the
        plan where it is the stack's own."""
        return self.as_dict() | ({"recipe": NO_RECIPE} if self.training.recipe == FP8 else {})


_DEFAULTS = {key: each.default for key, each in KEYS.items() if key != "batch"}
WITHOUT_EFFECT = {"tp": "sp", "pp": "schedule"}  # an axis, and a key that matters above size 1


def text_of(value: object) -> str:
    """A plan's value as its text has it.

    >>> [text_of(value) for value in (True, ("a2a", "wgrad"), [], 4)]
    ['true', 'a2a+wgrad', 'none', '4']
    """
    if isinstance(value, tuple | list):
        return "+".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_axonn_words(text: str) -> str:
    """A text in which the first axis of tensor parallelism is called x, as AxoNN's authors do.

    >>> in_axonn_words("x=2,z=4,order=z-tp-y-dp-pp")
    'x=2,z=4,order=z-x-y-dp-pp'
    """
    return re.sub(r"\btp\b", "x", text)


def _nearest_multiples(value: int, step: int) -> str:
    below = value // step * step
    return " or ".join(str(multiple) for multiple in (below, below + step) if multiple > 0)


def _largest_divisor(value: int, most: int) -> int:
    """The largest divisor of a number that is at most so large."""
    return next(d for d in range(most, 0, -1) if value % d == 0)


def _divisors_text(value: int) -> str:
    divisors = [d for d in range(1, min(value, 4096) + 1) if value % d == 0]
    return ", ".join(map(str, divisors[:12]))
