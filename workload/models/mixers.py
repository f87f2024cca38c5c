"""How many layers have which mixer, by the letters of a pattern."""

from __future__ import annotations

from workload.model.fields import ModelFields
from workload.models import moe
from workload.models.pattern import ATTENTION, EXPERTS, MLP


def layers_with(gpt: ModelFields, mixer: str) -> int:
    """How many layers have a mixer. A transformer's all have attention, and experts or an MLP; a
    hybrid's have that of their letter."""
    if gpt.pattern:
        return gpt.pattern.count(mixer)
    routed = moe.layers_with_experts(gpt)
    return {ATTENTION: gpt.layers, EXPERTS: routed, MLP: gpt.layers - routed}.get(mixer, 0)
