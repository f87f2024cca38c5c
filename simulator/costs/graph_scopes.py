"""What the host issues of a layer where parts of it are captured in CUDA graphs.

A captured part is issued by one call in each pass. Scopes are those of Megatron-Core: attention,
the router with what stands before it (and shared experts, where no exchange hides them), the
counting of tokens behind it, or the whole step; "mamba", of layers of that kind, goes with that of
attention. Source: NVIDIA/Megatron-LM,
megatron/core/transformer/cuda_graphs.py and pull request 1917 (cuda_graph_scope).
"""

from __future__ import annotations

from workload.op import COUNTING, MIXER, ROUTING, Op

ATTENTION, ROUTER, PREPROCESS, WHOLE = SCOPES = (
    "attn",
    "moe_router",
    "moe_preprocess",
    "full_iteration",
)
# Of a module for further tokens the layer alone is captured (`AROUND_DEPTH` is not).
SCOPE_OF = {MIXER: ATTENTION, ROUTING: ROUTER, COUNTING: PREPROCESS}  # modules of a layer
FIRST = {ATTENTION: ("norm1", "norm1.grad"), ROUTER: ("router.matmul", "router.grad.input")}


def issued(op: Op, graphs: tuple[str, ...]) -> int:
    """How many calls of the host an op takes: its kernels, or none behind the first op of a graph.

    >>> issued(Op("m0.l3.attention", "attention", (), (), label="attention"), ("full_iteration",))
    0
    """
    if not graphs or not op.launches:
        return op.launches
    if WHOLE in graphs:
        return 0
    if not _is_captured(op, graphs):
        return op.launches
    replayed = ATTENTION if ATTENTION in graphs else ROUTER
    return int(op.label in FIRST[replayed])


def _is_captured(op: Op, graphs: tuple[str, ...]) -> bool:
    return op.block.part.is_layer and SCOPE_OF.get(op.module) in graphs
