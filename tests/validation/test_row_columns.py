"""Each column and note of a published row changes what it should of the question that is predicted,
and nothing else: the model, the plan, the stack, the machine or the batch's scale."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.validation.test_moe import run as moe_run
from tests.validation.test_published import run as dense_run
from topologies.hardware.interconnect import NoInterconnect
from validation.memory.memory_questions import questions
from validation.published.case import case_as_read
from validation.published.run_machine import machine_of
from workload.gpt import GPT
from workload.plan import Plan

Changes = Mapping[str, Any]
# 8 GPUs as 2 * 2 * 2, of a framework of which nothing is known; 50,257 words up to 197 * 128 * 2.
DENSE = {"framework": "something new", "micro_batch": "1", "fabric": "infiniband"}
GPT_2 = GPT.of(
    name="GPT", layers=4, hidden=1024, heads=16, ffn=4096, sequence=1024, vocab=50432, tied=True,
    source="A. Author (arXiv 1)",
)  # fmt: skip
PLAN = Plan.of(tp=2, pp=2, dp=2, batch=16, mbs=1, overlap=())
EXPERTS = {"experts": "8", "topk": "2", "expert_ffn": "512"}
LLAMA: dict[str, Any] = {
    "activation": "swiglu",
    "norm": "rmsnorm",
    "positions": "rope",
    "biases": False,
}
OF_8 = {"tp": "1", "pp": "1", "dp": "8"}
EIGHT: Changes = {"tp": 1, "pp": 1, "dp": 8}
WHOLE: Changes = {"vocab": 50304}  # 50,257 up to 393 * 128

# The cells that a row has over those of the usual one, and what that makes of the question.
DENSE_ROWS: Mapping[str, tuple[dict[str, str], Changes, Changes]] = {
    # name: cells, changes of the plan, changes of the model
    "nothing": ({}, {}, {}),
    "model": ({"model": "Other"}, {}, {"name": "Other"}),
    "layers": ({"layers": "8"}, {}, {"layers": 8}),
    "hidden": ({"hidden": "2048"}, {}, {"hidden": 2048, "ffn": 8192}),
    "heads": ({"heads": "8"}, {}, {"heads": 8}),
    "kv_heads": ({"kv_heads": "4"}, {}, {"kv_heads": 4}),
    "as many kv_heads": ({"kv_heads": "16"}, {}, {}),
    "ffn_hidden": ({"ffn_hidden": "3072"}, {}, {"ffn": 3072}),
    "seq_len": ({"seq_len": "2048"}, {}, {"sequence": 2048}),
    "vocab": ({"vocab": "1024"}, {}, {"vocab": 1024}),
    "no vocab": ({"vocab": ""}, {}, {}),
    "head_width": ({"head_width": "128"}, {}, {"head_width": 128}),
    "the usual head_dim": ({"notes": "head_dim 64"}, {}, {}),
    "head_dim of notes": ({"notes": "x; head_dim 96"}, {}, {"head_width": 96}),
    "swiglu": ({"activation": "swiglu"}, {}, LLAMA),
    "squared relu": ({"activation": "squared-relu"}, {}, {"positions": "rope", "biases": False}),
    "ALiBi": ({"notes": "ALiBi"}, {}, {"positions": "alibi"}),
    "untied": ({"notes": "untied embeddings"}, {}, {"tied": False}),
    "tp": ({"tp": "4", "dp": "1", "vocab": "1024"}, {"tp": 4, "dp": 1}, {"vocab": 1024}),
    "pp": ({"pp": "4", "dp": "1"}, {"pp": 4, "dp": 1}, {}),
    "vpp": ({"vpp": "2"}, {"vpp": 2}, {}),
    "cp": ({"cp": "2", "dp": "1"}, {"cp": 2, "dp": 1}, {}),
    "no dp": ({"dp": ""}, {}, {}),
    "grid": ({"tp": "", "pp": "", "gx": "2", "gy": "1", "gz": "2"}, {"z": 2, "pp": 1}, {}),
    "grid in y": ({"tp": "", "pp": "", "gx": "1", "gy": "4", "gz": "1", "vocab": "1024"},
                  {"tp": 1, "y": 4, "pp": 1}, {"vocab": 1024}),
    "global_batch_seqs": ({"global_batch_seqs": "32"}, {"batch": 32}, {}),
    "micro_batch": ({"micro_batch": "4"}, {"mbs": 4}, {}),
    "uneven layers": ({"layers": "5"}, {"stage_layers": (3, 2)}, {"layers": 5}),
    "layers that fit with the ends": ({"layers": "6", "pp": "4", "dp": "1"},
                                      {"ends_as_layers": True, "pp": 4, "dp": 1},
                                      {"layers": 6}),
    "stage_layers": ({"stage_layers": "1,3"}, {"stage_layers": (1, 3)}, {}),
    "a short last chunk": ({"layers": "5", "last_chunk": "short"}, {"stage_layers": (3, 2)},
                           {"layers": 5}),
    "zero_stage": ({"zero_stage": "1"}, {"zero": 1}, {}),
    "zero1 group": ({"zero_stage": "1", "notes": "zero1 group = 4", **OF_8},
                    {"zero": 1, "shard": 4, **EIGHT}, WHOLE),
    "shard": ({"zero_stage": "3", "notes": "replicate 4 x shard 2", **OF_8},
              {"zero": 3, "shard": 2, **EIGHT}, WHOLE),
    "shard of all": ({"zero_stage": "3", "notes": "shard 8", **OF_8},
                     {"zero": 3, **EIGHT}, WHOLE),
    "HSDP": ({"zero_stage": "3", "notes": "HSDP", "gpus_per_node": "4", **OF_8},
             {"zero": 3, "shard": 4, **EIGHT}, WHOLE),
    "a shard of nothing": ({"notes": "shard 2", **OF_8}, EIGHT, WHOLE),
    "sequence_parallel": ({"sequence_parallel": "yes"}, {"sp": True}, {}),
    "of no tensors": ({"sequence_parallel": "yes", **OF_8},
                      EIGHT, WHOLE),
    "recompute": ({"recompute": "full"}, {"recompute": "full"}, {}),
    "layers that run again": ({"recompute": "full:1"}, {"recompute": "full:1"}, {}),
    "no flash_attention": ({"flash_attention": "no"}, {"attention": "unfused"}, {}),
    "flash_attention": ({"flash_attention": "yes"}, {}, {}),
    "gradients": ({"gradients": "bf16"}, {"gradients": "bf16"}, {}),
    "gradients of notes": ({"notes": "bf16 grads"}, {"gradients": "bf16"}, {}),
    "optimizer": ({"optimizer": "muon"}, {"optimizer": "muon"}, {}),
    "moments": ({"moments": "bf16", "precision": "bf16"}, {"moments": "bf16"}, {}),
    "moments of what precision": ({"moments": "bf16"}, {}, {}),
    "fp32": ({"precision": "fp32"}, {"precision": "fp32"}, {}),
    "fp16": ({"precision": "fp16"}, {}, {}),
    "schedule": ({"notes": "schedule ZB-H1"}, {"schedule": "zb-h1"}, {}),
    "overlap": ({"overlap": "dp"}, {"overlap": ("dp",)}, {}),
    "experts without etp": ({**EXPERTS, "ep": "4", "sequence_parallel": "yes"},
                            {"ep": 4, "etp": 1, "sp": True},
                            {"experts": 8, "topk": 2, "expert_ffn": 512}),
}  # fmt: skip


@pytest.mark.parametrize("name", DENSE_ROWS)
def test_a_column_of_a_dense_row_changes_its_part_of_the_question(name: str) -> None:
    cells, of_plan, of_model = DENSE_ROWS[name]
    found = case_as_read(dense_run(**{**DENSE, **cells}))
    assert _changed(found.job.plan.flat(), PLAN.flat()) == {**of_plan}
    assert _changed(found.job.gpt.flat(), GPT_2.flat()) == {**of_model}
    assert (found.job.stack.name, found.scale) == ("other", 1.0)


def _changed(found: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in found.items() if each != usual[key]}


# Of rows of experts: 8 experts, two of which each token meets, over the 8 GPUs of Megatron's data.
MOE_GPT = GPT.of(
    name="Small", layers=4, hidden=512, heads=8, ffn=1024, sequence=1024, vocab=32000, tied=False,
    kv_heads=4, experts=8, topk=2, expert_ffn=1024, source="A. Author (arXiv 1)", **LLAMA,
)  # fmt: skip
MOE_PLAN = Plan.of(dp=8, batch=16, mbs=1, zero=1, ep=8, overlap=("oar", "dp", "pp"))
HALVES = {"tp": "2", "dp": "4", "ep": "4"}
MOE_ROWS: Mapping[str, tuple[dict[str, str], Changes, Changes]] = {
    "nothing": ({}, {}, {}),
    "ep": ({"ep": "4"}, {"ep": 4}, {}),
    "no experts split": ({"ep": "1"}, {"ep": 1}, {}),
    "etp by default": (HALVES, {"tp": 2, "dp": 4, "ep": 4, "etp": 1,
                                "sp": True}, {}),
    "etp of one": ({**HALVES, "etp": "1"}, {"tp": 2, "dp": 4, "ep": 4, "etp": 1,
                                            "sp": True}, {}),
    "etp as tp": ({**HALVES, "etp": "2"}, {"tp": 2, "dp": 4, "ep": 4,
                                           "sp": True}, {}),
    "dispatcher": ({"dispatcher": "AllGather"}, {"dispatcher": "all_gather"}, {}),
    "experts": ({"experts": "16"}, {}, {"experts": 16}),
    "topk": ({"topk": "1"}, {}, {"topk": 1}),
    "moe_ffn": ({"moe_ffn": "512", "dense_ffn": "2048"}, {}, {"expert_ffn": 512, "ffn": 2048}),
    "moe_ffn alone": ({"moe_ffn": "512"}, {}, {"expert_ffn": 512, "ffn": 512}),
    "shared_experts": ({"shared_experts": "3"}, {}, {"shared_ffn": 3072}),
    "moe_layers": ({"moe_layers": "3"}, {}, {"dense_layers": 1}),
    "head of attention": ({"attention": "gqa head 128"}, {}, {"head_width": 128}),
    "capacity": ({"capacity": "1.25"}, {}, {"capacity": 1.25}),
    "balance_loss": ({"balance_loss": "0.01"}, {}, {"balance_loss": 0.01}),
    "windows": ({"window": "128", "global_every": "2"}, {}, {"window": 128, "global_every": 2}),
    "sinks": ({"sinks": "yes"}, {}, {"sinks": True}),
    "biases": ({"biases": "yes"}, {}, {"biases": True}),
    "clamped": ({"clamped": "yes"}, {}, {"activation": "clamped_swiglu"}),
    "mtp_layers": ({"mtp_layers": "1"}, {}, {"mtp_layers": 1}),
    "groups": ({"router_groups": "4", "router_topk_groups": "2"}, {},
               {"router_groups": 4, "router_topk_groups": 2}),
    "zero_stage": ({"zero_stage": "0"}, {"zero": 0}, {}),
    "cp": ({"cp": "2", "dp": "4"}, {"cp": 2, "dp": 4}, {}),
    "pp": ({"pp": "2", "dp": "4", "ep": "4"}, {"pp": 2, "dp": 4, "ep": 4}, {}),
    "micro_batch": ({"micro_batch": "2"}, {"mbs": 2}, {}),
    "recompute": ({"recompute": "moe_act, layernorm"}, {"recompute": "layernorm+moe_act"}, {}),
    "overlap": ({"overlap": "a2a"}, {"overlap": ("oar", "a2a", "dp", "pp")}, {}),
    "recipe": ({"recipe": "mxfp8"}, {"recipe": "mxfp8"}, {}),
    "gradients": ({"gradients": "bf16"}, {"gradients": "bf16"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MOE_ROWS)
def test_a_column_of_a_row_of_experts_changes_its_part_of_the_question(name: str) -> None:
    cells, of_plan, of_model = MOE_ROWS[name]
    found = case_as_read(moe_run(**cells))
    assert _changed(found.job.plan.flat(), MOE_PLAN.flat()) == {**of_plan}
    assert _changed(found.job.gpt.flat(), MOE_GPT.flat()) == {**of_model}
    assert (found.job.stack.name, found.scale) == ("megatron-core", 1.0)


def test_fp8_is_the_stacks() -> None:
    job = case_as_read(dense_run(**{**DENSE, "precision": "fp8"})).job
    assert (job.plan.training.recipe, job.plan.training.precision) == ("fp8", "bf16")


@pytest.mark.parametrize(("batch", "read", "scale"), [("24", 32, 0.75), ("3", 8, 0.375)])
def test_a_batch_that_micro_batches_do_not_divide_is_scaled(
    batch: str, read: int, scale: float
) -> None:
    """Of 24 sequences each of four ranks has 6: two micro-batches of 4. Of 3 it has less than one
    of 2."""
    each = {"24": "4", "3": "2"}[batch]
    cells = {**DENSE, **OF_8, "dp": "4", "tp": "2", "global_batch_seqs": batch}
    found = case_as_read(dense_run(**{**cells, "micro_batch": each}))
    assert (found.job.plan.batch, found.scale) == (read, scale)


# A node of 8 A100 with 8 NICs of 200 Gbit/s, unless the row says otherwise.
NODE = {"device": "A100", "nodes": 1, "per_node": 8, "nics": 8, "nic": 25e9, "switch_s": 1.3e-7}
MACHINES: Mapping[str, tuple[dict[str, str], Changes]] = {
    "nothing": ({}, {}),
    "gpu": ({"gpu": "H100-SXM5-80GB"}, {"device": "H100", "nic": 50e9}),
    "gpus_total": ({"gpus_total": "16", "dp": "4"}, {"nodes": 2}),
    "gpus_per_node": ({"gpus_per_node": "4"}, {"per_node": 4, "nodes": 2, "nics": 4}),
    "nics_per_node": ({"nics_per_node": "2"}, {"nics": 2}),
    "nic_gbps": ({"nic_gbps": "400"}, {"nic": 50e9}),
    "fabric": ({"fabric": "Slingshot"}, {"switch_s": 3.5e-7}),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_column_changes_its_part_of_the_machine(name: str) -> None:
    cells, changes = MACHINES[name]
    machine = machine_of(dense_run(**{**DENSE, **cells}))
    nics, network = machine.node.nics, machine.interconnect
    assert not isinstance(network, NoInterconnect)
    assert {**NODE, **changes} == {
        "device": re.search(r"[AH]100", machine.device.name)[0],  # type: ignore[index]
        "nodes": machine.nodes,
        "per_node": machine.devices_per_node,
        "nics": nics.count,
        "nic": nics.bytes_per_s,
        "switch_s": network.switch_latency_s,
    }


def test_a_machine_of_ours_is_taken_by_its_name_in_the_environment_of_the_notes() -> None:
    cells = {"machine": "Perlmutter", "gpu": "A100-SXM4-40GB", "gpus_per_node": "4"}
    off = "GPUDirect RDMA disabled"
    found = [machine_of(dense_run(**{**DENSE, **cells, "notes": notes})) for notes in ("", off)]
    assert [each.name.lower() for each in found] == ["perlmutter"] * 2
    assert found[1].full_name == f"{found[0].full_name}:no-gdr"


MEMORY: Mapping[str, tuple[dict[str, str], str, float, int | None]] = {
    # name: cells, what is measured, its unit in bytes, the stage (the fullest where it is None)
    "of rank 0": ({"notes": "rank-0 allocated peak"}, "allocated", 2**30, None),
    "of the device": ({"notes": "memory column is nvidia-smi"}, "device", 2**30, None),
    "in GB of the device": ({"notes": "log (ROCm, device)"}, "device", 1e9, None),
    "reserved": ({"notes": "max reserved"}, "reserved", 2**30, None),
    "of torchtitan": ({"framework": "torchtitan", "activation": "swiglu"}, "reserved", 2**30, None),
    "in GB": ({"notes": "memory column in GB"}, "allocated", 1e9, None),
    "of nanotron's first stage": ({"framework": "nanotron 0.5"}, "reserved", 2**30, 0),
}


@pytest.mark.parametrize("name", MEMORY)
def test_a_row_says_what_its_column_of_memory_measures(name: str, tmp_path: Path) -> None:
    """The question of its memory is that of its step; a row without a peak has none."""
    cells, kind, unit, stage = MEMORY[name]
    row = dense_run(**{**DENSE, "peak_mem_GiB": "2.5", **cells})
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, row.columns)
        rows.writeheader()
        rows.writerows([row.columns, {**row.columns, "id": "a-2", "peak_mem_GiB": ""}])
    (found,) = questions(path)
    assert (found.id, found.measure, found.measured_bytes) == ("a-1", kind, int(2.5 * unit))
    asked = found.ask()
    assert (asked.stage, asked.job.plan) == (stage, case_as_read(row).job.plan)
    assert asked.machine.entries == machine_of(row).entries
