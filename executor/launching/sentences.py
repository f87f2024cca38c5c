"""The one sentence of an error that says what happened: torch writes pages around it."""

from __future__ import annotations

import re
import signal

# A line of stderr that names an error: what Python ends a traceback with, what C++ says of an
# exception that nobody caught, or a library's own. Log lines of torch start with a bracket, lines
# of a traceback's sources with blanks.
_PYTHON = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?$")
_CPP = re.compile(r"^\s+what\(\):\s*(.*)$")
_LIBRARY = re.compile(r"^(?!\[|terminate called|Traceback).*\b(?:CUDA|NCCL|[Ee]rror)\b.*$")
_PLACE = re.compile(r"^\[[^\]]*\]\s*")
_NCCL_CAUSE = "Last error:"
_GREETING = re.compile(r"\s*GLHF!\s*[^\x00-\x7f]*")  # which gloo puts into some of its errors


def first_sentence(message: str) -> str:
    """The first line of an error of torch, without the place in its sources; NCCL's own account of
    the cause behind it, if there is one."""
    said = _GREETING.sub(" ", message)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if not lines:
        return "no reason was given"
    first = _PLACE.sub("", lines[0]) or lines[0]
    if _NCCL_CAUSE in lines[:-1]:
        return f"{first}: {lines[lines.index(_NCCL_CAUSE) + 1]}"
    return first


def sentence_of(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {first_sentence(str(error))}"


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust gave up, which is no `Exception` and none of Python's own
    ends of a program."""
    return not isinstance(error, Exception | KeyboardInterrupt | SystemExit | GeneratorExit)


def last_words(stderr: str) -> str:
    """The line that says why a process ended which wrote this on stderr; empty if none does.

    The first line that names an error, not the last line: CUDA's errors end in advice.
    """
    lines = stderr.splitlines()
    for pattern in (_CPP, _PYTHON, _LIBRARY):
        for line in lines:
            if found := pattern.match(line):
                return _PLACE.sub("", found[found.re.groups]).strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def signal_name(number: int) -> str:
    """`SIGKILL`, or the number of a signal that has no name, such as a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
