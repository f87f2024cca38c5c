"""The runs of NVIDIA/dgxc-benchmarking's launch scripts as recipes of NeMo (`launches.toml`).

The words of a launch script are expanded as `simgpt import` does it, and the script of NeMo that
they start is evaluated over its syntax tree with them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.facts import facts
from simgpt.frameworks.recipe_code.keys import SCRIPT, RecipeKey
from simgpt.frameworks.recipe_code.recipe import evaluate_recipe
from simgpt.frameworks.scripts.shell import read_script
from tools.repositories import text_of, unpacked
from topologies.files.reading import shipped_toml

FOLDERS = ("scripts/performance", "nemo/collections/llm", "nemo/lightning", "nemo/utils")
PUBLISHER = "dgxc-"  # before the releases of dgxc-benchmarking
_COMMITS = (r'NEMO_COMMIT="?([0-9a-f]{40})', r'NVIDIA/NeMo\.git"?\s+commit: "([0-9a-f]{40})')


def rows_of_launches(nemo: Path, dgxc: Path) -> Iterator[dict[str, str]]:
    """The facts of each run, by clones of NeMo and of dgxc-benchmarking."""
    for launch in shipped_toml("tools", "launches.toml")["launch"]:
        with tempfile.TemporaryDirectory() as folder:
            commit = _commit(dgxc, launch)
            unpacked(nemo, commit, FOLDERS, Path(folder))
            _change(dgxc, launch, Path(folder))
            release = PUBLISHER + str(launch["tag"]).removeprefix("v")
            for found in _runs(dgxc, launch, Path(folder)):
                yield {"release": release, "tag": commit[:10], **found}


def _commit(dgxc: Path, launch: Mapping[str, Any]) -> str:
    """The commit of NeMo that a launch script's neighbours name."""
    beside = PurePosixPath(launch["script"]).parent
    for name in ("setup.sh", "metadata.yaml"):
        text = text_of(dgxc, launch["tag"], str(beside / name))
        if found := next(filter(None, (re.search(each, text or "") for each in _COMMITS)), None):
            return found[1]
    raise SystemExit(f"{launch['tag']} {launch['script']}: no commit of NeMo beside it")


def _change(dgxc: Path, launch: Mapping[str, Any], folder: Path) -> None:
    """Apply the launch's patch to NeMo, and copy its files into it."""
    if "patch" in launch:
        patch = text_of(dgxc, launch["tag"], launch["patch"])
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=patch,
            text=True,
            check=True,
            cwd=folder,
        )
    for name in launch.get("copied", ()):
        into = folder / launch["into"] / PurePosixPath(name).name
        into.write_text(text_of(dgxc, launch["tag"], name) or "", encoding="utf-8")


def _runs(dgxc: Path, launch: Mapping[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    script, sets = text_of(dgxc, launch["tag"], launch["script"]) or "", launch["sets"]
    for values in product(*sets.values()):
        given = dict(zip(sets, map(str, values), strict=True))
        module, words = _started(script, given)
        key = RecipeKey(
            SCRIPT,
            launch["model"].format(**given),
            "pretrain",
            given.get("GPU_TYPE", launch.get("gpu", "")),
            given["DTYPE"],
            "",
            int(given["JOB_TOTAL_GPUS"]),
            module,
            "__main__",
        )
        yield facts(evaluate_recipe(Checkout(folder), key, command=words))


def _started(script: str, given: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The module that a launch script starts with `-m`, and the words behind it."""
    for command in reversed(read_script(script, given).commands):
        if "-m" in command and "python" in command[0]:
            at = command.index("-m") + 1
            return command[at], tuple(command[at + 1 :])
    raise SystemExit("a launch script that starts no module")
