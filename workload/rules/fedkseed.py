"""FedKSeed's step: every data-parallel replica has a direction of its own; all take all of them.

Of FedKSeed (federated learning: clients train on their own data for some steps, then send what they
have found to a server) this is one round of a single local step in which every client takes part,
as a step of synchronous training can have it. There are K directions for the whole run. Each step
gives each replica one of them, drawn from seed, step and replica; as in MeZO (`mezo.py`) the
replica compares its losses along it, on its own part of the batch. Replicas then exchange their
projected gradients and losses, 8 bytes each in fp32, and every one of them adds up the directions
of all: w <- w - lr (mean of g_r z_r + decay w). Which direction a replica has follows from seed and
step, so numbers of directions are not sent. Since there are but K, all updates of a run are K sums
of scalars, from which anybody who has the first weights could make the last ones.

Replicas round what they move each in its own way, and would drift apart. So there is a master copy
of every parameter, which the passes leave alone; an update moves it along each direction in turn,
as the paper's clients do to rebuild the model: as many passes over it as there are replicas, or K
if that is less.

Source: Qin et al., Federated Full-Parameter Tuning of Billion-Sized Language Models with
Communication Cost under 18 Kilobytes (2312.06353), sections 4.1 and 4.2; zhenqincn/FedKSeed,
README.md (K). Left out of it: several local steps, a server and clients that stay away, the
probabilities of seeds (FedKSeed-Pro), weights by the clients' data, and the K sums themselves.
"""

from __future__ import annotations

from workload.plan_fields import PlanFields
from workload.rules import zeroth_order
from workload.rules.mezo import EPS
from workload.rules.rule import Update, UpdateRule, ZerothOrder

CANDIDATES = 1024  # K


def refusal(plan: PlanFields) -> str:
    """Replicas that share their parameters cannot move them in different directions."""
    if plan.zero and plan.dp > 1:
        return (
            f"moves the parameters of each replica in a direction of its own, so zero={plan.zero} "
            "cannot shard them; use zero=0"
        )
    if plan.training.offload == "optimizer":
        return "reads its master copies in every pass, so offload=optimizer cannot move them"
    return zeroth_order.refusal(plan)


UPDATE = Update(zeroth_order.UPDATE, ())
RULE = UpdateRule(
    name="fedkseed-step",
    words="MeZO in a direction for each replica, of which scalars are exchanged",
    source="Qin et al., Communication Cost under 18 Kilobytes (2312.06353)",
    matrices=UPDATE,
    others=UPDATE,
    refusal=refusal,
    zeroth_order=ZerothOrder(EPS, CANDIDATES),
)
