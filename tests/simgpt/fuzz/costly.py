"""Small files that ask for much work: text that grows, lists of any length, deep nesting, gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 "
    "--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 "
    "--global-batch-size 16 --vocab-size 1000"
)
LLAMA = {
    **{"model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000},
    **{"num_hidden_layers": 4, "intermediate_size": 512, "max_position_embeddings": 512},
}
EXPERTS = {
    **{**LLAMA, "model_type": "qwen3_moe", "num_key_value_heads": 4, "num_experts": 8},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 64},
}
NEMO = (
    "trainer: {devices: 8, num_nodes: 1}\nmodel:\n  mcore_gpt: true\n  micro_batch_size: 1\n"
    "  num_layers: 4\n"
)
MOE = b"  num_moe_experts: 8\n  hidden_size: 256\n"
TRACE = '{"schemaVersion": 1, '
EVENTS_BEGIN = f'{TRACE}"traceEvents": ['
PIPE = "--pipeline-model-parallel-size"
WIDE = "x" * 60_000


def _script(lines: str, end: str = " $A") -> Callable[[], bytes]:
    return f"{lines}{SCRIPT}{end}\n".encode


def _arguments(*words: str) -> Callable[[], bytes]:
    """A script with arguments, which come after those of SCRIPT."""
    return _script("", f" {' '.join(words)}")


def _config(base: Mapping[str, object], **changes: object) -> Callable[[], bytes]:
    return lambda: json.dumps({**base, **changes}).encode()


def _packed(head: str, part: str, times: int, tail: str = "") -> Callable[[], bytes]:
    return lambda: gzip.compress((head + part * times + tail).encode(), 1, mtime=0)


def _recipe(lines: str) -> Callable[[], bytes]:
    return f"{NEMO}{lines}".encode


# By the file's name, whose end says what reads it.
COSTLY: Mapping[str, Callable[[], bytes]] = {
    "grows.sh": _script(f"B={'x' * 50}\n" + 'A+="$B$B$B$B$B$B "\n' * 7_000),
    "doubles.sh": _script("A=--xxxxx\n" + 'A="$A$A"\n' * 200),
    "array.sh": _script("A=(--x)\n" + 'A+=("${A[@]}")\n' * 40_000),
    "variables.sh": _script(f"B={WIDE}\n" + "".join(f"V{n}=$B\n" for n in range(60_000))),
    "commands.sh": _script(f"B={WIDE}\n" + "echo $B\n" * 90_000),
    "nested-if.sh": _script("if true; then\n" * 45_000),
    "nested-untold.sh": _script("".join(f"if [ $(x{n}) = 1 ]; then A=1\n" for n in range(30_000))),
    "else.sh": _script(f"if true\n{'else ' * 150_000}\n"),
    "patterns.sh": _script(f"B=x\nif [[ $B == {'[' * 60_000} ]]; then A=1; fi\n"),
    "spaces.sh": _script(f"if [ {' ' * 60_000}x; then A=1; fi\n"),
    "blank.sh": _script("\n" * 900_000),
    "sums.sh": _script(f"B={'1' * 60_000}\nA=$(({'B+' * 30_000}B))\n"),
    "name.sh": _script(f"{'A' * 500_000}=\"{'`x`' * 20_000}\"\n"),
    "source.sh": _script("source ./a$B.sh\n" * 60_000),
    "layers.sh": _arguments("--num-layers 50000000 --num-experts 8"),
    "frequency.sh": _arguments("--num-layers 500000000 --num-experts 8 --moe-layer-freq 2"),
    "listed.sh": _arguments("--num-experts 8 --moe-layer-freq '[1]*100000000'"),
    "stages.sh": _arguments(PIPE, "500000000 --account-for-embedding-in-pipeline-split"),
    "uneven.sh": _arguments(PIPE, "500000000 --decoder-first-pipeline-num-layers 1"),
    "chunks.sh": _arguments(
        PIPE, "4 --num-virtual-stages-per-pipeline-rank 500000000",
        "--account-for-loss-in-pipeline-split",
    ),
    "layout.sh": _arguments(PIPE, "4 --pipeline-model-parallel-layout", f"'t{'*2' * 9_000}'"),
    "window.sh": _arguments("--window-size", "9" * 5_000),
    "unset.sh": _arguments("--num-layers", f"'{'$(1' * 20_000}'"),
    "layers.yaml": lambda: NEMO.replace("layers: 4", "layers: 500000000").encode() + MOE,
    "references.yaml": _recipe(
        f"  a0: '{'${b}' * 4_000}'\n" + "".join(f"  a{n + 1}: ${{.a{n}}}\n" for n in range(9_000))
    ),
    "list.yaml": _recipe(f"  x: [{'1,' * 110_000}]\n"),
    "sections.yaml": _recipe("".join(f"  s{n}: {{enabled: false, x: 4}}\n" for n in range(3_000))),
    "sections.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        + "".join(f"[s{n}]\nenabled = false\nx = 4\n" for n in range(20_000))
    ).encode,
    "config-layers.json": _config(EXPERTS, num_hidden_layers=500_000_000),
    "config-dense.json": _config(EXPERTS, num_hidden_layers=10_000, mlp_only_layers=[1] * 100_000),
    "config-step.json": _config(EXPERTS, num_hidden_layers=10**12, decoder_sparse_step=10**12),
    "rows.jsonl": lambda: b'{"a":[' + b'{"a":1},' * 5_000_000 + b"1]}\n",
    "short.log": lambda: b"abc\n" * (60 * 2**20),
    "returns.log": lambda: b"loss\r" * (50 * 2**20),
    "answer.log": lambda: b'{"steps_s":[' + b"{}," * (20 * 2**20) + b"1]}",
    "short.log.gz": _packed("", "abc\n", 60 * 2**20),
    "colons.log": lambda: (b"Step 1 | " + b"a:b:c:d " * 1_200 + b"\n") * 20,
    "beside.json.gz": _packed(f'{TRACE}"x": [', "[],", 60 * 2**20, '1], "traceEvents": []}'),
    "events.json.gz": _packed(f'{TRACE}"traceEvents": [', "{},", 60 * 2**20, "{}]}"),
    "one-event.json": (f'{TRACE}"traceEvents": [{{"a": [' + "[]," * (20 * 2**20)).encode,
    "blanks.json.gz": _packed(f'{TRACE}"traceEvents": [', " ", 200 * 2**20, "{}]}"),
}  # fmt: skip


def command(name: str) -> list[str]:
    """What reads a file of this name."""
    asked = ["-m", "dgx-h100", "-n", "8", "--batch", "16"]
    if name.startswith("config"):
        return ["predict", name, *asked]
    if name.endswith(".jsonl"):
        return ["report", name, "-o", "page.html"]
    if ".log" in name or name.endswith((".json", ".gz")):
        return ["compare", name, "tiny-2m", *asked]
    return ["import", name, "-m", "perlmutter"]
