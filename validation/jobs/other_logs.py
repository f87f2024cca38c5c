"""Logs of frameworks that are not read, known by a line of theirs, so that they can be named.

Sources of the lines, on GitHub: huggingface/transformers (src/transformers/trainer.py),
huggingface/nanotron (src/nanotron/trainer.py), microsoft/DeepSpeed (deepspeed/runtime/engine.py and
utils/timer.py), allenai/OLMo (olmo/train.py) and OLMo-core (callbacks/console_logger.py),
mlcommons/logging (mlperf_logging), axolotl-ai-cloud/axolotl, hiyouga/LLaMA-Factory,
mosaicml/composer (loggers/console_logger.py), AI-Hypercomputer/maxtext (metric_logger.py),
meta-pytorch/torchtune (training/metric_logging.py), InternLM/InternEvo and
Lightning-AI/pytorch-lightning.
"""

from __future__ import annotations

import re

TRAINER = "no line of it has a step's time; train_samples_per_second at its end has the mean"
MOST_LOOKED = 16 * 2**20  # bytes of a log that are looked through
# Who writes it, what stands in a line of it in small letters, the line, and what is known of its
# times; the first that is found counts.
_OTHERS = (
    ("MLPerf", "mllog", r"^:{3}MLLOGv?\S*", "its events have clock times, none of a step"),
    ("axolotl", "axolotl.", r"\[axolotl\.|\baxolotl\.(?:cli|train|utils)\b", TRAINER),
    ("LLaMA-Factory", "llamafactory", r"\bllamafactory\b", TRAINER),
    ("transformers' Trainer", "{'", r"^\s*\{'(?:loss|train_runtime|eval_loss)': ", TRAINER),
    ("nanotron", "elapsed_time_per_iteration_ms: ", r"\biteration: \d",
     "its elapsed_time_per_iteration_ms is rounded"),
    ("MaxText", "completed step: ", r"\bcompleted step: \d+, seconds: \d",
     "its lines have `seconds:`"),
    ("Composer", "throughput/", r"\bThroughput/(?:batches|tokens|samples)_per_sec:",
     "its lines have throughput/batches_per_sec"),
    ("Composer", "=", r"^\[(?:batch|epoch)=\d+/\d+\]", "its lines have throughput/batches_per_sec"),
    ("OLMo", "[step=", r"\[step=\d+(?:/\d+)?,\s*epoch=\d+", "its lines have tokens per second"),
    ("OLMo", "olmo", r"\bolmo(?:_core)?\.train\b", "its lines have tokens per second"),
    ("InternEvo", "tgs (tokens/gpu/second)=", r"\btgs ", "its lines have tokens per second"),
    ("torchtune", " tokens_per_second_per_gpu:", r"^Step \d+ \|",
     "its lines have tokens_per_second_per_gpu"),
    ("DeepSpeed", "runningavgsamplespersec=", r"\bRunningAvgSamplesPerSec=",
     "its lines have samples per second"),
    ("DeepSpeed", "skipped=", r"\bstep=\d+, skipped=\d+, lr=", "its lines have samples per second"),
    ("PyTorch Lightning", "it/s", r"\bEpoch \d+[: ]+\d+%\|", "its progress bar has a mean rate"),
    ("PyTorch Lightning", "s/it", r"\bEpoch \d+[: ]+\d+%\|", "its progress bar has a mean rate"),
)  # fmt: skip
_PATTERNS = tuple((who, mark, re.compile(pattern, re.I)) for who, mark, pattern, _ in _OTHERS)
INSTEAD = 'write its steps as JSON lines, {"step": 1, "step_s": 1.25}'


class OtherLogs:
    """Whose log some lines are."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def take(self, line: str) -> None:
        """Take in a line."""
        lowered = line.lower()
        for who, mark, pattern in _PATTERNS:
            if mark in lowered and who not in self._known and pattern.search(line):
                self._known.add(who)

    def found(self) -> tuple[str, str] | None:
        """Who writes them, and what is known of their times; None where nobody's is known."""
        return next(((who, what) for who, _, _, what in _OTHERS if who in self._known), None)
