"""What the recipe of a published row sets where the row does not say, from data/recipes.csv.

Megatron-Bridge's tables of measured steps give model, GPU, precision, batch and parallel sizes, and
leave graphs, dispatcher, overlap, recomputation and dtypes to the recipe of the release that they
name; the tables of NVIDIA's DGX Cloud benchmarking leave them to the launch script of their release
and the recipe of NeMo that it starts. A row takes the recipe of its model, GPU and precision that
differs from it in the fewest sizes: of its release or, of Megatron-Bridge, of the ones before and
behind it too, since a table is measured some time before or after its release is tagged. Among
equals its own release comes first, then the variant that the launcher takes by default
(--config_variant, scripts/performance/argument_parser.py of Megatron-Bridge v0.3.0 to v0.5.1). The
table is written by tools/recipes.py.

What a recipe sets and no plan of ours has is not taken, and NOT_TAKEN says why.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from topologies.files.reading import shipped_text
from topologies.records import record
from workload.recomputation.parts import ACTIVATION, CORE, EXPERTS, PARTS, SELECTIVE, SHARED

SHIPPED = "data/recipes.csv"
REMARK, LEFT = "recipe_remark", "recipe_left"  # columns that readings add
NOT_TAKEN = {  # columns of a recipe's that no plan has, by the reason
    "tp_overlap": "tensor-parallel collectives are not split into parts beside their matmuls",
    "offloaded": "activations go to the host for all layers or for none, not for some of them",
    "main_grads": "gradients have one dtype, that of their sums, not one more for the optimizer",
}
AS_USUAL = ("", "no", "fp32")  # cells of theirs that ask for nothing else
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


@record
class Publisher:
    """Tables of measured steps whose rows have recipes: words of their source and framework, how
    a row names its release, what stands before that in our table, and how many releases away a
    recipe may be."""

    source: str
    framework: str
    release: str
    prefix: str
    near: int


PUBLISHERS = (
    Publisher("performance summary", "megatron-bridge", r"^(2\d\.\d\d(?:\.\d\d)?)(?!\S)", "", 1),
    Publisher("dgx cloud", "nemo", r"\bv(2\d\.\d\d(?:\.\d\d)?)(?!\S)", "dgxc-", 0),
)


def with_recipe(cells: Cells) -> Cells:
    """A row's cells, those that are empty filled from its recipe; as they are without one."""
    recipe = recipe_of(cells)
    if recipe is None:
        return cells
    given = _meant(recipe)
    if differing := _differing(cells, recipe):
        given[REMARK] = f"the recipe of {recipe['tag']} differs in {', '.join(differing)}"
    left = [name for name in NOT_TAKEN if recipe[name] not in AS_USUAL]
    given[LEFT] = "+".join(each for each in left if each != "tp_overlap" or recipe["tp"] != "1")
    return cells | {name: value for name, value in given.items() if not cells.get(name)}


def recipe_of(cells: Mapping[str, str]) -> Mapping[str, str] | None:
    """The recipe of a row; None for rows of other sources and for those that the table lacks.

    >>> row = {"source": "Megatron-Bridge performance summary", "framework": "Megatron-Bridge"}
    >>> row |= {"table_or_figure": "26.06 Pre-Training", "gpu": "GB200", "model": "Qwen3_30B_a3B"}
    >>> row |= {"precision": "mxfp8", "gpus_total": "8"}
    >>> recipe_of(row)["graphs"]
    'full_iteration'
    """
    publisher, release = _published(cells)
    gpu = cells.get("gpu", "").lower().partition("-")[0]
    of_model = recipes().get((_plain(cells.get("model", "")), gpu), [])
    if publisher is None or not of_model:
        return None
    known = [each for each in of_model if _distance(release, each) <= publisher.near]
    for label in _labels(cells.get("precision", "").lower()):
        own = [each for each in known if each["precision"] == label]
        if any(each["release"] == release for each in own):
            return min(own, key=lambda each: _rank(cells, release, each))
    return None


def left_of_recipes(rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """What rows do not take from their recipes, how many, and why."""
    left = [name for row in rows for name in row.get(LEFT, "").split("+")]
    for name, why in NOT_TAKEN.items():
        if count := left.count(name):
            yield f"{count} recipes set {name}, which is not taken: {why}"


def _published(cells: Mapping[str, str]) -> tuple[Publisher | None, str]:
    """Who published a row, where that has recipes, and the release that the row names."""
    for each in PUBLISHERS:
        found = re.search(each.release, cells.get("table_or_figure", ""))
        source, framework = (cells.get(key, "").lower() for key in ("source", "framework"))
        if found and each.source in source and each.framework in framework:
            return each, each.prefix + found[1]
    return None, ""


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
    """A model's name without what stands in brackets and without a smaller number of layers, in
    letters and digits alone.

    >>> _plain("DeepSeekV3 (w/o MTP)"), _plain("LLAMA3.1_405B"), _plain("llama31_405b-proxy-8L")
    ('deepseekv3', 'llama31405b', 'llama31405b')
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*|-proxy-\d+l", "", model.lower()))


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
        "zero_stage": "3" if recipe["sharding"] == "fsdp" else "",
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
