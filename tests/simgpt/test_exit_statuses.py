"""One table of exit statuses: the documentation's, the code's, and how commands end."""

from __future__ import annotations

import ast
import errno
import re
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

from executor.errors import LaunchError
from executor.launching.blame import Death, Origin
from executor.launching.launch_env import RankInfo
from simgpt.cli import COMMANDS, main
from simgpt.running.launched import join
from tests.simgpt.face import simgpt
from tests.simgpt.studies.processes import write_study
from topologies.exit_status import ExitStatus

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("topologies", "workload", "simulator", "executor", "validation", "simgpt")
TABLE = ROOT / "docs" / "exit-statuses.md"
ENDS = ("SystemExit", "exit", "_exit")


def rows() -> list[list[str]]:
    """The cells of the documented table."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if "|" in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_documented_table_is_that_of_the_code() -> None:
    shown = [(name, meaning.replace("\\|", "|")) for name, meaning, _ in rows()]
    named = [f"{each}" if each < ExitStatus.SIGNALLED else f"{each} + n" for each in ExitStatus]
    assert shown == list(zip(named, [each.meaning for each in ExitStatus], strict=True))


def test_the_table_names_commands_that_there_are() -> None:
    words = {word for *_, which in rows() for word in re.findall(r"`([a-z-]+)`", which)}
    assert words - {"torchrun", "srun", "--save"} <= set(COMMANDS)


def test_no_other_page_has_a_table_of_statuses() -> None:
    others = set((ROOT / "docs").glob("*.md")) - {TABLE}
    assert not [page.name for page in others if "| status | how" in page.read_text("utf-8")]


@pytest.mark.parametrize("package", PACKAGES)
def test_statuses_are_named_and_nowhere_numbers(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in (*ENDS, "exit_code")):
            continue
        for node in ast.walk(ast.parse(text)):
            assert not is_bare(node), f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def is_bare(node: ast.AST) -> bool:
    """Whether a node says a status as a number."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        return any(isinstance(to, ast.Name) and to.id == "exit_code" for to in node.targets)
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0]
    return name in ENDS and isinstance(first, ast.Constant) and isinstance(first.value, int)


def fails(error: BaseException) -> Any:
    def raising(*_: object, **__: object) -> NoReturn:
        raise error

    return raising


def test_done_and_wrong_input() -> None:
    assert simgpt("models").status == ExitStatus.DONE
    for words in (("models", "nothing"), ("predict", "--nothing"), ("nothing",), ()):
        assert simgpt(*words).status == ExitStatus.WRONG_INPUT


def test_a_plan_that_cannot_run() -> None:
    question = ("tiny-30k", "-m", "frontier", "-n", "8")
    for command in ("predict", "why", "sbatch"):
        assert simgpt(command, *question, "--plan", "tp=3,dp=1").status == ExitStatus.CANNOT_RUN
    words = ("predict", "gpt-640b", "-m", "frontier", "--plan", "dp=8", "--batch", "8")
    assert simgpt(*words).status == ExitStatus.CANNOT_RUN


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libfoo.so: failed to map segment from shared object"),
        OSError(24, "Too many open files"),
        SystemError("error return without exception set"),
    ],
)
def test_a_machine_that_fails_is_said_in_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simgpt.step.Sources.model", fails(error))
    said = simgpt("models", "gpt2")
    assert said.status == ExitStatus.MACHINE_FAILED
    assert said.sentence.startswith("simgpt: ")


def test_a_bug_at_a_point_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("sweep", str(write_study(tmp_path, 1)), "-o", str(tmp_path / "r"))
    monkeypatch.setattr("simulator.predict.predict", fails(KeyError("pp")))
    assert simgpt(*words).status == ExitStatus.BUG


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
def test_a_loss_that_is_not_finite() -> None:
    words = ("run", "tiny-30k", "--steps", "4", "--lr", "1e30", "--no-predict", "--ranks", "1")
    assert simgpt(*words).status == ExitStatus.DIVERGED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgpt.step.Sources.model", lambda *_, **__: signal.raise_signal(number))
    assert simgpt("models", "gpt2").status == ExitStatus.SIGNALLED + number


def test_an_error_of_pythons_own_in_a_rank_ends_it_with_1_and_simgpt_with_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("executor.job.perform", fails(KeyError("pp")))
    monkeypatch.setattr("os._exit", lambda status: (_ for _ in ()).throw(SystemExit(status)))
    job: Any = None
    with pytest.raises(SystemExit) as end:
        join(job, RankInfo.local(0, 1, Path()), lambda _: None)
    assert end.value.code == ExitStatus.BUG
    error = Death(0, ExitStatus.BUG, Origin.OWN, "rank 0 stopped").error()
    assert isinstance(error, LaunchError)
    assert error.exit_code == ExitStatus.MACHINE_FAILED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, "no space"), 5),
        (OSError(errno.EMFILE, "too many"), 5),
        (ImportError("failed to map segment from shared object"), 5),
        (SystemError("error return without exception set"), 5),
        (FileNotFoundError(errno.ENOENT, "a file of ours"), None),
        (ModuleNotFoundError("No module named 'simgpt.nothing'"), None),
    ],
)
def test_a_bug_of_ours_is_not_put_down_to_the_machine(
    error: Exception, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a status it is raised on, with its traceback, which Python ends with 1."""

    def fail(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("simgpt.cli.cli.main", fail)
    if status is None:
        with pytest.raises(type(error)):
            main()
        return
    assert simgpt("machines").status == status
