"""All checks that need a GPU, in one go: `make gpu-check`, or `python -m tools.gpu_check`.

The tests marked gpu (kernels in bf16 and fp32 against the CPU, training, memory), a calibration,
`simgpt validate device`, and steps beside plain PyTorch's, issued op by op and as CUDA graphs.
Everything runs in a process of its own with a limit, 25 minutes at most together, and needs no
network. What each answered is written to validation/measured/ as one JSON, also where a part
failed; the status is then 1. Without a GPU it says so and ends with status 5, having written
nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

MEASURED = Path(__file__).resolve().parent.parent / "validation" / "measured"
NO_GPU, FAILED = 5, 1
LIMIT_S = 25 * 60
TARGET = 0.97  # of plain PyTorch's throughput
KEPT_CHARACTERS = 4000  # of what a part that failed said last


@dataclass(frozen=True, slots=True)
class Part:
    """A command with its limit. It answers in JSON in `{answer}`, or on stdout."""

    name: str
    words: tuple[str, ...]
    limit_s: int


def _simgpt(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "simgpt", *words)


def _beside_plain(precision: str, model: str, batch: int) -> tuple[str, ...]:
    words = (
        "--device",
        "cuda",
        "--precision",
        precision,
        "--models",
        model,
        "--cuda-graphs",
        "--json",
        "{answer}",
    )
    return (sys.executable, "-m", "benchmarks.plain_pytorch", *words, "--batch", str(batch))


PARTS = (
    Part("tests", (sys.executable, "-m", "pytest", "-q", "-n0", "-m", "gpu", "tests"), 480),
    Part("calibration", _simgpt("calibrate", "--quick", "--json", "-o", "{answer}"), 240),
    Part("validate_device", _simgpt("validate", "device", "--json", "-o", "{answer}"), 420),
    Part("throughput_bf16", _beside_plain("bf16", "gpt2", 16), 150),
    Part("throughput_fp32", _beside_plain("fp32", "gpt2", 8), 150),
)


def check(
    parts: tuple[Part, ...], say: Callable[[str], None] = print
) -> tuple[dict[str, Any], bool]:
    """Every part's answer, and whether all ended well; one after the other, within the limit."""
    started, answers, good = time.monotonic(), {}, True
    for part in parts:
        left_s = min(part.limit_s, LIMIT_S - (time.monotonic() - started))
        answers[part.name] = answer = _run(part, left_s)
        good &= answer["status"] == 0
        say(f"{part.name}: status {answer['status']}, {answer['seconds']:.0f} s")
    return answers, good


def _run(part: Part, limit_s: float) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        words = [word.replace("{answer}", str(file)) for word in part.words]
        status: int | str
        try:
            ended = subprocess.run(
                words, capture_output=True, text=True, timeout=max(limit_s, 0.01), check=False
            )
            status, said = ended.returncode, ended.stdout + ended.stderr
            answer = _parsed(file.read_text("utf-8") if file.exists() else ended.stdout)
        except subprocess.TimeoutExpired:
            status, said, answer = "timed out", f"not over after {limit_s:.0f} s", None
    about = {"status": status, "seconds": time.monotonic() - started, "answer": answer}
    return (
        about if status == 0 and answer is not None else about | {"said": said[-KEPT_CHARACTERS:]}
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def below_target(answers: dict[str, Any]) -> list[str]:
    """The comparisons with plain PyTorch that are below the target, as sentences; what counts is
    the faster of steps issued op by op and steps that are replayed."""
    found = []
    for name, part in answers.items():
        for row in (part["answer"] or {}).get("rows", ()) if name.startswith("throughput") else ():
            best = max(row["ratio"], row.get("graphed_ratio") or 0.0)
            if best < TARGET:
                found.append(f"{row['model']} in {row['precision']}: {best:.3f} of PyTorch")
    return found


@click.command()
def main() -> None:
    """Check, write, and say where; the status says whether all is well."""
    sys.exit(status())


def status() -> int:
    """What to end with, once all is checked and written."""
    if not torch.cuda.is_available():
        print("gpu-check needs a GPU, and torch sees none on this machine", file=sys.stderr)
        return NO_GPU
    name = torch.cuda.get_device_name(0)
    answers, good = check(PARTS)
    slow = below_target(answers)
    about = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    record = {**about, "date": time.strftime("%Y-%m-%d"), "target": TARGET, "below_target": slow}
    MEASURED.mkdir(exist_ok=True)
    path = MEASURED / f"gpu-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"
    path.write_text(json.dumps(record | {"parts": answers}, indent=2) + "\n", encoding="utf-8")
    print("\n".join([*slow, f"wrote {path}"]))
    return 0 if good and not slow else FAILED


if __name__ == "__main__":
    main()
