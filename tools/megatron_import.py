"""Which share of a table of Megatron-LM's functional tests `simgpt import` reads.

    python -m tools.megatron_import megatron_golden.csv [--reasons]

The table has one run a row: columns for what is often set, and in `notes`, after remarks in
brackets, the other arguments as `name=value;` pairs. The file is not part of this repository.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from math import ceil
from typing import Any

import click

from simgpt.frameworks.files import MEGATRON, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from
from topologies.errors import SimgptError
from topologies.session import Session

NUMBERS = {
    "layers": "num-layers",
    "hidden": "hidden-size",
    "ffn": "ffn-hidden-size",
    "heads": "num-attention-heads",
    "kv_channels": "kv-channels",
    "seq_len": "seq-length",
    "experts": "num-experts",
    "topk": "moe-router-topk",
    "moe_ffn": "moe-ffn-hidden-size",
    "shared_expert_ffn": "moe-shared-expert-intermediate-size",
    "dispatcher": "moe-token-dispatcher-type",
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
    "etp": "expert-tensor-parallel-size",
    "micro_batch": "micro-batch-size",
    "global_batch": "global-batch-size",
    "norm": "normalization",
    "transformer_impl": "transformer-impl",
    "ckpt_format": "ckpt-format",
    "steps": "train-iters",
}
SWITCHES = {
    "swiglu": "swiglu",
    "sequence_parallel": "sequence-parallel",
    "mla": "multi-latent-attention",
    "moe_grouped_gemm": "moe-grouped-gemm",
}
OPTIMIZER = {
    "dist": "use-distributed-optimizer",
    "overlap_grad_reduce": "overlap-grad-reduce",
    "overlap_param_gather": "overlap-param-gather",
    "overlap_param_gather_with_optimizer_step": "overlap-param-gather-with-optimizer-step",
    "instances": "num-distributed-optimizer-instances",
}
POSITIONS = {"learned": "learned_absolute", "rope": "rope"}
_REMARKS = re.compile(r"^(?:,?\s*\[.*?\](?=\s|$)\s*)*")
_PAIR = re.compile(r"\s*([A-Za-z0-9_.-]+)=([^;]*);")


def arguments_of(row: dict[str, str]) -> dict[str, Any]:
    """The arguments that a row's run had."""
    found: dict[str, Any] = {name: row[key] for key, name in NUMBERS.items() if row[key]}
    found |= {name: True for key, name in SWITCHES.items() if row[key] == "1"}
    for name, value in _PAIR.findall(row["notes"].rpartition("] ")[2]):
        found[name.removeprefix("env.")] = True if value == "True" else value
    found["position-embedding-type"] = POSITIONS[row["position"]]
    if row["tied"] == "0":
        found["untie-embeddings-and-output-weights"] = True
    if row["bias"] == "0":
        found["disable-bias-linear"] = True
    if row["kv_heads"] != row["heads"]:
        found |= {"group-query-attention": True, "num-query-groups": row["kv_heads"]}
    if int(row["vpp"] or 1) > 1:
        found["num-virtual-stages-per-pipeline-rank"] = row["vpp"]
    optimizer, *settings = row["optimizer"].split("|")
    found["optimizer"] = optimizer
    for name, _, value in (word.partition("=") for word in settings):
        if value != "0":
            found[OPTIMIZER[name]] = value if name == "instances" else True
    return found | _of_words(row)


def _of_words(row: dict[str, str]) -> dict[str, Any]:
    """The arguments of columns that hold several."""
    found: dict[str, Any] = {}
    kind, _, fp8 = row["precision"].partition("+")
    if kind != "fp32":
        found[kind] = True
    if fp8:
        found["fp8-format"] = fp8[4:].split(",")[0]
        found |= {"fp8-param-gather": True} if "param_gather" in fp8 else {}
    backend, _, flash = row["attention_backend"].partition("+")
    found["attention-backend"] = backend
    found |= {"use-flash-attn": True} if flash else {}
    if row["fsdp"] != "none":
        found["use-megatron-fsdp"] = True
        found["data-parallel-sharding-strategy"] = row["fsdp"].partition(":")[2].split(" ")[0]
    recompute, _, modules = row["recompute"].partition("/modules=")
    if recompute != "none":
        found["recompute-granularity"] = recompute
        found |= {"recompute-modules": modules} if modules else {}
    graph, _, scope = row["cuda_graph"].partition(":")
    if graph != "none":
        found |= {"cuda-graph-impl": graph, "cuda-graph-scope": scope}
    layout = re.search(r"pipeline-layout:(\S+?)\]", row["notes"])
    return found | ({"pipeline-model-parallel-layout": layout[1]} if layout else {})


def asked(row: dict[str, str]) -> ImportedJob:
    """The question that a row's arguments ask, with what they leave out: the vocabulary."""
    arguments = arguments_of(row)
    vocab = {} if "vocab-size" in arguments else {"vocab": int(row["vocab_padded"])}
    described = Described(MEGATRON, arguments)
    return job_from([described], devices=int(row["gpus"] or 0) or None, changed=vocab)


def wrong(row: dict[str, str], question: ImportedJob) -> list[str]:
    """Where a question is not what the row's columns say."""
    gpt, plan = question.gpt, question.plan
    if gpt is None:
        return ["no model"]
    pairs = {
        "layers": (gpt.layers, row["layers"]),
        "hidden": (gpt.hidden, row["hidden"]),
        "ffn": (gpt.ffn, row["ffn"]),
        "heads": (gpt.attention.heads, row["heads"]),
        "kv_heads": (gpt.key_heads, row["kv_heads"]),
        "kv_channels": (gpt.width, row["kv_channels"]),
        "seq_len": (gpt.sequence, row["seq_len"]),
        "tied": (int(gpt.tied), row["tied"]),
        "bias": (int(gpt.biases), row["bias"]),
        "tp": (plan.get("tp", 1), row["tp"]),
        "pp": (plan.get("pp", 1), row["pp"]),
        "vpp": (plan.get("vpp", 1), row["vpp"]),
        "cp": (plan.get("cp", 1), row["cp"]),
        "micro_batch": (plan.get("mbs"), row["micro_batch"]),
        "global_batch": (question.question.batch, row["global_batch"]),
    }
    multiple = 128 * int(row["tp"])
    padded = ceil(gpt.vocab / multiple) * multiple
    pairs["vocab_padded"] = (padded, row["vocab_padded"])
    return [f"{key}: {own} for {given}" for key, (own, given) in pairs.items() if str(own) != given]


@click.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False))
@click.option("--reasons", is_flag=True, help="List what was not carried over.")
def main(table: str, *, reasons: bool) -> None:
    """Read every row of TABLE and print how many were read, and why others are no question of
    simgpt's."""
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    failed, refused, changes, unlike = (Counter[str]() for _ in range(4))
    expressed = 0
    with Session():
        for row in rows:
            try:
                question = asked(row)
            except SimgptError as error:
                failed[str(error)[:90]] += 1
                continue
            expressed += not question.refused
            refused[" ".join(dict.fromkeys(each.why[:80] for each in question.refused))] += 1
            changes.update(f"{each.name}: {each.why}" for each in question.changes)
            unlike.update(wrong(row, question))
    parsed = len(rows) - failed.total()
    print(f"{len(rows)} argument sets: {parsed} read ({parsed / len(rows):.1%})")
    print(f"{expressed} of them are questions of simgpt's ({expressed / len(rows):.1%})")
    counters = {"not read": failed, "refused": refused, "unlike the columns": unlike}
    counters |= {"not carried over": changes} if reasons else {}
    for title, counter in counters.items():
        print(f"\n{title}:")
        for text, count in counter.most_common():
            print(f"  {count:4}  {text or '-'}")


if __name__ == "__main__":
    main()
