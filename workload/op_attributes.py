"""Attributes of ops: what a kernel must know beyond its operands, each with its type.

Sizes are those of one rank. Which kinds have which is the matter of the modules that emit them;
here is what a name means wherever it stands.
"""

from __future__ import annotations

from typing import Any, TypedDict

from workload.transport import Transport


class Attributes(TypedDict, total=False):
    """The attributes of an op, by name; none is there that is not said."""

    # Matrix products: C (m x n) = A B, each operand as its form says, `count` of them.
    form: str
    m: int
    n: int
    k: int
    count: int
    operands: tuple[str, ...]  # of unfused attention: which bands it multiplies
    scaled: bool
    weights: tuple[float, ...]  # of a product that is added: the factors of both
    align: int  # rows are padded to so many
    even: bool  # all experts have equally many rows
    each: int  # rows of each expert, where counts have no values
    blocks: tuple[tuple[int, int], ...]
    formats: tuple[str, ...]

    # Attention: heads, their width, the sequence, and which keys a query sees.
    heads: int
    kv_heads: int
    width: int
    value_width: int
    rope_width: int
    sequence: int
    sequences: int
    window: int
    causal: bool
    alibi: bool
    sinks: bool
    documents: str
    document: int
    context: str  # how keys come to a part of a sequence: ring, all_gather, ulysses
    over: tuple[str, ...]
    spread: tuple[str, ...]
    step: int
    queries: int
    queries_alone: bool
    busiest: float
    longest: float
    base: int  # of rotary positions
    scaling: Any  # how rotary positions are scaled, or the scales of a cast
    bands: tuple[int, ...]

    # Rows of activations, and where they lie.
    rows: int
    row_parts: int
    columns: int
    groups: int
    tokens: int
    vocab: int
    chunk: int
    state: int
    start: tuple[int, ...]  # the first row of a chunk
    first_head: int
    place: str  # what tells a mask of dropout from others
    rate: float
    eps: float
    first: bool  # it overwrites what others add to

    # Experts: routing, and rows on their way.
    topk: int
    topk_groups: int
    router: str
    factor: float
    coefficient: float
    parts: int
    run: int
    runs: int
    local: int
    places: int
    choices: int
    steps: int
    transport: Transport
    for_nodes: str
    places_searched: int
    elements: int
    counted_as: str
    kernels: int

    # Casts to 8 or 4 bits.
    operand: str
    slot: int
    sent: bool
    length: int
    largest: tuple[float, ...]
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    expert_axes: tuple[str, ...]
    gathered_axes: tuple[str, ...]

    # Loss.
    masked: bool
    weight: float
    ahead: int
    h: int

    # The update, whose operands belong to several parameters.
    parameters: tuple[str, ...]
    decays: tuple[bool, ...]
    copied: tuple[bool, ...]
    shares: tuple[float, ...]
    flat: tuple[Any, ...]
    momentum: float
    split: tuple[Any, ...]
    tiled: tuple[Any, ...]
    on_side: tuple[bool, ...]  # which matrices are taller than wide
    cuts: tuple[Any, ...]
    candidates: int
    directions: int
    scale: float
    back: float
    reduction: str

    # Messages between stages.
    tag: str
    peer: int
    link: int
    turned: bool
