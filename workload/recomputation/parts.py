"""Parts of a layer that may run once more in the backward pass, by Megatron-Core's names.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py, recompute_modules.
"""

from __future__ import annotations

from workload.errors import PlanCannotRunError
from workload.gpt import GPT

RECOMPUTES = NONE, SELECTIVE, FULL = "none", "selective", "full"
PER_OP = "per_op"  # all but what chosen ops give (`workload/lowering/layers/per_op.py`)
WORDS = (*RECOMPUTES, PER_OP)
CORE, NORMS, UP, MLP = "core_attn", "layernorm", "mla_up_proj", "mlp"
EXPERTS, ACTIVATION, SHARED = "moe", "moe_act", "shared_experts"
PARTS = {
    CORE: "the core of attention",
    NORMS: "the norms before attention and MLP",
    UP: "what leads up in latent attention, with the norms before and the rotation behind it",
    MLP: "the MLP of layers without experts",
    EXPERTS: "router, dispatch and experts",
    ACTIVATION: "the activation of experts",
    SHARED: "the MLP that all tokens pass",
}


def parts_of(recompute: str) -> frozenset[str]:
    """The parts of a layer that run again, given what a plan recomputes; none where layers do
    whole.

    >>> sorted(parts_of("layernorm+moe_act")), parts_of("selective")
    (['layernorm', 'moe_act'], frozenset({'core_attn'}))
    """
    if recompute == SELECTIVE:
        return frozenset((CORE,))
    return frozenset() if recompute.partition(":")[0] in WORDS else _named(recompute)


def text_refusal(recompute: str, most: int) -> str:
    """Why a text says nothing that runs again; "" if it does. Of layers there are at most so
    many."""
    word, colon, count = recompute.partition(":")
    if word in WORDS:
        counts = count.isdecimal() and len(count) <= len(str(most)) and int(count) > 0
        wrong = colon and not (word == FULL and counts)
        return "must be full:N for the first N layers" if wrong else ""
    named = recompute.split("+")
    if set(named) <= set(PARTS) and len(set(named)) == len(named):
        return ""
    return (
        f"is not supported; use one of {', '.join(WORDS)}, or full:N for the first N layers, "
        f"or parts of layers joined by +: {', '.join(PARTS)}"
    )


def check_runs(recompute: str) -> None:
    """Refuse what no kernel of the executor does."""
    if recompute == PER_OP:
        raise PlanCannotRunError(
            f"recompute={PER_OP} is predicted alone: no kernel of the executor multiplies some "
            "columns again and reads the others; use selective, full or parts of layers"
        )


def model_refusal(gpt: GPT, dense_layers: int, recompute: str) -> str:
    """Why a model has nothing of what a plan recomputes; "" if it has. `dense_layers` have no
    experts."""
    parts = parts_of(recompute)
    has = {
        UP: bool(gpt.latent.kv_rank),
        MLP: dense_layers > 0,
        EXPERTS: gpt.moe.experts > 0,
        ACTIVATION: gpt.moe.experts > 0,
        SHARED: gpt.moe.shared_ffn > 0,
    }
    missing = [part for part in PARTS if part in parts and not has.get(part, True)]
    if missing:
        return f"names {missing[0]}, {PARTS[missing[0]]}, and {gpt.name} has none"
    if EXPERTS in parts and (double := parts & {ACTIVATION, SHARED}):
        return f"names {min(double)}, which {EXPERTS} runs again too; leave one out"
    return ""


def _named(recompute: str) -> frozenset[str]:
    return frozenset(recompute.split("+"))
