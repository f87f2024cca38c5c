"""`simgpt predict`: one training step, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables

if TYPE_CHECKING:
    from simulator.prediction import Prediction


@click.command("predict")
@click.argument("model")
@click.option("-m", "--machine", required=True, help="A machine's name, or its TOML or JSON file.")
@click.option("-n", "--devices", type=click.IntRange(min=1), help="Devices; data=rest fills them.")
@click.option("--plan", default="data=rest", show_default=True, help="key=value,… or a file.")
@click.option("--batch", type=click.IntRange(min=1), help="Sequences per step.")
@click.option("--batch-tokens", type=click.IntRange(min=1), help="Tokens per step instead.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the machine.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the step's timeline for ui.perfetto.dev.",
)
@options.answer_options
def command(
    model: str,
    machine: str,
    devices: int | None,
    plan: str,
    batch: int | None,
    batch_tokens: int | None,
    settings: tuple[str, ...],
    trace: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict how long one training step takes, what limits it, and whether it fits.

    \b
    simgpt predict gpt-80b -m frontier -n 8192 --plan z=64,data=rest,recompute=full --batch 8192
    simgpt predict gpt-40b -m perlmutter -n 4096 --plan x=4,z=8,data=rest --batch-tokens 16777216 \\
        --set device.peak_flops.bf16="400 TFLOP/s" --json

    A plan that does not fit into memory is answered in full, and then ends with status 3.
    """
    from simulator.prediction import predict

    gpt = options.model_of(model)
    sequences = options.batch_of(batch, batch_tokens, gpt)
    parsed = options.plan_of(plan, devices=devices, batch=sequences)
    built = options.machine_of(machine, settings)
    prediction = predict(gpt, parsed, built, timeline=trace is not None)
    options.answer(describe(prediction), prediction.as_dict(), as_json=as_json, output=output)
    if trace is not None and prediction.timeline is not None:
        from workload.timeline import chrome_trace

        options.write(trace, options.compact(chrome_trace([prediction.timeline])))
        options.note(f"wrote {trace}; open it at ui.perfetto.dev")
    if not prediction.memory.fits:
        options.note(does_not_fit(prediction))
        raise SystemExit(3)


def describe(prediction: Prediction) -> str:
    """The prediction as a person reads it."""
    memory = prediction.memory
    plan = prediction.plan
    headline = (
        f"{prediction.gpt.name} on {prediction.devices:,} devices of {prediction.machine}, "
        f"batch {plan.batch:,} sequences of {prediction.gpt.sequence:,}\n"
        f"plan {plan}, {plan.micro_batches} micro-batch{'es' if plan.micro_batches > 1 else ''} of "
        f"{plan.micro_batch}, {plan.precision}"
    )
    facts = [
        ("step", tables.seconds(prediction.step_s)),
        ("tokens/s", f"{prediction.tokens_per_s:,.0f}"),
        ("model FLOP/s per device", _teraflops(prediction.model_flops_per_s_per_device)),
        ("MFU", tables.percent(prediction.mfu)),
        ("HFU (recomputation counted)", tables.percent(prediction.hfu)),
        ("peak memory per device", tables.gib(memory.peak_bytes)),
        ("memory of a device", tables.gib(memory.capacity_bytes)),
        ("fits", "yes" if memory.fits else "no"),
    ]
    step = prediction.step_s
    parts = [
        (
            name if name in OWN_PARTS else f"exposed communication {name}",
            tables.seconds(value),
            tables.percent(value / step),
        )
        for name, value in sorted(prediction.breakdown_s.items(), key=lambda item: -item[1])
        if value > 0
    ]
    held = [
        (role, tables.gib(nbytes), tables.percent(nbytes / memory.peak_bytes))
        for role, nbytes in sorted(memory.parts.items(), key=lambda item: -item[1])
        if nbytes
    ]
    return "\n".join(
        [
            headline,
            tables.table(["", ""], facts),
            tables.table(["where the step goes", "time", "share"], parts),
            tables.table([f"memory at {memory.op}", "bytes", "share"], held),
        ]
    )


OWN_PARTS = ("compute", "optimizer", "idle")


def does_not_fit(prediction: Prediction) -> str:
    """By how much a plan misses the device's memory, and what would help."""
    memory = prediction.memory
    over = memory.peak_bytes - memory.capacity_bytes
    advice = []
    if prediction.plan.recompute == "none" and memory.parts["activations"] > over:
        advice.append("recompute=full")
    if prediction.plan.micro_batch > 1:
        advice.append(f"micro_batch={prediction.plan.micro_batch // 2 or 1}")
    advice.append("a larger z (weights and optimizer state are split over x, y and z)")
    return f"does not fit by {tables.gib(over)} per device; try {', or '.join(advice)}"


def _teraflops(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:.3g} TFLOP/s"
