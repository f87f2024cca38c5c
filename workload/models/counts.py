"""Parameters and FLOPs of a model, by the published formulas."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from topologies.records import record
from workload.model.fields import ModelFields
from workload.models import attention, mamba2, mlp, moe, mtp, windows
from workload.models.mixers import layers_with
from workload.models.pattern import ATTENTION, EXPERTS, MAMBA, MLP

NORMS_OF_MTP = 3  # of a depth: of the embedding, of the stream, before the classifier


Count = Callable[[ModelFields, int], int]


@record
class Counts:
    """Of a layer's mixer, with so many of its experts if it has any: elements of weight matrices,
    and other parameters."""

    weights: Count
    others: Count


def _same(count: Callable[[ModelFields], int]) -> Count:
    return lambda gpt, experts: count(gpt)


MIXERS = {
    ATTENTION: Counts(_same(attention.weights), _same(attention.others)),
    MLP: Counts(_same(mlp.weights), _same(mlp.others)),
    EXPERTS: Counts(moe.weights, moe.others),
    MAMBA: Counts(_same(mamba2.weights), _same(mamba2.others)),
}


def parameters(gpt: ModelFields) -> int:
    """Trained parameters, exactly.

    Source: Narayanan et al. (SC21), eq. 2: 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) for GPT-2's
    layer with ffn = 4 h; here with any mixers, and with the last norm's 2 h that the formula leaves
    out.
    """
    tables = gpt.vocab * (1 if gpt.tied else 2)
    tables += gpt.sequence if gpt.positions == "learned" else 0
    ends = tables * gpt.hidden + _norm(gpt) * (2 if gpt.embedding_norm else 1)
    return _of_mixers(gpt, gpt.moe.experts) + ends + parameters_of_mtp(gpt)


def active_parameters(gpt: ModelFields) -> int:
    """The parameters that one token passes: of the experts `topk`, and of what predicts further
    tokens none."""
    passed, every = (_of_mixers(gpt, count) for count in (gpt.moe.topk, gpt.moe.experts))
    return parameters(gpt) + passed - every - parameters_of_mtp(gpt)


def weights(gpt: ModelFields, experts_each: int) -> int:
    """Elements of all layers' weight matrices, with that many experts where there are any."""
    return sum(
        count * counts.weights(gpt, experts_each)
        for letter, counts in MIXERS.items()
        if (count := layers_with(gpt, letter))
    )


def _of_mixers(gpt: ModelFields, experts_each: int) -> int:
    """Parameters of all layers: of their mixers, each with a norm before it."""
    return weights(gpt, experts_each) + sum(
        count * (counts.others(gpt, experts_each) + _norm(gpt))
        for letter, counts in MIXERS.items()
        if (count := layers_with(gpt, letter))
    )


def _norm(gpt: ModelFields) -> int:
    return gpt.hidden * (2 if gpt.norm_has_bias else 1)


def model_flops(gpt: ModelFields, batch: int) -> int:
    """FLOPs of one step of `batch` sequences, without recomputation.

    Source: Narayanan et al. (SC21), eq. 3 without its recomputation:
    72 B s L h^2 (1 + s/(6 h) + V/(12 L h)) for GPT-2's layer with ffn = 4 h. Attention counts the
    whole square, of all query heads; a window so many keys for each query.
    """
    per_token = _of_layers(gpt) + 2 * gpt.hidden * gpt.vocab
    return int(3 * batch * gpt.sequence * per_token) + model_flops_of_mtp(gpt, batch)


def hardware_flops(gpt: ModelFields, batch: int) -> int:
    """FLOPs of one step with every layer recomputed once in the backward pass.

    Source: Narayanan et al. (SC21), eq. 3: 96 B s L h^2 (1 + s/(6 h) + V/(16 L h)). This is the
    numerator of every "% of peak" that AxoNN publishes.
    """
    again = int(batch * gpt.sequence * _of_layers(gpt))
    again += _of_further_layers(gpt, batch) // 3 if gpt.mtp.layers else 0
    return model_flops(gpt, batch) + again


def parameters_of_mtp(gpt: ModelFields) -> int:
    """Parameters that are the modules' for further tokens alone: the embedding and the classifier
    are the model's."""
    held = mtp.depths_held(gpt)
    if not held:
        return 0
    norms = NORMS_OF_MTP * gpt.hidden * (2 if gpt.norm_has_bias else 1)
    layers = parameters(mtp.with_own_layers(gpt, held)) - parameters(mtp.without(gpt))
    return layers + held * (2 * gpt.hidden**2 + norms)


def model_flops_of_mtp(gpt: ModelFields, batch: int) -> int:
    """The FLOPs of a step of modules for further tokens, without recomputation."""
    if not gpt.mtp.layers:
        return 0
    linears = gpt.mtp.layers * 2 * gpt.hidden * (2 * gpt.hidden + gpt.vocab)
    return _of_further_layers(gpt, batch) + 3 * batch * gpt.sequence * linears


def masked_flops(gpt: ModelFields, batch: int) -> int:
    """Of the FLOPs of a step, without recomputation, those of scores and values that the causal
    mask leaves out: near half of its attention. NVIDIA/Megatron-LM, megatron/training/training.py,
    `num_floating_point_operations`, counts as many less.
    """
    whole = mtp.with_own_layers(gpt, gpt.mtp.layers) if gpt.mtp.layers else gpt
    keys = windows.masked_keys_of_layers(whole)
    return int(3 * 2 * batch * gpt.sequence * keys * (gpt.bands[0] + gpt.context_width))


def _of_further_layers(gpt: ModelFields, batch: int) -> int:
    whole = mtp.with_own_layers(gpt, gpt.mtp.layers)
    return model_flops(whole, batch) - model_flops(mtp.without(gpt), batch)


def _of_layers(gpt: ModelFields) -> int | Fraction:
    """FLOPs of all layers for a token."""
    attention = 2 * windows.keys_of_layers(gpt) * (gpt.bands[0] + gpt.context_width)
    return (
        2 * weights(gpt, gpt.moe.topk)
        + attention
        + layers_with(gpt, MAMBA) * mamba2.scan_flops(gpt)
    )
