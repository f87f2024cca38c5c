"""Megatron-LM's arguments of experts, as fields of a model and a plan, and those as arguments.

Sources of defaults and of what follows: NVIDIA/Megatron-LM, megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/transformer/moe/moe_utils.py
(`topk_routing_with_score_function`) and megatron/core/models/gpt/gpt_layer_specs.py (which layers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.layers import patterns
from simgpt.frameworks.reading import Reading
from simulator.stacks import load_stack
from workload.errors import PlanCannotRunError
from workload.exchange.table import ALL_TO_ALL, IN_MEGATRON, Exchange
from workload.model.experts import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN

TOPK, KIND = 2, "moe-token-dispatcher-type"
SIZES = ("expert-model-parallel-size", "expert-tensor-parallel-size")
CORE = "megatron-core"
BACKEND = "moe-flex-dispatcher-backend"
FLEX = "flex:deepep"  # with its default
AUX = "aux_loss"
BALANCES = (AUX, "seq_aux_loss", "global_aux_loss", "none")
OVER = {AUX: "micro_batch", "seq_aux_loss": "sequence"}  # what a loss of uneven use is over
BIAS_RATE = 1e-3
SHARED = "moe-shared-expert-overlap"
WITHOUT_BIASES = {  # the first in Megatron-LM itself, in moe/shared_experts.py
    "shared_ffn": "moe-shared-expert-intermediate-size",
    "expert_latent": "moe-latent-size",
}
TURNS, LATER = "overlap-moe-expert-parallel-comm", "delay-wgrad-compute"


def read(reading: Reading) -> None:
    """Read which layers have experts, how they are chosen, and which ranks hold them; how many
    there are says the user's model where there is one."""
    experts = int(reading.of_model("experts", reading.number("num-experts")))
    if experts <= 1:
        if not reading.of_model("layers"):  # the model, and its experts, are still to be given
            _read_split(reading)
            _read_dispatcher(reading)
        reading.without("moe-*")
        return
    if reading.switch("deepspeed"):
        why = "experts of DeepSpeed's own layers are not read"
        reading.refuse("num-experts", why)
        return
    fields = reading.fields
    fields |= {"experts": experts, "topk": reading.number("moe-router-topk", TOPK)}
    fields["expert_ffn"] = reading.number("moe-ffn-hidden-size", fields.get("ffn", 0))
    fields["shared_ffn"] = reading.number("moe-shared-expert-intermediate-size")
    fields["expert_latent"] = reading.number("moe-latent-size")
    patterns.read(reading)
    _read_router(reading)
    _read_capacity(reading)
    _read_split(reading)
    _read_dispatcher(reading)
    for field, name in WITHOUT_BIASES.items():
        if fields[field] and fields.get("biases", True):
            fields["biases"] = False
            reading.differs(name, "with it, no linear has a bias")
    if not reading.switch("moe-grouped-gemm") and reading.given("num-experts"):
        reading.differs("moe-grouped-gemm", "the matmuls of a rank's experts are grouped")


def _read_router(reading: Reading) -> None:
    fields, score = reading.fields, reading.text("moe-router-score-function", SOFTMAX)
    before = reading.switch("moe-router-pre-softmax")
    if score not in (SOFTMAX, SIGMOID):
        reading.refuse("moe-router-score-function", f"simgpt knows {SOFTMAX} and {SIGMOID}")
    chosen = SOFTMAX if before else SOFTMAX_OF_CHOSEN
    fields["router"] = SIGMOID if score == SIGMOID else chosen
    fields["router_scale"] = reading.real("moe-router-topk-scaling-factor", 1.0)
    if (groups := reading.number("moe-router-num-groups")) > 1:
        best = reading.number("moe-router-group-topk", groups)
        fields |= {"router_groups": groups, "router_topk_groups": best}
        if fields["topk"] // max(best, 1) != (2 if score == SIGMOID else 1):
            why = "a group stands for its best expert, with sigmoid for its best two"
            reading.differs("moe-router-num-groups", why)
    if reading.switch("moe-router-enable-expert-bias"):
        fields["router_bias"] = True
        fields["router_bias_rate"] = reading.real("moe-router-bias-update-rate", BIAS_RATE)
    _read_balance(reading)


def _read_balance(reading: Reading) -> None:
    """Losses of uneven use, of which simgpt has one."""
    name = "moe-router-load-balancing-type"
    balances = [each.strip("[]',\"") for each in reading.text(name, AUX).split()]
    if any(each not in BALANCES for each in balances):
        reading.differs(name, "tokens are assigned by their scores at once")
        return
    weight = reading.real("moe-aux-loss-coeff", 0.0, least=0)
    losses = set(balances) & set(OVER)
    if len(losses) == 1 and weight > 0:
        reading.fields |= {"balance_loss": weight, "balance_over": OVER[losses.pop()]}
    elif "none" not in balances and weight > 0:
        reading.differs(name, "uneven use adds nothing to the loss")


def _read_capacity(reading: Reading) -> None:
    name = "moe-expert-capacity-factor"
    factor = reading.real(name, 0.0)
    if factor <= 0:  # Megatron takes -1 for none
        return
    reading.fields["capacity"] = factor
    if not reading.switch("moe-pad-expert-input-to-capacity"):
        reading.differs(name, "all places of an expert are filled, or padded")


def _read_split(reading: Reading) -> None:
    """Ranks that hold different experts; `expert_tensor` is the width of one of them."""
    fields, parts = reading.fields, reading.number(SIZES[0], 1, least=1)
    x = fields.get("tp", 1)
    within = reading.number(SIZES[1], x, least=1)
    if parts > 1:
        fields["ep"] = parts
    if within != x:
        fields["etp"] = within


def _read_dispatcher(reading: Reading) -> None:
    """How tokens get to their experts; Megatron's own default counts for files alone that say that
    there are experts."""
    kind = reading.text(KIND, "allgather" if reading.given("num-experts") else "")
    split = reading.fields.get("ep", 1) > 1
    if reading.switch("moe-enable-deepep"):
        kind = "flex"
    flex, _, backend = FLEX.partition(":")
    if kind == flex:
        backend = reading.text(BACKEND, backend)
        known = IN_MEGATRON.get(f"{flex}:{backend}")
        if known is None:
            reading.differs(BACKEND, "tokens are sent once to each node")
    else:
        known = IN_MEGATRON.get(kind)
        why = "tokens are sent to their experts' ranks alone, by all-to-alls"
        if known is None and split and kind:
            reading.differs(KIND, why)
        elif known is None and split:
            reading.differs(SIZES[0], f"{why}, since the files name no dispatcher")
    found = known or (IN_MEGATRON[FLEX] if kind == flex else ALL_TO_ALL)
    if _is_usual(found, once := reading.table["sends_once"]):
        reading.stack = once
    if kind and split and not _is_usual(found, reading.asked_stack or reading.stack):
        reading.fields["dispatcher"] = found.dispatcher


def _is_usual(exchange: Exchange, stack: str) -> bool:
    return exchange.dispatcher == load_stack(stack).usual_exchange.dispatcher


def read_shared(reading: Reading) -> list[str]:
    """The overlap of all-to-alls with the MLP that all tokens pass."""
    fields = reading.fields
    if not reading.switch(SHARED):
        return []
    if fields.get("ep", 1) == 1 or not reading.of_model("shared_ffn"):
        reading.differs(SHARED, "there is nothing to overlap with")
        return []
    return ["shared"]


def read_turns(reading: Reading) -> list[str]:
    """The overlaps of all-to-alls with another micro-batch, and with gradients of weights.

    Megatron-LM refuses the first in a pipeline without virtual stages, and the second alone.
    """
    fields = reading.fields
    turns, later = reading.switch(TURNS), reading.switch(LATER)
    alone = fields.get("pp", 1) > 1 and fields.get("vpp", 1) == 1
    if turns and (fields.get("ep", 1) == 1 or alone):
        why = "there are no virtual stages" if alone else "no all-to-alls of experts are there"
        reading.differs(TURNS, f"nothing runs beside another micro-batch, as {why}")
        turns = False
    if later and not turns:
        reading.differs(LATER, "weight gradients are computed right after the input's")
    return ["a2a"] * turns + ["wgrad"] * (turns and later)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model with experts, and of a plan that splits them."""
    if not fields["experts"]:
        return {}
    _check(fields)
    settings: dict[str, Any] = {
        "num-experts": fields["experts"],
        "moe-router-topk": fields["topk"],
        "moe-ffn-hidden-size": fields["expert_ffn"],
        "moe-grouped-gemm": True,
    }
    if fields["shared_ffn"]:
        settings["moe-shared-expert-intermediate-size"] = fields["shared_ffn"]
    if fields["expert_latent"]:
        settings["moe-latent-size"] = fields["expert_latent"]
    if fields["dense_layers"] or fields["expert_every"] > 1:
        settings[patterns.WHICH] = patterns.pattern_text(fields)
    if fields["router"] == SIGMOID:
        settings["moe-router-score-function"] = SIGMOID
    if fields["router"] == SOFTMAX:
        settings["moe-router-pre-softmax"] = True
    if fields["router_scale"] != 1:
        settings["moe-router-topk-scaling-factor"] = fields["router_scale"]
    settings |= _written_choice(fields)
    if fields["capacity"]:
        settings["moe-expert-capacity-factor"] = fields["capacity"]
        settings["moe-pad-expert-input-to-capacity"] = True
        settings["moe-token-drop-policy"] = "position"
    return settings | _written_split(fields)


def _check(fields: Mapping[str, Any]) -> None:
    """Refuse models that Megatron-LM does not train; of plans its stack says so.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/transformer/transformer_config.py and
    moe/shared_experts.py, which check for it.
    """
    if fields["topk"] == 1 and fields["router"] == SOFTMAX_OF_CHOSEN:
        raise PlanCannotRunError(
            "Megatron-LM has no setting for router=softmax-topk with topk=1, whose scores are all 1"
        )
    if fields["biases"] and fields["shared_ffn"]:
        raise PlanCannotRunError(
            f"Megatron-LM has no biases beside shared_ffn={fields['shared_ffn']}; give biases=false"
        )


def _written_choice(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Groups of experts, and what keeps their use even."""
    settings: dict[str, Any] = {}
    if fields["router_groups"]:
        settings["moe-router-num-groups"] = fields["router_groups"]
        settings["moe-router-group-topk"] = fields["router_topk_groups"]
    if fields["router_bias"]:
        settings["moe-router-enable-expert-bias"] = True
        settings["moe-router-bias-update-rate"] = fields["router_bias_rate"]
    over = {ours: theirs for theirs, ours in OVER.items()}
    if fields["balance_loss"]:
        settings["moe-router-load-balancing-type"] = over[fields["balance_over"]]
        settings["moe-aux-loss-coeff"] = fields["balance_loss"]
    return settings


def notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Which software alone has what is written, where it is not NVIDIA's."""
    where = fields["exchange"].only_in if fields["ep"] > 1 else ""
    return (f"{BACKEND} = {_backend(fields)} is known to {where} alone",) if where else ()


def _backend(fields: Mapping[str, Any]) -> str:
    name, *_ = fields["exchange"].megatron or ALL_TO_ALL.megatron
    return str(name.partition(":")[2])


def _written_split(fields: Mapping[str, Any]) -> dict[str, Any]:
    name, *_ = fields["exchange"].megatron or ALL_TO_ALL.megatron
    settings: dict[str, Any] = {KIND: name.partition(":")[0]}
    if backend := _backend(fields):
        settings[BACKEND] = backend
        settings["moe-router-dtype"] = "fp32"  # which DeepEP sends alone (moe/token_dispatcher.py)
    if fields["ep"] > 1:
        settings[SIZES[0]] = fields["ep"]
    if max(fields["tp"], _within(fields)) > 1:
        settings[SIZES[1]] = _within(fields)
    if "shared" in fields["overlap"] and fields["ep"] > 1 and fields["shared_ffn"]:
        settings[SHARED] = True
    if "a2a" in fields["overlap"]:
        settings[TURNS] = True
        settings |= {LATER: True} if "wgrad" in fields["overlap"] else {}
    return settings


def _within(fields: Mapping[str, Any]) -> int:
    """Over how many ranks an expert is split."""
    return int(fields["etp"] or fields["tp"])
