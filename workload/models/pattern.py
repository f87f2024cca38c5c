"""Which mixer each layer has, by a letter for each layer: `M` Mamba-2, `*` attention, `-` an MLP,
`E` experts.

A layer of a hybrid is a norm, one mixer and the addition to the residual stream; a transformer's
layer has two of these, attention and an MLP. Source: NVIDIA, Nemotron-H (2504.03624), section 2.1;
the letters are those of Megatron-Core's hybrid layer pattern.
"""

from __future__ import annotations

from workload.model.fields import KEYS, ModelFields

MAMBA, ATTENTION, MLP, EXPERTS = MIXERS = "M", "*", "-", "E"
SAID_BY_LETTERS = ("dense_layers", "expert_every")
WITHOUT = (  # fields whose parts only layers of attention and MLP together have here
    *("biases", "qkv_bias", "dropout", "kv_rank", "window", "sinks"),
    *SAID_BY_LETTERS,
)


def mixer_of(gpt: ModelFields, layer: int) -> str:
    """The letter of a layer, by its number in the whole model, behind whose last one those of
    modules for further tokens count on; "" of a transformer's.

    >>> from workload.gpt import find_model
    >>> [mixer_of(find_model("nemotron-3-nano"), layer) for layer in range(6)]
    ['M', 'E', 'M', 'E', 'M', '*']
    """
    if gpt.mtp.pattern and layer >= gpt.layers:
        return gpt.mtp.pattern[(layer - gpt.layers) % len(gpt.mtp.pattern)]
    return gpt.pattern[layer] if gpt.pattern else ""


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's pattern, in words that follow the model's name."""
    if not gpt.pattern:
        return [f"{said} needs pattern" for said in gpt.given_of("mamba2")]
    unknown = sorted(set(gpt.pattern) - set(MIXERS))
    if unknown:
        return [f"pattern has {unknown[0]!r}, and the letters of layers are {' '.join(MIXERS)}"]
    if further := sorted(set(gpt.mtp.pattern) - set(gpt.pattern)):
        return [f"mtp_pattern has {further[0]!r}, of which pattern has no layer"]
    found = []
    if len(gpt.pattern) != gpt.layers:
        found.append(f"pattern has {len(gpt.pattern)} letters for layers={gpt.layers}")
    for key in WITHOUT:
        none = False if key == "biases" else KEYS[key].default
        if gpt.value(key) != none:
            instead = str(none).lower()
            found.append(f"{gpt.said(key)} cannot be combined with pattern; give {key}={instead}")
    if (EXPERTS in gpt.pattern) != bool(gpt.moe.experts):
        found.append(f"experts={gpt.moe.experts} needs layers E in pattern")
    return found + (_wrong_sizes(gpt) if MAMBA in gpt.pattern else [])


def _wrong_sizes(gpt: ModelFields) -> list[str]:
    found = [
        f"pattern has layers M, which need {key}"
        for key in ("ssm_heads", "ssm_width", "ssm_state")
        if not gpt.value(key)
    ]
    if gpt.mamba2.heads % gpt.mamba2.groups:
        found.append(f"ssm_groups={gpt.mamba2.groups} does not divide ssm_heads={gpt.mamba2.heads}")
    return found
