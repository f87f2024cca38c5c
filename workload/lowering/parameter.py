"""A parameter's place in the optimizer step."""

from __future__ import annotations

from topologies.records import record
from workload.grid import Axes
from workload.lowering.sharding import Sharding
from workload.op import Part
from workload.rules.rule import Update


@record
class Parameter:
    """A parameter's place in the optimizer step.

    `owner` is the part of the model that is updated with it. `sharded` tells a weight whose
    gradient arrives by reduce-scatter from a small one whose gradient is summed over z and data at
    the end.
    `terms` are the axes beside those of tokens whose ranks each have a part of its gradient's sum.
    `copies` ranks of those that sum the norm hold the same values (they share its square).
    `sharding` says who holds which part of it, if it is sharded.
    Its `update` takes the gradient `reduced` and writes `trained`: the parameter or its master
    copy. With `apart`, ranks update a part of the parameter each and gather it.
    """

    name: str
    owner: Part
    sharded: bool
    copies: int
    decays: bool
    reduced: str
    trained: str
    apart: bool
    update: Update
    sharding: Sharding
    terms: Axes = ()

    @property
    def states(self) -> list[str]:
        """What its update reads and writes beside its gradient: states, and what it trains."""
        return [*(f"{self.name}.{state}" for state in self.update.states), self.trained]
