"""`python -m tools.recipes MIRRORS RELEASE=TAG …`: write validation/data/recipes.csv from a folder
with clones of Megatron-Bridge (of which tags are given), NeMo and dgxc-benchmarking, named as
OWNER+NAME/repo.

Each tag's files are unpacked by git into a folder of their own, and their recipes evaluated over
their syntax trees (simgpt/frameworks/recipe_code); nothing of them is run.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.facts import COLUMNS, facts
from simgpt.frameworks.recipe_code.keys import RecipeKey
from simgpt.frameworks.recipe_code.layouts import recipes_of
from simgpt.frameworks.recipe_code.recipe import evaluate_recipe
from simgpt.frameworks.recipe_code.values import RecipeError
from tools.launches import rows_of_launches
from tools.repositories import unpacked

TABLE = Path(__file__).parent.parent / "validation" / "data" / "recipes.csv"
CLONES = ("NVIDIA-NeMo+Megatron-Bridge", "NVIDIA+NeMo", "NVIDIA+dgxc-benchmarking")
FOLDERS = ("scripts/performance", "src/megatron/bridge")
OF_TEXT = "pretrain"  # the task of the published tables
LEFT_OUT = ("_vl_", "wan_")  # models of images, which the tables do not have


@click.command()
@click.argument("mirrors", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("releases", metavar="RELEASE=TAG...", nargs=-1, required=True)
def main(mirrors: Path, releases: tuple[str, ...]) -> None:
    """Write the table from the clones in MIRRORS; a RecipeError names a tag without recipes."""
    bridge, nemo, dgxc = (mirrors / name / "repo" for name in CLONES)
    lines = []
    for each in releases:
        release, _, tag = each.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            unpacked(bridge, tag, FOLDERS, Path(folder))
            lines += list(rows_of(Path(folder), release, tag))
    lines += rows_of_launches(nemo, dgxc)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("release", "tag", *COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    sys.stdout.write(f"{len(lines)} recipes of {len(releases)} releases\n")


def rows_of(folder: Path, release: str, tag: str) -> Iterator[dict[str, str]]:
    """The facts of each recipe for pre-training a language model of a checkout."""
    checkout = Checkout(folder)
    keys = [key for key in recipes_of(checkout) if _is_wanted(key)]
    for key in sorted(keys, key=lambda each: each.name):
        try:
            found = facts(evaluate_recipe(checkout, key))
        except RecipeError as error:
            sys.stderr.write(f"{tag} {key.name}: {error}\n")
            continue
        yield {"release": release, "tag": tag, **found}


def _is_wanted(key: RecipeKey) -> bool:
    return key.task == OF_TEXT and not any(part in f"_{key.model}_" for part in LEFT_OUT)


if __name__ == "__main__":
    main()
