"""A machine with too little memory for an answer says so in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simgpt.face import simgpt


def test_too_little_memory_is_a_sentence_with_the_status_of_a_failed_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def predict(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("simulator.predict.predict", predict)
    said = simgpt("predict", "tiny-1m", "-m", "host", "-n", "1")
    assert said.status == 5
    assert said.sentence == "simgpt: this machine has too little memory for that"
