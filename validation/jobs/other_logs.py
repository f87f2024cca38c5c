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
from collections.abc import Sequence

TRAINER = "no line of it has a step's time; train_samples_per_second at its end has the mean"
# Who writes it, a line of it, and what is known of its times; the first that is found counts.
_OTHERS = (
    ("MLPerf", r"^:{3}MLLOGv?\S*", "its events have clock times, none of a step"),
    ("axolotl", r"\[axolotl\.|\baxolotl\.(?:cli|train|utils)\b", TRAINER),
    ("LLaMA-Factory", r"\bllamafactory\b", TRAINER),
    ("transformers' Trainer", r"^\s*\{'(?:loss|train_runtime|eval_loss)': ", TRAINER),
    ("nanotron", r"\biteration: \d.*\belapsed_time_per_iteration_ms: ",
     "its elapsed_time_per_iteration_ms is rounded"),
    ("MaxText", r"\bcompleted step: \d+, seconds: \d", "its lines have `seconds:`"),
    ("Composer", r"\bThroughput/(?:batches|tokens|samples)_per_sec:|^\[(?:batch|epoch)=\d+/\d+\]",
     "its lines have throughput/batches_per_sec"),
    ("OLMo", r"\[step=\d+(?:/\d+)?,\s*epoch=\d+|\bolmo(?:_core)?\.train\b",
     "its lines have tokens per second"),
    ("InternEvo", r"\btgs \(tokens/gpu/second\)=", "its lines have tokens per second"),
    ("torchtune", r"^Step \d+ \| (?:\S+:\S+ )*tokens_per_second_per_gpu:",
     "its lines have tokens_per_second_per_gpu"),
    ("DeepSpeed", r"\bRunningAvgSamplesPerSec=|\bstep=\d+, skipped=\d+, lr=",
     "its lines have samples per second"),
    ("PyTorch Lightning", r"\bEpoch \d+[: ]+\d+%\|.*(?:it/s|s/it)",
     "its progress bar has a mean rate"),
)  # fmt: skip
_PATTERNS = tuple((who, re.compile(pattern, re.I), what) for who, pattern, what in _OTHERS)
INSTEAD = 'write its steps as JSON lines, {"step": 1, "step_s": 1.25}'


def other_log(lines: Sequence[str]) -> tuple[str, str] | None:
    """Whose log these lines are, and what is known of its times; None where nobody's is known."""
    for who, pattern, what in _PATTERNS:
        if any(pattern.search(line) for line in lines):
            return who, what
    return None
