"""AxoNN's communication model, by which its users rank grids: to be compared with the simulator.

Letters: k x n is a linear's weight, m the rows of one replica's batch before z splits them.
Source: Singh et al. (AxoNN, SC24), section 4: rings, bandwidth alone. It knows no compute,
no overlap, no latency and no memory. Where a group spans nodes its rings share the NICs; here
each group has the bandwidth of the machine's own rings with all groups of its axis active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.ranks.classes import Fabric
from workload.gpt import GPT
from workload.grid import WITHIN_STAGE, Grid
from workload.models import latent_attention
from workload.op import ITEM_BYTES
from workload.plan import Plan


def communication_s(gpt: GPT, plan: Plan, rates: Mapping[str, float]) -> float:
    """The model's time of all communication of a step, given each axis' bytes/s.

    Weights are gathered and gradients scattered in every micro-batch; with recomputation forward
    passes count twice.
    """
    again = 2 if plan.training.recompute == "full" else 1
    rows = plan.batch // plan.dp * gpt.sequence
    total = 0.0
    for k, n, transposed in _linears(gpt):
        x, y = (plan.y, plan.tp) if transposed else (plan.tp, plan.y)
        rate_x, rate_y = (rates["y"], rates["tp"]) if transposed else (rates["tp"], rates["y"])
        weight, z, replicas = k * n, plan.z, plan.dp
        gathers = plan.micro_batches * (1 + again)
        total += gathers * (z - 1) / z * weight / (x * y) / rates["z"]
        total += plan.micro_batches * (z - 1) / z * weight / (x * y) / rates["z"]
        total += again * 2 * (y - 1) / y * rows * n / (z * x) / rate_y
        total += 2 * (x - 1) / x * rows * k / (z * y) / rate_x
        total += 2 * (replicas - 1) / replicas * weight / (x * y * z) / rates["dp"]
    return gpt.layers * total * ITEM_BYTES[plan.training.precision]


def _linears(gpt: GPT) -> list[tuple[int, int, bool]]:
    """Input and output width of a layer's linears, and whether x and y change places."""
    return [
        *_into_core(gpt),
        (gpt.context_width, gpt.hidden, True),
        (gpt.hidden, sum(gpt.up_bands), False),
        (gpt.ffn, gpt.hidden, True),
    ]


def _into_core(gpt: GPT) -> list[tuple[int, int, bool]]:
    """The linears before the attention core; of latent attention those that lead up, whose weights
    alone x splits."""
    if not gpt.latent.kv_rank:
        return [(gpt.hidden, sum(gpt.first_bands), False)]
    queries = (gpt.latent.q_rank or gpt.hidden, gpt.bands[0], False)
    return [queries, (gpt.latent.kv_rank, sum(latent_attention.up_bands(gpt)), False)]


def rates_of(fabric: Fabric, grid: Grid) -> dict[str, float]:
    """Each axis' bytes/s while all its groups are active: that of its slowest."""
    found = {}
    for axis in WITHIN_STAGE:
        rings: Sequence[Any] = fabric.rings([grid.groups(axis)])[0][0]
        found[axis] = min(ring.bytes_per_s for ring in rings)
    return found
