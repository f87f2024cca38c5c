"""Runs of Megatron-LM's continuous integration, with their peaks: what stands for a row.

Source: github.com/NVIDIA/Megatron-LM, tests/functional_tests/test_cases: arguments of each test and
the golden values recorded for it (`max_memory_allocated` of the last rank, steps' times).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from simulator.stacks.stack import Stack
from topologies.errors import SimgptError
from topologies.files.reading import TABLE_BYTES, UserFile, shipped_text
from topologies.machine import Machine
from topologies.machine_files import build_machine
from topologies.parts import Parts
from topologies.records import record
from topologies.session import session_cached
from validation.memory import golden_experts, golden_latent, golden_recompute, golden_stages
from validation.memory.golden_attention import attention
from validation.memory.golden_flags import is_set, number
from workload.gpt import GPT

NEEDED = (
    "id", "platform_gpu", "gpus", "layers", "hidden", "ffn", "heads", "kv_heads", "kv_channels",
    "seq_len", "vocab_padded", "swiglu", "norm", "position", "tied", "bias", "experts", "mla", "tp",
    "pp", "vpp", "cp", "micro_batch", "global_batch", "precision", "optimizer", "recompute",
    "sequence_parallel", "attention_backend", "transformer_impl", "fsdp", "peak_mem_bytes", "notes",
)  # fmt: skip
STACK = "megatron-core"
MOST = 10**15
NODES = {"A100": (8, "a100-80", 200e9), "H100": (8, "h100", 400e9), "GB200": (4, "gb200", 400e9)}
DROPOUT = 0.1  # Megatron-LM's default of --hidden-dropout and --attention-dropout
FIXED_CUBLAS = "CUBLAS_WORKSPACE_CONFIG=:4096:8"
# cuBLAS of an A100 has two handles with 8.125 MiB each, and with that setting 32 MiB each.
MORE_OF_CUBLAS = 2 * (8 * 4096 - 8320) * 1024
_FILE = UserFile("table of memory", SimgptError, TABLE_BYTES)


class NotExpressibleError(SimgptError):
    """A run that no plan of ours stands for; the text says why in a few words."""


@record(slots=False)
class GoldenRun:
    """One row: a test's arguments and its measured peak."""

    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name."""
        return self.cells["id"]

    @property
    def measured_bytes(self) -> int:
        """The most bytes that the last rank's allocator gave out at once."""
        return self._whole("peak_mem_bytes")

    @property
    def persistent_bytes(self) -> int | None:
        """The bytes given out between steps, where they were recorded."""
        text = self.cells.get("mem_alloc_bytes", "")
        return int(float(text)) if text else None

    @property
    def library_bytes(self) -> int:
        """What the row's environment adds to the workspaces of libraries."""
        fixed = self.cells["platform_gpu"] == "A100" and FIXED_CUBLAS in self.cells["notes"]
        return MORE_OF_CUBLAS if fixed else 0

    def _whole(self, column: str, unset: int = 0) -> int:
        text = self.cells[column]
        try:
            value = int(float(text)) if text else unset
        except ValueError:
            value = -1
        if not 0 <= value <= MOST:
            raise SimgptError(f"row {self.id}: {column} = {text!r} must be a whole number")
        return value

    @cached_property
    def job(self) -> Job:
        """The model and plan; a NotExpressibleError says what of them is not ours."""
        if refused := next(filter(None, self._refusals()), None):
            raise NotExpressibleError(refused)
        gpt, words = self.gpt, self.words
        if self._has("mla"):
            gpt = gpt.changed(**golden_latent.fields_of(self.cells))
        if self.has_experts:
            gpt = gpt.changed(**golden_experts.fields_of(self.cells, self._whole))
            words |= golden_experts.words_of(self.cells, self._whole)
        return job_of(
            gpt, words, self._stack, devices=self._devices, batch=self._whole("global_batch")
        )

    def _refusals(self) -> Iterator[str | None]:
        """What of the row no plan stands for, if anything."""
        cells, optimizer = self.cells, self.cells["optimizer"]
        if self._has("mla"):
            yield golden_latent.refusal(cells)
        if self.has_experts:
            yield golden_experts.refusal(cells)
        yield from (words for flag, words in REFUSED_FLAGS.items() if flag in cells["notes"])
        if cells.get("cuda_graph", "none") not in ("", "none"):
            yield "CUDA graphs"
        if not PRECISIONS.fullmatch(cells["precision"]):
            yield f"precision {cells['precision']}"
        if not optimizer.startswith(OPTIMIZERS):
            yield f"optimizer {optimizer.partition('|')[0]}"
        if golden_recompute.recomputes(cells) is None:
            yield f"recomputation of {cells['recompute']}"
        yield golden_stages.refusal(cells, *self._split)
        if not self._devices:
            yield "a number of GPUs that is not stated"

    @property
    def _split(self) -> tuple[int, int, int]:
        return self._whole("layers"), self._whole("pp"), self._whole("vpp", 1)

    @property
    def _devices(self) -> int:
        """On how many GPUs it ran, 0 where nothing says. Some recipes are not public, and who
        gathered the rows inferred it from the bytes between steps."""
        notes = self.cells["notes"]
        inferred = re.search(r"inferred, not stated: memory implies (\d{1,6})\]", notes)
        return self._whole("gpus") or (int(inferred[1]) if inferred else 0)

    @property
    def _stack(self) -> Stack:
        """Megatron-Core, where asked for with a fused loss."""
        return load_stack(WITH_FUSED_LOSS if is_set(self.cells, FUSED_LOSS) else STACK)

    @property
    def has_experts(self) -> bool:
        """Whether the model has experts."""
        return self._has("experts")

    def _has(self, column: str) -> bool:
        return self.cells[column] not in ("", "0")

    @property
    def gpt(self) -> GPT:
        """The model, as if it had no experts; that of the job has them."""
        heads, hidden = self._whole("heads"), self._whole("hidden")
        width, kv_heads = self._whole("kv_channels"), self._whole("kv_heads")
        return GPT.of(
            name=self.id,
            layers=self._whole("layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=0 if kv_heads == heads else kv_heads,
            head_width=0 if width * heads == hidden else width,
            ffn=self._whole("ffn"),
            sequence=self._whole("seq_len"),
            vocab=self._whole("vocab_padded"),
            activation="swiglu" if self._has("swiglu") else "gelu",
            norm="rmsnorm" if self.cells["norm"] == "RMSNorm" else "layernorm",
            positions="rope" if self.cells["position"] == "rope" else "learned",
            mtp_layers=number(self.cells, "mtp-num-layers") or 0,
            tied=self._has("tied"),
            biases=self._has("bias"),
            dropout=0.0 if "hidden-dropout=0.0" in self.cells["notes"] else DROPOUT,
            source="NVIDIA/Megatron-LM, functional tests",
        )

    @property
    def words(self) -> dict[str, Any]:
        """The plan in the words of a user."""
        chosen = dict(part.partition("=")[::2] for part in self.cells["optimizer"].split("|"))
        tp, pp = self._whole("tp"), self._whole("pp")
        cp, vpp = self._whole("cp", 1), self._whole("vpp", 1)
        words: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "dp": "rest"}
        words["vpp"] = vpp if pp > 1 else 1
        words["mbs"] = self._whole("micro_batch")
        if self.cells["optimizer"].startswith(MUON):
            words["optimizer"] = "muon"
        words["zero"] = 3 if self.cells["fsdp"] != "none" else int(chosen.get("dist", 0))
        copies = int(chosen.get("instances", 1))
        if copies > 1:
            words["shard"] = self._devices // (tp * pp * cp * copies)
        words["sp"] = self._has("sequence_parallel") and tp > 1
        words["attention"] = attention(self.cells)
        words["recompute"] = golden_recompute.recomputes(self.cells)
        reduced = chosen.get("overlap_grad_reduce") == "1"
        words["overlap"] = (
            "oar",
            *(["dp"] if reduced else []),
            *(["pp"] if vpp > 1 else []),
        )
        words |= golden_stages.words_of(self.cells, *self._split)
        if "fp8" in self.cells["precision"]:
            words["precision"] = (
                "fp8-blockwise" if "blockwise" in self.cells["precision"] else "fp8"
            )
        if "param_gather" in self.cells["precision"]:
            words["fp8_params"] = True
        if self.cells["precision"] == "fp16":  # summed in fp32 only where that is asked for
            words["gradients"] = "bf16"
        return words

    @property
    def machine(self) -> Machine:
        """The machine of the row's GPU, in nodes of the usual size."""
        gpu = self.cells["platform_gpu"]
        if gpu not in NODES:
            raise NotExpressibleError(f"GPU {gpu}")
        each, name, rate = NODES[gpu]
        nodes = -(-self._devices // each)
        return _built(Parts(name, nodes, each, each, rate, "infiniband", f"CI with {gpu}"))


MUON = "muon|dist=0"  # each rank has all states of its parameters, as with zero=0
OPTIMIZERS = ("adam", MUON)
REFUSED_FLAGS = {
    "DISTILL_CONFIG": "distillation: a teacher beside the model",
    ";cross-entropy-fusion-impl=te": "--cross-entropy-fusion-impl te",
    ";defer-embedding-wgrad-compute=True": "--defer-embedding-wgrad-compute",
}
FUSED_LOSS = "cross-entropy-loss-fusion"
# Transformer Engine's, --cross-entropy-fusion-impl te, is another kernel.
WITH_FUSED_LOSS = "megatron-core-fused-loss"
PRECISIONS = re.compile(
    r"bf16|fp16|bf16\+fp8\((?:hybrid|e4m3),(?:(?:delayed|tensorwise)(?:,param_gather)?|blockwise)\)"
)


@session_cached(16)
def _built(parts: Parts) -> Machine:
    return build_machine(parts)


def is_golden(header: Sequence[str]) -> bool:
    """Whether a table's columns are those of golden runs."""
    return all(column in header for column in NEEDED)


def golden_runs(path: Path | None = None) -> list[GoldenRun]:
    """The runs of a file; without one, those that come with simgpt."""
    if path is None:
        lines = shipped_text("validation", "data/megatron_golden.csv").splitlines()
    else:
        lines = list(_FILE.lines(path))
    rows = list(csv.DictReader(lines))
    return [
        GoldenRun({key: (cell or "").strip() for key, cell in row.items() if key}) for row in rows
    ]
