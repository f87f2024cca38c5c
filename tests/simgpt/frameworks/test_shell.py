"""Scripts are read, not run: variables, arrays, conditions, and what a launcher starts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpt.frameworks.files import arguments, read_file
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.interpreter import UNTOLD
from simgpt.frameworks.scripts.shell import read_script
from simgpt.frameworks.scripts.variables import MOST_CHARACTERS, expanded, text_budget
from tests.messages import names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A${A}x", "44x"),
        ("${B:-7} ${A:-7} ${B-7} ${E:-7}", "7 4 7 7"),
        ("${B:-${A:-1}}", "4"),
        ("${B:+1}${A:+2}", "2"),
        ("$((A * 2 + 3 % 2)) $(( $A/3 ))", "9 1"),
        ("$((B + 1)) $((2**9)) $((1/0))", "$((B+1)) 512 $(...)"),
        ("$((B / C*2)) $(( $(($E2+1))*A ))", "$((B/C*2)) $(($(($E2+1))*4))"),
        ("$((A != 4)) $((A != 2)) $((A != 9))", "0 1 1"),
        ("$(seq 3) $(seq 2 3 9) $(seq 3 -1 1) $(seq 1 0 3)", "1 2 3 2 5 8 3 2 1 "),
        ("$(rm -rf /) `id`", "$(...) $(...)"),
        ("'$A' \\$A", "'4' $A"),
        ("$NONE ${NONE} $1 ${1:-d} $", "$NONE $NONE $1 d $"),
        ("${A[@]} ${A[*]} ${A%%4} ${A/4/5} ${#A}", "4 4  5 1"),
    ],
)
def test_variables_have_their_values_and_commands_are_not_run(text: str, expected: str) -> None:
    assert expanded(text, {"A": "4", "E": ""}, text_budget()) == expected


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('A="--x 1"\nA="$A --y 2"\npython t.py $A', "--x 1 --y 2"),
        ("A=(--x 1)\nA+=(--y '2 3')\ntorchrun t.py ${A[@]}", "--x 1 --y 2 3"),
        ("export A=--x\nA+=' 4'\nsrun bash -c \"python -u t.py $A\"", "--x 4"),
        ("CMD='torchrun t.py --x 1'\necho $CMD\neval $CMD", "--x 1"),
        ("if [ $A == 1 ]; then\nB=--x\nelif [ 2 -le 2 ]; then\nB=--y\nelse\nB=--z\nfi\n"
         "python t.py $B", "--y"),
        ("if [ -z $A ]; then if [ a != a ]; then B=--x; else B=--y; fi; fi\npython t.py $B", "--y"),
        ("if [ 1 == 1 ]; then B=--x; elif [ 2 -le 2 ]; then B=--y; fi\npython t.py $B", "--x"),
        ("B=--w\ncase $A in\n1) B=--x ;;\nesac\npython t.py $B", "--w"),
        ("for i in 1 2; do\npython t.py --x $i\ndone", "--x $i"),
        ("python prepare.py\nFOO=1 python t.py --x\npython after.py", "--x"),
        ("ONE='--x 1'\nTWO=(--y 2)", "--x 1 --y 2"),
        ("--x 1 \\\n--y 2", "--x 1 --y 2"),
        ("# --x 1 \\\nA=--y\npython t.py $A", "--y"),
    ],
)  # fmt: skip
def test_a_programs_arguments_are_found(script: str, words: str) -> None:
    assert " ".join(read_script(script, {}).arguments) == words


def test_a_condition_that_cannot_be_told_is_said_where_arguments_depend_on_it() -> None:
    script = "if [ -f x ]; then\n{}\nfi\npython t.py --x 1"
    assert read_script(script.format("echo no"), {}).left_out == {}
    assert read_script(script.format("A=4"), {}).left_out == {"if [ -f x ]": UNTOLD}


def test_the_surroundings_variables_win_over_the_scripts_defaults_alone() -> None:
    script = "TP=${TP:-4}\nPP=2\npython t.py --x $TP --y $PP"
    assert read_script(script, {"TP": "8"}).arguments == ("--x", "8", "--y", "2")


def test_a_script_without_arguments_and_one_that_grows_are_refused() -> None:
    assert read_script("echo hello", {}).arguments == ()
    doubling = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40 + "python t.py --x $A"
    with pytest.raises(FrameworkError, check=names(f"{MOST_CHARACTERS:,}")):
        read_script(doubling, {})
    with pytest.raises(FrameworkError, check=names("16")):
        read_script("A=" + "${A:-" * 40 + "}" * 40, {})


PIECES = [
    *"ab $\\'\"`(){}[]=#;&|<\n-:@123!*%/+,", "if ", "then\n", "else ", "elif ", "fi\n", "for ",
    "in ", "do\n", "done\n", "case ", "esac\n", ";;", "while ", "[[ ", " ]]", "[ ", " ]", "((",
    "))", "$((", "${", "$(", "A=", "A+=(", "A[", "$A", "${A[@]", "&&", "||", "<<E", ">>",
    "f() {", "f\n",
    "eval ", "set -- ", "local ", "declare -A ", "echo ", "seq ", "t.py --x ", "bash -c ",
    "unset A\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_no_text_is_more_than_refused(text: str) -> None:
    with suppress(FrameworkError):
        read_script(text, {})
    with suppress(FrameworkError):
        read_script(f"A=1 B='x y'\n{text}", {"C": "2"})


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        (("--nodes=4", "--gpus-per-node=8"), 32),
        (("-N 2", "--gres=gpu:a100:4", "--ntasks-per-node=1"), 8),
        (("-N 2", "--ntasks-per-node=4"), 8),
        (("--nodes=4-8", "--gpus-per-node=8"), None),
        (("--nodes=4",), None),
        (("-N4 --gpus-per-node 8 --exclusive # all",), 32),
    ],
)
def test_a_job_script_says_how_many_devices_it_has(
    lines: tuple[str, ...], devices: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "job.sh"
    head = "".join(f"#SBATCH {line}\n" for line in lines)
    path.write_text(f"{head}srun python t.py --num-layers $SLURM_NNODES --y 2 $MORE 2>&1 > log")
    found = read_file(path, None, {})
    assert found.devices == devices
    assert {"y", "$MORE"} < set(found.settings)


def test_a_long_script_is_read_in_time(tmp_path: Path) -> None:
    found = read_script("A=1 # it's\n" * 20_000 + "python t.py --x $A", {})
    assert arguments(found.arguments) == {"x": "1"}
