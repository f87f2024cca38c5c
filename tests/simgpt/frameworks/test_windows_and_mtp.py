"""Windows, layers that predict further tokens and MLPs beside exchanges, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON
from tests.messages import assert_names
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import USUAL, asked, changed
from tests.simgpt.frameworks.test_round_trips import assert_same, session, there_and_back
from workload.gpt import GPT, find_model

__all__ = ["session"]  # the fixture

MISTRAL = find_model("mistral-7b")
EXPERTS = USUAL | {"ep": 8}
STAGES = EXPERTS | {"pp": 4, "stage_layers": "15+16+16+14", "overlap": "dp"}
LAYOUT = "pipeline-model-parallel-layout"


@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE])
@pytest.mark.parametrize(
    ("gpt", "plan"),
    [
        (MISTRAL, USUAL),
        (MISTRAL.changed(global_every=4), USUAL),
        (find_model("deepseek-v3-mtp"), EXPERTS),
        (find_model("deepseek-v3-mtp"), STAGES),
        (find_model("deepseek-v2-lite"), EXPERTS | {"overlap": "oar+dp+shared"}),
    ],
)
def test_they_come_back(gpt: GPT, plan: dict[str, Any], framework: str, tmp_path: Path) -> None:
    question = Asked(gpt, plan, None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)
    assert again.gpt is not None
    fields = ("window", "global_every", "mtp_layers", "mtp_loss")
    assert [again.gpt.value(name) for name in fields] == [gpt.value(name) for name in fields]
    assert again.plan.get("overlap", "").endswith("+shared") == (
        "shared" in plan.get("overlap", "")
    )


def test_a_window_has_the_token_itself_and_so_many_before_it() -> None:
    """Megatron-LM counts layers from 1, and those whose number the frequency divides attend to
    all; a list says it of each layer, which simgpt does not read."""
    found = asked(window_size="127,0", window_attn_skip_freq=2)
    assert found.gpt is not None
    assert (found.gpt.attention.window, found.gpt.attention.global_every) == (128, 2)
    assert asked(window_size="-1,0").gpt == asked().gpt
    for settings in ({"window_size": "127,127"}, {"window_attn_skip_freq": "[1,0]*2"}):
        refused = asked(**{"window_size": "127,0", **settings})
        assert "--window-size" in changed(refused)
    written = exported(Asked(MISTRAL.changed(window=128), USUAL, None, 64), MEGATRON).settings
    assert written["window-size"] == "127,0"


def test_an_overlap_with_nothing_is_said() -> None:
    found = asked(moe_shared_expert_overlap=True, expert_model_parallel_size=1)
    assert "--moe-shared-expert-overlap" in changed(found)


def test_a_layout_has_an_m_for_each_layer_that_predicts_further_tokens() -> None:
    """Megatron-Core wants as many as --mtp-num-layers (pipeline_parallel_layer_layout.py)."""
    found = exported(Asked(find_model("deepseek-v3-mtp"), STAGES, None, 64), MEGATRON).settings
    assert str(found[LAYOUT]).endswith("|ttttttttttttttmL")
    without = exported(Asked(find_model("deepseek-v3"), STAGES, None, 64), MEGATRON).settings
    assert "m" not in str(without[LAYOUT])


@pytest.mark.parametrize(
    ("layout", "further", "refused"),
    [
        ("Etttt|tttmL", 1, []),
        ("Etttt|tttm*2L", 2, []),
        ("Etttt|tttL", 0, []),
        ("Etttt|tttL", 1, ["0 m", "mtp_layers=1"]),
        ("Etttt|tttmL", 2, ["1 m", "mtp_layers=2"]),
        ("Etttt|tttmL", 0, ["1 m", "mtp_layers=0"]),
        ("Ettttm|tttL", 1, ["m", "t"]),
        ("Etttt|mtttL", 1, ["m", "t"]),
        ("Etttm|tttmL", 2, ["m", "t"]),
        ("Etttt|tttm|L", 1, ["E", "t", "m", "L", "2"]),
    ],
)
def test_layouts_with_further_layers_elsewhere_are_refused(
    layout: str, further: int, refused: list[str]
) -> None:
    own: dict[str, Any] = {
        "num_layers": 7,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "position_embedding_type": "rope",
        "pipeline_model_parallel_size": 2,
        "mtp_num_layers": further,
    }
    question = asked(**own, pipeline_model_parallel_layout=layout)
    assert len(question.refused) == bool(refused)
    for each in question.refused:
        assert_names(each.why, *refused)
    assert question.plan.get("stage_layers") == (None if refused else "4+3")
