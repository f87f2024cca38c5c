"""From the options of `simgpt plan-run` and a predicted step to the run that is forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from simgpt import noise_options
from simgpt.step import Step
from simulator.answer_words import EVENLY, assumes_balance
from simulator.goodput.checkpoint import Checkpoint, checkpoint_of
from simulator.goodput.closed_form import best_interval_s
from simulator.goodput.forecast import Forecast, StepSpread, forecast
from simulator.goodput.job import Chain, Run, SparePool
from simulator.goodput.saves import (
    DETECTION_S,
    DETECTION_SOURCE,
    RESTART_S,
    RESTART_SOURCE,
    SaveTimes,
    save_times,
)
from simulator.predict import Prediction
from topologies.hardware.run_to_run import Band
from topologies.machine import Machine
from topologies.records import record

GIVEN = "as asked for"


@record(slots=False)
class Planned:
    """A run on so many devices: its step with the noise that was asked for, its checkpoint and
    saves, the rate of failures of one node, its forecast, and what is taken for granted."""

    step: Step
    prediction: Prediction
    step_s: float
    band: Band | None
    steps: int
    checkpoint: Checkpoint
    saves: SaveTimes
    node_failures_per_s: float
    forecast: Forecast
    assumed: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """The nodes of the plan, without spares."""
        return self.prediction.cost.nodes

    @property
    def interval_steps(self) -> int:
        """Steps between saves."""
        return round(self.forecast.run.interval_s / self.step_s)


def planned(step: Step, how: Mapping[str, Any]) -> Planned:
    """The forecast of the run that the options ask for, with the step's plan."""
    prediction = step.predicted()
    machine, nodes = step.machine, prediction.cost.nodes
    step_s = prediction.step_s * (1 + _noise_cost(how, prediction, step))
    steps = math.ceil((step.question.tokens or 0) / prediction.tokens_per_step)
    checkpoint = checkpoint_of(step.gpt, step.plan)
    rate, rate_words = _failures(how, machine)
    saves, save_words = _saves(how, checkpoint, machine, prediction.devices)
    run = _run(how, saves, steps * step_s, step_s, nodes * rate)
    band = machine.band("step", nodes)
    spreads = [_spread(prediction)]
    spreads += [StepSpread(band.low, band.high)] if band is not None else []
    found = forecast(
        run, spreads, least_interval_s=step_s, draws=how["draws"], seed=how["seed"] or 0
    )
    return Planned(
        step=step,
        prediction=prediction,
        step_s=step_s,
        band=band,
        steps=steps,
        checkpoint=checkpoint,
        saves=saves,
        node_failures_per_s=rate,
        forecast=found,
        assumed=(
            *(rate_words, save_words, *_recovery_words(how)),
            *([EVENLY] if assumes_balance(prediction.gpt) else []),
        ),
    )


def _noise_cost(how: Mapping[str, Any], prediction: Prediction, step: Step) -> float:
    """By which share the mean step is longer for jitter and slow devices, if they are asked for."""
    keys = [key for key in noise_options.KEYS if key != "seed"]
    if all(how[key] is None for key in keys):
        return 0.0
    drawn = noise_options.answered(how, prediction, step)
    return float(drawn.record["variability"]["mean_cost"])


def _spread(prediction: Prediction) -> StepSpread:
    within = prediction.range
    return StepSpread(within.low_s / prediction.step_s, within.high_s / prediction.step_s)


def _failures(how: Mapping[str, Any], machine: Machine) -> tuple[float, str]:
    """The rate of failures of one node, and where it comes from."""
    if how["mtbf"] is not None:
        return 1 / how["mtbf"], f"failures of nodes: {GIVEN}"
    known = machine.reliability
    if known is None:
        raise click.UsageError(
            f"how often nodes fail is not in the file of {machine.name}; give --mtbf 400d, or "
            "reliability.failures_per_1000_node_days in the file"
        )
    source = next(each.source for each in machine.facts() if each.key.startswith("reliability."))
    return known.failures_per_s, f"failures of nodes: {source}"


def _saves(
    how: Mapping[str, Any], checkpoint: Checkpoint, machine: Machine, devices: int
) -> tuple[SaveTimes, str]:
    """What a save and the reading of one take, and where the file system's rates come from."""
    given_s = how["save_time"]
    if given_s is not None:
        host = checkpoint.total_bytes / devices / machine.node.host.bytes_per_s
        stall_s = min(host, given_s) if how["async_save"] else given_s
        return SaveTimes(given_s, stall_s, given_s, "the option"), f"time of a save: {GIVEN}"
    storage = how["storage"] or machine.storage
    if storage is None:
        raise click.UsageError(
            f"how fast checkpoints are written is not in the file of {machine.name}; give "
            "--storage '2 TB/s' or --save-time 60s, or storage.write and read in the file"
        )
    found = save_times(checkpoint, machine, storage, devices, async_save=how["async_save"])
    if how["storage"] is not None:
        return found, f"file system: {GIVEN}"
    source = next(each.source for each in machine.facts() if each.key == "storage.write")
    return found, f"file system: {source}"


def _run(
    how: Mapping[str, Any], saves: SaveTimes, work_s: float, step_s: float, rate: float
) -> Run:
    """The run, which saves after whole steps."""
    walltime_s, spares = how["walltime"], how["spares"]
    chain = None if walltime_s is None else Chain(walltime_s, how["queue_wait"], spares or 0)
    pool = None if chain or spares is None else SparePool(spares, how["repair"])
    restart_s = RESTART_S if how["restart"] is None else how["restart"]
    given_s = how["save_every"]
    least_s = max(step_s, saves.write_s - saves.stall_s)
    run = Run(
        work_s=work_s,
        interval_s=max(given_s or 0.0, math.ceil(least_s / step_s) * step_s),
        write_s=saves.write_s,
        stall_s=saves.stall_s,
        failures_per_s=rate,
        detection_s=DETECTION_S if how["detection"] is None else how["detection"],
        restart_s=restart_s + saves.read_s,
        pool=pool,
        chain=chain,
    )
    if given_s is not None and given_s < least_s:
        raise click.UsageError(
            f"--save-every is too short: a step takes {step_s:.3g} s, and a save "
            f"{saves.write_s:.3g} s"
        )
    interval_s = given_s or best_interval_s(run, step_s)
    whole = max(round(interval_s / step_s), math.ceil(least_s / step_s * (1 - 1e-9)))
    return replace(run, interval_s=whole * step_s)


def _recovery_words(how: Mapping[str, Any]) -> list[str]:
    """What is taken for granted of recovery."""
    words = []
    if how["detection"] is None:
        words.append(f"detection after {DETECTION_S / 60:g} min: {DETECTION_SOURCE}")
    if how["restart"] is None:
        words.append(f"restart in {RESTART_S / 60:g} min beside the reading: {RESTART_SOURCE}")
    if how["spares"] is None and how["walltime"] is None:
        words.append("a broken node is replaced at once from the rest of the machine")
    return words
