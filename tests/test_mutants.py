"""The list of mutations fits the code, and the tool that runs them tells right verdicts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.copies import copy, files_of, mutated
from tests.mutants.mutation import Mutation, listed
from tests.mutants.summary import good_enough, summary
from tests.mutants.trial import Runner
from tests.mutants.verdicts import Verdict, judge_all

CHECKOUT = Path(__file__).resolve().parent.parent
LEAST_MUTATIONS = 480

WORLD = {
    "setup.cfg": "[tool:pytest]\nmarkers =\n    gpu: g\n    slow: s\n",
    "small/__init__.py": "",
    "small/sums.py": "def total(values):\n    found = sum(values)\n    return found + 0\n",
    "tests/test_sums.py": (
        "import subprocess, sys\n"
        "ASK = 'from small.sums import total; print(total([1, 2]))'\n"
        "def test_the_sum_of_one_and_two_is_three():\n"
        "    said = subprocess.check_output([sys.executable, '-c', ASK], cwd='/')\n"
        "    assert int(said) == 3\n"
    ),
}
KILLED = Mutation(
    id="killed",
    file="small/sums.py",
    old="found = sum(values)",
    new="found = len(values)",
    tests=("tests/test_sums.py",),
    breaks="sums are counts",
    weight="high",
)
SURVIVES = replace(KILLED, id="survives", old="found + 0", new="found - 0")
STALE = replace(KILLED, id="stale", old="found", new="total")
NO_TEST = replace(KILLED, id="no-test", tests=("tests/test_sums.py::test_differences",))
BROKEN = replace(
    KILLED, id="broken", file="tests/test_sums.py", old="import subprocess", new="imports"
)
HANGS = replace(KILLED, id="hangs", old="    found = sum(values)", new="    while True: pass")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A checkout of one package of three lines and its test."""
    if shutil.which("git") is None:
        pytest.skip("git says which files a checkout has")
    root = tmp_path / "world"
    for name, text in WORLD.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    return root


def verdicts(world: Path, *mutations: Mutation, timeout_s: float) -> dict[str, Verdict]:
    found = judge_all(world, mutations, jobs=2, timeout_s=timeout_s, said=lambda verdict: None)
    return {each.mutation.id: each for each in found}


def test_no_listed_mutation_is_stale() -> None:
    mutations = listed()
    reasons = {each.id: each.stale(CHECKOUT) for each in mutations}
    assert {name: reason for name, reason in reasons.items() if reason} == {}
    assert len(mutations) >= LEAST_MUTATIONS


def test_a_mutation_is_killed_survives_is_stale_or_breaks_the_collection(world: Path) -> None:
    found = verdicts(world, KILLED, SURVIVES, STALE, NO_TEST, BROKEN, timeout_s=120)
    assert {name: each.verdict for name, each in found.items()} == {
        "killed": "killed",
        "survives": "survived",
        "stale": "stale",
        "no-test": "stale",
        "broken": "broken",
    }
    assert found["killed"].by == "tests/test_sums.py::test_the_sum_of_one_and_two_is_three"
    assert found["stale"].by == "small/sums.py holds the old text 2 times, not once"
    assert {name: (world / name).read_text() for name in WORLD} == WORLD


def test_a_test_that_fails_on_the_clean_copy_too_kills_nothing(world: Path) -> None:
    (world / "tests/test_sums.py").write_text("def test_none():\n    assert False\n")
    assert verdicts(world, KILLED, timeout_s=120)["killed"].verdict == "unclean"


@pytest.mark.slow
def test_a_mutation_that_hangs_is_ended_and_counts_as_killed(world: Path) -> None:
    assert verdicts(world, HANGS, timeout_s=15)["hangs"].verdict == "timeout"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for them in /proc")
def test_tests_that_never_end_leave_no_process_behind_not_even_in_another_session(
    world: Path, tmp_path: Path
) -> None:
    (world / "tests/test_sums.py").write_text(
        "import subprocess, sys, time\n"
        "def test_for_ever():\n"
        f"    ask = [sys.executable, '-c', 'import time; time.sleep(600) # {tmp_path}']\n"
        "    subprocess.Popen(ask, start_new_session=True)\n"
        "    time.sleep(600)\n"
    )
    runner = Runner(tmp_path / "scratch", threading.Event())
    assert runner.run(world, ["tests"], timeout_s=4).outcome == "timeout"
    assert [path for path in Path("/proc").glob("[0-9]*") if _says(path, str(tmp_path))] == []


def _says(process: Path, text: str) -> bool:
    try:
        return text.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False  # it ended meanwhile


def test_two_mutations_of_one_file_do_not_share_their_compiled_code(
    world: Path, tmp_path: Path
) -> None:
    other = replace(KILLED, new="found = max(values)")  # of the same size
    root = tmp_path / "copy"
    copy(world, files_of(world), root)
    ask = [sys.executable, "-c", "from small.sums import total; print(total([1, 2, 3]))"]
    said = []
    for mutation in (KILLED, other):
        with mutated(root, mutation):
            said.append(int(subprocess.check_output(ask, cwd=root)))
    assert [*said, int(subprocess.check_output(ask, cwd=root))] == [3, 3, 6]


def test_the_summary_counts_by_package_and_weight_and_judges_by_the_worst() -> None:
    low = replace(SURVIVES, weight="low")
    killed = [Verdict(replace(KILLED, id=f"k{number}"), "killed") for number in range(19)]
    good = [*killed, Verdict(low, "survived")]
    lines = summary(good, [replace(KILLED, id="same", equivalent="no number moves")]).splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["killed", "survived", "errors", "share"],
        ["small", "19", "1", "0", "95%"],
        ["weight", "high", "19", "0", "0", "100%"],
        ["weight", "middle", "0", "0", "0", "-"],
        ["weight", "low", "0", "1", "0", "0%"],
        ["all", "19", "1", "0", "95%"],
    ]
    assert lines[-2:] == [
        "survived   survives (low): sums are counts",
        "equivalent same: no number moves",
    ]
    assert good_enough(good)
    assert not good_enough(good[1:])  # 18 of 19
    assert not good_enough([*killed, Verdict(SURVIVES, "survived")])  # of high weight
    assert not good_enough([*killed, *killed, Verdict(low, "stale")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weight = 'highest'", "weight must be one of high, middle, low"),
        ("tests = []", "tests must be a list"),
        ("new = 'a'", "changes nothing"),
        ("why = 'x'", "unknown keys: why"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, line: str, message: str) -> None:
    entry = {
        "id": "id = 'w-a'",
        "file": "file = 'small/sums.py'",
        "old": "old = 'a'",
        "new": "new = 'b'",
        "tests": "tests = ['tests']",
        "breaks": "breaks = 'sums'",
        "weight": "weight = 'low'",
    }
    whole = "\n".join(["[[mutation]]", *entry.values()])
    (tmp_path / "a.toml").write_text(whole)
    assert [each.id for each in listed(tmp_path)] == ["w-a"]
    (tmp_path / "b.toml").write_text(whole)
    with pytest.raises(ValueError, match="several mutations are called w-a"):
        listed(tmp_path)
    (tmp_path / "b.toml").unlink()
    changed = "\n".join(["[[mutation]]", *(entry | {line.partition(" =")[0]: line}).values()])
    (tmp_path / "a.toml").write_text(changed)
    with pytest.raises(ValueError, match=f"a.toml: mutation w-a.*{message}"):
        listed(tmp_path)
