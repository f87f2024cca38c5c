"""How a golden run splits its layers over the stages of a pipeline.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py, get_num_layers_to_build:
where the first or last stage has its own number of layers, the others share the rest evenly; a
stage's layers are split evenly over its chunks; and an embedding or a loss that is accounted for in
the split counts as one layer of the first or last chunk.
"""

from __future__ import annotations

from typing import Any

from validation.memory.golden_flags import Cells, is_set, layout, number
from workload.pipeline.layout import layout_of, uneven_stages

FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"


def refusal(cells: Cells, layers: int, pp: int, chunks: int) -> str | None:
    """Why the split cannot be read, if so."""
    if pp == 1:
        return None
    if text := layout(cells):
        given = len(layout_of(text).layers)
        return None if given % pp == 0 else f"a layout of {given} chunks for {pp} stages"
    first, last = number(cells, FIRST), number(cells, LAST)
    between = pp - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    ends = is_set(cells, EMBEDDING) + is_set(cells, LOSS)
    if first is None and last is None:
        uneven = ends == 1 and (layers + 1) % (pp * chunks)
        return (
            "layers, with the embedding or loss as one more, that do not divide over stages"
            if uneven
            else None
        )
    even = left == 0 if not between else left % between == 0
    own = [each for each in (first, last, left // between if between else 0) if each is not None]
    if left < 0 or not even or any(each % chunks for each in own):
        return "first and last stages whose layers leave the other stages uneven"
    return None


def words_of(cells: Cells, layers: int, pp: int, chunks: int) -> dict[str, Any]:
    """The plan's words on uneven stages; none where they are even."""
    if pp == 1:
        return {}
    if text := layout(cells):
        chunk_layers = layout_of(text).layers
        return {"vpp": len(chunk_layers) // pp, "stage_layers": _joined(chunk_layers)}
    first, last = number(cells, FIRST), number(cells, LAST)
    ends = is_set(cells, EMBEDDING), is_set(cells, LOSS)
    if first is not None or last is not None:
        return {"stage_layers": _joined(uneven_stages(layers, pp, chunks, first, last))}
    if all(ends):
        return {"ends_as_layers": True}
    if any(ends):
        own = [(layers + 1) // (pp * chunks)] * (pp * chunks)
        own[0 if ends[0] else -1] -= 1
        return {"stage_layers": _joined(own)}
    return {}


def _joined(counts: Any) -> str:
    return "+".join(map(str, counts))
