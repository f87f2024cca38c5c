"""What the recipe of a published row sets where the row does not say, from data/recipes.csv.

Megatron-Bridge's tables of measured steps give model, GPU, precision, batch and parallel sizes, and
leave graphs, dispatcher, overlap, recomputation and dtypes to the recipe of the release that they
name. A row takes the recipe of its model, GPU and precision that differs from it in the fewest
sizes, of its release or of the ones before and behind it, since a table is measured some time
before or after its release is tagged. Among equals its own release comes first, then the variant
that the launcher takes by default (--config_variant, scripts/performance/argument_parser.py of
Megatron-Bridge v0.3.0 to v0.5.1). The table is written by tools/recipes.py.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache

from topologies.files.reading import shipped_text
from workload.recomputation.parts import ACTIVATION, CORE, EXPERTS, PARTS, SELECTIVE, SHARED

SHIPPED = "data/recipes.csv"
SOURCE, FRAMEWORK = "performance summary", "megatron-bridge"
REMARK = "recipe_remark"  # a column that readings add
SIZES = {  # columns of a row, and the recipes'
    **{"gpus_total": "devices", "global_batch_seqs": "gbs", "micro_batch": "mbs"},
    **{"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep"},
}
BY_DEFAULT = ("", "v2", "v1")  # variants, the launcher's own first
LABELS = {"bf16": ("bf16",), "mxfp8": ("fp8_mx",), "nvfp4": ("nvfp4",)}
OF_FP8 = ("fp8_cs", "fp8_ds", "fp8_sc", "fp8_ss")  # by which a table's "FP8" may be meant
DISPATCHERS = {"hybridep": "HybridEP", "deepep": "DeepEP", "allgather": "allgather"}
OPTIMIZERS = {"dist_muon": "muon"}
WHOLE_GRAPHS = ("layer", "full_iteration")

Cells = dict[str, str]


def with_recipe(cells: Cells) -> Cells:
    """A row's cells, those that are empty filled from its recipe; as they are without one."""
    recipe = recipe_of(cells)
    if recipe is None:
        return cells
    given = _meant(recipe)
    if differing := _differing(cells, recipe):
        given[REMARK] = f"the recipe of {recipe['tag']} differs in {', '.join(differing)}"
    return cells | {name: value for name, value in given.items() if not cells.get(name)}


def recipe_of(cells: Mapping[str, str]) -> Mapping[str, str] | None:
    """The recipe of a row; None for rows of other sources and for those that the table lacks.

    >>> row = {"source": "Megatron-Bridge performance summary", "framework": "Megatron-Bridge"}
    >>> row |= {"table_or_figure": "26.06 Pre-Training", "gpu": "GB200", "model": "Qwen3_30B_a3B"}
    >>> row |= {"precision": "mxfp8", "gpus_total": "8"}
    >>> recipe_of(row)["graphs"]
    'full_iteration'
    """
    release = re.match(r"2\d\.\d\d(\.\d\d)?(?!\S)", cells.get("table_or_figure", ""))
    of_table = SOURCE in cells.get("source", "").lower()
    if not release or not of_table or FRAMEWORK not in cells.get("framework", "").lower():
        return None
    gpu = cells.get("gpu", "").lower().partition("-")[0]
    key = (_plain(cells.get("model", "")), gpu)
    known = [each for each in recipes().get(key, []) if _distance(release[0], each) <= 1]
    for label in _labels(cells.get("precision", "").lower()):
        own = [each for each in known if each["precision"] == label]
        if any(each["release"] == release[0] for each in own):
            return min(own, key=lambda each: _rank(cells, release[0], each))
    return None


@cache
def recipes() -> dict[tuple[str, str], list[dict[str, str]]]:
    """The table's recipes by model in letters and digits alone and GPU."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(shipped_text("validation", SHIPPED).splitlines()):
        found.setdefault((_plain(row["model"]), row["gpu"]), []).append(row)
    return found


@cache
def _releases() -> list[str]:
    """The table's releases, the oldest first."""
    return sorted({row["release"] for rows in recipes().values() for row in rows})


def _distance(release: str, recipe: Mapping[str, str]) -> int:
    """How many releases a recipe is before or behind one; beyond any where the table lacks it."""
    order = _releases()
    if release not in order:
        return len(order)
    return abs(order.index(release) - order.index(recipe["release"]))


def _plain(model: str) -> str:
    """A model's name without what stands in brackets, in letters and digits alone.

    >>> _plain("DeepSeekV3 (w/o MTP)"), _plain("LLAMA3.1_405B"), _plain("llama31_405b")
    ('deepseekv3', 'llama31405b', 'llama31405b')
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*", "", model.lower()))


def _labels(precision: str) -> tuple[str, ...]:
    """The recipes' words for a row's precision, the likeliest first: fp8 without a scaling is that
    of whole tensors, which the tables' launcher takes for it."""
    if precision.startswith("fp8-"):
        return (precision.replace("-", "_"),)
    return LABELS.get(precision, OF_FP8 if precision == "fp8" else ())


def _differing(cells: Mapping[str, str], recipe: Mapping[str, str]) -> list[str]:
    """The sizes in which a row and a recipe differ; what either does not say is no difference, and
    pipelines without chunks are of one."""
    found = []
    for column, name in SIZES.items():
        own, other = cells.get(column) or "", recipe[name] or ("1" if name == "vpp" else "")
        if own and other and float(own) != float(other):
            found.append(column)
    return found


def _rank(
    cells: Mapping[str, str], release: str, recipe: Mapping[str, str]
) -> tuple[int, int, int, str]:
    variant = recipe["variant"]
    usual = BY_DEFAULT.index(variant) if variant in BY_DEFAULT else len(BY_DEFAULT)
    return len(_differing(cells, recipe)), _distance(release, recipe), usual, variant


def _meant(recipe: Mapping[str, str]) -> Cells:
    """A recipe's facts under the names and in the words that rows have."""
    graphs = recipe["graphs"]
    layers = [int(each) for each in recipe["stage_layers"].split(",") if each]
    return {
        "cuda_graph": "full_iteration" if graphs in WHOLE_GRAPHS else _graph_words(graphs),
        "dispatcher": DISPATCHERS.get(recipe["dispatcher"], ""),
        "overlap": "" if recipe["overlap"] == "none" else recipe["overlap"],
        "recompute": recomputed(recipe["recompute"]),
        "gradients": recipe["gradients"],
        "moments": recipe["moments"],
        "optimizer": OPTIMIZERS.get(recipe["optimizer"], ""),
        "capacity": recipe["capacity"],
        "etp": recipe["etp"],
        "mtp_layers": recipe["mtp"],
        "stage_layers": recipe["stage_layers"],
        "last_chunk": "short" if layers and layers[-1] < max(layers) else "",
    }


def _graph_words(graphs: str) -> str:
    return "" if graphs == "none" else graphs.replace("+", " ")


def recomputed(cell: str) -> str:
    """Megatron-Core's modules, as publications and recipes list them, as a plan's parts; any other
    cell as it stands.

    >>> recomputed("selective: mlp,mla_up_proj"), recomputed("core_attn"), recomputed("full")
    ('mla_up_proj+mlp', 'selective', 'full')
    """
    named = set(re.split(r"[,+\s]+", cell.lower().removeprefix("selective:").strip()))
    if not named <= set(PARTS):
        return cell
    named -= {ACTIVATION, SHARED} if EXPERTS in named else set()  # which run again with it
    return SELECTIVE if named == {CORE} else "+".join(part for part in PARTS if part in named)
