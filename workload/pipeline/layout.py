"""A pipeline's layout as Megatron-LM writes it: `Et*3|(tt|)*14|L`.

Chunks stand between bars, from the first stage's first to the last stage's last: E is the
embedding, t a layer, m a module for further tokens, which stands behind all layers, and L the loss.
A letter or a bracket may be repeated, as in `t*3` and `(tt|)*14`. The grammar is that of
NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from functools import partial

from topologies.files.budget import Budget
from topologies.files.reading import MOST_DEPTH
from topologies.records import record
from workload.errors import PlanError

MOST_LETTERS = 20_000
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})")


@record
class Layout:
    """How many layers each chunk has, and how many modules for further tokens follow them."""

    layers: tuple[int, ...]
    further: int


def is_layout(value: object) -> bool:
    """Whether a text is a layout, not numbers of layers.

    >>> is_layout("Et|tL"), is_layout("6+6+5"), is_layout("none")
    (True, False, False)
    """
    return isinstance(value, str) and ("|" in value or value[:1] == "E")


def layout_of(text: str) -> Layout:
    """The layout of a text; a PlanError says what in it is not read.

    >>> layout_of("Et*3|(tt|)*2mL")
    Layout(layers=(3, 2, 2, 0), further=1)
    """
    letters = written_out(text)
    if wrong := re.sub(r"[EtmL|]", "", letters):
        raise PlanError(f"the layout {text} has {wrong[0]}; it may have E, t, m, L and |")
    chunks = letters.split("|")
    outside = any("E" in each for each in chunks[1:]) or {"m", "L"} & {*"".join(chunks[:-1])}
    if outside or not re.fullmatch(r"E?t*m*L?", order := "".join(chunks)):
        raise PlanError(
            f"the layout {text} must have E in the first chunk, then all t, and behind these all m "
            "and L in the last chunk"
        )
    return Layout(tuple(chunk.count("t") for chunk in chunks), order.count("m"))


def written_out(text: str) -> str:
    """The letters and bars of a layout, with what is repeated written out."""
    text = re.sub(r"[\s,'\"]", "", text)
    for _ in range(MOST_DEPTH):
        budget = Budget("the layout", "letters", MOST_LETTERS, PlanError)
        budget.charge(len(text))
        before, text = text, _REPEATED.sub(partial(_repeated, budget), text)
        if text == before:
            return text
    raise PlanError(f"the layout is nested more than {MOST_DEPTH} deep")


def _repeated(budget: Budget, found: re.Match[str]) -> str:
    inner, count = (found[1], found[2]) if found[2] else (found[3], found[4])
    budget.charge(len(inner) * int(count) - len(found[0]))
    return inner * int(count)


def uneven_stages(
    layers: int, pp: int, chunks: int, first: int | None, last: int | None
) -> tuple[int, ...]:
    """The layers of each chunk where the first or last stage has its own number of layers: the
    others share the rest evenly, and a stage's layers are split evenly over its chunks.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py,
    get_num_layers_to_build.

    >>> uneven_stages(61, 4, 1, 15, 14)
    (15, 16, 16, 14)
    """
    between = pp - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // max(between, 1)
    stages = [first] * (first is not None) + [each] * between + [last] * (last is not None)
    return tuple([(own or 0) // chunks for own in stages] * chunks)
