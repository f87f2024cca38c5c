"""Gated attention in Megatron's arguments, there and back, and where no framework has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, TORCHTITAN
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import USUAL, asked
from tests.simgpt.frameworks.test_round_trips import assert_same, session, there_and_back
from workload.errors import PlanCannotRunError
from workload.gpt import find_model

__all__ = ["session"]  # the fixture

GATED = find_model("llama-3-8b").changed(qk_norm=True, output_gate=True)


@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE])
def test_it_comes_back(framework: str, tmp_path: Path) -> None:
    question = Asked(GATED, USUAL, None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)
    assert again.gpt is not None
    assert again.gpt.attention.output_gate


def test_the_argument_is_read() -> None:
    gpts = [asked(attention_output_gate=on).gpt for on in (True, None)]
    assert [gpt is not None and gpt.attention.output_gate for gpt in gpts] == [True, False]


def test_torchtitan_has_no_model_with_it() -> None:
    with pytest.raises(PlanCannotRunError):
        exported(Asked(GATED, {"dp": 64, "mbs": 1, "zero": 3}, None, 64), TORCHTITAN)
