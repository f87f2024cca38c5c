"""A file that asks for more work than any honest one is refused in a sentence, before the work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.messages import names
from tests.simgpt.face import simgpt
from tests.simgpt.fuzz.costly import COSTLY, EVENTS_BEGIN, NEMO, SCRIPT, TRACE, command
from topologies.errors import SimgptError
from topologies.files.budget import Budget

ADDRESSES, RESIDENT_KIB, PROCESSOR_S = 2**30, 500 * 1024, 25
READ = ("blank.sh", "patterns.sh", "spaces.sh")  # which ask for little, after all
# Each of them takes about a second and more. What each is refused by is quick to reach once that
# limit is lower (LOWERED); of what reads much there is a quick file of rows and one of gzip.
LONG = (
    *("array.sh", "blank.sh", "commands.sh", "else.sh", "source.sh", "variables.sh"),
    *("list.yaml", "sections.yaml", "references.yaml", "sections.toml"),
    *("answer.log", "returns.log", "short.log", "short.log.gz"),
    *("beside.json.gz", "blanks.json.gz", "one-event.json"),
)
# One process has imported everything; each file is read by a fork of it, of limited means.
SERVER = """
import gc, json, os, resource, sys
import simgpt.frameworks.importing, simulator.predict, validation.jobs.reading
from simgpt.cli import main

gc.freeze()
addresses, processor_s = map(int, sys.argv[1:])
for line in sys.stdin:
    folder, words = json.loads(line)
    child = os.fork()
    if child:
        _, status, used = os.wait4(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss]), flush=True)
        continue
    os.chdir(folder)
    for stream, name in ((1, os.devnull), (2, "said")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
    sys.argv = ["simgpt", *words]
    try:
        main()
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code or 0)
"""
Limited = Callable[[Path, list[str]], tuple[int, int]]


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    """What runs a command in a folder: its exit status and its largest resident KiB."""
    words = [sys.executable, "-c", SERVER, str(ADDRESSES), str(PROCESSOR_S)]
    with subprocess.Popen(
        words,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def run(folder: Path, command: list[str]) -> tuple[int, int]:
            print(json.dumps([str(folder), command]), file=asked, flush=True)
            status, peak_kib = json.loads(told.readline())
            return status, peak_kib

        yield run
        asked.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in COSTLY]
)
def test_a_costly_file_is_refused_within_memory_and_time(
    name: str, limited: Limited, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(COSTLY[name]())
    status, peak_kib = limited(tmp_path, command(name))
    err = (tmp_path / "said").read_text()
    assert status == (0 if name in READ else 2), err[-300:]
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("simgpt: ")]
    assert name in READ or len(said) == 1
    assert peak_kib < RESIDENT_KIB


# A limit, a lower one, a small file that is beyond it alone, and what it has too many of.
LOWERED = {
    "topologies.files.yaml_text.MOST_NODES": (
        *(40, "a.yaml", "values"),
        f"{NEMO}  x: [{'1,' * 50}]\n",
    ),
    "simgpt.frameworks.scripts.variables.MOST_EXPANDED": (
        *(2_000, "a.sh", "characters"),
        f"B={'x' * 100}\n{'echo $B' * 30}\n{SCRIPT}\n",
    ),
    "simgpt.frameworks.reading.MOST_SETTINGS": (
        *(20, "a.yaml", "settings"),
        NEMO + "".join(f"  s{n}: {{enabled: false, x: 4}}\n" for n in range(20)),
    ),
    "validation.jobs.log_text.FREE_LINES": (50, "a.log", "lines", "abc\n" * 99),
    "validation.jobs.reading.ANSWER_BYTES": (
        *(99, "a.log", "bytes"),
        '{"steps_s":[' + "{}," * 50 + "1]}",
    ),
    "validation.jobs.trace_events.MOST_VALUE": (
        *(99, "a.json", "characters"),
        EVENTS_BEGIN + '{"a": [' + "[]," * 50,
    ),
    "validation.jobs.trace_events.MOST_BESIDE": (
        *(20, "a.json", "beside"),
        f'{TRACE}"x": [{"[]," * 50}1], "traceEvents": []}}',
    ),
    "validation.jobs.trace_events.FREE_VALUES": (
        *(20, "a.json", "values"),
        f'{EVENTS_BEGIN}{{"a": [{"[]," * 50}1]}}]}}',
    ),
    "validation.jobs.trace_events.FREE_EVENTS": (
        *(20, "a.json", "events"),
        f"{EVENTS_BEGIN}{'{},' * 50}{{}}]}}",
    ),
}


@pytest.mark.parametrize("limit", LOWERED)
def test_a_limit_is_kept_by_what_reads_a_file(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, name, units, text = LOWERED[limit]
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    beyond = re.compile(rf"more than .*\d .*{units}")
    assert not beyond.search(simgpt(*command(name)).err)
    monkeypatch.setattr(limit, most)
    said = simgpt(*command(name))
    assert said.status == 2
    assert beyond.search(said.sentence)


def test_a_budget_is_spent_to_the_last_unit() -> None:
    budget = Budget("a.sh", "letters", 10, SimgptError)
    budget.charge(4)
    budget.charge(6)
    with pytest.raises(SimgptError, check=names("a.sh", "10", "letters")):
        budget.charge(1)
