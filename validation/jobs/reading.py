"""Which kind of log or trace a file is, and the job that it tells of."""

from __future__ import annotations

from pathlib import Path

from topologies.files.printable import path_shown
from validation.jobs.log_lines import read_log
from validation.jobs.measured_job import MeasuredJob
from validation.jobs.records import LOG, read_lines, read_run
from validation.jobs.trace import read_trace
from validation.jobs.trace_events import EVENTS, GZIP

HEAD = 2**16  # bytes by which a file's kind is told


def read_job(path: Path, tokens_per_device: float) -> tuple[MeasuredJob, int]:
    """The job that a file tells of, and the rank that a trace is of (0 of any other file).

    A log is at most 256 MiB, a trace 8 GiB of text. `tokens_per_device` are the tokens of a step
    over the devices of the job.
    """
    head = LOG.head(path, HEAD)
    name = path_shown(path)
    if not head.strip():
        raise LOG.error(f"{name} is empty")
    if _is_trace(head):
        return read_trace(path)
    text = LOG.content(path).decode("utf-8-sig", "replace")
    if not text.lstrip().startswith("{"):
        return read_log(text, name, tokens_per_device), 0
    first = text.lstrip().partition("\n")[0].rstrip()
    is_line = first.endswith("}") and '"step_s"' in first and '"steps_s"' not in first
    return (read_lines if is_line else read_run)(text, name), 0


def _is_trace(head: bytes) -> bool:
    """By gzip, by its list of events, or by what torch.profiler writes before that."""
    marks = (f'"{EVENTS}"', '"schemaVersion"', '"deviceProperties"', '"ph"')
    is_json = head.lstrip()[:1] in (b"{", b"[") and any(mark.encode() in head for mark in marks)
    return head.startswith(GZIP) or is_json
