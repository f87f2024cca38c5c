"""Which kind of log or trace a file is, and the job that it tells of."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from topologies.files.budget import Budget
from topologies.files.printable import path_shown
from topologies.files.reading import ANSWER_BYTES
from validation.jobs.log_lines import read_log, split_label
from validation.jobs.log_text import GZIP, GZIP_BITS, RECORD_BYTES, blocks_of, lines_of
from validation.jobs.measured_job import MeasuredJob
from validation.jobs.records import LOG, LONGEST, is_lines, read_answer, read_lines
from validation.jobs.step_lines import Job
from validation.jobs.trace import read_trace
from validation.jobs.trace_events import EVENTS

_PYTHON = re.compile(r"\s*\{\s*'")  # a table as Python prints it, which is no JSON
OWN_KEYS = ("plan_string", "predicted_step_s")  # of the answer, and of each line
HEAD = 2**16  # bytes by which a file's kind is told


def read_job(path: Path, asked: Job) -> tuple[MeasuredJob, int]:
    """The job that a file tells of, and the rank that a trace is of (0 of any other file).

    A log or a trace is at most 8 GiB of text; what gzip has compressed is at most 32 MiB and 40
    times the file, and 256 MiB of a log. What a step is `asked` to work on counts where the log
    has rates alone and does not say it.
    """
    head = LOG.head(path, HEAD)
    name = path_shown(path)
    if not head.strip():
        raise LOG.error(f"{name} is empty")
    head = _unpacked(head, HEAD) if head.startswith(GZIP) else head
    if _is_trace(head):
        return read_trace(path)
    label, begun = split_label(head.decode("utf-8-sig", "replace").lstrip())
    begun = begun.lstrip()
    lines = partial(lines_of, path, longest=LONGEST + 1, mean=RECORD_BYTES)
    if not begun.startswith("{") or _PYTHON.match(begun):
        return read_log(partial(lines_of, path), name, asked), 0
    if label:
        return read_lines(_of_rank(label, lines()), name, asked.device_tokens), 0
    if is_lines("".join(islice(filter(str.strip, lines()), 2))):
        return read_lines(lines(), name, asked.device_tokens), 0
    return read_answer(_text(path, name), name), 0


def is_run_of_simgpt(path: Path) -> bool:
    """Whether a file is what `simgpt run` wrote, its answer in JSON or its lines of steps, and so
    of simgpt's own executor."""
    head = LOG.head(path, HEAD).decode("utf-8-sig", "replace").lstrip()
    first = head.partition("\n")[0] if is_lines(head) else head
    return head.startswith("{") and any(f'"{key}"' in first for key in OWN_KEYS)


def _of_rank(rank: str, lines: Iterable[str]) -> Iterator[str]:
    """The lines of the first rank, without its label."""
    for line in lines:
        own, rest = split_label(line)
        if own == rank:
            yield rest


def _text(path: Path, name: str) -> str:
    """The whole text of an answer."""
    budget, parts = Budget(name, "bytes of an answer", ANSWER_BYTES, LOG.error), []
    for block in blocks_of(path):
        budget.charge(len(block))
        parts.append(block)
    return b"".join(parts).decode("utf-8-sig", "replace")


def _is_trace(head: bytes) -> bool:
    """By its list of events, or by what torch.profiler writes before that."""
    marks = (f'"{EVENTS}"', '"schemaVersion"', '"deviceProperties"', '"ph"')
    return head.lstrip()[:1] in (b"{", b"[") and any(mark.encode() in head for mark in marks)


def _unpacked(content: bytes, most: int) -> bytes:
    """The first bytes of what gzip has compressed; none where that is damaged."""
    try:
        return zlib.decompressobj(wbits=GZIP_BITS).decompress(content, most)
    except zlib.error:
        return b""
