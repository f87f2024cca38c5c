"""What the ops of a layer follow from, but for what of it is recomputed."""

from __future__ import annotations

from workload.expert_loads.histogram import counts_of
from workload.gpt import GPT
from workload.models import windows

Kind = tuple[object, ...]


def kind_of(gpt: GPT, layer: int) -> Kind:
    """A layer's mixer, experts or one MLP, its window, and how often each of its experts is chosen:
    equal for layers that differ in their numbers alone."""
    return *windows.kind_of(gpt, layer), counts_of(gpt, layer)
