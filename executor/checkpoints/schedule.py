"""When to save: after every so many steps, or about every so many seconds by rank 0's clock.

Steps need no word between ranks. For seconds, rank 0 tells the others at a step that all know of
whether to save there, and at which later step they ask again: half of the way to the next save that
is left, by its mean step time so far. So few steps have that exchange, and none is a step late.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from executor.checkpoints.saving import Saving


class SaveSchedule:
    """Which steps of a run that has `done` some already are saved; the same on all ranks."""

    def __init__(self, saving: Saving, done: int, device: torch.device) -> None:
        self._saving, self._device = saving, device
        self._started_s = self._saved_s = time.monotonic()
        self._first, self._asks_at = done, done + 1

    def is_due(self, step: int) -> bool:
        """Whether to save after a step; asked once after each."""
        if self._saving.every_steps:
            return step % self._saving.every_steps == 0
        if not self._saving.every_s or step < self._asks_at:
            return False
        saves, further = self._told(*self._plan(step, time.monotonic()))
        self._asks_at = step + further
        return bool(saves)

    def _plan(self, step: int, now_s: float) -> tuple[bool, int]:
        """By this rank's clock: whether to save now, and in how many steps to ask again."""
        step_s = (now_s - self._started_s) / (step - self._first)
        left_s = self._saved_s + self._saving.every_s - now_s
        saves = left_s < step_s / 2
        if saves:
            self._saved_s, left_s = now_s, self._saving.every_s
        return saves, max(1, int(left_s / step_s / 2))

    def _told(self, saves: bool, further: int) -> tuple[int, int]:
        """What rank 0 made of it."""
        word = torch.tensor([int(saves), further], dtype=torch.int64, device=self._device)
        dist.broadcast(word, 0)
        first, second = word.tolist()
        return first, second
