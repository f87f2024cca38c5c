"""All mixers, and which of them each layer has."""

from __future__ import annotations

from workload.gpt import GPT
from workload.lowering.layers.mixer import Mixer
from workload.lowering.layers.mixers import attention, latent_attention, mamba2, mlp
from workload.lowering.layers.mixers.experts import mixture
from workload.models import moe
from workload.models.pattern import ATTENTION, EXPERTS, MAMBA, MLP, mixer_of

BY_LETTER = {
    MAMBA: mamba2.MIXER,
    ATTENTION: attention.MIXER,
    MLP: mlp.MIXER,
    EXPERTS: mixture.MIXER,
}


def mixers_of(gpt: GPT, layer: int) -> tuple[Mixer, ...]:
    """The mixers of a layer's sublayers, in their order."""
    if letter := mixer_of(gpt, layer):
        return (BY_LETTER[letter],)
    first = latent_attention.MIXER if gpt.latent.kv_rank else attention.MIXER
    return first, mixture.MIXER if moe.has_experts(gpt, layer) else mlp.MIXER


def every_mixer(gpt: GPT) -> tuple[Mixer, ...]:
    """The different mixers of a model, in the order of its layers."""
    return tuple(dict.fromkeys(each for n in range(gpt.layers) for each in mixers_of(gpt, n)))
