"""Runs inputs, and keeps what is wrong with their answers."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.simgpt.fuzz.child import COSTLY_GIB, KEPT, LIMIT_S, MEMORY_GIB, TORCH_GIB, Child, Said
from tests.simgpt.fuzz.draw import TORCH, Draw
from tests.simgpt.fuzz.judge import wrong_with
from tests.simgpt.fuzz.page import Page
from topologies.files.cache_folder import VARIABLE

ALONE = {
    **dict.fromkeys(TORCH, TORCH_GIB),
    "costly": COSTLY_GIB,
}  # kinds that have a child of their own
BIG = b"# " + b"x" * 100_000_000


@dataclass
class Findings:
    """How many inputs ended how, and each finding with its command."""

    inputs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def add(self, draw: Draw, said: Said, wrong: str) -> None:
        """Count an input."""
        self.inputs += 1
        self.kinds[draw.kind] += 1
        self.statuses[str(said.status)] += 1
        if wrong:
            self.groups[re.sub(r"0x[0-9a-f]+|\d{2,}", "N", wrong)[:110]] += 1
            words = shlex.join(["simgpt", *draw.args])[:400]
            self.lines.append(f"#{draw.number} [{draw.kind}] {wrong}\n    {ascii(words)[1:-1]}")


def fuzz(
    seed: int,
    numbers: Sequence[int],
    bases: Mapping[str, bytes],
    kinds: Sequence[str],
    *,
    keep: Path | None = None,
    own_process: float = 0.0,
    progress: Callable[[Findings], None] = lambda _: None,
) -> Findings:
    """Run some inputs of a seed. `own_process` is the share that goes through `python -m simgpt`;
    the files of findings go into `keep`."""
    findings, child, page = Findings(), Child(MEMORY_GIB), Page()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        try:
            for number in numbers:
                draw = Draw(seed, number, bases, kinds)
                folder = Path(work, f"case{number}")
                folder.mkdir()
                lay(folder, draw.files)
                apart = random.Random(number).random() < own_process
                if draw.kind == "http":
                    said = page.ask(draw)
                else:
                    said = outside(folder, draw.args) if apart else _asked(child, draw, folder)
                wrong = wrong_with(draw, said, folder)
                if wrong and keep is not None:
                    _keep(keep / f"{seed}-{number}", draw)
                findings.add(draw, said, wrong)
                shutil.rmtree(folder, ignore_errors=True)
                progress(findings)
        finally:
            child.end()
            page.end()
    return findings


def _asked(child: Child, draw: Draw, folder: Path) -> Said:
    if draw.kind not in ALONE:
        return child.ask(folder, draw.args)
    own = Child(ALONE[draw.kind])
    try:
        return own.ask(folder, draw.args)
    finally:
        own.end()


def lay(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Put an input's files into its folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "dir":
            path.mkdir()
        elif content == "fifo":
            os.mkfifo(path)
        elif content == "big":
            path.write_bytes(BIG)
        else:
            targets = {"loop": path.name, "dangling": "nowhere/x", "device": "/dev/zero"}
            path.symlink_to(targets[content])


def outside(folder: Path, args: Sequence[str]) -> Said:
    """The same input through a process of its own."""
    words = [os.fsencode(word.encode("utf-8", "replace").decode()) for word in args]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable.encode(), b"-m", b"simgpt", *words],
            cwd=folder,
            env={**os.environ, VARIABLE: KEPT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=4 * LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said(None, "", "", f"hang of more than {4 * LIMIT_S:.0f} s", 4 * LIMIT_S)
    err = done.stderr.decode("utf-8", "replace")
    raised = err.strip().splitlines()[-1][:200] if "Traceback (most" in err else ""
    out = done.stdout.decode("utf-8", "replace")
    return Said(done.returncode, out, err, raised, time.monotonic() - begun)


def _keep(target: Path, draw: Draw) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    lay(target, draw.files)
    words = shlex.join(["simgpt", *draw.args])
    (target / "command").write_text(words, encoding="utf-8", errors="backslashreplace")
