"""`simgpt models`: the presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from simgpt.question import Question
from simgpt.question_rows import ROWS
from simgpt.step import Sources
from workload.gpt import GPT, find_model, model_names
from workload.models import moe
from workload.models.mixers import layers_with
from workload.models.pattern import MAMBA, MIXERS


@click.command("models")
@click.argument("name", required=False)
@ROWS["model_set"].option()
@options.answer_options
def command(
    name: str | None, model_set: Mapping[str, Any], as_json: bool, output: Path | None
) -> None:
    """List the model presets, or show a model, however it is given.

    \b
    simgpt models
    simgpt models gpt-80b --json
    simgpt models config.json --model-set sequence=8192
    """
    if name is not None:
        gpt = Sources().model(Question(model=name, model_set=model_set))
        options.answer(_describe(gpt), _record(gpt), as_json=as_json, output=output)
        return
    if model_set:
        raise click.UsageError("--model-set changes one model: give its NAME")
    every = [find_model(preset) for preset in model_names()]
    columns = ["model", "parameters", "layers", "hidden", "heads", "sequence", "vocab"]
    shown = [
        (
            gpt.name,
            tables.count(gpt.parameters),
            *(
                f"{size:,}"
                for size in (gpt.layers, gpt.hidden, gpt.attention.heads, gpt.sequence, gpt.vocab)
            ),
        )
        for gpt in every
    ]
    record = {"models": [_record(gpt) for gpt in every]}
    options.answer(tables.table(columns, shown), record, as_json=as_json, output=output)


def _describe(gpt: GPT) -> str:
    facts = [
        ("parameters", f"{tables.count(gpt.parameters)} ({gpt.parameters:,})"),
        ("layers", f"{gpt.layers:,}"),
        ("hidden", f"{gpt.hidden:,}"),
        ("heads", f"{gpt.attention.heads:,} of width {gpt.width:,}{_shared(gpt)}"),
        *([("latent attention", _latent(gpt))] if gpt.latent.kv_rank else []),
        ("ffn", f"{gpt.ffn:,}"),
        *_hybrid(gpt),
        *_experts(gpt),
        ("norm, activation, positions", f"{gpt.norm}, {gpt.activation}, {gpt.positions}"),
        *_rest_of_attention(gpt),
        ("biases", _biases(gpt)),
        ("sequence", f"{gpt.sequence:,}"),
        ("vocab", f"{gpt.vocab:,}, {'tied' if gpt.tied else 'not tied'} to the classifier"),
        ("model FLOPs per sequence", f"{gpt.model_flops(1):.4g}"),
        ("source", gpt.source or "-"),
    ]
    return f"{gpt.name}\n\n" + tables.table([], facts, left=2)


def _hybrid(gpt: GPT) -> list[tuple[str, str]]:
    """What to say of layers with one mixer each, and of Mamba-2."""
    if not gpt.pattern:
        return []
    names = zip(MIXERS, ("Mamba-2", "attention", "an MLP", "experts"), strict=True)
    each = [f"{layers_with(gpt, key)} of {name}" for key, name in names if key in gpt.pattern]
    chunk = f"convolution over {gpt.mamba2.conv}, chunks of {gpt.mamba2.chunk}"
    groups = f"{gpt.mamba2.state} states in {gpt.mamba2.groups} groups"
    sizes = f"{gpt.mamba2.heads} heads of {gpt.mamba2.width}, {groups}, {chunk}"
    scans = [("Mamba-2", sizes)] if MAMBA in gpt.pattern else []
    return [("layers in order", gpt.pattern), ("that is", ", ".join(each)), *scans]


def _experts(gpt: GPT) -> list[tuple[str, str]]:
    """What to say of the experts, where there are any."""
    if not gpt.moe.experts:
        return []
    layers = moe.layers_with_experts(gpt)
    shared = f", shared expert {gpt.moe.shared_ffn:,}" if gpt.moe.shared_ffn else ""
    limit = f", at most {gpt.moe.capacity:g} of the even share" if gpt.moe.capacity else ""
    latent = f", on {gpt.moe.expert_latent:,} latent columns" if gpt.moe.expert_latent else ""
    dense = gpt.moe.dense_layers and not gpt.pattern
    place = f" after {tables.several(gpt.moe.dense_layers, 'dense layer')}" if dense else ""
    return [
        ("active parameters", f"{tables.count(gpt.active_parameters)}"),
        ("MoE layers", f"{layers:,}{place}"),
        ("experts", f"{gpt.moe.experts:,} of width {gpt.moe.expert_ffn:,}{shared}{latent}"),
        ("experts of a token", f"{gpt.moe.topk:,} by {gpt.moe.router}{_groups(gpt)}{limit}"),
        *(
            [("experts balanced", _balanced(gpt))]
            if gpt.moe.router_bias or gpt.moe.balance_loss
            else []
        ),
    ]


def _groups(gpt: GPT) -> str:
    if not gpt.moe.router_groups:
        return ""
    return f", of {gpt.moe.router_topk_groups:,} of {gpt.moe.router_groups:,} groups"


def _balanced(gpt: GPT) -> str:
    """What to say of what keeps experts evenly used."""
    biases = [f"by biases that move by {gpt.moe.router_bias_rate:g}"] if gpt.moe.router_bias else []
    over = {"sequence": "each sequence", "micro_batch": "a micro-batch"}[gpt.moe.balance_over]
    losses = [f"by a loss of {gpt.moe.balance_loss:g} over {over}"] if gpt.moe.balance_loss else []
    return ", ".join((*biases, *losses))


def _rest_of_attention(gpt: GPT) -> Iterator[tuple[str, str]]:
    """What is worth saying of windows, rotation, norms and targets where it is not the usual."""
    if gpt.attention.window:
        every = gpt.attention.global_every
        full = f"; full attention in every {_ordinal(every)} layer" if every else ""
        yield "sliding window", f"{gpt.attention.window:,} tokens{full}"
    if gpt.packing.document or gpt.packing.documents:
        yield (
            "documents of a sequence",
            gpt.packing.documents or f"of {gpt.packing.document:,} tokens each",
        )
    if gpt.mtp.layers:
        yield _further(gpt)
    if gpt.attention.sinks:
        yield "sinks", "a logit of each head"
    if gpt.attention.rope_scaling != "none":
        method, *numbers = gpt.attention.rope_scaling.split(":")
        yield "RoPE scaled", f"{method}, {', '.join(numbers)}"
    if gpt.attention.qk_norm:
        yield "norms of queries and keys", "an RMSNorm of each head"
    for key, each in gpt.KEYS.items():
        switch = each.part == "attention" and each.kind == "bool"
        if switch and key not in ("qkv_bias", "qk_norm", "sinks") and gpt.value(key):
            yield key.replace("_", " "), "yes"


def _biases(gpt: GPT) -> str:
    if gpt.attention.qkv_bias:
        return "of queries, keys and values"
    return "yes" if gpt.biases else "no"


def _ordinal(number: int) -> str:
    words = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    return words[number] if number < len(words) else f"{number}th"


def _shared(gpt: GPT) -> str:
    """What to say of the heads of keys and values, where queries share them."""
    return f", {gpt.key_heads:,} KV heads" if gpt.key_heads < gpt.attention.heads else ""


def _latent(gpt: GPT) -> str:
    """What to say of queries, keys and values that are compressed."""
    queries = f"queries by {gpt.latent.q_rank:,}, " if gpt.latent.q_rank else ""
    values = gpt.context_width // gpt.attention.heads
    return (
        f"{queries}keys and values by {gpt.latent.kv_rank:,}; of a head "
        f"{gpt.latent.rope_width} columns with positions, values of {values}"
    )


def _record(gpt: GPT) -> dict[str, Any]:
    return {
        **gpt.flat(),
        "parameters": gpt.parameters,
        "active_parameters": gpt.active_parameters,
        "model_flops_per_sequence": gpt.model_flops(1),
    }


def _further(gpt: GPT) -> tuple[str, str]:
    """What to say of the module that predicts further tokens."""
    if gpt.mtp.layers == 1 and not gpt.mtp.pattern:
        return "second token", f"predicted by one more layer, its loss times {gpt.mtp.loss:g}"
    layers = f", layers {gpt.mtp.pattern}" if gpt.mtp.pattern else ""
    shared = ", which share their parameters" if gpt.mtp.shared else ""
    told = f"{gpt.mtp.layers} depths{layers}{shared}, the mean of their losses times"
    return "further tokens", f"{told} {gpt.mtp.loss:g}"
