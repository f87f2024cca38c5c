"""The mutations that the files of this folder list."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

LISTS = Path(__file__).resolve().parent
WEIGHTS = ("high", "middle", "low")


@dataclass(frozen=True)
class Mutation:
    """One error: `old`, which stands in `file` once, becomes `new`; some of `tests` should fail."""

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    breaks: str
    weight: str
    equivalent: str = ""

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def stale(self, root: Path) -> str:
        """Why this mutation does not fit the tree at `root`, or nothing."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        if count != 1:
            return f"{self.file} holds the old text {count} times, not once"
        missing = [test for test in self.tests if not _is_there(root, test)]
        if missing:
            return f"there is no test {missing[0]}"
        slow = [test for test in self.tests if _is_slow(root, test)]
        return f"the test {slow[0]} is slow, and only quick ones run" if slow else ""


def _is_there(root: Path, test: str) -> bool:
    file, *names = test.split("::")
    path = root / file
    if not names:
        return path.exists()
    name = names[-1].partition("[")[0]
    return path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")


def _is_slow(root: Path, test: str) -> bool:
    """Whether a test's function has the mark, in the lines right above it."""
    file, *names = test.split("::")
    if not names:
        return False
    above, _, _ = (
        (root / file).read_text(encoding="utf-8").partition(f"def {names[-1].partition('[')[0]}(")
    )
    return "@pytest.mark.slow\n" in above.rpartition("\n\n\n")[2]


def listed(folder: Path = LISTS) -> list[Mutation]:
    """Every mutation of the folder's files, in their order; an entry that is malformed raises."""
    found = [
        _mutation(entry, path.name)
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutation", [])
    ]
    ids = [each.id for each in found]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"several mutations are called {', '.join(twice)}")
    return found


def _mutation(entry: dict[str, object], file: str) -> Mutation:
    name = f"{file}: mutation {entry.get('id', '?')}"
    known = {each.name for each in fields(Mutation)}
    if wrong := set(entry) - known:
        raise ValueError(f"{name} has unknown keys: {', '.join(sorted(wrong))}")
    if lacks := known - set(entry) - {"equivalent"}:
        raise ValueError(f"{name} lacks {', '.join(sorted(lacks))}")
    tests = entry["tests"]
    if not isinstance(tests, list) or not tests:
        raise ValueError(f"{name}: tests must be a list of at least one")
    if entry["weight"] not in WEIGHTS:
        raise ValueError(f"{name}: weight must be one of {', '.join(WEIGHTS)}")
    if entry["old"] == entry["new"] or not entry["old"]:
        raise ValueError(f"{name} changes nothing")
    texts = {key: str(value) for key, value in entry.items() if key != "tests"}
    return Mutation(tests=tuple(map(str, tests)), **texts)
