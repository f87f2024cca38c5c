"""Idioms of job scripts: defaults that are assigned, patterns, and arguments of scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.interpreter import UNTOLD
from simgpt.frameworks.scripts.shell import read_script
from tests.messages import names

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
    assert found.left_out == {}


def test_a_pattern_that_is_not_read_is_listed() -> None:
    script = "A=x\nif [[ $A == @(x|y) ]]; then\n  TP=8\nfi\npython t.py --x $TP"
    assert read_script(script, {}).left_out == {"if [[ $A == @(x|y) ]]": UNTOLD}


def test_a_variable_that_a_script_takes_from_its_arguments_is_asked_for_by_its_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"TP=$1\npython t.py {SMALL} --tensor-model-parallel-size $TP\n")
    with pytest.raises(FrameworkError, check=names("--define TP=VALUE")):
        imported([path])
    assert imported([path], defined={"TP": "2"}).plan["tp"] == 2
    path.write_text(f"python t.py {SMALL} --tensor-model-parallel-size $1\n")
    with pytest.raises(FrameworkError, check=names("--tensor-model-parallel-size")) as raised:
        imported([path])
    assert "--define" not in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "listed", "words"),
    [
        ("if [[ $A =~ ^a ]]; then T=8; fi", ["if [[ $A =~ ^a ]]"], "--x 1"),
        ("[ -f x ] && T=8", ["[ -f x ]"], "--x 1"),
        ("[ -f x ] || T=8", ["[ -f x ]"], "--x 1"),
        ("[ -f x ] && echo no", [], "--x 1"),
        ("[ -f x ] && echo no && T=8", ["[ -f x ]"], "--x 1"),
        ("[ 1 = 1 ] && echo x && [ -f b ] && T=8 || T=3", ["[ 1 = 1 ] && [ -f b ]"], "--x 1"),
        ("[ -f x ] && [ 1 = 2 ] || T=8", [], "--x 8"),
        ("nvidia-smi | grep -q H100 && T=8", ["nvidia-smi | grep -q H100"], "--x 1"),
        ("! grep -q x y || T=8", ["! grep -q x y"], "--x 1"),
        ("mkdir -p x && cd x && T=8 || T=9", [], "--x 8"),
        ("if grep -q x y; then T=8; else T=2; fi", ["if grep -q x y"], "--x 2"),
        ("case $(uname) in Linux) T=8;; esac", ["case $(uname) in"], "--x 1"),
        ("case $1 in a) T=8;; esac", ["case $1 in"], "--x 1"),
        ("while [ $# -gt 0 ]; do T=8; done", ["while [ $# -gt 0 ]"], "--x 8"),
        ("if [ $N = 8 ]; then T=8; fi", ["if [ $N = 8 ]"], "--x 1"),
        ('if [ -n "$N" ]; then T=8; fi', ['if [ -n "$N" ]'], "--x 1"),
        ("if [ -z $N ]; then T=8; fi", [], "--x 8"),
        ("if (( N > 1 )); then T=8; fi", ["if (( N > 1 ))"], "--x 1"),
        ("if [ $(nproc) -gt 1 ]; then T=8; fi", ["if [ $(nproc) -gt 1 ]"], "--x 1"),
        ("P=$(nproc); [ $P = 1 ] && T=8", ["[ $P = 1 ]"], "--x 1"),
        ("read P; if [[ $P == 1* ]]; then T=8; fi", ["if [[ $P == 1* ]]"], "--x 1"),
        ("T=$((", ["T=$(("], "--x 1"),
        ("if [ -z $N ]; then echo no; exit 1; fi", [], "--x 1"),
        ("if [ 1 = 1 ]; then exit 1; fi", [], "--x 1"),
    ],
)
def test_what_cannot_be_told_is_listed_where_settings_depend_on_it(
    lines: str, listed: list[str], words: str
) -> None:
    found = read_script(f"A=ab T=1\n{lines}\npython t.py --x $T", {})
    assert list(found.left_out) == listed
    assert " ".join(found.arguments) == words


def test_a_variable_that_a_condition_needs_is_named_and_can_be_defined() -> None:
    script = 'if [ "$FP8" = true ]; then B=--fp8; fi\npython t.py --x $B'
    (why,) = read_script(script, {}).left_out.values()
    assert "--define FP8=" in why
    found = read_script(script, {"FP8": "true"})
    assert (found.arguments, found.left_out) == (("--x", "--fp8"), {})


def test_a_loop_that_starts_programs_asks_which_of_them_is_meant() -> None:
    script = "for tp in 1 2 4; do python t.py --x $tp; done"
    assert read_script(script, {}).arguments == ("--x", "$tp")
    assert read_script(script, {"tp": "4"}).arguments == ("--x", "4")
    assert read_script("for tp in 2; do python t.py --x $tp; done", {}).arguments == ("--x", "2")


def test_a_function_that_nobody_calls_is_read_where_nothing_else_is_started() -> None:
    script = "train() { python t.py --x $1; }"
    assert read_script(script, {}).arguments == ("--x", "$1")
    assert read_script(f"{script}\ntrain 4", {}).arguments == ("--x", "4")
    assert read_script(f"{script}\npython t.py --y 1", {}).arguments == ("--y", "1")


def test_arrays_of_a_script_reach_those_after_it() -> None:
    before = read_script('A=(--x "1 2")', {}).variables
    assert read_script('python t.py "${A[@]}"', {}, before).arguments == ("--x", "1 2")


def test_loops_and_recursion_end() -> None:
    endless = ["while true; do A+=x; done", "f() { f; }; f", "i=0; for ((;;)); do let i=i+1; done"]
    for script in [*endless, "for a in {1..1000000}; do :; done", "A=$(seq 9999999)"]:
        with pytest.raises(FrameworkError):
            read_script(script, {})
    assert read_script("while true; do B=1; done\npython t.py --x $B", {}).arguments == ("--x", "1")


def test_arguments_of_the_script_among_others_leave_their_number_unknown() -> None:
    found = read_script('set -- a "$@" b\npython t.py --x $1 $2 $# "$@"', {})
    assert found.arguments == ("--x", "a", "$2", "$#", "a", "$@", "b")
