"""Readings of Megatron-Bridge's rows from the table of its recipes."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from topologies.files.reading import shipped_text
from validation.moe.rows import read_moe_runs
from validation.published.recipes import left_of_recipes, recipe_of, recipes, with_recipe

SUMMARY = {
    "source": "NVIDIA Megatron-Bridge performance summary",
    "framework": "Megatron-Bridge / Megatron-Core",
}


def row(release: str, gpu: str, model: str, precision: str, **sizes: str) -> dict[str, str]:
    """A row of the summary."""
    return SUMMARY | {
        "table_or_figure": f"{release} Pre-Training",
        "gpu": gpu,
        "model": model,
        "precision": precision,
        **sizes,
    }


def of_summary() -> Iterator[dict[str, str]]:
    """The rows of the summary that come with simgpt."""
    for name in ("moe_cp_runs", "published_runs"):
        for cells in csv.DictReader(shipped_text("validation", f"data/{name}.csv").splitlines()):
            if "performance summary" in cells["source"] and "Bridge" in cells["framework"]:
                yield cells


def test_every_row_of_the_summary_has_a_recipe() -> None:
    assert [cells["id"] for cells in of_summary() if recipe_of(cells) is None] == []


def test_the_release_decides() -> None:
    sizes = {"gpus_total": "256", "global_batch_seqs": "8192", "pp": "8", "vpp": "3", "ep": "32"}
    cells = [
        with_recipe(row(release, "GB200", "Qwen3_235B_a22B", "mxfp8", **sizes))
        for release in ("26.04", "26.06")
    ]
    assert [each["cuda_graph"] for each in cells] == [
        "attn moe_router moe_preprocess",
        "full_iteration",
    ]
    assert [each["overlap"] for each in cells] == ["", "a2a+wgrad"]


def test_of_several_recipes_the_one_with_the_rows_sizes_counts() -> None:
    small = recipe_of(row("26.02", "H100", "LLAMA3_70B", "fp8", gpus_total="64", pp="8", cp="1"))
    assert small is not None
    assert (small["precision"], small["devices"], small["pp"]) == ("fp8_cs", "64", "8")
    nearest = recipe_of(
        row("26.02.01", "H100", "Qwen3_30B_a3B", "fp8", pp="2", vpp="12", ep="8", gpus_total="16")
    )
    assert nearest is not None
    assert nearest["release"] == "26.02"  # whose plan the table of 26.02.01 still has


@pytest.mark.parametrize(
    "changed",
    [
        {"table_or_figure": "99.01 Pre-Training"},
        {"table_or_figure": "EP overlap off"},
        {"source": "NVIDIA Megatron-Bridge, measured performance notes"},
        {"framework": "Megatron-LM"},
        {"model": "a model of another kind"},
        {"precision": "fp16"},
    ],
)
def test_other_rows_are_left_as_they_are(changed: dict[str, str]) -> None:
    cells = row("26.06", "GB200", "Qwen3_235B_a22B", "mxfp8") | changed
    assert with_recipe(cells) == cells


def test_what_the_row_says_comes_before_the_recipe() -> None:
    cells = row("26.06", "GB200", "DeepSeekV3", "mxfp8", recompute="none", gpus_total="256")
    found = with_recipe(cells)
    assert found["recompute"] == "none"
    assert found["moments"] == "bf16"


def test_a_plan_that_differs_from_its_recipe_says_in_what() -> None:
    found = with_recipe(row("26.06", "GB200", "DeepSeekV3", "mxfp8", gpus_total="256", pp="2"))
    assert "pp" in found["recipe_remark"]


def test_a_run_without_the_module_for_further_tokens_has_none() -> None:
    runs = [run for run in read_moe_runs() if "w/o MTP" in run.text("model")]
    assert runs
    assert {run.text("mtp_layers") for run in runs} == {"0"}


def test_the_table_names_what_it_could_not_tell() -> None:
    rows = [each for known in recipes().values() for each in known]
    untold = [each for each in rows if not each["graphs"]]
    assert len(rows) > 2000
    assert all("cuda_graph" in each["unresolved"] for each in untold)


DGXC = {
    "source": "NVIDIA DGX Cloud Benchmarking recipes",
    "framework": "NeMo / Megatron-Core",
    "gpu": "GB200",
    "model": "DeepSeek-V3 671B",
    "precision": "bf16",
    "gpus_total": "256",
}


def test_rows_of_launch_scripts_take_the_recipe_of_nemo_that_those_start() -> None:
    blackwell = with_recipe(DGXC | {"table_or_figure": "deepseek_v3 README, v25.05.05"})
    assert (blackwell["gradients"], blackwell["recompute"]) == ("fp32", "selective")
    assert (blackwell["capacity"], blackwell["mtp_layers"]) == ("1.0", "1")
    assert blackwell["stage_layers"] == "15,16,16,14"
    hopper = DGXC | {"gpu": "H100-SXM5-80GB", "gpus_total": "1024"}
    later = with_recipe(hopper | {"table_or_figure": "deepseek_v3 README, v25.08.02"})
    assert (later["dispatcher"], later["gradients"], later["capacity"]) == ("DeepEP", "bf16", "")
    assert later["recompute"] == "mla_up_proj+mlp+moe"


def test_a_launch_scripts_row_takes_no_recipe_of_another_release() -> None:
    cells = DGXC | {"gpu": "H100", "model": "Llama3.1-405B", "precision": "fp8"}
    cells |= {"table_or_figure": "v25.05.01 README table", "gpus_total": "32", "pp": "1"}
    found = recipe_of(cells)  # 25.04.01 has one on 32 GPUs with pp=1
    assert found is not None
    assert found["release"] == "dgxc-25.05.01"
    cells = DGXC | {"table_or_figure": "deepseek_v3 README, v25.05.04"}
    assert with_recipe(cells) == cells


def test_a_model_with_fewer_layers_takes_the_recipe_of_the_whole_one() -> None:
    cells = DGXC | {"gpu": "H100-SXM5-80GB", "precision": "fp8", "gpus_total": "32"}
    cells |= {"model": "Llama3.1-405B-proxy-8L", "table_or_figure": "v25.04.01 README table"}
    found = recipe_of(cells)
    assert found is not None
    assert (found["model"], found["pp"], found["gbs"]) == ("llama31_405b", "1", "64")


def test_what_no_plan_has_is_counted_with_the_reason() -> None:
    whole = row("26.06", "GB200", "LLAMA3.1_405B", "mxfp8")
    rows = [with_recipe(whole), whole]
    assert "tp_overlap" in rows[0]["recipe_left"]
    (line,) = (each for each in left_of_recipes(rows) if "tp_overlap" in each)
    assert line.startswith("1 ")


def test_megatron_fsdp_is_zero_3() -> None:
    sharded = next(r for known in recipes().values() for r in known if r["sharding"] == "fsdp")
    cells = row(sharded["release"], sharded["gpu"].upper(), sharded["model"], "mxfp8")
    labels = {"fp8_mx": "mxfp8", "bf16": "bf16", "nvfp4": "nvfp4"}
    label = labels.get(sharded["precision"], sharded["precision"].replace("_", "-"))
    sizes = {"gpus_total": sharded["devices"], "pp": sharded["pp"], "tp": sharded["tp"]}
    found = with_recipe(cells | {"precision": label} | sizes)
    assert found["zero_stage"] == "3"
