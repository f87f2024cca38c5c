"""What a training run answers: its record, a table of it, and its trace."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import options, tables
from simgpt.commands.prediction_text import tuned_forms
from simgpt.running.host_load import disturbed
from simgpt.running.measured_steps import columns
from simgpt.running.step_log import Unwritten
from topologies.errors import DiskError
from topologies.exit_status import ExitStatus

if TYPE_CHECKING:
    from executor.launching.task_specs import Job
    from simulator.predict import Prediction


# Of a run without --save all are null.
CHECKPOINT_KEYS = ("resumed_at_step", "saved_steps", "newest_checkpoint", "unsaved")


def check_finished(record: dict[str, Any], job: Job, unwritten: Unwritten) -> None:
    """End with a status of its own, after the answer, where training stopped at a lost loss or
    because it was asked to."""
    from executor.errors import DivergedError

    if record["stopped_at_step"] is not None:
        by = signal.Signals[record["stopped_by"] or "SIGINT"]
        how = "interrupted" if by == signal.SIGINT else f"ended by {by.name}"
        options.note(f"simgpt: {how} after step {record['stopped_at_step']} of {job.steps}")
        raise SystemExit(ExitStatus.SIGNALLED + by)
    if record["diverged_at_step"] is not None:
        raise DivergedError(
            f"the loss of step {record['diverged_at_step']} of {job.steps} is not a finite number, "
            f"so training stopped there; try a smaller --lr than {job.adamw.lr:g}"
            f"{_last_good(record)}"
        )
    if record["unsaved"] is not None:
        raise DiskError(record["unsaved"])
    unwritten.check()


def _last_good(record: dict[str, Any]) -> str:
    path = record["newest_checkpoint"]
    return f"; the last good checkpoint is {path}" if path is not None else ""


def record_of(
    job: Job,
    result: dict[str, Any],
    prediction: Prediction | None,
    steps: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The JSON record of a run, with what was predicted for it, if anything was. `steps` are those
    that were seen, from before a restart too."""
    tuning = prediction.tuning if prediction is not None else None
    return {
        "model": job.gpt.name,
        "plan": job.plan.as_dict(),
        "plan_string": str(job.plan),
        "ranks": job.plan.grid.ranks,
        "device": result["device"],
        "attention_backend": result["attention_backend"],
        "cuda_graphs": job.device_use.cuda_graphs,
        # Of a run without --bind all are empty.
        "bound_cores": [entry["cores"] for entry in result["ranks"]],
        "step_s": result["step_s"],
        "step_p10_s": result["step_p10_s"],
        "step_p90_s": result["step_p90_s"],
        **columns(steps),
        "finished": result["diverged_at_step"] is None is result["stopped_at_step"],
        "diverged_at_step": result["diverged_at_step"],
        "stopped_at_step": result["stopped_at_step"],
        "stopped_by": result["stopped_by"],
        "exported_weights": None if result["diverged_at_step"] else job.export_weights,
        **{key: result.get(key) for key in CHECKPOINT_KEYS},
        "waited_share": result["waited_share"],
        "peak_bytes": result["peak_bytes"],
        "routed_peak_bytes": result["routed_peak_bytes"],
        "rows_over_mean": result["rows_over_mean"],
        "comm_bytes": result["ranks"][0]["carried"],
        "tokens_per_s": job.plan.batch * job.gpt.sequence / result["step_s"],
        "predicted_step_s": prediction.step_s if prediction is not None else None,
        "predicted_peak_bytes": _program_bytes(job),
        "matmul_forms": tuning.as_dict() if tuning is not None else None,
    }


def _program_bytes(job: Job) -> int:
    """The peak of the fullest stage's program, which no machine needs to be known for."""
    from workload.lowering import lower

    stages = range(job.plan.grid.pp)
    programs = (lower(job.gpt, job.plan, stage, forms=dict(job.forms)) for stage in stages)
    return max(program.peak.total_bytes for program in programs)


def summary(record: dict[str, Any], prediction: Prediction | None) -> str:
    """The record as a table, predicted beside measured."""

    def row(name: str, key: str, form: Callable[[float], str]) -> tuple[str, ...]:
        measured, predicted = record[key], record[f"predicted_{key}"]
        if predicted is None:
            return name, form(measured), "-", "-"
        error = tables.percent(predicted / measured - 1, sign=True)
        return name, form(measured), form(predicted), error

    step = row("step (median)", "step_s", tables.seconds)
    if record["predicted_step_s"] is not None and disturbed(record):
        step = (*step[:-1], "not comparable")
    spread = " to ".join(tables.seconds(record[f"step_{end}_s"]) for end in ("p10", "p90"))
    rows = [
        step,
        ("step (p10 to p90)", spread, "", ""),
        row("memory allocated per rank", "peak_bytes", tables.gib),
    ]
    if (routed := record.get("routed_peak_bytes")) is not None:
        error = tables.percent(routed / record["peak_bytes"] - 1, sign=True)
        rows.append(("  with experts' rows as routed", "", tables.gib(routed), error))
        over = f"{record['rows_over_mean']:.2f}"
        rows.append(("most rows of a rank, over the mean", over, "1.00", ""))
    title = tables.paragraph(f"{record['model']} with {record['plan_string']}")
    tuned = tuned_forms(prediction) if prediction is not None else ""
    table = tables.table(["", "measured", "predicted", "error"], rows)
    return "\n".join(["", title, *filter(None, [tuned]), "", table])


def write_trace(
    path: Path | None, job: Job, result: dict[str, Any], prediction: Prediction | None
) -> None:
    """Write the last step's timelines of all ranks, and the predicted one, to a file, if one is
    asked for; of a run that did not come to its last step there is none."""
    if path is None:
        return
    from workload.lowering import lower
    from workload.timeline import chrome_trace, timeline_of

    if result["diverged_at_step"] is not None:
        options.note(f"{path} was not written: only the last step is recorded")
        return
    grid, forms = job.plan.grid, dict(job.forms)
    programs = [lower(job.gpt, job.plan, stage, forms=forms) for stage in range(grid.pp)]
    named = [{op.name: op for op in program.ops} for program in programs]
    measured = []
    for entry in filter(lambda entry: entry["ops"], result["ranks"]):
        stage = named[grid.coordinates(entry["rank"])["pp"]]
        ran = [stage[name] for name in entry["ops"]]
        spans = (ran, entry["start_s"], entry["end_s"])
        measured.append(timeline_of("measured", entry["rank"], *spans))
    predicted = [prediction.timeline] if prediction and prediction.timeline else []
    options.write(path, options.compact(chrome_trace([*predicted, *measured])))
    options.note(f"wrote {path}; open it at ui.perfetto.dev")
