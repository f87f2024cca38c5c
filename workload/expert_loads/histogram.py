"""A model whose tokens choose its experts as a measured histogram says, not all equally often.

Letters: p ranks hold different experts of a layer, E / p neighbouring ones each; c_e is how often
expert e was chosen, C the sum over all experts. Every rank sends as many rows, S, and of them the
share that the histogram says to each expert; so of p S rows in all a rank gets p S sum(c_e) / C,
over its own experts, and the one with most is waited for in both all-to-alls of every layer.
Not modelled: that ranks and micro-batches differ in what their tokens choose.
"""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from topologies.records import record
from workload.gpt import GPT
from workload.models import moe
from workload.models.mtp import every_layer
from workload.plan_fields import PlanFields

Counts = tuple[int, ...]


@record
class Histogram:
    """How often each expert of each layer was chosen, by the layer's number in the whole model; a
    layer without experts has none. A module for a second token counts as the layer behind the
    last."""

    layers: tuple[Counts, ...]

    def of_layer(self, layer: int) -> Counts:
        """How often the experts of a layer were chosen."""
        return self.layers[layer]

    def of_ranks(self, layer: int, ranks: int) -> Counts:
        """How often the experts of each of so many ranks were chosen.

        >>> Histogram(((4, 2, 1, 1),)).of_ranks(0, 2)
        (6, 2)
        """
        own = self.layers[layer]
        each = len(own) // ranks
        return tuple(sum(own[first : first + each]) for first in range(0, len(own), each))

    def over_mean(self, layer: int, ranks: int) -> float:
        """The most rows of a rank, over the mean of all.

        >>> Histogram(((4, 2, 1, 1),)).over_mean(0, 2)
        1.5
        """
        found = self.of_ranks(layer, ranks)
        return max(found) * ranks / sum(found)


@record
class LeastUneven(Histogram):
    """That of any layer where it is no more uneven than each of these, over ranks of any number."""

    def of_layer(self, layer: int) -> Counts:
        """Nothing: it is the same in all layers."""
        return ()

    def of_ranks(self, layer: int, ranks: int) -> Counts:
        """How often the experts of each of so many ranks were chosen in the layer whose busiest
        rank has the smallest share of the choices.

        >>> LeastUneven(((4, 2, 1, 1), (3, 2, 3, 1))).of_ranks(9, 2)
        (5, 4)
        """
        every = [Histogram.of_ranks(self, number, ranks) for number in range(len(self.layers))]
        return min(every, key=lambda own: Fraction(max(own), sum(own)))


@record(kw_only=True)
class RoutedGPT(GPT):
    """A model with the histogram by which its tokens choose experts."""

    histogram: Histogram


def routed(gpt: GPT, histogram: Histogram) -> RoutedGPT:
    """The model with a histogram."""
    return RoutedGPT(**_fields(gpt), histogram=histogram)


def balanced(gpt: GPT) -> GPT:
    """The model whose experts are chosen equally often."""
    return GPT(**_fields(gpt)) if isinstance(gpt, RoutedGPT) else gpt


def least_uneven(gpt: GPT) -> GPT:
    """The model with the histogram, if it has one, that is no more uneven than that of any layer,
    in all of them: a layer's busiest rank has as many rows there, or fewer."""
    if not isinstance(gpt, RoutedGPT):
        return gpt
    return replace(gpt, histogram=LeastUneven(different_counts(gpt)))


def different_counts(gpt: RoutedGPT) -> tuple[Counts, ...]:
    """The different ways in which the experts of a layer are chosen."""
    return tuple(dict.fromkeys(filter(None, gpt.histogram.layers)))


def _fields(gpt: GPT) -> dict[str, Any]:
    return {field.name: getattr(gpt, field.name) for field in fields(GPT)}


def counts_of(gpt: GPT, layer: int) -> Counts:
    """What tells a layer of a model from others beside its kind: how often each expert is chosen,
    where that is known."""
    return gpt.histogram.of_layer(layer) if isinstance(gpt, RoutedGPT) else ()


def most_rows(gpt: GPT, layer: int, rows: int, ranks: int) -> int:
    """The rows that come to the rank with most of them, of so many that each of the ranks sends.

    >>> from workload.gpt import find_model
    >>> most_rows(find_model("mixtral-8x7b"), 0, 100, 4)
    100
    """
    if not isinstance(gpt, RoutedGPT):
        return rows
    found = gpt.histogram.of_ranks(layer, int(ranks))
    return -(-rows * ranks * max(found) // sum(found))


def dispatched_tokens(gpt: GPT, plan: PlanFields) -> int:
    """The tokens of a micro-batch that a rank dispatches to a layer's experts."""
    rows = plan.mbs * gpt.sequence // plan.cp
    return rows * plan.expert_parts // plan.tp


def dispatched_rows(gpt: GPT, plan: PlanFields) -> int:
    """The rows that it sends, without a capacity."""
    return dispatched_tokens(gpt, plan) * gpt.moe.topk


def expert_layers(gpt: GPT) -> list[int]:
    """The layers with experts, that of a module for a second token among them."""
    every = every_layer(gpt)
    return [layer for layer in every if moe.has_experts(gpt, layer)]
