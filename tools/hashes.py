"""Write hashes.txt: of every pin in constraints.txt the digests of the files that PyPI serves.

    python tools/hashes.py > hashes.txt
    python tools/hashes.py --of run,test > build/run-test.txt

The second prints the lines of hashes.txt for all that some extras need: `pip install
--require-hashes --no-deps -r build/run-test.txt` takes no file that PyPI did not have when the pins
were chosen. Files of Pythons and systems that simgpt does not name are left out, and
torch, whose build for CPUs comes from torch's own index, with what its build for GPUs pulls.
constraints.txt itself has no hashes: pip would then refuse `-c constraints.txt -e .`, for a folder
has no single file to hash.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
PYTHONS = (311, 312, 313)  # setup.cfg's classifiers
SYSTEMS = ("any", "manylinux", "macosx")
ELSEWHERE = re.compile("torch|nvidia-.*|cuda-.*|triton")  # from an index of its own
PIN = re.compile(r"([\w.-]+)==(\S+)")


def pins() -> list[tuple[str, str]]:
    """Names and versions, as constraints.txt has them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    known = [(found[1], found[2]) for line in lines if (found := PIN.match(line))]
    return [(name, version) for name, version in known if not ELSEWHERE.fullmatch(name)]


def main() -> None:
    """Print the file, or what of it some extras need."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--of", metavar="EXTRAS", help="what these extras need: run,test")
    extras = parser.parse_args().of
    if extras is not None:
        sys.stdout.writelines(_lines_of(extras))
        return
    known = pins()
    sys.stdout.write("# Written by tools/hashes.py from constraints.txt.\n")
    with ThreadPoolExecutor(8) as pool:
        for (name, version), digests in zip(known, pool.map(digests_of, known), strict=True):
            if not digests:
                raise SystemExit(f"{INDEX} has no file of {name} {version}")
            hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
            sys.stdout.write(f"{name}=={version}{hashes}\n")


def digests_of(pin: tuple[str, str]) -> list[str]:
    """The digests of the files of a pin that simgpt's Pythons can install, in order."""
    name, version = pin
    files = _listed(_plain(name))
    return sorted({file["hashes"]["sha256"] for file in files if _is_wanted(file, version)})


def _lines_of(extras: str) -> Iterator[str]:
    """The entries of hashes.txt that an installation with these extras takes, as pip resolves it
    within constraints.txt."""
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    asked = [*words, "-c", "constraints.txt", f".[{extras}]"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *asked], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    needed = {_plain(each["metadata"]["name"]) for each in json.loads(done.stdout)["install"]}
    entries = (ROOT / "hashes.txt").read_text(encoding="utf-8").replace(" \\\n", " ")
    for line in entries.splitlines():
        pin = PIN.match(line)
        if pin and _plain(pin[1]) in needed:
            yield f"{line}\n"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _listed(name: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(f"{INDEX}/{name}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
    return files


def _is_wanted(file: dict[str, Any], version: str) -> bool:
    """Whether a file is of a version, and a source or a wheel for a Python and system of ours."""
    name = str(file["filename"])
    if name.endswith(".whl"):
        _, of, *_, python, abi, system = name.removesuffix(".whl").split("-")
        return of == version and any(map(system.startswith, SYSTEMS)) and any(_fit(python, abi))
    stem = name.removesuffix(".tar.gz").removesuffix(".zip")
    return stem != name and stem.endswith(f"-{version}")


def _fit(python: str, abi: str) -> Iterator[bool]:
    yield "py3" in python.split(".")
    for own in PYTHONS:
        yield f"cp{own}" in python.split(".") and abi == f"cp{own}"
        since = (int(each) for each in re.findall(r"cp(\d+)", python))  # cp39 is cp309 here
        yield abi == "abi3" and any((n if n > 99 else 270 + n) <= own for n in since)


if __name__ == "__main__":
    main()
