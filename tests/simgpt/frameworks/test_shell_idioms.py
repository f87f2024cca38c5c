"""Idioms of job scripts: defaults that are assigned, patterns, and arguments of scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.shell import read_script

SMALL = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 512 "
    "--micro-batch-size 1"
)


@pytest.mark.parametrize(
    "line",
    [
        ': "${SEQ:=4096}"',
        ": ${SEQ:=4096}",
        'echo "${SEQ:=4096}"',
        "A=${SEQ:=4096}",
        ": ${SEQ=4096}",
    ],
)
def test_an_expansion_that_assigns_does_so_wherever_it_stands(line: str) -> None:
    found = read_script(f"{line}\npython t.py --x $SEQ", {})
    assert found.arguments == ("--x", "4096")
    assert read_script(f"{line}\npython t.py --x $SEQ", {"SEQ": "8"}).arguments == ("--x", "8")
    assert read_script(f"SEQ=2\n{line}\npython t.py --x $SEQ", {}).arguments == ("--x", "2")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("[[ $NAME == *70b* ]]", True),
        ("[[ $NAME == *13b* ]]", False),
        ('[[ $NAME == "*70b*" ]]', False),
        ("[[ $NAME == *'70b'* ]]", True),
        ("[[ $NAME != *70b* ]]", False),
        ("[[ $NAME = llama?-70b ]]", True),
        ("[[ $NAME == llama[1-3]-* ]]", True),
        ("[[ $NAME == llama[!1-3]-* ]]", False),
        ("[[ $NAME == llama2-\\*70b ]]", False),
        ("[[ $NAME == llama2-70b ]]", True),
        ("[ $NAME = *70b* ]", False),
    ],
)
def test_the_right_side_of_a_comparison_is_a_pattern_unless_quoted(
    condition: str, *, holds: bool
) -> None:
    script = f"NAME=llama2-70b\nTP=1\nif {condition}; then\n  TP=8\nfi\npython t.py --x $TP"
    found = read_script(script, {})
    assert found.arguments == ("--x", "8" if holds else "1")
    assert found.left_out == ()


def test_a_pattern_that_is_not_read_is_listed() -> None:
    script = "A=x\nif [[ $A == @(x|y) ]]; then\n  TP=8\nfi\npython t.py --x $TP"
    assert read_script(script, {}).left_out == ("if [[ $A == @(x|y) ]]",)


def test_a_variable_that_a_script_takes_from_its_arguments_is_asked_for_by_its_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"TP=$1\npython t.py {SMALL} --tensor-model-parallel-size $TP\n")
    with pytest.raises(FrameworkError, match="--define TP="):
        imported([path])
    assert imported([path], defined={"TP": "2"}).plan["x"] == 2
    path.write_text(f"python t.py {SMALL} --tensor-model-parallel-size $1\n")
    with pytest.raises(FrameworkError, match="an argument of the script") as raised:
        imported([path])
    assert "--define" not in str(raised.value)
