"""How unevenly a predicted step's experts are used, and what the step is if they are not."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from simulator.engine.ticks import to_seconds
from simulator.result import StepResult
from topologies.records import record
from workload.expert_loads.capacity import dropped
from workload.expert_loads.histogram import (
    RoutedGPT,
    balanced,
    dispatched_tokens,
    expert_layers,
)
from workload.gpt import GPT
from workload.plan import Plan


@record
class ExpertLoad:
    """Of a histogram over ranks: the most choices of a rank's experts over the mean of all ranks,
    in the worst layer, which is `layer`, and in the mean of all; and the share of choices that a
    capacity drops, in the worst layer and in the mean. `balanced_step_s` and
    `balanced_peak_bytes` are those of the step with all experts chosen equally often."""

    most_over_mean: float
    layer: int
    mean_over_mean: float
    dropped: float
    most_dropped: float
    balanced_step_s: float
    balanced_peak_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The load as it stands in JSON."""
        return asdict(self)


def step_and_load(
    gpt: GPT, plan: Plan, simulated: Callable[[GPT], StepResult]
) -> tuple[StepResult, ExpertLoad | None]:
    """The simulated step of a model, and its load if that has a histogram.

    Ops are then those of the rank with most rows in each layer; FLOPs of all ranks are those of a
    balanced step, which has as many.
    """
    step = simulated(gpt)
    if not isinstance(gpt, RoutedGPT):
        return step, None
    even = simulated(balanced(gpt))
    step = replace(step, model_flops=even.model_flops, hardware_flops=even.hardware_flops)
    return step, _load(gpt, plan, even)


def _load(gpt: RoutedGPT, plan: Plan, even: StepResult) -> ExpertLoad:
    layers, tokens = expert_layers(gpt), dispatched_tokens(gpt, plan)
    over = {layer: gpt.histogram.over_mean(layer, plan.ep) for layer in layers}
    worst = max(layers, key=lambda layer: over[layer])
    lost = [float(dropped(gpt, layer, tokens)) for layer in layers]
    return ExpertLoad(
        most_over_mean=over[worst],
        layer=worst,
        mean_over_mean=statistics.fmean(over.values()),
        dropped=statistics.fmean(lost),
        most_dropped=max(lost),
        balanced_step_s=to_seconds(sum(even.parts_ticks.values())),
        balanced_peak_bytes=even.memory.total_bytes,
    )
