"""Locks on files: who is refused, and who waits."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from topologies.files.locking import locked

MOST_S = 20.0  # for what is there at once, or never


def test_who_does_not_wait_is_refused_and_who_waits_gets_the_lock_in_the_end(
    tmp_path: Path,
) -> None:
    held, is_locked = locked(tmp_path / "lock")
    assert is_locked
    with ThreadPoolExecutor() as others:
        try:
            refused = others.submit(locked, tmp_path / "lock")
            with pytest.raises(BlockingIOError):
                refused.result(MOST_S)
            waiting = others.submit(locked, tmp_path / "lock", waits=True)
        finally:
            os.close(held)
        found, is_locked = waiting.result(MOST_S)
        os.close(found)
    assert is_locked
