"""What an update rule is: states of parameters, and what it cannot do."""

from __future__ import annotations

from collections.abc import Callable

from topologies.records import record
from workload.plan_fields import PlanFields


def _nothing(_: PlanFields) -> str:
    return ""


@record
class Update:
    """How some parameters of an owner are updated, by the `name` under which
    `workload/lowering/updates/table.py` has its ops.

    `states` are what is kept of each from step to step, each as large as a rank's part of the
    parameter and of the wide precision.
    """

    name: str
    states: tuple[str, ...]


@record
class ZerothOrder:
    """How a rule compares losses in place of a backward pass.

    A step runs two forward passes, with all parameters moved by `eps` along a direction z of
    standard normal numbers and by as much against it. Without `candidates` z is new in every step
    and the same on all ranks; with them, each replica takes one of so many directions for itself.
    """

    eps: float
    candidates: int = 0


@record
class UpdateRule:
    """A rule of the table.

    `matrices` is how the weights of the layers' linears are updated, `others` how everything else
    is: tables, positions, norms and biases. `refusal` says of a plan in one sentence why the rule
    cannot run it, or nothing. A rule that works `in_backward` updates weights and tables as soon as
    their gradients are there, has neither gradients nor master copies of them, and does not clip.
    One of `zeroth_order` has none of any parameter; scalars stand in their place.
    """

    name: str
    words: str
    source: str
    matrices: Update
    others: Update
    refusal: Callable[[PlanFields], str] = _nothing
    in_backward: bool = False
    zeroth_order: ZerothOrder | None = None

    @property
    def passes(self) -> int:
        """How many forward passes over the batch a step makes."""
        return 2 if self.zeroth_order else 1

    @property
    def sums_gradients(self) -> bool:
        """Whether gradients of all parameters are there at the end of a step: their norm is clipped
        then, and in bf16 they train master copies."""
        return not (self.in_backward or self.zeroth_order)

    def trains_masters(self, precision: str) -> bool:
        """Whether parameters have master copies that are not moved or rounded with them."""
        if self.zeroth_order:
            return bool(self.zeroth_order.candidates)
        return precision == "bf16" and self.sums_gradients

    @property
    def has_states(self) -> bool:
        """Whether anything beside the parameters is kept from step to step."""
        return bool(self.matrices.states or self.others.states)
