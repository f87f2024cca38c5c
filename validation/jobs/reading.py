"""Which kind of log or trace a file is, and the job that it tells of."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from topologies.files.printable import path_shown
from validation.jobs.log_lines import read_log
from validation.jobs.measured_job import MeasuredJob
from validation.jobs.records import LOG, is_lines, read_lines, read_run
from validation.jobs.trace import read_trace
from validation.jobs.trace_events import EVENTS, GZIP

GZIP_BITS = 16 + zlib.MAX_WBITS  # of zlib: with gzip's own head
_PYTHON = re.compile(r"\s*\{\s*'")  # a table as Python prints it, which is no JSON
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
    packed = head.startswith(GZIP)
    if _is_trace(_unpacked(head, HEAD) if packed else head):
        return read_trace(path)
    content = LOG.content(path)
    text = (_whole(content, name) if packed else content).decode("utf-8-sig", "replace")
    if not text.lstrip().startswith("{") or _PYTHON.match(text):
        return read_log(text, name, tokens_per_device), 0
    if is_lines(text):
        return read_lines(text, name, tokens_per_device), 0
    return read_run(text, name), 0


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


def _whole(content: bytes, name: str) -> bytes:
    """All that gzip has compressed, of one or more parts, as far as it is not cut off."""
    parts: list[bytes] = []
    room = LOG.most_bytes
    while content:
        part = zlib.decompressobj(wbits=GZIP_BITS)
        try:
            parts.append(part.decompress(content, room + 1))
        except zlib.error:
            raise LOG.error(f"{name} is compressed by gzip, and damaged") from None
        room -= len(parts[-1])
        if room < 0:
            raise LOG.error(f"{name} holds more than {LOG.most_bytes // 2**20} MiB of text")
        content = part.unused_data if part.unused_data.startswith(GZIP) else b""
    return b"".join(parts)
