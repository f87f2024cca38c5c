"""`make gpu-check`: what it says without a GPU, and how it keeps what its parts answered."""

from __future__ import annotations

import sys

import pytest
import torch

from tools import gpu_check
from tools.gpu_check import Part, below_target, check


def part(name: str, code: str, limit_s: int = 60) -> Part:
    return Part(name, (sys.executable, "-c", code), limit_s)


def test_without_a_gpu_it_says_so_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.status() == 5
    assert capsys.readouterr() == (
        "",
        "gpu-check needs a GPU, and torch sees none on this machine\n",
    )


def test_a_part_that_fails_or_hangs_is_kept_and_the_others_run() -> None:
    parts = (
        part("bad", "import sys; sys.exit('no kernel')"),
        part("late", "import time; time.sleep(60)", limit_s=1),
        part("good", "print('{\"rows\": []}')"),
    )
    answers, good = check(parts, lambda _: None)
    assert not good
    assert (answers["bad"]["status"], answers["bad"]["said"]) == (1, "no kernel\n")
    assert answers["late"]["status"] == "timed out"
    assert (answers["good"]["status"], answers["good"]["answer"]) == (0, {"rows": []})


def test_all_parts_together_keep_to_the_limit() -> None:
    assert sum(part.limit_s for part in gpu_check.PARTS) <= gpu_check.LIMIT_S


def test_throughput_below_97_percent_of_plain_pytorch_is_named() -> None:
    rows = [{"model": "gpt2", "precision": "bf16", "ratio": ratio} for ratio in (0.97, 0.9699)]
    rows.append({"model": "gpt2", "precision": "fp32", "ratio": 0.8, "graphed_ratio": 1.1})
    answers = {"throughput_bf16": {"answer": {"rows": rows}}, "tests": {"answer": None}}
    assert below_target(answers) == ["gpt2 in bf16: 0.970 of PyTorch"]
