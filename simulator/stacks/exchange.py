"""What a dispatcher of experts sends: a row for each expert, or once what several of them get.

Letters: E experts, k of them for each token, over P parts of a group of ranks.
"""

from __future__ import annotations

import math

from topologies.machine import Machine
from workload.dispatchers.table import ONCE as ONCE_PER_NODE
from workload.dispatchers.table import USUAL
from workload.gpt import GPT
from workload.plan import Plan

EACH, ONCE, OWN = EXCHANGES = "each", "once", "own"


def sends_once(plan: Plan, exchange: str) -> bool:
    """Whether a token goes once to each node, on a stack whose own exchange is this."""
    usual = exchange == ONCE and plan.dispatcher == USUAL
    return plan.expert > 1 and (usual or plan.dispatcher == ONCE_PER_NODE)


def sends_own_rows(plan: Plan, exchange: str) -> bool:
    """Whether ranks of x that have parts of the same experts send their own rows to these
    (`workload/passes/exchanges/own_rows.py`), on a stack whose own exchange is this."""
    return exchange == OWN and not sends_once(plan, exchange)


def share_sent_once(gpt: GPT, plan: Plan, machine: Machine) -> float:
    """The share of a row for each expert that is left where a token goes once to each node, and is
    copied there, or, in a group within a node, once to each rank.

    A part holds E/P of the experts, and none of a token's k by C(E - E/P, k) / C(E, k) where every
    choice is equally likely; so P (1 - that) copies are sent for k. Source: DeepSeek-V3
    (2412.19437), section 3.2.2, and github.com/deepseek-ai/DeepEP: through the network once to a
    node, then over NVLink. Not modelled: what their kernels save besides, and that links within
    nodes carry all copies, which is hidden behind the network.

    >>> from topologies.machine_files import load_machine
    >>> from workload.gpt import find_model
    >>> gpt = find_model("mixtral-8x7b")
    >>> plan = Plan(data=16, expert=8, batch=16, micro_batch=1)
    >>> round(share_sent_once(gpt, plan, load_machine("dgx-h100")), 3)
    1.0
    """
    if plan.expert == 1 or not gpt.experts:
        return 1.0
    inner = 1 if plan.experts_over_x else plan.x * plan.y * plan.z
    within = max(machine.devices_per_node // inner, 1)
    parts = plan.expert if plan.expert <= within else -(-plan.expert // within)
    apart = gpt.experts - gpt.experts // parts
    none = math.comb(apart, gpt.topk) / math.comb(gpt.experts, gpt.topk)
    return round(min(parts * (1 - none) / gpt.topk, 1.0), 6)
