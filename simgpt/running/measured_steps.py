"""The steps of a run as they come, on the disk within a second: a lost run leaves what it measured.

The file is written whole each time, so less often the longer that takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import options
from simgpt.invocation import ran
from simgpt.running.step_log import Unwritten

if TYPE_CHECKING:
    from executor.launching.task_specs import Job

LEAST_S = 1.0  # between two writes
SHARE = 0.02  # of the run's time that writes may take


class MeasuredSteps:
    """Steps by number, the latest account of each; `output` gets them while the run goes on."""

    def __init__(
        self,
        job: Job,
        output: Path | None,
        unwritten: Unwritten,
        *,
        as_json: bool,
        writes: bool,
    ) -> None:
        self._job, self._output, self._as_json, self._writes = job, output, as_json, writes
        self._unwritten = unwritten
        self._steps: dict[int, dict[str, Any]] = {}
        self._lines: dict[int, str] = {}
        self._next_s = 0.0

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps in order."""
        return [self._steps[number] for number in sorted(self._steps)]

    def add(self, step: dict[str, Any], line: str) -> None:
        """Take a step, and the line that was said of it."""
        number = step["step"]
        self._steps[number], self._lines[number] = step, line
        if self._output is not None and time.monotonic() >= self._next_s:
            started_s = time.monotonic()
            self.write()
            now_s = time.monotonic()
            self._next_s = now_s + max(LEAST_S, (now_s - started_s) / SHARE)

    def write(self) -> None:
        """Write what there is to the output."""
        if self._output is None or not self._writes or not self._steps:
            return
        text = "\n".join(self._lines[number] for number in sorted(self._lines)) + "\n"
        as_json = self._as_json or options.is_json(self._output)
        content = options.compact(options.strict(self._record())) if as_json else text
        with self._unwritten.noted("-o"):
            options.write(self._output, content)

    @contextmanager
    def kept_if_lost(self) -> Iterator[None]:
        """Where a run ends without a result, its steps are its answer."""
        try:
            yield
        except BaseException:
            self.lost()
            raise

    def lost(self) -> None:
        """Leave what there is as the answer."""
        self.write()
        if self._as_json and self._output is None and self._writes and self._steps:
            options.say(options.compact(options.strict(self._record())).rstrip("\n"))

    def _record(self) -> dict[str, Any]:
        job = self._job
        return {
            "model": job.gpt.name,
            "plan": job.plan.as_dict(),
            "plan_string": str(job.plan),
            "ranks": job.plan.grid.ranks,
            "step_s": statistics.median(step["seconds"] for step in self.steps),
            **columns(self.steps),
            "finished": False,
        } | ran()


def columns(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Steps as a record has them: each with its number, and what is most asked for by itself."""
    return {
        "steps": list(steps),
        "steps_s": [step["seconds"] for step in steps],
        "losses": [step["loss"] for step in steps],
        "grad_norms": [step["grad_norm"] for step in steps],
        "evaluations": [
            {key: step[key] for key in ("step", "eval_loss")}
            for step in steps
            if "eval_loss" in step
        ],
    }
