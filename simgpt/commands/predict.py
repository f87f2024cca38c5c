"""`simgpt predict`: one training step, predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import noise_options, options, tables
from simgpt.advice import starved, what_fits
from simgpt.arguments.model import model_of, model_set_option
from simgpt.invocation import asked
from topologies.files.units import J_PER_MWH, format_energy, format_quantity

if TYPE_CHECKING:
    from simulator.economics import Cost, Training
    from simulator.predict import Prediction
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.gpt import GPT
    from workload.plan import Plan

PARTS = {
    **{name: name for name in ("compute", "optimizer", "idle")},
    "pipe": "waiting for other stages",
}
NO_POWER = "not known: the machine's file says nothing of power"
ENGINES = ("compiled", "simpy")
LABELS = 30  # characters of the tables' first column


@click.command("predict")
@click.argument("model")
@click.option("-m", "--machine", required=True, help="A machine's name, or its TOML or JSON file.")
@click.option("-n", "--devices", type=options.DEVICES, help="Devices; data=rest fills them.")
@click.option(
    "--plan", default="data=rest", show_default=True, help="key=value,… or a TOML or JSON file."
)
@click.option("--batch", type=options.SEQUENCES, help="Sequences per step.")
@click.option("--batch-tokens", type=options.TOKENS, help="Tokens per step instead.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the machine.")
@model_set_option
@click.option(
    "--placement",
    default="scheduler",
    show_default=True,
    help="Where ranks land: scheduler, contiguous, scattered:30, random:seed=1, hosts:NAME[1-64].",
)
@click.option(
    "--compute",
    type=click.Choice(["machine", "profile", "measured"]),
    default="machine",
    show_default=True,
    help="Times of compute ops: the machine's own, its matmuls interpolated in published tables, "
    "or each op run once on the device at hand.",
)
@click.option(
    "--tokens",
    type=options.Tokens(),
    help="Say what training on so many tokens takes: 300e9, 300B, 1T.",
)
@click.option(
    "--sweep",
    "swept",
    multiple=True,
    metavar="KEY=V1,V2,…",
    help="Predict every combination: z=16,64 devices=512,1024 device.launch='5 us,9 us'.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="What simulates: compiled (where there was a C compiler), or simpy, to the same tick.",
)
@click.option(
    "--trace",
    type=options.NewFile(),
    help="Write the step's timeline for ui.perfetto.dev.",
)
@noise_options.noise_options
@options.answer_options
def command(model: str, machine: str, as_json: bool, output: Path | None, **how: Any) -> None:
    """Predict how long one training step takes, what limits it, and whether it fits.

    \b
    simgpt predict gpt-80b -m frontier -n 8192 --plan z=64,data=rest,recompute=full --batch 8192
    simgpt predict gpt-40b -m perlmutter -n 4096 --plan x=4,z=8,data=rest,recompute=full \\
        --batch-tokens 16777216 --set device.peak_flops.bf16="400 TFLOP/s" --json

    With --compute measured, one device predicts thousands: each distinct op of one rank runs on it
    with its real shapes (kept in ~/.cache/simgpt), and the machine's file says what connects them.
    With --compute profile, matmuls come from tables measured on A100, H100 or GH200.

    A plan that does not fit into memory is answered in full, and then ends with status 3.
    """
    from simulator.engine.engines import engine_name, using
    from simulator.predict import predict
    from topologies.placement_names import parse_placement

    if how["swept"]:
        return _sweep(model, machine, as_json=as_json, output=output, how=how)
    options.check_apart(output, how["trace"])
    gpt, built = model_of(model, how["model_fields"]), options.machine_of(machine, how["settings"])
    sequences = options.batch_of(how["batch"], how["batch_tokens"], gpt)
    plan = options.plan_on(built, how["plan"], devices=how["devices"], batch=sequences)
    trace, placed = how["trace"], parse_placement(how["placement"], built, plan.grid.ranks)
    costs = costs_of(how["compute"], gpt, plan)
    click.get_current_context().with_resource(using(how["engine"]))
    prediction = predict(gpt, plan, built, placement=placed, timeline=trace is not None, **costs)
    reach = reach_of(prediction, built, placed)
    record = prediction.as_dict() | {"software": built.variant or None, "engine": engine_name()}
    noise = noise_options.answered(how, prediction, built, placed, costs)
    record |= asked(model, machine, how, axes=reach) | noise.record
    text = describe(prediction, f"placement {how['placement']}", reach) + noise.text
    if how["tokens"] is not None:
        run = prediction.cost.training(how["tokens"], prediction.tokens_per_step)
        record, text = {**record, "training": run.as_dict()}, f"{text}\n\n{describe_training(run)}"
    options.answer(text, record, as_json=as_json, output=output)
    if trace is not None:
        write_trace(prediction, trace)
    comment(prediction)


def comment(prediction: Prediction) -> None:
    """Say what to change about a plan that mostly waits or does not fit; the latter ends with 3."""
    if few := starved(prediction.plan):
        options.note(few)
    if not prediction.memory.fits:
        options.note(what_fits(prediction))
        raise SystemExit(3)


def _sweep(
    model: str, machine: str, *, as_json: bool, output: Path | None, how: Mapping[str, Any]
) -> None:
    """Predict every combination of the swept values, and keep the rows nowhere."""
    from simgpt.commands.sweep import SHOWN, answer_rows, swept
    from simgpt.progress import Ticker
    from simgpt.studies.inline_study import study_of_words
    from simgpt.studies.inputs import inputs_of
    from simgpt.studies.study_table import describe, ranked
    from simgpt.studies.sweep_rows import sweep

    if how["trace"] is not None or how["compute"] != "machine":
        raise click.UsageError("--sweep goes with neither --trace nor --compute")
    noise_options.refuse(how, "--sweep")
    if how["engine"] is not None:
        raise click.UsageError("--sweep takes its engine from SIMGPT_ENGINE, as its workers do")
    study = study_of_words(model, machine, how)
    inputs = inputs_of(study)
    with Ticker() as ticker:
        rows = sweep(study, inputs, lambda done: ticker("sweeping", done=done, of=len(study)))
        best_first = ranked(rows, "throughput")
    text = describe(study, best_first, SHOWN, "throughput")
    about = swept(study, "throughput")
    answer_rows(text, about, best_first, as_json=as_json, output=output)


def write_trace(prediction: Prediction, path: Path) -> None:
    """Write the prediction's timeline for a browser."""
    from simulator.gc_pause import gc_paused
    from workload.timeline import chrome_trace

    assert prediction.timeline is not None
    with gc_paused():
        options.write(path, options.compact(chrome_trace([prediction.timeline])))
    options.note(f"wrote {path}; open it at ui.perfetto.dev")


def costs_of(compute: str, gpt: GPT, plan: Plan) -> dict[str, Any]:
    """What --compute asks of the simulator."""
    from simulator.costs.stack import SoftwareStack

    if compute == "measured":
        return {"op_seconds": measured_ops(gpt, plan)}
    return {"kernels": SoftwareStack(tabled=compute == "profile")}


def measured_ops(gpt: GPT, plan: Plan) -> dict[str, float]:
    """The seconds of the plan's distinct ops on the device at hand, measured where not yet kept."""
    from executor.calibrating.calibrate import measured_ops
    from simgpt.progress import Ticker

    with Ticker() as progress:
        return measured_ops(gpt, plan, threads=1, progress=progress, announce=options.note)


def reach_of(prediction: Prediction, machine: Machine, placement: Placement) -> dict[str, str]:
    """For each axes that communicate, how far their groups reach: `inside a node`, …"""
    from topologies.routing.locality import locality

    grid = prediction.plan.grid
    return {
        axes: locality(machine, placement, grid.groups(*axes.split("+"))).words
        for axes in prediction.comm_bytes
    }


def describe(prediction: Prediction, placed: str, reach: Mapping[str, str]) -> str:
    """The prediction as a person reads it."""
    memory = prediction.memory
    facts = [
        ("step", tables.seconds(prediction.step_s)),
        ("tokens/s", f"{prediction.tokens_per_s:,.0f}"),
        ("model FLOP/s per device", tables.rate(prediction.model_flops_per_s_per_device)),
        ("MFU", tables.percent(prediction.mfu)),
        ("HFU (recomputation counted)", tables.percent(prediction.hfu)),
        ("peak memory per device", tables.gib(memory.peak_bytes)),
        ("memory for tensors", tables.gib(memory.capacity_bytes)),
        ("fits", "yes" if memory.fits else "no"),
        *([("memory of its host", tables.gib(memory.host_bytes))] if memory.host_bytes else []),
        *cost_facts(prediction.cost),
    ]
    parts = [
        (
            PARTS.get(name, f"exposed communication {name}"),
            tables.seconds(value),
            tables.percent(value / prediction.step_s),
        )
        for name, value in _largest_first(prediction.breakdown_s)
    ]
    held = [
        (role, tables.gib(nbytes), tables.percent(nbytes / memory.peak_bytes))
        for role, nbytes in _largest_first(memory.parts)
    ]
    reached = [(f"groups of {axes}", words) for axes, words in reach.items()]
    return "\n\n".join(
        [
            _headline(prediction),
            *([tables.table([placed, ""], reached, first=LABELS)] if reached else []),
            tables.table([], facts, first=LABELS),
            tables.table(["where the step goes", "time", "share"], parts, first=LABELS),
            tables.table([f"memory at {memory.op}", "bytes", "share"], held, first=LABELS),
        ]
    )


def cost_facts(cost: Cost) -> list[tuple[str, str]]:
    """What a step costs, as rows of a table."""
    charged = f"{tables.hours(cost.node_s_per_step)} on {tables.several(cost.nodes, 'node')}"
    nodes = ("node-hours per step", charged)
    if cost.energy_j_per_step is None or cost.power_w is None:
        return [nodes, ("energy per step", NO_POWER)]
    drawn = f"{format_energy(cost.energy_j_per_step)} at {format_quantity(cost.power_w, 'W')}"
    return [nodes, ("energy per step", drawn)]


def describe_training(run: Training) -> str:
    """What a training run takes, as a person reads it."""
    energy = NO_POWER if run.energy_j is None else _megawatt_hours(run.energy_j)
    is_short = run.time_s < 864
    time = tables.seconds(run.time_s) if is_short else f"{tables.amount(run.time_s / 86_400)} days"
    facts = [
        ("steps", f"{run.steps:,}"),
        ("time without a break", time),
        ("node-hours", tables.hours(run.node_s)),
        ("energy", energy),
    ]
    return tables.table([f"{tables.count(int(run.tokens))} tokens", ""], facts, first=LABELS)


def _megawatt_hours(joules: float) -> str:
    """An energy as bills have it, if it is worth one."""
    value = joules / J_PER_MWH
    return f"{tables.amount(value)} MWh" if value >= 0.01 else format_energy(joules)


def _headline(prediction: Prediction) -> str:
    gpt, plan = prediction.gpt, prediction.plan
    batch = f"batch of {tables.several(plan.batch, 'sequence')} of {gpt.sequence:,} tokens"
    each = f"{tables.several(plan.micro_batches, 'micro-batch')} of {plan.micro_batch:,} per rank"
    return "\n".join(
        [
            f"{gpt.name} on {tables.several(prediction.devices, 'device')} of {prediction.machine}",
            tables.paragraph(f"plan {plan}", indent=" " * 5),
            f"{batch}, {each}, {plan.precision}",
            *([tuned] if (tuned := tuned_forms(prediction)) else []),
        ]
    )


def tuned_forms(prediction: Prediction) -> str:
    """What the choice of matmul forms does, where the plan asks for one."""
    tuning = prediction.tuning
    if tuning is None:
        return ""
    share = f"matmul forms: {len(tuning.transposed)} of {len(tuning.forms)} transposed"
    if not tuning.transposed:
        return f"{share}, none would be faster for it"
    return f"{share}, saves {tables.seconds(tuning.compute_s)} of compute"


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return [item for item in sorted(parts.items(), key=lambda item: -item[1]) if item[1] > 0]
