"""Commands on a report's page: readers paste them, so they are simgpt's and nothing else."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from simgpt.command_lines import is_command
from tests.simgpt.face import simgpt

pytestmark = pytest.mark.usefixtures("figures_left_out")

OWN = [
    "simgpt predict tiny-1m -m frontier -n 8 --plan dp=rest --json",
    "simgpt predict 'a model.toml' -m frontier --set 'device.launch=5 us' -o a.json",
    "simgpt search gpt-5b -m perlmutter -n 64 --batch 256 --json",
    "simgpt sweep s.toml -o r --json",
    "simgpt why tiny-1m -m frontier --json",
    "simgpt plan-run gpt-5b -m frontier --tokens 300B --json",
    "simgpt run tiny-2m --plan dp=2 --ranks 2 --json",
    "simgpt validate published --json",
    "simgpt validate host -m host.json --json",
    "simgpt predict '$(reboot)' -m 'x; reboot'",
]
FOREIGN = [
    "",
    "simgpt",
    "curl example.org | sh",
    "rm -rf ~",
    "simgpt-x predict tiny-1m",
    "./simgpt predict tiny-1m",
    "sudo simgpt predict tiny-1m",
    "SIMGPT_CACHE=x simgpt predict tiny-1m",
    "simgpt predict tiny-1m; reboot",
    "simgpt predict tiny-1m && reboot",
    "simgpt predict tiny-1m | sh",
    "simgpt predict tiny-1m > .bashrc",
    "simgpt predict tiny-1m & reboot",
    "simgpt predict $(reboot)",
    "simgpt predict `reboot`",
    "simgpt predict ~/x.toml",
    "simgpt predict {a,b}",
    'simgpt predict "$(reboot)"',
    "simgpt predict tiny-1m\nreboot",
    "simgpt predict 'tiny-1m\nreboot'",
    "simgpt predict tiny-1m #",
    "simgpt predict 'tiny-1m",
    "simgpt predict tiny-1m \\",
    "simgpt predict 'a\u202eb'",
    "simgpt predict 'a\x1b[2Jb'",
    "simgpt  predict tiny-1m",
    "simgpt predict tiny-1m gpt-5b",
    "simgpt predict tiny-1m --reboot",
    "simgpt predict tiny-1m -m",
    "simgpt validate",
    "simgpt validate nothing",
    "simgpt reboot",
    "simgpt.exe predict tiny-1m",
    "SIMGPT predict tiny-1m",
]


@pytest.mark.parametrize("text", OWN)
def test_a_command_line_of_ours_is_one(text: str) -> None:
    assert is_command(text)


@pytest.mark.parametrize("text", FOREIGN)
def test_what_a_shell_would_run_otherwise_is_none(text: str) -> None:
    assert not is_command(text)


def test_a_page_shows_no_other_commands(tmp_path: Path) -> None:
    answer = json.loads(simgpt("predict", "tiny-1m", "-m", "frontier", "-n", "8", "--json").out)
    own, page = answer["asked"]["command"], tmp_path / "page.html"
    for number, command in enumerate([own, *FOREIGN]):
        asked = {**answer["asked"], "command": command}
        (tmp_path / f"{number}.json").write_text(json.dumps({**answer, "asked": asked}))
    said = simgpt("report", str(tmp_path), "-o", str(page))
    assert said.status == 0
    shown = re.findall("<pre>(.*?)</pre>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert shown[0] == own
    assert all(is_command(unescape(each)) for each in shown)
    assert len(shown) == 2  # the other gives the prediction again
    assert str(len(FOREIGN)) in said.err


def test_a_model_that_would_be_an_option_is_refused(tmp_path: Path) -> None:
    answer = json.loads(simgpt("predict", "tiny-1m", "-m", "frontier", "-n", "8", "--json").out)
    path = tmp_path / "a.json"
    asked = {**answer["asked"], "model": "--trace=.bashrc"}
    path.write_text(json.dumps({**answer, "asked": asked}))
    said = simgpt("report", str(path), "-o", str(tmp_path / "page.html"))
    assert said.status == 2
    assert "--trace=.bashrc" in said.sentence
