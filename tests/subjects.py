"""What a commit's message begins with: `python -m tests.subjects FILE` is the hook `commit-msg`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST = 72  # characters: what `git log --oneline` shows in 80 columns
FORM = re.compile(r"[a-z][a-z0-9_-]*: (?P<verb>[a-z][a-z-]*)\b.*[^\s.]")
OF_GIT = re.compile(r"(Merge|Revert) ")  # which git writes itself
OF_A_MACHINE = re.compile(r"(?<![\w.])/(home|work|tmp|root|Users)/|\b[A-Z]:\\")
# "added", "adds" and "adding" are not what a commit does if it is applied.
NOT_IMPERATIVE = re.compile(r"\w+(ed|ing|[^su]s)")
IMPERATIVE = frozenset(("bring", "string", "need", "embed", "feed", "seed", "speed", "shed"))


def faults(subject: str) -> list[str]:
    """What is wrong with the first line of a message.

    >>> faults("search: keep a fused loss")
    []
    >>> faults("Fixed it.")
    ['not "area: imperative"']
    >>> faults("tests: adds a case")
    ['not an imperative: adds']
    """
    found = []
    if OF_A_MACHINE.search(subject):
        found.append("names a path of a machine")
    if OF_GIT.match(subject):
        return found
    if len(subject) > MOST:
        found.append(f"{len(subject)} characters, {MOST} at most")
    if (form := FORM.fullmatch(subject)) is None:
        found.append('not "area: imperative"')
    elif NOT_IMPERATIVE.fullmatch(verb := form["verb"]) and verb not in IMPERATIVE:
        found.append(f"not an imperative: {verb}")
    return found


def main(path: str) -> int:
    """Print what is wrong with the message in a file; the exit status for git."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = faults(lines[0] if lines else "")
    print("\n".join(found), file=sys.stderr) if found else None
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
