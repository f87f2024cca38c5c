"""The note of a whole run says what passed, and there is none where something failed."""

from __future__ import annotations

import pytest

from tests.full_run import counts

REPORT = (
    '<testsuites><testsuite name="pytest" tests="12" failures="{}" errors="{}" skipped="{}" '
    'time="61.6"/></testsuites>'
)


def test_skipped_tests_are_not_among_those_that_passed() -> None:
    found = counts(REPORT.format(0, 0, 2))
    assert found == {"passed": 10, "skipped": 2, "seconds": 62}


@pytest.mark.parametrize("wrong", [(1, 0, 0), (0, 1, 0), (0, 0, 12)])
def test_a_run_with_a_failure_or_without_tests_is_no_whole_run(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not all tests passed"):
        counts(REPORT.format(*wrong))
