"""The command line of a recipe's script, read by the options that it declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator, evaluated_call
from simgpt.frameworks.recipe_code.values import RecipeError, Thing
from tests.messages import names

SCRIPT = """
import argparse
def parsed():
    parser = argparse.ArgumentParser(description="of a job")
    parser.add_argument("-g", "--gpu", type=str, required=True)
    parser.add_argument("-n", "--num-gpus", type=int, default="8")
    parser.add_argument("-rm", "--recompute_modules", nargs="*", default=None)
    parser.add_argument("--dryrun", action="store_true")
    group = parser.add_argument_group("more")
    group.add_argument("--rate", dest="lr", type=float, default=0.1)
    inner = parser.add_subparsers(dest="where").add_parser("slurm")
    inner.add_argument("--account")
    return parser.parse_args()
"""


def _parsed(folder: Path, command: str = "", **words: Any) -> dict[str, Any]:
    (folder / "job.py").write_text(SCRIPT)
    ev = Evaluator(Checkout(folder))
    ev.words, ev.command = words, command.split()
    found = evaluated_call(ev, "job", "parsed", [], {})
    return {key: None if isinstance(each, Thing) else each for key, each in found.fields.items()}


def test_options_have_their_defaults_by_their_types(tmp_path: Path) -> None:
    assert _parsed(tmp_path) == {
        **{"gpu": None, "num_gpus": 8, "recompute_modules": None, "dryrun": False, "lr": 0.1},
        "account": None,
    }


def test_words_are_given_by_name(tmp_path: Path) -> None:
    found = _parsed(tmp_path, gpu="h100", num_gpus=64, unknown=1)
    assert (found["gpu"], found["num_gpus"]) == ("h100", 64)
    assert "unknown" not in found


def test_a_command_line_is_read_as_argparse_does(tmp_path: Path) -> None:
    command = "-g b200 --num-gpus=16 -rm mlp moe_act --dryrun --rate 3e-4 slurm --account us"
    assert _parsed(tmp_path, command) == {
        **{"gpu": "b200", "num_gpus": 16, "recompute_modules": ["mlp", "moe_act"]},
        **{"dryrun": True, "lr": 3e-4, "account": "us"},
    }


def test_an_option_that_the_script_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, check=names("--gpus")):
        _parsed(tmp_path, "--gpus 8")


def test_a_value_that_an_option_does_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, check=names("many")):
        _parsed(tmp_path, "-n many")
