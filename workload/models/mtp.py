"""Multi-token prediction: a module behind the last layer that predicts the token after the next.

Letters: h is the width of the residual stream, V the vocabulary, s the sequence. The module joins
the norms of the stream behind the last layer and of the next token's embedding, a linear makes h
columns of the 2 h, a layer follows that is of the kind that would come next, then a norm and the
model's own classifier. Its loss, divided by all s tokens though the last has none, is weighed.
Source: DeepSeek-V3 (2412.19437), section 2.2, equations 21 to 25, with depth 1; norms as in the
released checkpoint. What the paper calls the main model's representation is the stream here, before
the model's last norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workload.gpt import GPT

NORMS = 3  # of the embedding, of the stream, before the classifier


def without(gpt: GPT) -> GPT:
    """The model without the module."""
    return replace(gpt, mtp_layers=0)


def parameters(gpt: GPT) -> int:
    """Parameters that are the module's alone: the embedding and the classifier are the model's."""
    if not gpt.mtp_layers:
        return 0
    norms = NORMS * gpt.hidden * (2 if gpt.norm_has_bias else 1)
    return _one_more(gpt).parameters - without(gpt).parameters + 2 * gpt.hidden**2 + norms


def model_flops(gpt: GPT, batch: int) -> int:
    """The module's FLOPs of a step, without recomputation."""
    if not gpt.mtp_layers:
        return 0
    linears = 2 * gpt.hidden * (2 * gpt.hidden + gpt.vocab)
    layer = _one_more(gpt).model_flops(batch) - without(gpt).model_flops(batch)
    return layer + 3 * batch * gpt.sequence * linears


def recomputed_flops(gpt: GPT, batch: int) -> int:
    """Those that recomputation of its layer adds."""
    if not gpt.mtp_layers:
        return 0
    return (_one_more(gpt).model_flops(batch) - without(gpt).model_flops(batch)) // 3


def _one_more(gpt: GPT) -> GPT:
    return replace(gpt, mtp_layers=0, layers=gpt.layers + 1)


def refusals(gpt: GPT) -> list[str]:
    """What is wrong with a model's module, in words that follow the model's name."""
    if not gpt.mtp_layers:
        return []
    found = []
    if gpt.mtp_layers > 1:
        found.append(f"mtp_layers={gpt.mtp_layers} must be 0 or 1: one further token is predicted")
    if not gpt.mtp_loss > 0:
        found.append(f"mtp_loss={gpt.mtp_loss} must be above 0")
    if gpt.positions == "learned":
        found.append("mtp_layers=1 goes with positions of the layers, not with positions=learned")
    for key in ("embedding_norm", "dropout", "goldfish_k"):
        if getattr(gpt, key):
            found.append(f"mtp_layers=1 goes without {key}")
    return found
