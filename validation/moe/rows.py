"""The rows of moe_cp_runs.csv and long_context.csv as published runs: their columns under the names
of published_runs.csv, and what data/moe.toml says that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from topologies.files.reading import shipped_toml
from validation.published.dialect import says
from validation.published.recipes import REMARK, recomputed, with_recipe
from validation.published.runs import UNSUPPORTED, PublishedRun, lines_of, read_runs, runs_of
from workload.gpt import GPT, find_model

SHIPPED = "moe_cp_runs.csv"
LONG = "long_context.csv"  # sequences of 32,768 tokens and more, split over devices
REMARKS = "remarks"  # a column that readings add
ATTENTION = ("mla", "mha", "gqa", "mamba", "compressed sparse")  # kinds that readings speak of
FROM_PRESET = {  # columns and the model's fields that fill them
    **{"layers": "layers", "hidden": "hidden", "heads": "heads", "ffn_hidden": "ffn"},
    **{"vocab": "vocab", "seq_len": "sequence", "experts": "experts", "topk": "topk"},
    **{"expert_ffn": "expert_ffn", "activation": "activation"},
}

Cells = dict[str, str]


def read_moe_runs(path: Path | None = None) -> list[PublishedRun]:
    """The runs of a file; without a file those that come with simgpt, and behind them the published
    runs whose sequences are split over devices. A run that stands in two files counts once."""
    if path is not None:
        return moe_runs_of(*lines_of(path, SHIPPED))
    runs = [run for name in (SHIPPED, LONG) for run in moe_runs_of(*lines_of(None, name))]
    runs += (run for run in read_runs() if (run.whole("cp") or 1) > 1)
    return list({run.id: run for run in reversed(runs)}.values())[::-1]


def moe_runs_of(lines: Iterable[str], origin: str) -> list[PublishedRun]:
    """The runs in the lines of a CSV file with the columns of moe_cp_runs.csv."""
    return runs_of(lines, origin, _table()["columns"], _meant)


def _meant(cells: Cells) -> Cells:
    """A row's cells, under our columns' names, with what its readings add."""
    found = with_recipe(cells | {"recompute": recomputed(cells.get("recompute", ""))})
    if (kind := found.get("attention", "")) and not any(word in kind.lower() for word in ATTENTION):
        found[UNSUPPORTED] = f"{kind} attention"
    remarks = [found[REMARK]] if found.get(REMARK) else []
    for reading in _table()["reading"]:
        if all(says(found.get(name, "").lower(), word) for name, word in reading["when"].items()):
            _read(reading, found)
            remarks += [reading["remark"]] if "remark" in reading else []
    _count_experts(found)
    return found | {REMARKS: "; ".join(remarks)}


def _read(reading: Mapping[str, Any], cells: Cells) -> None:
    cells.update({name: str(value) for name, value in reading.get("set", {}).items()})
    given = {name: str(value) for name, value in reading.get("fill", {}).items()}
    if "preset" in reading:
        given |= _of_preset(find_model(reading["preset"]))
    if "domain" in reading:
        given |= {"fabric": "infiniband"}
        cells["gpus_per_node"] = str(reading["domain"])
    if UNSUPPORTED in reading:
        given[UNSUPPORTED] = reading[UNSUPPORTED]
    cells.update({name: value for name, value in given.items() if not cells.get(name)})
    per_gpu = given.get("nics_of_gpu")
    per_node = _whole(cells, "gpus_per_node")
    if per_gpu and per_node and not cells.get("nics_per_node"):
        cells["nics_per_node"] = str(int(per_gpu) * per_node)


def _of_preset(gpt: GPT) -> Cells:
    return {column: str(gpt.value(name)) for column, name in FROM_PRESET.items()}


def _count_experts(cells: Cells) -> None:
    """Fields of a model that follow from a row's counts of layers, shared experts and widths."""
    each, shared = _whole(cells, "expert_ffn"), _whole(cells, "shared_experts")
    if each and shared:
        cells["shared_ffn"] = str(shared * each)
    if cells.get("experts") and not cells.get("ffn_hidden"):
        cells["ffn_hidden"] = cells.get("expert_ffn", "")
    layers, of_experts = _whole(cells, "layers"), _whole(cells, "moe_layers")
    if of_experts and layers and not cells.get("expert_every"):
        cells["dense_layers"] = str(layers - of_experts) if layers > of_experts else ""
    if width := re.search(r"head (\d+)", cells.get("attention", "")):
        cells["head_width"] = width[1]


def _whole(cells: Mapping[str, str], column: str) -> int:
    """A cell's number, which was checked; 0 where it is empty."""
    return int(float(cells.get(column) or 0))


@cache
def _table() -> dict[str, Any]:
    return shipped_toml("validation", "data/moe.toml")
