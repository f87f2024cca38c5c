"""Flags without which Megatron-LM would train another model, or end a run."""

from __future__ import annotations

from tests.simgpt.frameworks.asked import Asked, exported
from workload.gpt import find_model


def test_yarn_of_latent_attention_and_the_routers_dtype_are_written() -> None:
    """DeepSeek-V2-Lite scales rope 40 times, with mscale 0.707 for both; DeepEP takes
    probabilities in fp32."""
    scaling = "yarn:factor=40:original_max_position_embeddings=4096:attention_factor=1"
    model = find_model("deepseek-v2-lite")
    gpt = model.changed(rope_scaling=f"{scaling}:mscale_all_dim=0.707")
    asked = Asked(gpt, "ep=8,dp=rest,mbs=1", 8, 64)
    found = exported(asked, "megatron", "megatron-core-deepep").settings
    assert found["rope-type"] == "yarn"
    assert float(found["rotary-scaling-factor"]) == 40
    assert (float(found["mscale"]), float(found["mscale-all-dim"])) == (0.707, 0.707)
    assert found["moe-router-dtype"] == "fp32"
