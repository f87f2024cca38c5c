"""Files have one reader and one writer; whoever does without them says here why."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.test_house import ROOT, all_sources, place, tree_of

READER, WRITER = "topologies/files/reading.py", "topologies/files/writing.py"
READERS = {
    READER: "the reader",
    "executor/checkpoints/tensor_file.py": "tensors, as long as memory; digests are checked before",
    "executor/checkpoints/writer.py": "notes of its ranks, in a draft of their own",
    "executor/launching/blame.py": "messages of ranks",
    "executor/calibrating/measurement_cache.py": "what it kept itself, with a digest",
    "executor/launching/numa.py": "what the system says of a device",
    "executor/launching/procfs.py": "what the system says of a process",
    "executor/launching/rank_processes.py": "messages of ranks, and what they say on stderr",
    "simgpt/studies/inputs.py": "sources of its own",
    "simgpt/studies/rows.py": "rows line by line, on a descriptor of the reader's",
    "topologies/kept_results.py": "the package's own code",
    "validation/jobs/log_text.py": "logs line by line, on a descriptor of the reader's",
    "validation/jobs/trace_events.py": "traces event by event, on a descriptor of the reader's",
}
WRITERS = {
    WRITER: "the writer",
    "executor/checkpoints/folder.py": "manifests, in a draft that is renamed",
    "executor/checkpoints/tensor_file.py": "tensors, in pieces, into a draft that is renamed",
    "executor/launching/rank_processes.py": "what ranks say, in a folder of its own",
    "simgpt/running/step_log.py": "lines cut off a log, on a descriptor of the reader's",
    "executor/worker.py": "messages to its parent",
    "simgpt/studies/cluster.py": "a sweep's certificate, in a private folder of its own",
}
PARSERS = {
    READER: "the reader",
    "executor/checkpoints/belonging.py": "a record that it has just made, to compare it",
    "executor/checkpoints/manifest.py": "manifests, each with its digest",
    "executor/checkpoints/tensor_file.py": "headers of files whose digests were checked",
    "executor/checkpoints/writer.py": "notes of its ranks, in a draft of their own",
    "executor/launching/rank_processes.py": "messages of ranks",
    "executor/launching/task_specs.py": "messages to its ranks",
    "simgpt/studies/journal.py": "a record that it has just made, to compare it with another",
    "simgpt/studies/rows.py": "rows, each no longer than one is",
}
DESCRIPTORS = {
    READER: "the reader",
    WRITER: "the writer",
    "executor/data/tokens.py": "the text that a run trains on, which is mapped",
    "simgpt/options.py": "nothing, in the place of a full stdout",
    "simgpt/little_memory.py": "nothing, in the place of a child's stderr",
    "simgpt/stderr.py": "nothing, in the place of a full stderr",
}
PARSES = {"json.load", "json.loads", "tomllib.load", "tomllib.loads"}
READ_METHODS = {"read_text", "read_bytes"}
WRITE_METHODS = {"write_text", "write_bytes", "savefig"}
OPENS = {"open", "fdopen", "NamedTemporaryFile"}


@cache
def _calls(tree: ast.AST) -> tuple[tuple[ast.Call, str, str], ...]:
    """Every call with the whole name of what is called, and its last word, found once for all."""
    called = (
        (node, _name_of(node.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    )
    return tuple((node, whole, whole.rpartition(".")[2]) for node, whole in called)


def _name_of(called: ast.Attribute | ast.Name) -> str:
    """`os.open`, or `.open` where what it is of is no name."""
    if isinstance(called, ast.Name):
        return called.id
    of = called.value
    return f"{of.id if isinstance(of, ast.Name) else ''}.{called.attr}"


def _mode(call: ast.Call) -> str:
    """The mode of an `open`: a path's method, and a temporary file, have it first."""
    of_path = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    of_path |= ast.unparse(call.func).endswith("NamedTemporaryFile")
    given = [word.value for word in call.keywords if word.arg == "mode"]
    given += call.args[0 if of_path else 1 :][:1]
    return str(given[0].value) if given and isinstance(given[0], ast.Constant) else "r"


def reads(tree: ast.AST) -> list[int]:
    """The lines on which a file's text is read."""
    return [
        call.lineno
        for call, whole, last in _calls(tree)
        if (last in READ_METHODS and isinstance(call.func, ast.Attribute))
        or (last in OPENS and whole != "os.open" and not set(_mode(call)) & set("wax+"))
    ]


def parses(tree: ast.AST) -> list[int]:
    """The lines on which a text is parsed."""
    return [call.lineno for call, whole, _ in _calls(tree) if whole in PARSES]


def descriptors(tree: ast.AST) -> list[int]:
    """The lines on which a file is opened without a mode that says what for."""
    return [call.lineno for call, whole, _ in _calls(tree) if whole == "os.open"]


def writes(tree: ast.AST) -> list[int]:
    """The lines on which a file is written."""
    return [
        call.lineno
        for call, whole, last in _calls(tree)
        if last in WRITE_METHODS or (last in OPENS and set(_mode(call)) & set("wax+"))
    ]


def test_what_reads_and_what_writes_is_seen() -> None:
    text = """
json.loads(text)
path.read_text()
open(path)
path.open("rb")
path.write_text(text)
figure.savefig(sink)
open(path, "w")
path.open(mode="a")
os.fdopen(1, "w")
frontier._open(bound)
os.open(path, os.O_RDWR)
NamedTemporaryFile("w")
"""
    tree = ast.parse(text)
    assert (reads(tree), writes(tree)) == ([3, 4, 5], [6, 7, 8, 9, 10, 13])
    assert (parses(tree), descriptors(tree)) == ([2], [12])


@pytest.mark.parametrize(
    ("find", "allowed"),
    [(reads, READERS), (writes, WRITERS), (parses, PARSERS), (descriptors, DESCRIPTORS)],
    ids=["reads", "writes", "parses", "descriptors"],
)
def test_files_are_read_and_written_in_one_place(
    find: Callable[[ast.AST], list[int]], allowed: dict[str, str]
) -> None:
    found = {_name(path): find(tree_of(path)) for path in all_sources()}
    wrong = [
        place(ROOT / name, line)
        for name, lines in found.items()
        for line in lines
        if name not in allowed
    ]
    assert wrong == []
    assert [name for name in allowed if not found[name]] == []  # strike it from the list


HIDDEN = {".ci", ".github", ".gitignore", ".pre-commit-config.yaml"}
BUILT = (".so", ".pyc", ".pth", ".whl", "pyvenv.cfg")


def test_nothing_that_was_built_or_installed_is_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    names = [name for name in listed.decode().split("\0") if name]
    assert "setup.cfg" in names
    hidden = {name.partition("/")[0] for name in names if name.startswith(".")}
    assert hidden <= HIDDEN
    assert [name for name in names if name.endswith(BUILT)] == []


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
