"""How a framework spreads layers over the stages of a pipeline, where it does not do so evenly."""

from __future__ import annotations

from itertools import accumulate

from workload.gpt import GPT


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
    >>> layers_by_cost(GPT(name="1B", sequence=4096, **sizes), 8)
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
