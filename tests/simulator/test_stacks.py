"""Stacks: what a file says, what becomes of a user's words under it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.explain.nearest_fit import does_fit, memory_of_stack
from simulator.predict import predict
from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks import EXECUTOR, StackError, load_stack, stack_names
from simulator.stacks.job import SAID, Job, job_of
from simulator.stacks.searched import kept
from simulator.stacks.stack_files import FORMER
from simulator.stacks.stack_schema import check_document
from simulator.step_memory import room_for
from simulator.uncertainty.fitting import UNLIKELY
from tests.messages import assert_names, names
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine_files import load_machine, with_settings
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.op import BACKWARD, FORWARD
from workload.passes.stack import PLAIN_BEHAVIOUR
from workload.plan_text import parse_plan

GPT_20B = find_model("gpt-20b")
MEGATRON = load_stack("megatron-core")
TABLE = MeasuredTable(("bytes", "seconds"), ((1.0, 1e-6), (2.0, 2e-6)))


def job(text: str, stack: str = "megatron-core", gpt: GPT = GPT_20B) -> Job:
    return job_of(gpt, text, load_stack(stack), devices=64, batch=64)


def test_every_shipped_stack_is_whole() -> None:
    assert stack_names()[0] == "simgpt"
    assert "usual" not in stack_names()
    for name in stack_names():
        stack = load_stack(name)
        assert stack.title
        assert stack.source
        assert stack.name == name
        assert job("dp=rest,mbs=1", name).plan.dp == 64


def test_a_stack_has_several_options_in_the_order_of_its_file() -> None:
    """Of NeMo with DeepEP, whose kernels for experts' biases move more, and attention in graphs."""
    both = load_stack("nemo+graphs=attn+deepep")
    assert both.name == "nemo+deepep+graphs=attn"
    assert both == load_stack("nemo+deepep+graphs=attn")
    alone = load_stack("nemo")
    kernels = {
        key for key in both.own_kernels if both.own_kernels[key] != alone.own_kernels.get(key)
    }
    of_deepep = {"passes", "exchange", "exchange_kernels", "memory_shares", "place_times"}
    assert kernels == {"graphs", "fp8_pads", *of_deepep}
    passes = {"expert_bias": 7, "expert_bias_grad": 20}
    assert both.own_kernels["passes"] == {**alone.own_kernels["passes"], **passes}
    titles = [alone.title, alone.options["deepep"], alone.options["graphs=attn"]]
    assert both.title == "; ".join(titles)
    assert (both.family, both.plan) == (alone.family, alone.plan)


def test_a_release_is_the_last_before_which_a_stack_was_otherwise() -> None:
    """NeMo has had ZeRO-3 from 2025 on, and flash attention by default from 23.07."""
    assert load_stack("nemo@23.03").plan["attention"] == "unfused"
    for release in ("23.06", "24.05"):
        old = load_stack(f"nemo@{release}")
        assert (old.name, old.plan["attention"]) == (f"nemo@{release}", "flash")
        assert old.can["zero"] == [0, 1]
    new, of_today = load_stack("nemo@25.09"), load_stack("nemo")
    assert (new.plan, new.own_kernels, new.can) == (
        of_today.plan,
        of_today.own_kernels,
        of_today.can,
    )


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("nemo+deepp", ("nemo", "deepp", "deepep", "graphs=attn")),
        ("nemo+graphs=attn+graphs=full", ("graphs=attn", "graphs=full")),
        ("nemo+deepep+deepep", ("nemo", "deepep")),
        ("nemo+deepep+unfused-permutation", ("nemo+unfused-permutation", "deepep")),
        ("nemo+", ("nemo",)),
        ("nemo@", ("nemo", "23.05")),
        ("nemo@2024", ("nemo", "2024", "23.05")),
        ("nemo@24.13", ("nemo", "24.13", "23.05")),
        ("nemo@24.05+deepep", ("nemo@24.05", "deepep")),
        ("primus+deepep", ("primus", "deepep")),
        ("primus@25.09", ("primus", "25.09")),
        ("nemmo+deepep", ("nemmo",)),
    ],
)
def test_options_and_releases_that_there_are_not_are_refused(
    name: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(StackError, check=names(*named)):
        load_stack(name)


def test_a_file_of_ones_own_builds_upon_a_stack_with_options(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'title = "mine"\nsource = "me"\n'
    path.write_text(f'base = "nemo+deepep"\n{text}')
    assert load_stack(str(path)).own_kernels == load_stack("nemo+deepep").own_kernels
    path.write_text(f'{text}[options.fast]\ntitle = "fast"\n')
    with pytest.raises(StackError, check=names("mine.toml", "options")):
        load_stack(str(path))


def test_names_of_before_options_are_read() -> None:
    assert load_stack("nemo-deepep-attn-graphs").name == "nemo+deepep+graphs=attn"
    assert load_stack("nemo-2024").name == "nemo@24.05"
    for name in FORMER.values():
        assert load_stack(name).name == name


def test_what_a_stack_has_otherwise_is_told_from_its_own_options() -> None:
    found = load_stack("nemo+deepep+fused-experts+graphs=full").otherwise
    assert found == {"without CUDA graphs": "nemo+deepep"}
    assert load_stack("nemo+graphs=full").otherwise == {"without CUDA graphs": "nemo"}
    assert set(load_stack("nemo+deepep").otherwise.values()) == {
        "nemo+deepep+fused-experts+graphs=full",
        "nemo",
    }


def test_our_executors_behaviour_is_plain_and_changes_nothing() -> None:
    found = job("dp=rest", "simgpt")
    assert (found.gpt, found.stack) == (GPT_20B, EXECUTOR)
    kernels = EXECUTOR.kernels(GPT_20B, found.plan, load_machine("dgx-h100"))
    assert (kernels.behaviour, kernels.pace, kernels.attention) == (PLAIN_BEHAVIOUR, 1.0, None)


def test_what_the_plan_does_not_say_the_stack_does() -> None:
    found = job("tp=4,pp=2,dp=rest,mbs=1")
    words = "sp=true,zero=1,overlap=oar+dp+pp"
    assert str(found.plan) == f"tp=4,pp=2,dp=8,mbs=1,{words}"
    assert dict(found.assumed)["overlap"] == "oar+dp+pp"
    given = job("tp=4,pp=2,dp=rest,mbs=1,zero=0,overlap=none,sp=true")
    assert (given.plan.zero, given.plan.training.overlap) == (0, ())
    assert set(dict(given.assumed)) == {"attention", "gradients", "recompute"}


@pytest.mark.parametrize("stack", ["megatron-core", "nemo"])
def test_what_megatrons_fsdp_overlaps_follows_what_it_shards(stack: str) -> None:
    overlaps = {
        zero: job(f"dp=rest,mbs=1,zero={zero}", stack).plan.training.overlap for zero in range(4)
    }
    assert overlaps == {
        0: ("oar", "dp", "pp"),
        1: ("oar", "dp", "pp"),
        2: ("oar", "ors", "dp", "pp"),
        3: ("oar", "ors", "oag", "dp", "pp"),
    }
    assert job("dp=rest,mbs=1,fsdp=true", stack).plan.training.overlap == overlaps[3]
    assert job("dp=rest,mbs=1,zero=3,overlap=none", stack).plan.training.overlap == ()


def test_a_search_values_megatrons_fsdp_with_its_overlaps() -> None:
    assert kept(MEGATRON, {"zero": 1})["overlap"] == ("oar", "dp", "pp")
    assert kept(MEGATRON, {"zero": 2})["overlap"] == ("oar", "ors", "dp", "pp")
    assert kept(MEGATRON, {})["overlap"] == ("oar", "ors", "oag", "dp", "pp")


def test_the_vocabulary_is_padded_for_the_ranks_of_x() -> None:
    found = job("tp=4,dp=rest,mbs=1")
    assert (GPT_20B.vocab, found.gpt.vocab) == (50304, 99 * 512)
    assert_names(" ".join(found.remarks), "50,688")


def test_cp_is_the_axis_context_and_each_stack_has_its_own_kind() -> None:
    found = job("tp=4,cp=2,dp=rest,mbs=1")
    assert (found.plan.cp, found.plan.dp, found.plan.batch) == (2, 8, 64)
    assert (found.gpt.sequence, found.plan.context.kind) == (GPT_20B.sequence, "ring")
    assert job("cp=2,dp=rest,mbs=1", "torchtitan").plan.context.kind == "all_gather"


def test_fp8_is_of_the_linears_alone() -> None:
    found = job("dp=rest,mbs=1,precision=fp8")
    assert (found.plan.training.precision, found.plan.training.recipe) == ("bf16", "fp8")
    assert found.stack.text(found.plan).endswith(",precision=fp8")


@pytest.mark.parametrize(("machine", "transposes"), [("dgx-h100", True), ("dgx-b200", False)])
def test_operands_in_fp8_are_transposed_on_hopper_alone(machine: str, transposes: bool) -> None:
    found = job("dp=rest,mbs=1,precision=fp8")
    behaviour = found.stack.kernels(found.gpt, found.plan, load_machine(machine)).behaviour
    assert behaviour.casts.transposes == transposes


def test_torchtitans_selective_recomputes_all_but_what_chosen_ops_give() -> None:
    found = job("pp=2,dp=rest,mbs=1,recompute=selective", "torchtitan").plan.training.recompute
    assert found == "per_op"
    assert job("pp=2,dp=rest,mbs=1,recompute=selective").plan.training.recompute == "selective"


SMALL = replace(
    GPT.of(name="small", layers=2, hidden=512, heads=8, ffn=2048, sequence=256, vocab=1024),
    positions="rope",
    norm="rmsnorm",
    biases=False,
    tied=False,
)


WIRE = {
    **dict.fromkeys(("fsdp", "accelerate", "llm-foundry", "megatron-core", "nemo"), 4),
    **dict.fromkeys(("megatron-deepspeed", "gpt-neox", "simgpt"), 2),
}


@pytest.mark.parametrize(
    ("stack", "wire", "zero"),
    [
        *((stack, wire, zero) for stack, wire in WIRE.items() for zero in (2, 3)),
        ("torchtitan", 4, 3),
    ],
)
def test_each_micro_batch_reduces_gradients_in_the_stacks_dtype(
    stack: str, wire: int, zero: int
) -> None:
    """Bytes that data sends more for each weight, of two micro-batches, where sums are fp32; norms
    are summed in their own dtype, once."""
    sent = {}
    for gradients in ("fp32", "bf16"):
        text = f"dp=rest,mbs=1,zero={zero},gradients={gradients}"
        found = job_of(SMALL, text, load_stack(stack), devices=16, batch=32)
        step = predict(found.gpt, found.plan, load_machine("dgx-h100"), stack=found.stack)
        sent[gradients] = step.comm_bytes["dp"]
    weights, norms = 2 * 12 * 512**2 + 2 * 1024 * 512, 5 * 512
    assert sent["fp32"] - sent["bf16"] == 2 * weights * (wire - 2) + norms * 2


def test_under_fp8_torchtitan_gathers_a_byte_of_each_weight_in_place_of_two() -> None:
    """Those of layers in the forward pass and again in the backward pass, those of the embedding
    and of the head once."""
    sent = []
    for precision in ("", ",precision=fp8"):
        text = f"dp=rest,mbs=1,zero=3{precision}"
        found = job_of(SMALL, text, load_stack("torchtitan"), devices=8, batch=8)
        step = predict(found.gpt, found.plan, load_machine("dgx-h100"), stack=found.stack)
        sent.append(step.comm_bytes["dp"])
    layers, ends = 2 * 12 * 512**2, 2 * 1024 * 512
    assert sent[0] - sent[1] == 2 * layers + ends


@pytest.mark.parametrize("reshard", ["true", "false"])
def test_a_pipeline_of_fsdp2_holds_unsharded_parameters_once(reshard: str) -> None:
    """8 layers of 12 h^2 weights in 4 stages: 2 bytes for each, whatever is in flight."""
    gpt = replace(SMALL, layers=8)
    steps = []
    for batch in (8, 64):
        text = f"pp=4,dp=rest,mbs=1,zero=3,reshard={reshard}"
        found = job_of(gpt, text, load_stack("torchtitan"), devices=32, batch=batch)
        steps.append(predict(found.gpt, found.plan, load_machine("dgx-h100"), stack=found.stack))
    few, many = steps
    assert few.memory.parts["gradients"] == pytest.approx(many.memory.parts["gradients"], abs=4096)
    assert few.memory.parts["gradients"] > 4 * 2 * 12 * 512**2
    if reshard == "false":
        assert few.memory.parts["gathered"] == many.memory.parts["gathered"]
        assert few.memory.parts["gathered"] >= 2 * 2 * 12 * 512**2
        assert few.comm_bytes["dp"] == many.comm_bytes["dp"]


@pytest.mark.parametrize("batch", [8, 64])
def test_what_fits_of_a_pipeline_counts_one_copy_of_its_weights(batch: int) -> None:
    """Without it one micro-batch would need less, of gradients in parts, and several more."""
    gpt, machine = replace(SMALL, layers=8, hidden=4096, ffn=16384), load_machine("dgx-h100")
    text = "pp=4,dp=rest,mbs=1,zero=3,reshard=false,recompute=full"
    found = job_of(gpt, text, load_stack("torchtitan"), devices=32, batch=batch)
    own = plan_bytes(found.gpt, found.plan, memory_of_stack(found.stack, found.plan))
    step = predict(found.gpt, found.plan, machine, stack=found.stack)
    assert own == step.memory.peak_bytes
    capacity = step.memory.capacity_bytes
    for most, fits in ((own * 1.01, True), (own * 0.99, False)):
        lacking = capacity * (most / step.memory.room.most_bytes(UNLIKELY)) - capacity
        memory = f"{step.memory.device_bytes + lacking:.0f} B"
        changed = with_settings("dgx-h100", {"device.memory": memory})
        assert does_fit(found, changed) is fits


def test_rates_are_those_of_the_gpu_or_its_family_or_the_machines_own() -> None:
    plan = job("dp=rest,mbs=1").plan
    rates = {
        name: MEGATRON.kernels(GPT_20B, plan, load_machine(name)).attention
        for name in ("dgx-h100", "alps", "frontier")
    }
    assert rates == {"dgx-h100": (0.53, 0.42), "alps": (0.53, 0.42), "frontier": None}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("y=2,dp=rest,mbs=1", ("megatron-core", "y", "tp", "cp", "dp", "pp")),
        ("pp=2,dp=rest,mbs=1,schedule=gpipe", ("schedule=gpipe", "1f1b")),
        ("cp=3,dp=rest", ("cp=3", "64", "cp=2", "4")),
    ],
)
def test_what_a_stack_does_not_run_is_refused_by_name(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        found = job(text)
        predict(found.gpt, found.plan, load_machine("dgx-h100"), stack=found.stack)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tp=2,tp=4", ("tp",)),
        ("cp=none", ("cp=none",)),
        ("fsdp=maybe", ("fsdp=maybe", "true", "false")),
    ],
)
def test_words_of_other_frameworks_that_make_no_plan_are_refused(
    text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError, check=names(*named)):
        job(text)


def test_times_that_were_measured_know_no_stack() -> None:
    found, machine = job("dp=rest,mbs=1"), load_machine("dgx-h100")
    with pytest.raises(PlanCannotRunError, check=names("cp", "fp8", "dispatcher=once_per_node")):
        predict(found.gpt, found.plan, machine, stack=found.stack, op_seconds={})
    calibrated = replace(machine, profile=Profile(kernels={"matmul@bf16": TABLE}))
    with pytest.raises(PlanCannotRunError, check=names("cp", "fp8", "dispatcher=once_per_node")):
        predict(found.gpt, found.plan, calibrated, stack=found.stack)


def test_hsdp_shards_over_neighbours() -> None:
    plan = job("hsdp=8,dp=rest,mbs=1", "torchtitan").plan
    assert (plan.zero, plan.shard) == (3, 8)
    assert job("fsdp=true,dp=rest,mbs=1", "torchtitan").plan.zero == 3


def test_a_users_stack_builds_on_another(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        'base = "megatron-core"\ntitle = "ours"\nsource = "measured"\n[kernels]\npace = 0.45\n'
    )
    stack = load_stack(str(path))
    assert (stack.name, stack.plan["zero"]) == ("ours", 1)
    plan, machine = job("dp=rest,mbs=1,overlap=none").plan, load_machine("dgx-h100")
    slow, fast = (
        predict(GPT_20B, plan, machine, stack=each).breakdown_s["compute"]
        for each in (stack, MEGATRON)
    )
    assert slow == pytest.approx(2 * fast, rel=0.01)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[kernels]\nspeed = 1\n", ("kernels.speed",)),
        ("[engine]\nx = 1\n", ("self.toml", "engine", "kernels")),
        ('base = "self.toml"\n', ("self.toml -> ",)),
        ('base = "nobody"\n', ("nobody", "simgpt stacks")),
        ("[kernels]\npace = 'fast'\n", ("kernels.pace",)),
        ("[kernels]\npace = {h100 = 0.9}\n", ("kernels.pace",)),
        ("[kernels]\nearly_stop = 1\n", ("kernels.early_stop", "true", "false")),
        ("[kernels]\nreduce_dtype = 'fp32'\n", ("reduce_dtype", "gradients")),
        ("[kernels]\nonce_a_step = 1\n", ("kernels.once_a_step", "true", "false")),
        ("[kernels]\nfused = 3\n", ("kernels.fused",)),
        ("[kernels]\ncopies = {gelu = [1]}\n", ("kernels.copies.gelu",)),
        ("[kernels]\nlaunches = {gelu = -1}\n", ("kernels.launches.gelu",)),
        ("[kernels]\nlaunches = {gelu = 0.5}\n", ("kernels.launches.gelu",)),
        ("[kernels]\nlaunches = {gelu = true}\n", ("kernels.launches.gelu",)),
        ("[memory]\nsub_group_size = -1\n", ("memory.sub_group_size",)),
        ("[memory]\nsub_group_size = 0.5\n", ("memory.sub_group_size",)),
        ("[memory]\nsub_group_size = true\n", ("memory.sub_group_size",)),
        ("[kernels]\npasses = {gelu = 0}\n", ("kernels.passes.gelu", "0")),
        ("[kernels]\npayloads = {send = 2.0}\n", ("kernels.payloads.send",)),
        ("[can]\naxes = 'x'\n", ("can.axes",)),
        ("[plan]\noverlap = 'fast'\n", ("overlap=fast",)),
        ("[plan]\nselective = 'none'\n", ("plan.selective", "selective", "per_op")),
        ("[kernels]\nattention = {h100 = [0.5]}\n", ("kernels.attention.h100",)),
        ("[kernels]\nhost = {h100 = '5 W'}\n", ("kernels.host.h100",)),
        (
            "[kernels]\nmemory_shares = {b200 = {sum_rows = 1.5}}\n",
            ("kernels.memory_shares.b200", "0", "1"),
        ),
        (
            "[kernels]\nplace_times = {b200 = {sort_rows = 3}}\n",
            ("kernels.place_times.b200", "0.2 ns"),
        ),
        (
            "[kernels.exchange_kernels]\nb200 = {ther = {8 = 0.7}}\n",
            ("kernels.exchange_kernels.b200", "there_across", "back_row"),
        ),
        (
            "[kernels.exchange_kernels]\nb200 = {back = {a = 0.7}}\n",
            ("kernels.exchange_kernels.b200", "there_across", "back_row"),
        ),
        (
            "[kernels.exchange_kernels]\nb200 = {back = {}}\n",
            ("kernels.exchange_kernels.b200", "there_across", "back_row"),
        ),
        ("[kernels]\nsoftmax = {multiple = 4}\n", ("kernels.softmax",)),
        ("title = 3\n", ("self.toml", "title")),
        ("", ("self", "title")),
    ],
)
def test_a_file_that_is_no_stack_is_refused(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    path = tmp_path / "self.toml"
    path.write_text(text)
    with pytest.raises((StackError, PlanError), check=names(*named)):
        job_of(GPT_20B, "dp=rest,mbs=1", load_stack(str(path)), devices=64, batch=64)


SOFTMAX = {
    "multiple": 4,
    "longest": 1024,
    "fused": {"softmax": 1},
    "steps": {"softmax": 3.5},
    "launches": {"softmax": 5},
}


@pytest.mark.parametrize("lacking", SOFTMAX)
def test_a_softmax_that_lacks_one_of_its_numbers_is_refused(lacking: str) -> None:
    check_document({"kernels": {"softmax": SOFTMAX}}, "own.toml")
    given = {key: value for key, value in SOFTMAX.items() if key != lacking}
    with pytest.raises(StackError, check=names("own.toml", "kernels.softmax", lacking)):
        check_document({"kernels": {"softmax": given}}, "own.toml")


def test_the_kernels_of_a_stack_change_with_its_constants_alone() -> None:
    plan, machine = job("dp=rest,mbs=1").plan, load_machine("dgx-h100")
    other = replace(MEGATRON, own_kernels={**MEGATRON.own_kernels, "pace": 0.8})
    assert MEGATRON.kernels(GPT_20B, plan, machine) != other.kernels(GPT_20B, plan, machine)


def test_a_stack_takes_memory_from_tensors() -> None:
    h100, a100, frontier = (load_machine(name) for name in ("dgx-h100", "dgx-a100", "frontier"))
    assert MEGATRON.library_bytes(h100) == 96 * 2**20
    assert MEGATRON.library_bytes(a100) == int(20.25 * 2**20)
    assert MEGATRON.library_bytes(frontier) == EXECUTOR.library_bytes(h100) == 0
    usable = (81559 - 1024) * 2**20
    assert room_for(h100).capacity_bytes == usable
    assert room_for(h100, MEGATRON).capacity_bytes == usable - 96 * 2**20


def test_the_reserve_is_what_the_device_has_beyond_the_capacity() -> None:
    found = job("tp=8,dp=rest,mbs=1")
    machine = load_machine("dgx-h100")
    memory = predict(found.gpt, found.plan, machine, stack=found.stack).memory
    assert memory.device_bytes == 81559 * 2**20
    assert memory.reserve_bytes == memory.device_bytes - room_for(machine, MEGATRON).capacity_bytes
    assert memory.stage_peak_bytes == (memory.peak_bytes,)
    assert memory.as_dict()["reserve_bytes"] == memory.reserve_bytes


def test_a_pipeline_says_the_peak_of_each_stage() -> None:
    found = job("pp=4,dp=rest,mbs=1")
    memory = predict(found.gpt, found.plan, load_machine("dgx-h100"), stack=found.stack).memory
    assert len(memory.stage_peak_bytes) == 4
    assert max(memory.stage_peak_bytes) == memory.peak_bytes
    # The first stage keeps the activations of four micro-batches, the last those of one.
    assert memory.stage_peak_bytes[0] > memory.stage_peak_bytes[2]


def test_memory_of_a_stack_is_checked(tmp_path: Path) -> None:
    about = 'title = "t"\nsource = "s"\n[memory]\n'
    for line, *named in (
        ("fragmentation = 0.02", "memory.fragmentation"),
        ('libraries = {h100 = "64"}', "libraries.h100", "64 MiB"),
        ("reserved = 1", "memory.reserved"),
    ):
        file = tmp_path / "mine.toml"
        file.write_text(about + line)
        with pytest.raises(StackError, check=names(*named)):
            load_stack(str(file))


def test_what_the_log_of_a_stack_counts_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('title = "t"\nsource = "s"\n[log]\nflops = "half"\n')
    with pytest.raises(StackError, check=names("log.flops", "causal", "full", "hardware")):
        load_stack(str(file))


def test_a_device_of_another_name_is_known_by_the_one_that_it_is_like() -> None:
    h200 = load_machine("8x8xH200")
    renamed = with_settings(h200, {"device.name": "ours"})
    assert (renamed.device.name, renamed.device.known_as) == ("ours", "h200")
    assert MEGATRON.kernels(GPT_20B, job("dp=rest,mbs=1").plan, renamed) == MEGATRON.kernels(
        GPT_20B, job("dp=rest,mbs=1").plan, h200
    )
    assert MEGATRON.stands_over(renamed) == ("device.attention",)
    assert EXECUTOR.stands_over(renamed) == ()
    found = job("tp=8,dp=rest,mbs=1")
    ranges = [
        predict(found.gpt, found.plan, each, stack=found.stack).range for each in (h200, renamed)
    ]
    assert ranges[0] == ranges[1]


def test_a_precision_that_is_not_known_is_answered_with_fp8_too() -> None:
    with pytest.raises(PlanError, check=names("fp4", "fp64", "fp8", "mxfp8")):
        job("dp=rest,precision=fp4")


@pytest.mark.parametrize("machine", ["lumi", "frontier"])
def test_messages_cut_over_the_ranks_of_x_are_gathered_where_devices_are_joined_in_pairs(
    machine: str,
) -> None:
    """Such a node has neither a switch nor links between all devices, whose rate was divided by."""
    stack = load_stack("megatron-lm-2021")
    own = load_machine(machine)
    plan = parse_plan("tp=8,pp=2,dp=1,mbs=1,overlap=none", batch=8)
    cut = predict(GPT_20B, plan, own, stack=stack)
    kernels = {**stack.own_kernels, "scatter_gather": False}
    whole = predict(GPT_20B, plan, own, stack=replace(stack, own_kernels=kernels))
    assert 0 < cut.step_s < whole.step_s


def test_messages_are_cut_in_the_directions_that_a_stacks_file_says() -> None:
    plan, machine = parse_plan("tp=2,pp=2", batch=2), load_machine("dgx-a100")
    cut = {
        name: load_stack(name).kernels(GPT_20B, plan, machine).behaviour.scatter_gather
        for name in ("nanotron", "megatron-lm-2021", "megatron-deepspeed-bloom", "gpt-neox-2022")
    }
    assert list(cut.values()) == [(), (FORWARD, BACKWARD), (FORWARD, BACKWARD), (FORWARD,)]


def test_messages_cut_backward_alone_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('title = "t"\nsource = "s"\n[kernels]\nscatter_gather = "backward"\n')
    with pytest.raises(StackError, check=names("scatter_gather", "true", "false", "forward")):
        load_stack(str(file))


@pytest.mark.parametrize(
    ("stack", "text", "told"),
    [
        ("torchtitan", "cp=2,dp=rest,mbs=1", {"context_kind": "all_gather"}),
        ("torchtitan", "cp=2,dp=rest,mbs=1,context_kind=ring", {}),
        ("torchtitan", "dp=rest,mbs=1", {}),
        ("deepspeed-moe", "dp=rest,mbs=1", {"dispatcher": "dense"}),
        ("megatron-core", "cp=2,dp=rest,mbs=1", {}),
    ],
)
def test_what_else_a_stack_gives_a_plan_is_assumed(
    stack: str, text: str, told: dict[str, str]
) -> None:
    found = dict(job_of(find_model("mixtral-8x7b"), text, load_stack(stack), devices=8).assumed)
    assert {key: found[key] for key in found if key not in SAID} == told


def test_the_precision_and_split_of_experts_of_a_stack_are_assumed() -> None:
    own = {"precision": "bf16", "recipe": "fp8-blockwise", "etp": 1}
    stack = replace(EXECUTOR, name="own", plan=own)
    found = dict(
        job_of(find_model("mixtral-8x7b"), "tp=2,ep=4,dp=rest,sp=true", stack, devices=8).assumed
    )
    assert found["recipe"] == "fp8-blockwise"
    assert found["etp"] == "1"
