"""The `config.json` beside published weights: read, it must describe what the program computes;
written, it is what transformers loads an exported model by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.errors import WeightsError
from executor.published.names import GPT2, Family, family_of
from topologies.files.printable import path_shown, shown
from topologies.files.reading import UserFile
from workload.gpt import GPT
from workload.models.described import Described
from workload.models.hugging_face import is_config, model_from_config

CONFIG = "config.json"
CONFIG_FILE = UserFile("config", WeightsError)
NORM_EPS = 1e-5  # of the norms' kernels
Document = dict[str, Any]
# What a config must say of the function, since the program computes it in one way: the values, and
# the one that transformers takes where a key is absent.
COMPUTED: Mapping[str, Mapping[str, tuple[tuple[Any, ...], Any]]] = {
    "gpt2": {
        "layer_norm_epsilon": ((NORM_EPS,), 1e-5),
        "activation_function": (("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_new"),
        "scale_attn_weights": ((True,), True),
        "scale_attn_by_inverse_layer_idx": ((False,), False),
    },
    "llama": {"rms_norm_eps": ((NORM_EPS,), 1e-6)},
    "mistral": {"rms_norm_eps": ((NORM_EPS,), 1e-6)},
}
BEYOND = {
    "qkv": "biases of queries, keys and values alone",
    "qkvo": "biases of the attention alone",
    "mlp": "biases of the MLP alone",
    "head_norms": "norms of queries and keys",
}
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}


def config_beside(folder: Path) -> Document | None:
    """The config in a folder; None where there is no such file."""
    path = folder / CONFIG
    if not path.exists():
        return None
    document = CONFIG_FILE.document(path)
    if not is_config(document):
        raise WeightsError(f"{path_shown(path)} is no config of Hugging Face: it names no model")
    return dict(document)


def check_config(document: Document, gpt: GPT, folder: Path) -> None:
    """Refuse weights whose config describes another function than the model's program computes.

    The sequence may be another: a table of learned positions is cut, and RoPE has none.
    """
    origin = path_shown(folder / CONFIG)
    described = model_from_config(document, origin, name="")
    for what in described.beyond:
        raise WeightsError(f"{origin}: the model has {BEYOND[what]}, which simgpt does not train")
    for name, theirs, ours in _fields(described.gpt, gpt):
        if theirs != ours:
            raise WeightsError(f"{origin} has {name}={theirs}, but {gpt.name} has {name}={ours}")
    _check_computed(document, described, origin)
    for note in described.notes:
        if note.above and gpt.sequence > note.above:
            raise WeightsError(
                f"{origin}: the attention's window of {note.above} tokens is not trained; give "
                f"--model-set sequence={note.above} or less"
            )


def _fields(theirs: GPT, ours: GPT) -> Iterator[tuple[str, Any, Any]]:
    """The fields that weights depend on, of both models."""
    names = ["layers", "hidden", "heads", "key_heads", "width", "ffn", "vocab", "tied"]
    names += ["norm", "activation", "positions", "biases"]
    names += ["rope_base"] if ours.positions == "rope" else []
    words = {"key_heads": "kv_heads", "width": "head_width"}
    for name in names:
        yield words.get(name, name), getattr(theirs, name), getattr(ours, name)


def _check_computed(document: Document, described: Described, origin: str) -> None:
    family = described.gpt.source.rpartition(" ")[2]
    for key, (allowed, absent) in COMPUTED[family].items():
        value = document.get(key, absent)
        if value not in allowed:
            raise WeightsError(
                f"{origin}: {key} = {shown(value)} is not what simgpt computes, {allowed[0]} is"
            )
    for key in ("rope_scaling", "rope_parameters"):
        rope = document.get(key) or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else ""
        if kind != "default" or rope.get("partial_rotary_factor", 1) != 1:
            raise WeightsError(f"{origin}: {key} = {shown(rope)} is not computed: RoPE is plain")


def config_of(gpt: GPT, precision: str, source: Document | None) -> Document:
    """The config of a model's exported weights: that of the weights it started from, `source`, with
    what a run may change; without one, all that the model says."""
    family = family_of(gpt)
    own = _gpt2(gpt) if family == GPT2 else _llama(gpt)
    if source is None:
        own = {**_named(family), **own, "bos_token_id": None, "eos_token_id": None}
    else:
        # transformers 4 looks for RoPE's base at the top alone.
        changed = ("n_positions", *DROPOUTS) if family == GPT2 else ("rope_theta",)
        own = {**source, **{key: own[key] for key in changed}}
        for key in ("dtype", *(["max_position_embeddings"] if family == GPT2 else [])):
            own.pop(key, None)
    return {**own, "torch_dtype": _DTYPES[precision]}


def _named(family: Family) -> Document:
    classes = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
    return {"architectures": [classes[family.name]], "model_type": family.name}


def _gpt2(gpt: GPT) -> Document:
    return {
        "n_layer": gpt.layers,
        "n_embd": gpt.hidden,
        "n_head": gpt.heads,
        "n_inner": gpt.ffn,
        "n_positions": gpt.sequence,
        "vocab_size": gpt.vocab,
        "tie_word_embeddings": gpt.tied,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPS,
        **dict.fromkeys(DROPOUTS, gpt.dropout),
    }


def _llama(gpt: GPT) -> Document:
    return {
        "num_hidden_layers": gpt.layers,
        "hidden_size": gpt.hidden,
        "num_attention_heads": gpt.heads,
        "num_key_value_heads": gpt.key_heads,
        "head_dim": gpt.width,
        "intermediate_size": gpt.ffn,
        "max_position_embeddings": gpt.sequence,
        "vocab_size": gpt.vocab,
        "tie_word_embeddings": gpt.tied,
        "rope_theta": gpt.rope_base,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "attention_bias": gpt.biases,
        "mlp_bias": gpt.biases,
    }
