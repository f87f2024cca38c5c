"""The table of verdicts, by package and by weight, and whether they are good enough."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutation import WEIGHTS, Mutation
from tests.mutants.verdicts import ERRORS, KILLED, Verdict

LEAST_KILLED = 0.95


def summary(verdicts: Sequence[Verdict], equivalent: Sequence[Mutation]) -> str:
    """The table, then the names of all that were not killed, and of the equivalent ones."""
    lines = [_row("", "killed", "survived", "errors", "share")]
    for package in sorted({each.mutation.package for each in verdicts}):
        lines.append(_counts(package, [v for v in verdicts if v.mutation.package == package]))
    for weight in WEIGHTS:
        those = [each for each in verdicts if each.mutation.weight == weight]
        lines.append(_counts(f"weight {weight}", those))
    lines += [_counts("all", verdicts), ""]
    for verdict in ("survived", *ERRORS, "timeout", "broken"):
        lines += [
            f"{verdict:10} {each.mutation.id} ({each.mutation.weight}): {each.mutation.breaks}"
            + (f" [{each.by}]" if verdict in ERRORS else "")
            for each in verdicts
            if each.verdict == verdict
        ]
    lines += [f"equivalent {each.id}: {each.equivalent}" for each in equivalent]
    return "\n".join(lines).rstrip() + "\n"


def good_enough(verdicts: Sequence[Verdict]) -> bool:
    """No error, none of high weight survives, and at least 95 % are killed."""
    killed = sum(each.verdict in KILLED for each in verdicts)
    wrong = any(each.verdict in ERRORS for each in verdicts)
    high = any(each.verdict == "survived" and each.mutation.weight == "high" for each in verdicts)
    return not wrong and not high and killed >= LEAST_KILLED * len(verdicts)


def _counts(name: str, verdicts: Sequence[Verdict]) -> str:
    those = [each.verdict for each in verdicts]
    killed = sum(each in KILLED for each in those)
    survived = those.count("survived")
    errors = sum(each in ERRORS for each in those)
    share = f"{killed / (killed + survived):.0%}" if killed + survived else "-"
    return _row(name, str(killed), str(survived), str(errors), share)


def _row(name: str, *cells: str) -> str:
    return f"{name:16}" + "".join(f"{cell:>10}" for cell in cells)
