"""A process of limited memory that runs one input after another, and the one that watches it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

MEMORY_GIB, TORCH_GIB, COSTLY_GIB = (
    3.0,
    16.0,
    1.5,
)  # of addresses: an idle child has under 1, torch maps several
LIMIT_S = 60.0  # of a processor
IDLE_S = 30.0
MOST_SERVED = 150
MOST_SAID = 4_000_000
COLUMNS = 100
KEPT = "kept"  # where results are kept, in the folder of each input


@dataclass(frozen=True)
class Said:
    """How an input ended: its status (None: it did not), what it said, and what was raised."""

    status: int | None
    out: str
    err: str
    raised: str
    seconds: float


class Child:
    """The process, started when first asked, replaced when it is old, late or dead."""

    def __init__(self, memory_gib: float) -> None:
        self._memory_gib, self._served = memory_gib, 0
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, folder: Path, args: list[str]) -> Said:
        """Run one command line in a folder."""
        if self._served >= MOST_SERVED:
            self.end()
        process = self._process = self._process or _started(self._memory_gib)
        self._served += 1
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(folder), args]).encode() + b"\n")
        process.stdin.flush()
        begun = time.monotonic()
        line = _line(process)
        if line:
            said = Said(**json.loads(line))
            if said.raised:
                self.end()
            return said
        status = process.poll()
        late = f"hang: {LIMIT_S:.0f} s of a processor, or {IDLE_S:.0f} s of none"
        what = late if status is None else f"the process died: {status}"
        self.end()
        return Said(None, "", "", what, time.monotonic() - begun)

    def end(self) -> None:
        """Stop the process and all that it started."""
        process, self._process, self._served = self._process, None, 0
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _started(memory_gib: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.simgpt.fuzz.child", str(memory_gib)]
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        command,
        cwd=root,
        env={
            **os.environ,
            **{"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "SIMGPT_CACHE": KEPT},
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The answer; nothing after so much processor time, or half a minute without using any: a
    machine that is shared makes no hang of a slow answer."""
    assert process.stdout is not None
    first = last = _processor_s(process.pid)
    since = time.monotonic()
    while True:
        if select.select([process.stdout], [], [], 1.0)[0]:
            return process.stdout.readline()
        now = _processor_s(process.pid)
        if now - last > 0.05:
            last, since = now, time.monotonic()
        if now - first > LIMIT_S or time.monotonic() - since > IDLE_S:
            return b""


def _processor_s(group: int) -> float:
    """Processor seconds of a process group's living members, and of their dead children."""
    ticks = 0
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def serve(memory_gib: float) -> None:
    """Answer command lines from stdin, through the very entry point."""
    import simulator.predict  # noqa: F401

    limit = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["COLUMNS"] = str(COLUMNS)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        folder, args = json.loads(line)
        os.chdir(folder)
        answers.write(json.dumps(asdict(_said(args))) + "\n")
        answers.flush()


def _said(args: list[str]) -> Said:
    from simgpt.cli import main

    out, err, raised, status = _sink(), _sink(), "", 0
    begun = time.monotonic()
    sys.argv = ["simgpt", *args]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException as error:
            raised, status = _place(error), 1
    took = time.monotonic() - begun
    return Said(status, _text(out), _text(err), raised, took)


def _sink() -> io.TextIOWrapper:
    """As a terminal's stream in UTF-8: a lone surrogate cannot be written."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _text(sink: io.TextIOWrapper) -> str:
    sink.flush()
    assert isinstance(sink.buffer, io.BytesIO)
    return sink.buffer.getvalue().decode()[:MOST_SAID]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = "/".join(Path(own[-1].filename).parts[-2:])
    return f"{type(error).__name__}: {str(error)[:200]} at {where}:{own[-1].lineno}"


if __name__ == "__main__":
    serve(float(sys.argv[1]))
