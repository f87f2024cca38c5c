"""Starting ranks on this machine: one process each, watched, and stopped together."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from executor.errors import LaunchError
from workload.errors import PlanCannotRunError

Report = Callable[[dict[str, Any]], None]
POLL_S = 0.1
RANKS_PER_CORE = 16


def require_torch() -> None:
    """Refuse to go on without torch, saying how to get it."""
    if importlib.util.find_spec("torch") is None:
        raise LaunchError("torch is not installed; `pip install 'simgpt[run]'` brings it")


def check_ranks(ranks: int) -> None:
    """Refuse to start more ranks than this machine's cores can take turns at."""
    cores = os.cpu_count() or 1
    if ranks > RANKS_PER_CORE * cores:
        raise LaunchError(
            f"{ranks} ranks are too many to start on this machine; its {cores} cores take "
            f"{RANKS_PER_CORE * cores} at most"
        )


def launch(
    task: str, description: str, *, ranks: int, report: Report, port: int = 0, timeout_s: float
) -> dict[str, Any]:
    """Start `ranks` workers on a task, pass rank 0's messages to `report`, return its result.

    When a rank dies, or rank 0 says nothing for `timeout_s`, all are stopped and a LaunchError says
    which one it was and what it said last.
    """
    require_torch()
    check_ranks(ranks)
    port = _port(port)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simgpt-")))
        workers = []
        for rank in range(ranks):
            workers.append(_start(task, description, rank, ranks, port, folder))
            stack.callback(_stop, workers[-1])
        try:
            return _watch(workers, folder, report, timeout_s)
        except BaseException:
            for worker in workers:
                worker.terminate()
            raise


def _port(wanted: int) -> int:
    """A free port of this machine; the wanted one, if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            reason = "in use" if error.errno == errno.EADDRINUSE else f"no use: {error.strerror}"
            raise LaunchError(
                f"port {wanted} is {reason}; choose another with --port, or leave it out"
            ) from None
        return int(probe.getsockname()[1])


def _start(
    task: str, description: str, rank: int, ranks: int, port: int, folder: Path
) -> subprocess.Popen[str]:
    environment = {
        # As many queues as CUDA has: behind a receive that waits in a queue of theirs, kernels of
        # other streams would wait too.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    with (folder / f"stderr.{rank}").open("w") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "executor.worker", task],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
    stdin = _pipe(worker.stdin)
    # It stays open: a rank whose stdin ends has lost its parent, and ends too. One that died at
    # once is left to the watch.
    with suppress(BrokenPipeError):
        stdin.write(description + "\n")
        stdin.flush()
    return worker


def _watch(
    workers: list[subprocess.Popen[str]], folder: Path, report: Report, timeout_s: float
) -> dict[str, Any]:
    lines: Queue[str] = Queue()
    Thread(target=_listen, args=(_pipe(workers[0].stdout), lines), daemon=True).start()
    heard = time.monotonic()
    while True:
        try:
            message = json.loads(lines.get(timeout=POLL_S))
        except Empty:
            _check(workers, folder)
            if time.monotonic() - heard > timeout_s:
                raise LaunchError(
                    f"no rank made progress within {timeout_s:.0f} s (--timeout)"
                ) from None
            continue
        heard = time.monotonic()
        if "result" in message:
            result: dict[str, Any] = message["result"]
            return result
        report(message)


def _listen(stream: IO[str], lines: Queue[str]) -> None:
    for line in stream:
        lines.put(line)


def _check(workers: list[subprocess.Popen[str]], folder: Path) -> None:
    """Raise if a rank is gone; one killed by a signal is the likelier cause."""
    gone = {rank: code for rank, worker in enumerate(workers) if (code := worker.poll())}
    if gone:
        time.sleep(POLL_S)  # what killed the first may still be writing
        gone = {rank: code for rank, worker in enumerate(workers) if (code := worker.poll())}
        rank, code = min(gone.items(), key=lambda item: item[1])
        if code == PlanCannotRunError.exit_code:
            raise PlanCannotRunError(_last_words(rank, code, folder))
        raise LaunchError(_obituary(rank, code, folder))


def _obituary(rank: int, code: int, folder: Path) -> str:
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}; all ranks were stopped"
    return f"rank {rank} stopped: {_last_words(rank, code, folder)}"


def _last_words(rank: int, code: int, folder: Path) -> str:
    said = (folder / f"stderr.{rank}").read_text(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit status {code}"


def _stop(worker: subprocess.Popen[str]) -> None:
    """Let a finished rank go, end any other: politely, then for good."""
    try:
        worker.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        worker.terminate()
        try:
            worker.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "the process was started with a pipe"
    return stream
