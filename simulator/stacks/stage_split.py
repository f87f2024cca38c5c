"""Uneven splits of layers over pipeline stages: the key `split` of a stack's `plan`."""

from __future__ import annotations

from collections.abc import Container
from itertools import accumulate

from workload.gpt import GPT
from workload.plan import Plan

SPLIT, BY_COST = "split", "by_cost"
UNEVEN = ("stage_layers", "ends_as_layers")


def spread(plan: Plan, gpt: GPT, split: str, said: Container[str]) -> Plan:
    """The plan with the stages that a stack's `split` gives it; as it is where the user `said` how
    layers lie, where there is one stage, and where stages have several chunks."""
    if split != BY_COST or any(key in said for key in UNEVEN):
        return plan
    if plan.pp == 1 or plan.vpp > 1:
        return plan
    return plan.changed(stage_layers=layers_by_cost(gpt, plan.pp))


def layers_by_cost(gpt: GPT, stages: int) -> tuple[int, ...]:
    """The layers of each stage under nanotron, which counts the classifier's matmul among them.

    Blocks are dealt in their order; a stage is full with the block by which the cost of all until
    there exceeds the stage's share. A layer costs 4 h^2 + 3 h f, the classifier h V, and what else
    there is nothing. Not modelled: where the last stages have no layer, the classifier, which is in
    the last one here, stands in an earlier one.

    Source: huggingface/nanotron v0.5, src/nanotron/models/base.py, build_model, and
    src/nanotron/models/llama.py, get_block_compute_costs.

    >>> from workload.gpt import GPT
    >>> sizes = {"layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072}
    >>> layers_by_cost(GPT.of(name="1B", sequence=4096, **sizes), 8)
    (3, 3, 2, 3, 2, 3, 0, 0)
    """
    layer = 4 * gpt.hidden**2 + 3 * gpt.hidden * gpt.ffn
    costs = list(accumulate([*[layer] * gpt.layers, gpt.hidden * gpt.vocab]))
    found = [0] * stages
    stage = 0
    for cost in costs[:-1]:
        found[stage] += 1
        stage += cost * stages > costs[-1] * (stage + 1)
    return tuple(found)
