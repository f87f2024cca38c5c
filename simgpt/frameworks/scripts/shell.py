"""The words that a shell script gives to a training program. No program is started."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from simgpt.frameworks.scripts.interpreter import Leave, Script
from simgpt.frameworks.scripts.syntax import parsed
from simgpt.frameworks.scripts.tree import Body
from simgpt.frameworks.scripts.variables import Value, Variables, joined, rendered
from simgpt.frameworks.scripts.words import BEGINS, ENDS
from topologies.records import record

SHELL_SETUP = ("activate", "conda.sh", ".bashrc", ".profile", ".bash_profile", "profile", "bash")
_OPTION = re.compile(r"--\w|[+~]{0,2}[A-Za-z_][\w/@]*(?:\.[\w/@]+)+=")
_COMMAND_IN_WORD = re.compile(r"\s--?[A-Za-z]|\.py\s|^--[\w-]+\s")
_RUNS_MODULES = re.compile(r"python|torchrun|accelerate|deepspeed")


@record
class Launch:
    """The words after a training program's name, and those before it; `left_out` are lines with why
    what depends on them is left out, `sourced` files that the script takes in, `commands` the words
    of all that it starts. Without arguments the script starts nothing that is known."""

    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    variables: Mapping[str, Value]
    left_out: Mapping[str, str]
    sourced: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


def read_script(
    text: str,
    given: Mapping[str, str],
    before: Mapping[str, Value] | None = None,
    known: Callable[[Sequence[str]], int] = lambda words: 0,
) -> Launch:
    """What a script gives to the training program that it starts, or, where it starts none, what
    its variables hold; `given` are variables that the surroundings set, whatever the script says,
    `before` those that scripts before it have set. Of several programs it is the one of whose words
    most are `known`, and of those the last."""
    script = Script(Variables({**(before or {}), **given}, given), is_launch)
    _run_all(script, parsed(_without_marks(text)))
    commands = [[rendered(word) for word in _flat(words)] for words in script.commands]
    telling = [words for words in commands if is_launch(words)]
    launcher: Sequence[str] = ()
    variables = script.variables.values
    if telling:
        words = max(reversed(telling), key=known)
        at = _program(words)
        assert at is not None
        arguments, launcher = words[at + 1 :], words[:at]
    else:
        own = {key: each for key, each in variables.items() if each != (before or {}).get(key)}
        fragments = [_parts(value) for value in own.values() if "--" in joined(value)]
        loose = [word for each in commands for word in each if each[0].startswith("--")]
        arguments = [rendered(word) for words in fragments for word in words] + loose
    if not any(map(_OPTION.match, arguments)):
        arguments = []
    return Launch(
        tuple(arguments),
        tuple(launcher),
        variables,
        script.left_out,
        tuple(_sourced(commands)),
        tuple(tuple(" ".join(words).split()) for words in commands),
    )


def _without_marks(text: str) -> str:
    return text.replace(BEGINS, "").replace(ENDS, "")


def _parts(value: Value) -> list[str]:
    """The words of a variable that holds a part of a command."""
    return value.split() if isinstance(value, str) else list(value.values())


def _sourced(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    """The files that `source` or `.` takes in, but for those that only set up a shell."""
    for words in commands:
        if words[0] in ("source", ".") and len(words) > 1:
            name = words[1].rpartition("/")[2]
            if name not in SHELL_SETUP:
                yield name if "$" in words[1] else words[1]


def _program(words: Sequence[str]) -> int | None:
    """Where a command's Python file or module stands, if it names one."""
    files = [index for index, word in enumerate(words) if word.endswith(".py")]
    modules = [
        index + 1
        for index, word in enumerate(words[:-1])
        if word == "-m" and any(map(_RUNS_MODULES.search, words[:index]))
    ]
    return max(files or modules, default=None)


def is_launch(words: Sequence[str]) -> bool:
    """Whether a command starts a program with options."""
    at = _program(words)
    return at is not None and any(map(_OPTION.match, words[at + 1 :]))


def _flat(words: Sequence[str]) -> Iterator[str]:
    """A command's words, those that hold several options split."""
    for word in words:
        if _COMMAND_IN_WORD.search(word):
            yield from _split(word)
        else:
            yield word


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its partner
        return text.split()


def _run_all(script: Script, body: Body) -> None:
    """Run a script, and, where it starts no program, the functions that nobody calls: they are for
    others to call."""
    with contextlib.suppress(Leave):
        script.run(body)
    for name, inner in list(script.functions.items()):
        if name not in script.called and not any(map(is_launch, script.commands)):
            with contextlib.suppress(Leave):
                script.run(inner)
