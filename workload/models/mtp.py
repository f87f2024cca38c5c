"""Multi-token prediction: a module behind the last layer that predicts the token after the next,
and further ones behind it, each one token more.

Letters: h is the width of the residual stream, V the vocabulary, s the sequence, D the depths
(`mtp_layers`). A depth joins the norms of the stream behind the one before (or the last layer) and
of the next token's embedding, a linear makes h columns of the 2 h, layers follow: one of the kind
that would come next or, behind a hybrid, those of `mtp_pattern`; then a norm and the model's own
classifier. Its loss, divided by all s tokens though the last ones have none, counts 1 / D of
`mtp_loss`. With `mtp_shared` all depths have the parameters of the first one.
Sources: DeepSeek-V3 (2412.19437), section 2.2, equations 21 to 25; norms as in the released
checkpoint; Megatron-Core, transformer/multi_token_prediction.py, `mtp_use_repeated_layer`, and the
letters behind `/` of its hybrid layer pattern. What the paper calls the main model's representation
is the stream here, before the model's last norm, and so it is from depth to depth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from workload.model.fields import ModelFields
from workload.model.mtp import MOST_DEPTHS, Mtp

Fields = TypeVar("Fields", bound=ModelFields)


def without(gpt: Fields) -> Fields:
    """The model without the module."""
    return replace(gpt, mtp=Mtp())


def layers_each(gpt: ModelFields) -> int:
    """How many layers a depth has."""
    return len(gpt.mtp.pattern) or 1


def every_layer(gpt: ModelFields) -> range:
    """The numbers of all layers, those of the depths behind the model's own.

    >>> from workload.gpt import find_model
    >>> len(every_layer(find_model("nemotron-3-super")))
    92
    """
    return range(gpt.layers + gpt.mtp.layers * layers_each(gpt))


def numbers(gpt: ModelFields, depth: int) -> range:
    """The numbers of the layers of a depth; the first depth is 0."""
    first = gpt.layers + depth * layers_each(gpt)
    return range(first, first + layers_each(gpt))


def depths_held(gpt: ModelFields) -> int:
    """How many depths have parameters of their own."""
    return min(gpt.mtp.layers, 1) if gpt.mtp.shared else gpt.mtp.layers


def with_own_layers(gpt: Fields, depths: int) -> Fields:
    """The model with the layers of so many depths of the module as its own, and no module."""
    more, letters = depths * layers_each(gpt), gpt.pattern + depths * gpt.mtp.pattern
    return replace(without(gpt), layers=gpt.layers + more, pattern=letters)


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's module, in words that follow the model's name."""
    if not gpt.mtp.layers:
        return [f"{said} needs mtp_layers" for said in gpt.given_of("mtp")]
    found, has = [], f"mtp_layers={gpt.mtp.layers}"
    if gpt.mtp.layers > MOST_DEPTHS or gpt.mtp.layers >= gpt.sequence:
        most = min(MOST_DEPTHS, gpt.sequence - 1)
        found.append(f"{has} must be 0 to {most}: so many further tokens are predicted")
    if not gpt.mtp.loss > 0:
        found.append(f"mtp_loss={gpt.mtp.loss} must be above 0")
    if gpt.positions == "learned":
        found.append(f"{has} needs positions of the layers, not positions=learned")
    for key in ("embedding_norm", "dropout", "goldfish_k"):
        if gpt.value(key):
            found.append(f"{has} cannot be combined with {key}")
    if gpt.pattern and not gpt.mtp.pattern:
        found.append(f"{has} behind a pattern needs mtp_pattern, the letters of a depth's layers")
    if gpt.mtp.pattern and not gpt.pattern:
        found.append(f"mtp_pattern={gpt.mtp.pattern} needs pattern")
    for key in ("expert_every", "global_every"):
        if gpt.mtp.shared and gpt.value(key) > 1:
            found.append(f"mtp_shared=true needs equal depths, not {key}")
    return found
