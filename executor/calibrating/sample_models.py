"""Small models and plans in whose programs every kernel is that a calibration measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workload.gpt import GPT
from workload.model.fields import KEYS
from workload.plan import Plan
from workload.rules.table import NAMES

# So many that any number of the samples is that of an expert.
EXPERTS: Mapping[str, Any] = {"experts": 256, "topk": 4, "expert_ffn": 16, "router": "softmax"}
# Switches of attention beyond those that other samples have: what they add is measured besides.
SAMPLED = ("qkv_bias", "qk_norm", "sinks")
FURTHER = {
    key: True
    for key, each in KEYS.items()
    if each.part == "attention" and each.kind == "bool" and key not in SAMPLED
}


def models(precision: str, *, quick: bool) -> list[tuple[GPT, Plan]]:
    """One-layer GPTs and Llamas from narrow to wide, whole and as y, z and pipe split them."""
    shapes = [(64, 128, 1), (256, 256, 4), (768, 256, 4)]
    if not quick:
        shapes = [(64, 64, 1), (128, 128, 4), (256, 256, 4), (512, 256, 8), (1024, 512, 8)]
    cells = []
    for hidden, sequence, micro_batch in shapes:
        gpt = GPT.of(
            name=f"sample-{hidden}",
            layers=1,
            hidden=hidden,
            heads=8,
            ffn=4 * hidden,
            sequence=sequence,
            vocab=256,
        )
        llama = replace(gpt, norm="rmsnorm", activation="swiglu", positions="rope", biases=False)
        llama = llama.changed(qk_norm=True)
        for y, z in ((1, 1), (2, 2)):
            batch = 2 * z * micro_batch
            plan = Plan.of(y=y, z=z, batch=batch, mbs=micro_batch, precision=precision)
            cells += [(gpt, plan), (llama, plan)]
        plain = replace(plan, y=1, z=1)
        cells.append((llama.changed(**EXPERTS), plain))
        cells.append((replace(gpt, dropout=0.1), plain.changed(attention="unfused")))
        cells += [(llama.changed(**FURTHER), plain)] if FURTHER else []
        cells.append((_latent(llama), plain))
        # The first of two stages, which alone has no loss.
        cells.append((gpt, plain.changed(pp=2, stage_layers=(0, 1))))
        kinds = ("ring", "all_gather", "ulysses")
        cells += [(gpt, plain.changed(cp=2, context_kind=kind)) for kind in kinds]
        gathered = plain.changed(cp=2, context_kind="all_gather", context_latents=True)
        cells.append((_latent(llama), gathered))
        exchanged = replace(plain, dp=2, batch=2 * batch, ep=2)
        cells.append((llama.changed(**EXPERTS), exchanged))
        cells += _of_routers(llama, plain, exchanged)
        cells += [(each, plain) for each in _of_other_mlps(llama)]
        one = replace(plain, batch=micro_batch)
        cells += [(llama, one.changed(loss_chunks=2)), (llama, one.changed(loss="fused"))]
        cells += [(gpt, one.changed(optimizer=name)) for name in NAMES]
    return cells


def _of_routers(gpt: GPT, plain: Plan, exchanged: Plan) -> list[tuple[GPT, Plan]]:
    """Models and plans in which experts are balanced, drop tokens, or are given all rows."""
    mixture = gpt.changed(**EXPERTS)
    balanced = mixture.changed(router="sigmoid", router_bias=True, balance_loss=0.1, mtp_layers=1)
    dropping = mixture.changed(capacity=1.0)
    return [
        (balanced, plain),
        (mixture, exchanged.changed(dispatcher="all_gather")),
        (dropping, exchanged.changed(dispatcher="sparse")),
        (dropping, exchanged.changed(dispatcher="dense")),
    ]


def _of_other_mlps(gpt: GPT) -> list[GPT]:
    """Models with gpt-oss' MLPs and experts, with the experts of older mixtures, with Mamba-2
    layers, and with the goldfish loss."""
    plain = gpt.changed(qk_norm=False)
    clamped = plain.changed(biases=True, sinks=True, activation="clamped_swiglu")
    mamba = plain.changed(
        **EXPERTS,
        layers=3,
        pattern="M-E",
        positions="none",
        activation="squared_relu",
        ssm_heads=8,
        ssm_width=gpt.hidden // 4,
        ssm_state=16,
        ssm_groups=2,
        ssm_chunk=32,
    )
    return [
        clamped,
        clamped.changed(**EXPERTS),
        gpt.changed(**EXPERTS, activation="gelu"),
        mamba,
        replace(gpt, goldfish_k=3, goldfish_h=2),
    ]


def _latent(gpt: GPT) -> GPT:
    """The model with latent attention, whose core has keys and values of one width."""
    rank, positions = gpt.hidden // 2, gpt.hidden // 16
    width = gpt.width + positions
    latent = gpt.changed(qk_norm=False, q_rank=rank, kv_rank=rank, rope_width=positions)
    return latent.changed(value_width=width)
