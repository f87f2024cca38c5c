"""What a run writes as it goes: never a reason to stop, no step lost or doubled."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from simgpt.commands.run import command
from simgpt.running.step_log import Unwritten, written_to
from topologies.errors import DiskError, OutputError
from topologies.files.writing import piece_by_piece

NUMBERS = {"loss": 1.5, "grad_norm": 1.0, "lr": 0.1, "seconds": 1.0, "peak_bytes": 1}


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr("simgpt.options.note", said.append)
    return said


def log(path: Path, steps: Sequence[int], *, goes_on: bool = False) -> Unwritten:
    unwritten = Unwritten()
    with written_to(path, None, unwritten, goes_on=goes_on) as write:
        for step in steps:
            write({"step": step, **NUMBERS})
    return unwritten


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_run_that_goes_on_writes_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path, range(1, 9))
    log(path, range(5, 11), goes_on=True)
    assert steps_in(path) == [*range(1, 11)]
    log(path, range(1, 4))
    assert steps_in(path) == [1, 2, 3]


def test_a_run_that_is_started_again_by_itself_writes_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path, [1, 2, 3, 4, 3, 4, 5, 1, 2])
    assert steps_in(path) == [1, 2]


def test_a_line_that_a_kill_cut_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path, [1, 2, 3])
    os.truncate(path, path.stat().st_size - 5)
    log(path, [3, 4], goes_on=True)
    assert steps_in(path) == [1, 2, 3, 4]


def test_what_is_no_line_of_a_log_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"mine\n\xff" + b"x" * 200_000 + b" no end")
    before = path.read_bytes()
    log(path, [1, 2], goes_on=True)
    after = path.read_bytes()
    assert after.startswith(before + b"\n{")
    assert after.count(b"\n") == 4


def broken_pipe(path: Path) -> Iterator[None]:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield
    os.close(reader)
    yield


@pytest.mark.parametrize("fault", ["full", "removed", "pp"])
def test_a_log_that_cannot_be_written_is_said_once_and_ends_with_5(
    fault: str, tmp_path: Path, notes: list[str]
) -> None:
    folder, unwritten = tmp_path / "folder", Unwritten()
    folder.mkdir()
    path = Path("/dev/full") if fault == "full" else folder / "log"
    pp = broken_pipe(path)
    if fault == "pp":
        next(pp)
    with written_to(path, None, unwritten) as write:
        if fault == "removed":
            write({"step": 1, **NUMBERS})
            shutil.rmtree(folder)
        if fault == "pp":
            next(pp)
        for step in (2, 3, 4):
            write({"step": step, **NUMBERS})
    assert len(notes) == 1
    assert str(path) in notes[0]
    with pytest.raises(DiskError) as end:
        unwritten.check()
    assert end.value.exit_code == 5
    assert str(path) in str(end.value)


def test_of_a_line_that_did_not_fit_nothing_is_left(tmp_path: Path) -> None:
    """A file may have 10 bytes: of the second line 4 fit."""
    path, limits = tmp_path / "log", resource.getrlimit(resource.RLIMIT_FSIZE)
    with piece_by_piece(path) as write:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        try:
            write(b"first\n")
            with pytest.raises(DiskError):
                write(b"second\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == b"first\n"
        write(b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


@pytest.mark.parametrize("is_log", [True, False])
def test_what_cannot_be_written_from_the_start_is_refused(is_log: bool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "tp"
    lines, events = (path, None) if is_log else (None, path)
    with pytest.raises(OutputError) as refused, written_to(lines, events, Unwritten()):
        pass
    assert refused.value.exit_code == 2


def test_events_go_on_without_a_disk_and_take_back_what_is_done_again(
    tmp_path: Path, notes: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    unwritten = Unwritten()
    with written_to(None, tmp_path / "tb", unwritten) as write:
        for step in (1, 2, 3, 4, 3):
            write({"step": step, **NUMBERS})
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [each.step for each in events.Scalars("loss")] == [1, 2, 3]
    with written_to(None, tmp_path / "gone", unwritten) as write:
        shutil.rmtree(tmp_path / "gone")
        for step in (1, 2):
            write({"step": step, **NUMBERS})
    assert len(notes) == 1
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(DiskError):
        unwritten.check()


def run_options() -> list[click.Parameter]:
    return [each for each in command.params if isinstance(each, click.Option)]


@pytest.mark.parametrize("option", run_options(), ids=lambda option: option.opts[0])
def test_torchrun_leaves_the_first_name_of_every_option_to_simgpt(option: click.Option) -> None:
    from torch.distributed.run import get_args_parser

    words = ["simgpt", "run", "tiny-30k", option.opts[0], *([] if option.is_flag else ["1"])]
    parsed = get_args_parser().parse_args(["--nproc-per-node", "2", "-m", *words])
    assert (parsed.module, parsed.training_script) == (True, "simgpt")
    assert parsed.training_script_args == words[1:]


@pytest.mark.parametrize("name", ["--log", "--log-file"])
def test_the_log_has_a_short_name_and_one_for_torchrun(name: str) -> None:
    context = command.make_context("run", ["tiny-30k", name, "steps.jsonl"])
    assert context.params["log"] == Path("steps.jsonl")


def lines_with_torchrun() -> Iterator[list[str]]:
    """The words of every line of the pages and of the help that starts a run under torchrun."""
    pages = [*Path("docs").glob("*.md"), Path("README.md")]
    texts = [*(page.read_text(encoding="utf-8") for page in pages), command.help or ""]
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.strip().startswith("torchrun ") and "-m simgpt run" in line:
                yield shlex.split(line)


def test_every_line_with_torchrun_in_the_docs_is_one_that_torchrun_takes() -> None:
    from torch.distributed.run import get_args_parser

    lines = list(lines_with_torchrun())
    assert any("--log-file" in words for words in lines)
    for words in lines:
        parsed = get_args_parser().parse_args(words[1:])
        assert (parsed.module, parsed.training_script) == (True, "simgpt")
        run, *rest = parsed.training_script_args
        assert run == "run"
        assert command.make_context("run", rest).params["model"]
