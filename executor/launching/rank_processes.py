"""The processes of ranks that this one started: starting, hearing and ending them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from executor.launching.sentences import last_words
from topologies.interpreter import child_environment

GRACE_S = 5.0  # for ranks to end by themselves, and again after they are asked to
CHUNK_BYTES = 1 << 16
# As many queues as CUDA has: behind a receive that waits in a queue, kernels of other streams that
# share it would wait too. Read when torch first meets the GPU.
CUDA_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


@dataclass(slots=True)
class RankProcess:
    """One rank's process, and what is known of it.

    `heard_s` is when it last said something, by the monotonic clock; `step` the last that it
    finished; `failure` what it said of its own end; `stopped_s` for how long it has been seen in
    the stopped state.
    """

    rank: int
    process: subprocess.Popen[bytes]
    stderr: Path
    heard_s: float = field(default_factory=time.monotonic)
    step: int | None = None
    failure: dict[str, Any] | None = None
    stopped_s: float = 0.0
    _rest: bytes = b""

    @property
    def answers(self) -> IO[bytes]:
        """The stream of its messages."""
        assert self.process.stdout is not None, "the process was started with a pipe"
        return self.process.stdout

    def listen(self) -> list[dict[str, Any]] | None:
        """Its messages that have come, at least a part of one; None once no more can come."""
        chunk = os.read(self.answers.fileno(), CHUNK_BYTES)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.heard_s = time.monotonic()
        for message in messages:
            self.step = message.get("step", self.step)
            self.failure = message if "failed" in message else self.failure
        return messages

    def last_words(self) -> str:
        """What it wrote on stderr about its end; empty if nothing."""
        return last_words(self.stderr.read_text(errors="replace"))


def start(
    task: str, description: str, rank: int, ranks: int, folder: Path, held: Sequence[int] = ()
) -> RankProcess:
    """Start one rank of a task; what it is to do goes to its stdin, which stays open: a rank whose
    stdin ends has lost its parent, and ends too. It inherits the descriptors `held`."""
    stderr = folder / f"stderr.{rank}"
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "executor.worker", task, str(rank), str(ranks), str(folder)],
            env={**_environment(), **os.environ, **child_environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=held,
        )
    assert process.stdin is not None, "the process was started with a pipe"
    # One that died at once is left to the watch.
    with suppress(BrokenPipeError):
        process.stdin.write(f"{description}\n".encode())
        process.stdin.flush()
    return RankProcess(rank, process, stderr)


def _environment() -> dict[str, str]:
    """What ranks of one machine are set up with, unless the user's environment says otherwise."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    # What they say to each other stays off the machine's network.
    names = {f"{library}_SOCKET_IFNAME": name for library in ("GLOO", "NCCL") for name in loopback}
    return {**CUDA_QUEUES, **names}


def end(ranks: list[RankProcess], *, finished: bool) -> None:
    """End all ranks: wait for them if they are finished, ask those that still run, then kill."""
    if finished:
        _wait(ranks)
    for each in ranks:
        _let_go(each.process.stdin)  # of a rank that trains, and takes SIGTERM for a request
        each.process.terminate()
    if any(each.process.poll() is None and not each.stopped_s for each in ranks):
        _wait([each for each in ranks if not each.stopped_s])
    for each in ranks:
        each.process.kill()
    _wait(ranks)  # one that waits for a disk or a driver in the kernel may outlive even that
    for each in ranks:
        for pipe in (each.process.stdin, each.process.stdout):
            _let_go(pipe)


def _let_go(pipe: IO[bytes] | None) -> None:
    assert pipe is not None, "the process was started with pipes"
    with suppress(BrokenPipeError):
        pipe.close()


def _wait(ranks: list[RankProcess]) -> None:
    until_s = time.monotonic() + GRACE_S
    for each in ranks:
        with suppress(subprocess.TimeoutExpired):
            each.process.wait(max(until_s - time.monotonic(), 0.0))
