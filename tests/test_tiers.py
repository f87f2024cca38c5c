"""`make check` has tests of every package, doctests, and a run that is resumed."""

from __future__ import annotations

import pytest

from tests.test_house import ALLOWED, ROOT

LISTED = (ROOT / "tests" / "check.txt").read_text(encoding="utf-8").splitlines()


def test_what_is_listed_is_there_and_is_listed_once() -> None:
    assert [each for each in LISTED if not (ROOT / each.partition("::")[0]).exists()] == []
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("package", ALLOWED)
def test_every_package_has_tests_and_doctests(package: str) -> None:
    assert package in LISTED
    assert any(each.startswith(f"tests/{package}") for each in LISTED)


def test_a_run_is_resumed() -> None:
    assert any(each.startswith("tests/executor/test_resumed.py") for each in LISTED)
