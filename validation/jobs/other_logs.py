"""Frameworks of logs that have no step in a known format, recognised by one of their lines.

Sources of the lines, on GitHub: huggingface/transformers (src/transformers/trainer.py),
deepspeedai/DeepSpeed (deepspeed/runtime/engine.py), allenai/OLMo (olmo/train.py) and OLMo-core
(callbacks/console_logger.py), mlcommons/logging (mlperf_logging), axolotl-ai-cloud/axolotl,
hiyouga/LLaMA-Factory, mosaicml/composer (loggers/console_logger.py) and
Lightning-AI/pytorch-lightning.
"""

from __future__ import annotations

import re

MOST_LOOKED = 16 * 2**20  # bytes of a log that are looked through
TRAINER = "it has neither its progress bar nor the train_runtime at its end"
# The framework, text of one of its lines in lower case, the line's pattern, and what is missing for
# a step time; the first framework that is found counts.
_OTHERS = (
    ("MLPerf", "mllog", r"^:{3}MLLOGv?\S*",
     "block_start and block_stop have no samples_count, from which steps are counted"),
    ("axolotl", "axolotl.", r"\[axolotl\.|\baxolotl\.(?:cli|train|utils)\b", TRAINER),
    ("LLaMA-Factory", "llamafactory", r"\bllamafactory\b", TRAINER),
    ("transformers' Trainer", "{'", r"^\s*\{'(?:loss|train_runtime|eval_loss)': ", TRAINER),
    ("Composer", "=", r"^\[(?:batch|epoch)=\d+/\d+\]", "it lacks throughput/batches_per_sec"),
    ("OLMo", "[step=", r"\[step=\d+(?:/\d+)?,\s*epoch=\d+",
     "it lacks throughput/device/batches_per_second or BPS"),
    ("OLMo", "olmo", r"\bolmo(?:_core)?\.train\b",
     "it lacks throughput/device/batches_per_second or BPS"),
    ("DeepSpeed", "skipped=", r"\bstep=\d+, skipped=\d+, lr=",
     "it lacks CurrSamplesPerSec or, with pipelines, `iter time (s)`"),
    ("an older DeepSpeed", "samplespersec=", r"\b\d+/\d+, SamplesPerSec=",
     "its SamplesPerSec is the mean since the start"),
    ("PyTorch Lightning", "it/s", r"\bEpoch \d+[: ]+\d+%\|", "its progress bar shows a mean rate"),
    ("PyTorch Lightning", "s/it", r"\bEpoch \d+[: ]+\d+%\|", "its progress bar shows a mean rate"),
)  # fmt: skip
_PATTERNS = tuple((who, mark, re.compile(pattern, re.I)) for who, mark, pattern, _ in _OTHERS)
INSTEAD = 'write its steps as JSON lines, {"step": 1, "step_s": 1.25}'


class OtherLogs:
    """Recognises the framework of a log by its lines."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def take(self, line: str) -> None:
        """Take in a line."""
        lowered = line.lower()
        for who, mark, pattern in _PATTERNS:
            if mark in lowered and who not in self._known and pattern.search(line):
                self._known.add(who)

    def found(self) -> tuple[str, str] | None:
        """The framework and what its log lacks; None if no line was recognised."""
        return next(((who, what) for who, _, _, what in _OTHERS if who in self._known), None)
