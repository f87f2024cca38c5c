"""The record of a run of tests has every outcome by package, and names what failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tools.test_record import SLOWEST, found_in, main, package_of

REPORT = """<testsuites><testsuite name="pytest" time="61.5" timestamp="2026-11-29T02:17:00">
<testcase classname="tests.simgpt.test_why" name="test_one" time="2.5" />
<testcase classname="tests.simgpt.api.test_words" name="test_two[a]" time="1">
  <failure message="no">no</failure></testcase>
<testcase classname="tests.test_docs" name="test_three" time="0"><skipped message="no" /></testcase>
<testcase classname="topologies.units" name="topologies.units.parse" time="0.1" />
<testcase classname="tests.simgpt.test_why" name="test_four" time="4">
  <error message="at teardown">no</error></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted_by_package() -> None:
    assert found_in(REPORT)["counts"] == {
        "all": {"passed": 2, "failed": 2, "skipped": 1},
        "simgpt": {"passed": 1, "failed": 2, "skipped": 0},
        "tests": {"passed": 0, "failed": 0, "skipped": 1},
        "topologies": {"passed": 1, "failed": 0, "skipped": 0},
    }


def test_what_failed_or_ended_in_an_error_is_named() -> None:
    found = found_in(REPORT)
    failed = ["tests.simgpt.api.test_words::test_two[a]", "tests.simgpt.test_why::test_four"]
    assert found["failed"] == failed
    assert (found["wall_s"], found["date"]) == (61.5, "2026-11-29T02:17:00")


def test_the_slowest_come_first_and_are_not_all() -> None:
    cases = "".join(
        f'<testcase classname="tests.test_a" name="t{n}" time="{n}" />' for n in range(SLOWEST + 5)
    )
    slowest = found_in(f"<testsuites>{cases}</testsuites>")["slowest"]
    assert [row["seconds"] for row in slowest] == [*range(SLOWEST + 4, 4, -1)]


def test_a_module_of_tests_is_of_its_folder() -> None:
    modules = ("tests.executor.runs.test_a.TestB", "tests.test_a", "simgpt.api.words")
    assert [*map(package_of, modules)] == ["executor", "tests", "simgpt"]


def record_of(report: str, folder: Path) -> tuple[int, dict[str, Any] | None, str]:
    junit, record = folder / "junit.xml", folder / "record.json"
    if report:
        junit.write_text(report, encoding="utf-8")
    ended = CliRunner().invoke(main, [str(junit), str(record)])
    found = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
    return ended.exit_code, found, ended.output


def test_a_run_with_failures_has_a_record_too(tmp_path: Path) -> None:
    status, record, said = record_of(REPORT, tmp_path)
    assert status == 0
    assert record is not None
    about = ("command", "commit", "python", "torch", "cores")
    assert [*record] == [*about, *found_in(REPORT)]
    assert "- `tests.simgpt.test_why::test_four`" in said.splitlines()
    assert "| simgpt | 1 | 2 | 0 |" in said.splitlines()


def test_a_run_that_left_no_whole_report_has_no_record(tmp_path: Path) -> None:
    assert record_of("", tmp_path)[:2] == (2, None)
    assert record_of(REPORT[:200], tmp_path)[:2] == (2, None)
