"""A machine with too little memory for an answer says so in a sentence."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

from tests.examples import one_in
from tests.simgpt.face import simgpt


def test_too_little_memory_is_a_sentence_with_the_status_of_a_failed_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def predict(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("simulator.predict.predict", predict)
    said = simgpt("predict", "tiny-1m", "-m", "host", "-n", "1")
    assert said.status == 5
    assert said.sentence.startswith("simgpt: ")


@pytest.mark.parametrize("mib", one_in(2, [80, 110, 140, 200]))
def test_an_address_space_without_room_for_matrices_is_a_sentence_too(mib: int) -> None:
    """Where it is enough, the command answers."""
    done = subprocess.run(
        [sys.executable, "-m", "simgpt", "predict", "tiny-30k", "-m", "frontier", "-n", "2"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib * 2**20, mib * 2**20)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr
    assert bool(done.stdout) == (done.returncode == 0)
    assert "OpenBLAS" not in done.stderr
    assert "Traceback" not in done.stderr
