"""`simgpt run`: the same program, for real."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from executor.tasks import Job, Seat
    from simulator.prediction import Prediction


@click.command("run")
@click.argument("model")
@click.option("--plan", default="data=rest", show_default=True, help="key=value,… or a file.")
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks to start on this machine.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), help="Sequences per step.")
@click.option("--data", "text", type=click.Path(), help="A text file; default: Python's manual.")
@click.option("--lr", type=click.FloatRange(min=0), default=3e-4, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), help="Where ranks meet; default: any free.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1), default=300.0)
@click.option("-m", "--machine", help="Machine file to predict with; default: measured once.")
@click.option("--no-predict", is_flag=True, help="Do not predict beside the measurement.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the last step's measured and predicted timelines for ui.perfetto.dev.",
)
@options.answer_options
def command(model: str, text: str | None, as_json: bool, output: Path | None, **how: Any) -> None:
    """Train for real with torch.distributed, a line per step with predicted beside measured.

    \b
    simgpt run tiny-2m --plan data=2 --ranks 2 --steps 20
    torchrun --nproc-per-node 4 -m simgpt run gpt2 --plan x=2,data=2 --batch 16 --steps 20

    Starts --ranks processes on this machine, or joins those that torchrun or srun started.
    """
    from executor.launch import require_torch
    from executor.tasks import AdamW, Job, Seat
    from executor.text import check_text, read_text
    from workload.lowering import check

    require_torch()
    seat = Seat.from_environment(os.environ)
    ranks = _ranks(how["ranks"], seat)
    gpt = options.model_of(model)
    plan = options.plan_of(how["plan"], devices=ranks, batch=how["batch"])
    check(gpt, plan)
    check_text(read_text(text), gpt)
    job = Job(
        gpt=gpt,
        plan=plan,
        steps=how["steps"],
        seed=how["seed"],
        text=text,
        threads=how["threads"],
        timeout_s=how["timeout_s"],
        adamw=AdamW(lr=how["lr"]),
    )
    prediction = None if how["no_predict"] else _predict(job, how["machine"], seat)
    report = _reporter(prediction, quiet=as_json)
    result = _perform(job, seat, how["port"] or 0, report)
    if seat is not None and seat.rank:
        return
    if how["trace"] is not None:
        _write_trace(how["trace"], job, result, prediction)
    record = _record(job, result, prediction)
    options.answer(_summary(record), record, as_json=as_json, output=output)


def _ranks(wanted: int | None, seat: Seat | None) -> int | None:
    if seat is None:
        return wanted
    if wanted is not None and wanted != seat.ranks:
        raise click.UsageError(
            f"--ranks {wanted}, but this process is one of {seat.ranks} that a launcher started; "
            "leave --ranks out"
        )
    return seat.ranks


def _predict(job: Job, machine: str | None, seat: Seat | None) -> Prediction | None:
    """The prediction on the given machine, or on this one as it was measured once."""
    from executor.calibration import cached
    from executor.tasks import Calibration
    from simulator.prediction import predict

    if machine is None:
        if seat is not None:
            options.note("no -m FILE, so nothing is predicted beside the measurement")
            return None
        task = Calibration(precisions=(job.plan.precision,), quick=True, threads=job.threads)
        with Ticker() as ticker:
            machine = str(cached(task, job.plan.grid.ranks, ticker))
    return predict(job.gpt, job.plan, options.machine_of(machine), timeline=True)


def _reporter(prediction: Prediction | None, *, quiet: bool) -> Callable[[dict[str, Any]], None]:
    beside = f"  predicted {tables.seconds(prediction.step_s)}" if prediction is not None else ""

    def report(step: dict[str, Any]) -> None:
        measured = tables.seconds(step["seconds"])
        line = f"step {step['step']:>4}  loss {step['loss']:.4f}  measured {measured}{beside}"
        click.echo(line, err=quiet)

    return report


def _perform(
    job: Job, seat: Seat | None, port: int, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    if seat is not None:
        from executor.job import perform

        return perform(job, seat, report)
    from executor.launch import launch

    return launch(
        "train",
        job.to_json(),
        ranks=job.plan.grid.ranks,
        report=report,
        port=port,
        timeout_s=job.timeout_s,
    )


def _record(job: Job, result: dict[str, Any], prediction: Prediction | None) -> dict[str, Any]:
    return {
        "model": job.gpt.name,
        "plan": job.plan.as_dict(),
        "plan_string": str(job.plan),
        "ranks": job.plan.grid.ranks,
        "step_s": result["step_s"],
        "steps_s": result["steps_s"],
        "losses": result["losses"],
        "peak_bytes": result["peak_bytes"],
        "comm_bytes": result["ranks"][0]["carried"],
        "tokens_per_s": job.plan.batch * job.gpt.sequence / result["step_s"],
        "predicted_step_s": prediction.step_s if prediction is not None else None,
        "predicted_peak_bytes": prediction.memory.peak_bytes if prediction is not None else None,
    }


def _summary(record: dict[str, Any]) -> str:
    rows = [
        ("step", record["step_s"], record["predicted_step_s"], tables.seconds),
        ("peak memory per rank", record["peak_bytes"], record["predicted_peak_bytes"], tables.gib),
    ]
    shown = [
        (
            name,
            form(measured),
            form(predicted) if predicted is not None else "-",
            f"{100 * (predicted / measured - 1):+.1f} %" if predicted is not None else "-",
        )
        for name, measured, predicted, form in rows
    ]
    return tables.table(
        [f"{record['model']}, {record['plan_string']}", "measured", "predicted", "error"], shown
    )


def _write_trace(
    path: Path, job: Job, result: dict[str, Any], prediction: Prediction | None
) -> None:
    from workload.lowering import lower
    from workload.timeline import chrome_trace, timeline_of

    ops = lower(job.gpt, job.plan).ops
    measured = [
        timeline_of("measured", entry["rank"], ops, entry["start_s"], entry["end_s"])
        for entry in result["ranks"]
    ]
    predicted = [prediction.timeline] if prediction and prediction.timeline else []
    options.write(path, options.compact(chrome_trace([*predicted, *measured])))
    options.note(f"wrote {path}; open it at ui.perfetto.dev")
