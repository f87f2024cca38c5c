"""A program played without its machine: what is counted is counted, and what differs is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from executor.calibrating.microbenchmarks import collectives
from executor.dry.calls import members
from executor.dry.fake_gpu import GPU, fake_gpu, part_of
from executor.dry.rank import play_rank
from executor.dry.stages import meeting, play_stages
from executor.dry.storages import StorageCount
from executor.kernels import KERNELS
from executor.nccl.issue_order import calls_of, issue_order
from executor.nccl.rendezvous import among, hang_of, message_rounds
from executor.rank_context import RankContext
from tests.examples import one_in, slow
from tests.executor import dry_cases
from tests.executor.dry_cases import cut, rank_of
from tests.executor.test_rendezvous import call, end
from tests.messages import assert_names
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

TINY = find_model("tiny-30k")
SMALL = [
    "tp=2,pp=2,dp=2,zero=1,mbs=1",
    "dp=2,zero=2,offload=optimizer,mbs=2",
]
MANY = [
    *SMALL,
    "pp=2,dp=2,zero=3,mbs=1",
    "tp=2,y=2,z=2,dp=2,recompute=full",
    "tp=2,dp=4,zero=3,shard=2,pp=2,schedule=zb-h1",
    "tp=2,pp=2,vpp=2,schedule=zb-v",
    "tp=2,pp=2,schedule=dualpipe,mbs=2,recipe=fp8-delayed",
    "tp=2,sp=true,pp=2,schedule=gpipe,overlap=oag",
    "tp=4,attention=unfused,matmul_forms=tuned,order=dp-tp-pp,dp=2",
]
PARTS = 4


def program_of(text: str, rank: int = 0, gpt: GPT = TINY) -> Program:
    plan = parse_plan(text, batch=16)
    return lower(gpt, plan, plan.grid.coordinates(rank)["pp"])


def test_a_storage_counts_once_however_many_views_it_has_and_until_the_last_is_gone() -> None:
    with fake_gpu(), StorageCount() as held:
        first = torch.empty(10, device=GPU)
        view = first[2:4]
        second = torch.empty(3, 5, dtype=torch.bfloat16, device=GPU)
        assert held.held_bytes == {"cuda": 40 + 30, "cpu": 0}
        del first
        assert held.held_bytes["cuda"] == 70
        del view, second
        assert held.held_bytes["cuda"] == 0
        assert held.most_bytes == 70


@pytest.mark.parametrize(
    "index",
    [
        1,
        slice(1, None),
        (slice(None), 2),
        (None, 1, slice(3, 1)),
        (..., slice(0, 2)),
        (0, ..., None),
        (slice(0, 2), torch.tensor([1, 0])),
        (torch.tensor([1, 0, 1]), torch.tensor([2, 0, 1])),
        (slice(None), torch.tensor([1, 0]), torch.tensor([2, 3])),
    ],
)
def test_a_fake_tensor_is_indexed_as_a_real_one(index: Any) -> None:
    real = torch.arange(24).view(2, 3, 4)
    assert torch.equal(part_of(real, index), real[index])


def test_parts_of_a_fake_tensor_are_written_without_a_tensor_of_their_size() -> None:
    with fake_gpu(), StorageCount() as held:
        whole, at = torch.empty(10, 10, device=GPU), torch.zeros(5, dtype=torch.int64, device=GPU)
        whole[at, at] = torch.empty(5, device=GPU)
        assert held.most_bytes == 400 + 40 + 20


@pytest.mark.parametrize("order", ["tp-dp-pp", "pp-dp-z-y-tp"])
def test_who_meets_in_an_op_is_the_grid_s_group(order: str) -> None:
    grid = parse_plan(f"tp=2,y=3,dp=4,zero=3,shard=2,pp=3,order={order}", batch=16).grid
    for axes in (("tp",), ("y", "pp"), ("shard",), ("replica",), ("tp", "dp"), ("ends",)):
        op = Op("op", "all_reduce", (), (), axes=axes)
        for group in grid.groups(*axes).tolist():
            assert members(op, grid, group[-1]) == tuple(sorted(group))


@pytest.mark.parametrize("text", SMALL)
def test_a_rank_s_step_is_to_the_byte_what_its_program_says(text: str) -> None:
    assert_agrees(text, 3 if "pp" in text else 1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-30k", "tiny-llama-40k"])
@pytest.mark.parametrize("text", MANY)
def test_every_kind_of_plan_agrees_on_its_first_and_its_last_rank(model: str, text: str) -> None:
    plan, gpt = parse_plan(text, batch=16), find_model(model)
    gpt = replace(gpt, layers=max(gpt.layers, plan.pp * plan.vpp))
    for rank in (0, plan.grid.ranks - 1):
        assert_agrees(text, rank, gpt)


ROUTED = find_model("tiny-llama-40k").changed(experts=4, topk=2, expert_ffn=16)


@pytest.mark.parametrize("gpt", one_in(2, [ROUTED, ROUTED.changed(capacity=1.25)]))
def test_experts_are_played_with_even_shares_of_the_rows(gpt: GPT) -> None:
    assert_agrees("dp=4,ep=2", 1, gpt)


EXPERTS = "dp=4,ep=2,mbs=4"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"{EXPERTS},recipe=fp8-blockwise,optimizer=sgd", {}),
        ("cp=2,dp=2,optimizer=sgd-momentum,mbs=8", {"documents": "4+12"}),
        *slow(
            (f"{EXPERTS},recipe=mxfp8", {}),
            (f"{EXPERTS},recipe=fp8-tensorwise,dispatcher=dense", {"capacity": 1.25}),
        ),
    ],
)
def test_casts_by_blocks_masks_documents_and_sgd_are_played(
    text: str, more: dict[str, Any]
) -> None:
    assert_agrees(text, 1, ROUTED.changed(layers=1, **more))


def assert_agrees(text: str, rank: int, gpt: GPT = TINY) -> None:
    program = program_of(text, rank, gpt)
    played = play_rank(program, rank)
    assert played.difference == ""
    assert played.ops == len(program.ops)
    late_bytes = played.program_bytes - played.counted_bytes
    assert late_bytes == 0 or (late_bytes > 0 and program.plan.pp > 1)
    assert played.most_bytes >= played.program_bytes


def broken(program: Program, kind: str, **changed: Any) -> Program:
    """The program with its first op of a kind changed."""
    ops = list(program.ops)
    index = next(i for i, op in enumerate(ops) if op.kind == kind)
    ops[index] = replace(ops[index], **changed)
    return replace(program, ops=ops)


def test_a_program_that_says_other_bytes_or_ranks_than_torch_hears_of_is_found() -> None:
    program = program_of("tp=2,y=2")
    found = play_rank(broken(program, "all_reduce", nbytes=7), 0).difference
    assert_names(found, "all_reduce", "7 bytes")


def exchange() -> Program:
    """An all-to-all of 1 KiB over four ranks, with the matmul that calibration plays before it."""
    samples = collectives(4, quick=True)
    return next(s for s in samples if (s.key, s.features["ranks"]) == ("all_to_all", 4)).program(1)


def test_an_all_to_all_asks_torch_for_the_bytes_that_the_program_says() -> None:
    found = play_rank(exchange(), 1)
    assert (found.difference, found.calls, found.carried) == ("", 1, {"dp": 1024})
    wrong = play_rank(broken(exchange(), "all_to_all", nbytes=512), 1).difference
    assert_names(wrong, "all_to_all", "1,024 bytes", "512 bytes", "ranks 0, 1, 2, 3")


def test_a_buffer_that_is_held_longer_than_the_program_says_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.buffer_table.BufferTable.free", lambda self, slot: None)
    found = play_rank(program_of("tp=2"), 0).difference
    assert_names(found, "GPU")


def test_a_rank_that_asks_other_ranks_than_its_axes_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.dry.groups.members_of", lambda op, grid, rank: (rank, rank + 2))
    found = play_rank(program_of("tp=2,y=2"), 0).difference
    assert_names(found, "ranks 0, 2", "ranks 0, 1")


def test_each_distinct_kernel_is_played_once() -> None:
    short, long = (
        play_rank(program_of("tp=1", 0, replace(TINY, layers=layers)), 0) for layers in (2, 6)
    )
    assert long.ops > 2 * short.ops
    # What takes all parameters at once, or a layer's alone beside others, has other operands.
    assert long.kernels <= short.kernels + 4


def test_what_a_kernel_holds_beside_its_operands_counts_in_all_ops_that_it_is_played_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GELU is played in the first layer; the second holds the first one's activations too."""

    def gelu(
        op: Op, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], at: RankContext
    ) -> None:
        reads[0].new_empty(10**8, dtype=torch.uint8)
        KERNELS["gelu"](op, reads, writes, at)

    monkeypatch.setattr("executor.prepared.KERNELS", {**KERNELS, "gelu": gelu})
    program = program_of("tp=1", gpt=replace(TINY, layers=2))
    uses = zip(program.ops, program.memory, strict=True)
    first, second = (use.total_bytes for op, use in uses if op.kind == "gelu")
    assert first < second < program.peak.total_bytes
    assert play_rank(program, 0).most_bytes == second + 10**8


def test_stages_of_a_pipeline_come_to_the_end() -> None:
    played = play_stages(TINY, parse_plan("pp=2,dp=2,mbs=1", batch=8))
    assert (played.stages, played.hang) == (2, "")
    # Four micro-batches, each a message forward and one back, sent and received; and what both
    # stages reduce over data and pipe, whose calls are counted on both.
    assert played.calls >= 4 * 2 * 2


def test_ops_of_stages_that_wait_for_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(program: Program, *, late: bool) -> list[int]:
        """Every receive before everything else, the last one first."""
        received = [i for i, op in enumerate(program.ops) if op.kind == "recv"]
        return received[::-1] + [i for i, op in enumerate(program.ops) if op.kind != "recv"]

    monkeypatch.setattr("executor.dry.stages.issue_order", early)
    hang = play_stages(TINY, parse_plan("pp=2,mbs=1", batch=4)).hang
    assert "rank 0 " in hang
    assert "rank 1 " in hang


def test_chunks_whose_messages_block_come_to_the_end_once_all_kernels_are_loaded() -> None:
    gpt = replace(TINY, layers=8)
    for overlap, loads_eagerly in (("oar", True), ("oar+pp", False)):
        plan = parse_plan(f"pp=4,vpp=2,mbs=1,overlap={overlap}", batch=8)
        played = play_stages(gpt, plan)
        assert (played.hang, played.loads_eagerly) == ("", loads_eagerly)


def test_calls_of_one_rank_alone_leave_what_they_wait_for_to_the_next() -> None:
    alone, link = (("", "tp"), (0,)), (("forward", "0"), (0, 1))
    own = [call(link), call(alone, 0, loads=True), call(link), end(1, 2)]
    first, second, last = meeting(own)
    assert (first.after, second.after, last.after) == ((), (0,), (1,))
    assert second.loads


@pytest.mark.slow
def test_leaving_out_what_no_other_stage_is_in_changes_no_answer() -> None:
    for late, loading in ((False, False), (False, True), (True, True)):
        for plan in pipelines():
            programs = [lower(replace(TINY, layers=8), plan, stage) for stage in range(plan.pp)]
            ranks = [plan.grid.rank({"pp": stage}) for stage in range(plan.pp)]
            calls = among(
                ranks,
                {
                    rank: calls_of(program, rank, issue_order(program, late=late))
                    for rank, program in zip(ranks, programs, strict=True)
                },
            )
            fewer = {rank: meeting(own) for rank, own in calls.items()}
            formed = message_rounds(calls)
            whole = hang_of(calls, formed, loading=loading)
            assert bool(hang_of(fewer, formed, loading=loading)) == bool(whole)


def pipelines() -> Iterator[Plan]:
    for pp, vpp in ((2, 1), (4, 1), (2, 2), (4, 2)):
        for x in (1, 2):
            text = f"pp={pp},vpp={vpp},tp={x},mbs=1"
            yield parse_plan(text, batch=2 * pp)


def test_what_repeats_is_cut_and_what_does_not_is_left() -> None:
    gpt = replace(TINY, layers=24)
    kept, fewer = cut(gpt, parse_plan("pp=4,vpp=2,recompute=full:3,mbs=1", batch=128))
    assert (kept.layers, fewer.training.recompute, fewer.micro_batches) == (16, "full:1", 8)
    kept, fewer = cut(replace(TINY, layers=7), parse_plan("pp=3,stage_layers=4+2+1,mbs=1", batch=3))
    assert (kept.layers, fewer.pipeline.stage_layers, fewer.micro_batches) == (5, (2, 2, 1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("text", MANY)
def test_more_layers_and_micro_batches_than_are_left_ask_for_nothing_new(text: str) -> None:
    plan = parse_plan(text, batch=128)
    short, fewer = cut(replace(TINY, layers=12), plan)
    long, left = (
        {
            (op.kind, op.axes, op.nbytes, op.attributes.get("first"))
            for op in lower(*case, 0).ops
            if op.micro_batch >= 0
        }
        for case in ((replace(TINY, layers=12), plan), (short, fewer))
    )
    assert short.layers < 12
    assert long == left


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_preset_and_published_plan_agrees_on_some_rank(part: int) -> None:
    found = {}
    for key, gpt, plan in dry_cases.structures()[part::PARTS]:
        rank = rank_of(plan)
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        try:
            found[key, str(plan)] = play_rank(program, rank).difference
        except (RuntimeError, ValueError) as error:  # the case is named, whatever goes wrong
            found[key, str(plan)] = f"{type(error).__name__}: {error}"
    assert {asked: wrong for asked, wrong in found.items() if wrong} == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_stages_of_every_published_pipeline_come_to_the_end(part: int) -> None:
    found = {}
    for key, gpt, plan in dry_cases.pipelines()[part::PARTS]:
        found[key, str(plan)] = play_stages(gpt, plan).hang
    assert {asked: wrong for asked, wrong in found.items() if wrong} == {}
