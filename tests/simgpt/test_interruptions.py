"""A signal ends the program with a sentence and a status at any moment from its first line on.

The moment is not a time but a number of events that Python audits (imports, code that is executed,
files that are opened), at which the program sends the signal to itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.examples import one_in

ROOT = Path(__file__).resolve().parents[2]
HOOK = """
import atexit, os, sys

moment, number, happened = os.environ["MOMENT"], int(os.environ["NUMBER"]), os.environ["HAPPENED"]
events = 0

def strike():
    open(happened, "w").close()
    os.kill(os.getpid(), number)

def hear(event, arguments):
    global events
    if event not in ("import", "exec", "open", "compile"):
        return
    if not events:  # counted from the program's first line on
        events = any("simgpt/__main__" in getattr(each, "co_filename", "") for each in arguments)
    elif events < sys.maxsize:
        events += 1
        if events == 2 and moment == "as it ends":
            import threading
            atexit.register(strike)
        if moment.isdecimal() and events > int(moment):
            events = sys.maxsize
            strike()

sys.addaudithook(hear)
if moment == "at last":
    atexit.register(strike)
"""
CONSOLE = "import sys; from simgpt.__main__ import main; sys.argv[0] = 'simgpt'; sys.exit(main())"
ENTRIES = {"module": ["-m", "simgpt"], "script": ["-c", CONSOLE]}
PREDICT = "predict tiny-30k -m frontier --plan dp=2 --json"
SEARCH = "search tiny-30k -m perlmutter -n 2 --batch 2 --plan y=1,tp=1 --workers 2 --json"
IMPORTING = ("1", "30", "150")  # before any command: it has about 200 of these events
LATER = ("700", "1500", "2500", "3500")
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def struck(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    return tmp_path / "happened"


def end(
    entry: str, command: str, number: signal.Signals, moment: str, happened: Path
) -> tuple[int, str]:
    """The status of a command that a signal met at a moment, and what it said on stderr."""
    about = {"MOMENT": moment, "NUMBER": str(int(number)), "HAPPENED": str(happened)}
    path = os.pathsep.join([str(happened.parent), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *ENTRIES[entry], *command.split()],
        env={**os.environ, "PYTHONPATH": path, **about},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("moment", "number", "entry"),
    one_in(5, product([*IMPORTING, "as it ends"], NUMBERS, ENTRIES)),
)
def test_a_signal_outside_the_command_ends_the_program_with_its_status(
    moment: str, number: signal.Signals, entry: str, struck: Path
) -> None:
    status, said = end(entry, PREDICT, number, moment, struck)
    assert struck.exists()
    assert status == 128 + number
    assert said.startswith("simgpt: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("moment", "number", "command"), one_in(7, product(LATER, NUMBERS[:2], [PREDICT, SEARCH]))
)
def test_a_signal_while_a_command_imports_what_it_needs_ends_it_in_order(
    moment: str, number: signal.Signals, command: str, struck: Path
) -> None:
    """Or finds it done: an import is not interrupted."""
    status, _ = end("module", command, number, moment, struck)
    assert status in (128 + number, 0)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_comes_after_the_last_line_changes_nothing(
    number: signal.Signals, struck: Path
) -> None:
    assert end("module", "--version", number, "at last", struck) == (0, "")
    assert struck.exists()


def test_an_interruption_inside_a_finalizer_is_not_lost() -> None:
    script = """if True:
        import os, signal, simgpt.cli
        from simgpt import __main__

        class Final:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                len([])

        def main():
            with simgpt.cli.unwinding():
                Final()
                print("went on")

        simgpt.cli.main = main
        __main__.main()
    """
    words = [sys.executable, "-c", script]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "simgpt: interrupted\n")


def test_signals_that_nohup_and_a_background_ignore_are_ignored_from_the_first_line_on(
    struck: Path,
) -> None:
    script = f"import os, signal, sys; signal.signal({int(signal.SIGINT)}, signal.SIG_IGN); "
    script += f"os.execv(sys.executable, [sys.executable, *{[*ENTRIES['module'], '--version']!r}])"
    about = {"MOMENT": "30", "NUMBER": str(int(signal.SIGINT)), "HAPPENED": str(struck)}
    path = os.pathsep.join([str(struck.parent), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": path, **about},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert struck.exists()
    assert done.returncode == 0, done.stderr
