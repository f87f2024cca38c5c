"""Good answers and tables, made by the program itself, to be damaged."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import validation
from tests.simgpt.face import simgpt
from tests.simgpt.fuzz.caches import kept_of
from tests.simgpt.fuzz.stored import stored_bases
from tests.simgpt.fuzz.values import STUDY_TEXT

RUN = {
    **{"model": "m", "plan": {}, "plan_string": "tp=1", "ranks": 1, "step_s": 0.1},
    **{"steps_s": [0.1], "losses": [5.0], "peak_bytes": 1, "comm_bytes": {}, "tokens_per_s": 1.0},
    **{"predicted_step_s": 0.1, "predicted_peak_bytes": 1, "matmul_forms": None},
}
TABLES = 6
FEW = "pp=1,y=1,recompute=none"  # of a search that takes a second
WHY = ("tiny-30k", "-m", "perlmutter", "-n", "2", "--batch", "4", "--json")
CALENDAR = (
    *("plan-run", *WHY, "--tokens", "1B", "--storage", "2 TB/s", "--mtbf", "400d"),
    *("--start", "2026-11-01", "--draws", "100"),
)


def bases_of(folder: Path, *, trained: bool = False) -> dict[str, bytes]:
    """The answers by command, the folder of a sweep, and the first lines of measured tables; what a
    run leaves too, if one is `trained`."""
    asked = ("tiny-2m", "-m", "perlmutter", "-n", "8", "--batch", "16", "--json")
    data = Path(validation.__file__).parent / "data"
    network = json.loads((data / "network.json").read_text(encoding="utf-8"))
    few = dict(list(network.get("tables", network).items())[:TABLES])
    (folder / "s.toml").write_text(STUDY_TEXT, encoding="utf-8")
    with contextlib.chdir(folder):
        return {
            "predict": _out("predict", *asked),
            "why": _out("why", *WHY),
            "search": _out("search", *asked, "--workers", "1", "--plan", FEW),
            "sweep": _out("sweep", "s.toml", "-o", "r", "--json"),
            "calendar": _out(*CALENDAR),
            "validation": _out("validate", "seeds", "--only", "ornl-22b", "--json"),
            "run": json.dumps(RUN).encode(),
            "study.json": Path("r/study.json").read_bytes(),
            "results.jsonl": Path("r/results.jsonl").read_bytes(),
            "kernels": _head(data / "kernels.csv", 12),
            "published": _head(data / "published_runs.csv", 6),
            "memory": _head(data / "megatron_golden.csv", 6),
            "network": json.dumps(few).encode(),
            **(stored_bases() if trained else {}),
            **kept_of(folder),
        }


def _out(*words: str) -> bytes:
    said = simgpt(*words)
    assert said.status == 0, said.err
    return said.out.encode()


def _head(path: Path, lines: int) -> bytes:
    return b"\n".join(path.read_bytes().split(b"\n")[:lines]) + b"\n"
