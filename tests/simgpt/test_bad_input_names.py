"""Names of users on a terminal: printable, on one line, and not endless."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.files.printable import MOST_NAME, MOST_SENTENCE, printable, sentence, shown
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine

CLEARS = "\x1b[2J\x1b]0;owned\x07"
ESCAPED = "\\x1b[2J\\x1b]0;owned\\x07"
MODEL = 'layers = 2\nhidden = 32\nheads = 8\nsequence = 16\nvocab = 256\nname = "{}"\n'


def controls(text: str) -> list[str]:
    return [letter for letter in text if letter != "\n" and not letter.isprintable()]


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """The file of a machine whose name, description and device clear a terminal."""
    document = machine_to_dict(load_machine("host"))
    document["name"] = CLEARS
    document["description"] = f"a\nb{CLEARS}"
    document["device"]["name"] = f"c\u202ed{CLEARS}"
    document["nodes"]["source"] = f"a source{CLEARS}"
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_name_is_escaped_wherever_an_answer_has_it(machine: str, tmp_path: Path) -> None:
    for command in ("predict tiny-30k -n 1 -m", "why tiny-30k -n 1 -m", "machines"):
        said = simgpt(*command.split(), machine)
        assert (said.status, controls(said.out + said.err)) == (0, [])
    assert ESCAPED in simgpt("predict", "tiny-30k", "-n", "1", "-m", machine).out
    facts = simgpt("machines", machine).out
    assert f"a\\nb{ESCAPED}" in facts
    assert f"a source{ESCAPED}" in facts
    model = tmp_path / "m.toml"
    model.write_text(MODEL.format("\\u001b[2J" + "x" * 5000))
    said = simgpt("models", str(model))
    assert said.out.splitlines()[0] == shown("\x1b[2J" + "x" * 5000)
    assert len(said.out.splitlines()[0]) == MOST_NAME


def test_a_name_in_a_study_and_its_table(tmp_path: Path, machine: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        f'title = "t\\u001b[31m\\nu"\nmodel = "tiny-30k"\nmachine = "{machine}"\nplan = "tp=1"\n'
        '[sweep]\nbatch = [1, 2]\n"device.name" = ["v\\u001b[31m", "w\\nx"]\n'
    )
    said = simgpt("sweep", str(study), "-o", str(tmp_path / "out"))
    assert (said.status, controls(said.out + said.err)) == (0, [])
    assert "t\\x1b[31m\\nu" in said.out
    assert "w\\nx" in said.out


COMMANDS = [
    "predict {} -m frontier",
    "predict tiny-30k -m {}",
    "predict tiny-30k -m frontier -n 1 --plan {}=1",
    "predict tiny-30k -m frontier -n 1 --set {}=1",
    "predict tiny-30k -m frontier -n 1 --set device.launch={}",
    "predict tiny-30k -m frontier -n 1 --placement {}",
    "predict tiny-30k -m frontier -n 1 --sweep {}=1",
    "bench-network -m frontier --sizes {}",
    "sweep {}.toml",
    "report {} -o p.html",
    "machines frontier --{}",
    "{}",
]
OTHERS = ["a\nb", "x" * 5000, "\udcff", "a\u2028\u202eb"]


@pytest.mark.parametrize(
    ("command", "name"), [*product(COMMANDS, [CLEARS]), *product(COMMANDS[:2], OTHERS)]
)
def test_a_name_in_a_sentence(command: str, name: str) -> None:
    said = simgpt(*(word.format(name) for word in command.split(" ")))
    assert said.status == 2
    assert said.err.endswith("\n")
    assert controls(said.sentence) == []
    assert len(said.sentence) <= MOST_SENTENCE + len("simgpt: ")
    assert "x" * 300 not in said.sentence


def test_a_name_is_cut_in_its_middle_and_a_plan_is_not() -> None:
    assert shown("a" * MOST_NAME) == "a" * MOST_NAME
    assert shown("a" * 80 + "b" * 80) == "a" * 40 + "…" + "b" * 39
    assert shown("a" * 81 + "b") == "a" * 40 + "…" + "a" * 38 + "b"
    plan = ",".join(f"axis{n}=16" for n in range(20))
    assert sentence(f"no  {plan}\nfits") == f"no {plan} fits"
    assert printable("π × 2 … ─") == "π × 2 … ─"
    assert sentence("\ud800\x9b\u200b") == "\\ud800\\x9b\\u200b"


def test_no_command_is_an_error_with_help_before_its_sentence() -> None:
    for words in ((), ("validate",)):
        said = simgpt(*words)
        lines = said.err.splitlines()
        path = " ".join(("simgpt", *words))
        assert (said.status, said.out) == (2, "")
        assert_names(lines[-1], f"{path} --help")
        assert any(line.startswith("Commands") for line in lines)
