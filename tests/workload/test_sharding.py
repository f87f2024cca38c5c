"""Sharding over data: who holds what, what is carried over which axis, and what overlaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many, one_in
from tests.messages import names as naming
from tests.workload.test_program import GOLDEN, ONE_LAYER, names, op_of, place, program_of, table
from workload.errors import PlanError
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import COMPUTE, HOST
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

# One layer, of 32 hidden units, 128 inner ones and 256 tokens: the elements of its matrices.
WEIGHTS = 32 * 96 + 32 * 32 + 2 * 32 * 128 + 256 * 32


def held(program: Program, role: str) -> int:
    """Bytes of what a rank always holds in one role."""
    every = program.buffers.values()
    return sum(buffer.nbytes for buffer in every if buffer.persistent and buffer.role == role)


def carried(text: str) -> dict[str, int]:
    """Payload by axes of a step in bf16, without what is not of weights and their gradients."""
    volume: dict[str, int] = {}
    for op in program_of(text, batch=8).ops:
        if (op.is_collective and op.kind != "all_reduce") or op.name.endswith("grads.reduce"):
            key = f"{op.kind} {'+'.join(op.axes)}"
            volume[key] = volume.get(key, 0) + op.nbytes
    return volume


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("zero1", "z=2,dp=2,zero=1,overlap=all"),
        ("zero3-hybrid", "z=2,dp=4,zero=3,shard=2,mbs=1,overlap=all"),
    ],
)
def test_the_whole_program_is_as_reviewed(name: str, plan: str) -> None:
    text = table(program_of(plan, batch=8))
    path = GOLDEN / f"{name}.txt"
    assert text == path.read_text(encoding="utf-8"), f"see {path}, and rewrite it if this is meant"


def test_zero_1_scatters_the_step_s_gradients_and_gathers_parameters() -> None:
    assert carried("dp=4,zero=1") == {
        "reduce_scatter dp": 4 * WEIGHTS,  # fp32 gradients, once
        "all_gather dp": 2 * WEIGHTS,
    }


def test_zero_2_scatters_gradients_in_every_micro_batch() -> None:
    # The tied table's gradient has two parts in each of the two, in bf16 like all of them.
    table = 256 * 32
    assert carried("z=2,dp=2,zero=2,mbs=1") == {
        "all_gather z": 2 * 2 * (2 * WEIGHTS),
        "reduce_scatter z": 2 * 2 * (WEIGHTS + table),
        "reduce_scatter dp": 2 * 2 * (WEIGHTS + table) // 2,
        "all_gather dp": 2 * WEIGHTS // 2,
    }


def test_zero_3_gathers_and_scatters_over_z_and_data_at_once() -> None:
    table = 256 * 32
    assert carried("z=2,dp=2,zero=3,mbs=2") == {
        "all_gather z+dp": 2 * 2 * WEIGHTS,
        "reduce_scatter z+dp": 2 * (WEIGHTS + table),
    }


def test_shards_of_neighbours_are_summed_over_their_copies() -> None:
    volume = carried("dp=8,zero=3,shard=4,mbs=1")
    assert volume["all_gather shard"] == 2 * 2 * WEIGHTS
    assert volume["all_reduce replica"] == 4 * WEIGHTS // 4
    assert carried("dp=8,zero=1,shard=4")["all_reduce replica"] == 4 * WEIGHTS // 4


def test_without_resharding_a_micro_batch_gathers_each_weight_once() -> None:
    for rest in ("recompute=none", "recompute=full"):
        volume = carried(f"z=2,dp=2,zero=3,mbs=1,reshard=false,{rest}")
        assert volume["all_gather z+dp"] == 2 * 2 * WEIGHTS


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sharding_over_one_rank_changes_nothing(zero: int) -> None:
    for text in ("tp=2,z=2", "z=2,dp=2"):
        same = f"{text},zero={zero}" + (",shard=1" if "dp" in text else "")
        assert program_of(same).ops == program_of(text).ops


@pytest.mark.parametrize("model", one_in(3, ["ornl-22b", "ornl-175b", "ornl-1t"]))
def test_at_zero_1_a_rank_of_ornl_s_models_holds_what_the_formulas_say(model: str) -> None:
    gpt, x, data = find_model(model), 8, 16
    h, layers = gpt.hidden, gpt.layers
    weights = (12 * layers * h * h + gpt.vocab * h) // x
    # Norms, biases of row-parallel linears and positions are whole on each rank.
    small = layers * (4 * h + 2 * h + 7 * h // x) + 2 * h + gpt.sequence * h
    program = lower(gpt, parse_plan(f"tp={x},dp={data},zero=1"))
    assert held(program, "parameters") == 2 * (weights + small)
    assert held(program, "gradients") == 4 * (weights + small)
    assert held(program, "optimizer") == 12 * (weights // data + small)


@pytest.mark.parametrize(("zero", "parts"), [(0, (1, 1, 1)), (1, (1, 1, 4)), (2, (1, 4, 4))])
def test_each_stage_shards_one_thing_more(zero: int, parts: tuple[int, ...]) -> None:
    program = program_of(f"dp=4,zero={zero}")
    shares = [program.buffers[f"l0.up.w{end}"].elements for end in ("", ".grad", ".m")]
    assert shares == [32 * 128 // part for part in parts]
    assert program.parameters == ONE_LAYER.parameters


def test_the_norm_counts_every_shard_once() -> None:
    shares = op_of(program_of("tp=2,z=2,dp=4,zero=2,shard=2"), "norm.squares").attributes["shares"]
    program = program_of("tp=2,z=2,dp=4,zero=2,shard=2")
    by_name = dict(zip(program.layouts, shares, strict=True))
    assert by_name["l0.up.w"] == 1
    assert by_name["l0.norm1.w"] == 1 / 8  # x, z and two of data have the same
    assert by_name["l0.up.b"] == 1 / 4
    assert op_of(program, "norm.reduce").axes == ("tp", "z", "shard")


def test_a_bucket_s_second_collective_waits_behind_the_next_bucket_s_first() -> None:
    gpt = find_model("tiny-1m")
    program = program_of("dp=4,zero=1,shard=2,overlap=dp", gpt)
    first, second = (place(program, f"l3.grads.{name}") for name in ("scatter", "reduce"))
    assert second == place(program, "l2.grads.scatter") + 1
    assert [program.ops[at].stream for at in (first, second)] == ["shard", "replica"]
    assert not any(first in program.waits[at] for at in range(second))


def test_parameters_are_gathered_beside_the_next_owner_s_adamw() -> None:
    program = program_of("dp=2,zero=1,overlap=dp", find_model("tiny-1m"))
    gather = place(program, "l0.params.gather")
    assert program.ops[gather].stream == "dp"
    assert program.ops[gather + 1].name == "l1.clip"
    assert op_of(program_of("dp=2,zero=1,overlap=none"), "l0.params.gather").stream == COMPUTE


def test_oag_and_ors_work_over_z_and_data_as_over_z() -> None:
    program = program_of("z=2,dp=2,zero=3,overlap=oag+ors")
    assert place(program, "m0.l0.out.gather") == place(program, "m0.l0.qkv.matmul") - 1
    assert op_of(program, "m0.l0.out.gather").stream == "z+dp"
    assert op_of(program, "m0.l0.out.grad.scatter").stream == "z+dp"
    assert place(program, "m0.l0.up.grad.accumulate") > place(program, "m0.embed.grad.scatter")


def test_offloaded_states_come_one_owner_ahead_and_are_three_at_a_time() -> None:
    program = program_of("dp=2,offload=optimizer", find_model("tiny-1m"))
    assert held(program, "optimizer") == 0
    assert held(program, HOST) == held(program_of("dp=2", find_model("tiny-1m")), "optimizer")
    order = names(program, "step")
    begin = order.index("l2.clip")
    expected = ["l2.clip", "l3.to_device", "l2.adamw", "l2.to_host", "l3.clip", "l3.adamw"]
    assert order[begin : begin + 6] == expected
    awaited = place(program, "l3.clip")
    assert place(program, "l1.to_host") in program.waits[awaited]
    states = op_of(program, "l1.to_device").nbytes
    use = next(use for use in program.memory if use.op == "l2.adamw")
    assert use.parts["optimizer"] == 3 * states
    assert use.total_bytes == sum(use.parts.values()) - use.parts[HOST]


def test_gradients_in_bf16_are_held_and_summed_in_bf16_and_clipped_in_fp32() -> None:
    program = program_of("dp=2,gradients=bf16,overlap=none")
    half, whole = held(program, "gradients"), held(program_of("dp=2"), "gradients")
    assert half == whole // 2
    assert op_of(program, "grads.reduce").nbytes == 2 * WEIGHTS
    assert program.buffers[op_of(program, "l0.clip").writes[0]].dtype == "fp32"


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_gradients_in_bf16_are_refused_where_nothing_else_is(precision: str) -> None:
    with pytest.raises(PlanError, check=naming("gradients=bf16", "precision=bf16", precision)):
        parse_plan(f"gradients=bf16,precision={precision}")


def test_shards_that_do_not_divide_a_tile_are_filled_up() -> None:
    program = lower(replace(ONE_LAYER, ffn=96), parse_plan("z=2,dp=3,zero=3"))
    assert program.buffers["l0.out.w"].shape == (171,)
    assert program.buffers["m0.l0.out.w.full"].shape == (6 * 171,)
    assert program.layouts["l0.out.w"].tail == 6 * 171 - 1024


@st.composite
def sharded_plans(draw: st.DrawFn) -> Plan:
    x, y, z = (draw(st.sampled_from([1, 2])) for _ in range(3))
    data, zero = draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 3))
    shard, overlap = draw(st.sampled_from([0, 1, 2])), draw(st.sets(st.sampled_from(OVERLAPS)))
    return Plan.of(
        tp=x,
        y=y,
        z=z,
        dp=data,
        batch=2 * z * data,
        mbs=1,
        zero=zero,
        shard=shard if zero and data % (shard or 1) == 0 else 0,
        reshard=draw(st.booleans()),
        optimizer=draw(st.sampled_from(["adamw", "sgd-momentum", "muon"])),
        offload=draw(st.sampled_from(["none", "optimizer"])),
        overlap=tuple(switch for switch in OVERLAPS if switch in overlap),
        recompute=draw(st.sampled_from(["none", "full"])),
        precision=draw(st.sampled_from(["bf16", "fp32"])),
    )


@few_and_many(20, 100, settings(), plan=sharded_plans())
def test_every_sharded_program_is_well_formed(plan: Plan) -> None:
    program = lower(ONE_LAYER, plan)
    assert len({op.name for op in program.ops}) == len(program.ops)
    written = {name for name, buffer in program.buffers.items() if buffer.persistent}
    gone: set[str] = set()
    for op, freed in zip(program.ops, program.releases, strict=True):
        assert set(op.reads) <= written, f"{op.name} reads what nobody wrote"
        assert not gone & {*op.reads, *op.writes}
        written |= set(op.writes)
        gone |= set(freed)
    assert gone == {name for name, buffer in program.buffers.items() if not buffer.persistent}
    blocking = lower(ONE_LAYER, plan.changed(overlap=()))
    assert program.comm_bytes == blocking.comm_bytes
    assert program.parameters == blocking.parameters == ONE_LAYER.parameters
