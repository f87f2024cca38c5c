"""Kernels on a rank's part of sequences against the same on whole sequences, in one process."""

from __future__ import annotations

from typing import Any, Unpack

import pytest
import torch

from executor.kernels import goldfish
from executor.kernels.attentions import attention
from executor.kernels.context import exchange, pieces
from executor.kernels.context.positions import (
    before_chunks,
    behind_chunks,
    chunks,
    of_rank,
    positions,
)
from executor.kernels.vocabulary import next_targets
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.blocks import BLOCK
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes

RANKS, SEQUENCE, SEQUENCES = 4, 32, 2
HEADS: Attributes = {"heads": 6, "kv_heads": 2, "width": 4}
ROWS, COLUMNS = SEQUENCES * SEQUENCE, (6 + 2 + 2) * 4
PARTS: dict[str, Attributes] = {
    "flash": {"alibi": False},
    "ALiBi": {"alibi": True},
    "dropout": {"alibi": False, "rate": 0.25, "place": "l0.attention", "rows": ROWS // RANKS},
}


def place(rank: int, ranks: int = RANKS) -> RankContext:
    return RankContext(grid=Grid(cp=ranks), rank=rank, device=torch.device("cpu"), adamw=AdamW())


def cut(whole: torch.Tensor, rank: int) -> torch.Tensor:
    """A rank's rows of a tensor of all rows."""
    rows = whole.view(SEQUENCES, SEQUENCE, -1)
    own = torch.cat([rows[:, part] for part in chunks(SEQUENCE, place(rank))], 1)
    return own.reshape(-1, rows.shape[2])


def random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.float64)


def op_of(kind: str, **how: Unpack[Attributes]) -> Op:
    return Op("op", kind, (), (), BLOCK, attributes={**HEADS, **how}, micro_batch=0)


def of_whole(qkv: torch.Tensor, grad: torch.Tensor, part: Attributes) -> Any:
    """Context and gradient on one rank."""
    own: Attributes = {**part, "sequence": SEQUENCE}
    if "rows" in part:
        own["rows"] = ROWS
    context, d_qkv = torch.empty_like(grad), torch.empty_like(qkv)
    lse = torch.empty(SEQUENCES, 6, SEQUENCE, dtype=torch.float64)
    at = place(0, 1)
    attention.attention(op_of("attention", **own), [qkv], [context, lse], at)
    how = op_of("attention_grad", **own)
    attention.attention_grad(how, [grad, qkv, context, lse], [d_qkv], at)
    return context, d_qkv


def empty(rank_rows: int) -> list[torch.Tensor]:
    lse = torch.empty(SEQUENCES, 6, SEQUENCE // RANKS, dtype=torch.float64)
    return [torch.empty(rank_rows, 24, dtype=torch.float64), lse]


@pytest.mark.parametrize("part", PARTS)
def test_a_ring_gives_what_whole_sequences_give(part: str) -> None:
    torch.manual_seed(1)
    qkv, grad = random(ROWS, COLUMNS), random(ROWS, 24)
    context, d_qkv = of_whole(qkv, grad, PARTS[part])
    keys = [cut(qkv, rank)[:, 24:].contiguous() for rank in range(RANKS)]
    found = [torch.zeros(ROWS // RANKS, 16, dtype=torch.float64) for _ in range(RANKS)]
    known: Attributes = {"context": "ring", "sequences": SEQUENCES, "sequence": SEQUENCE // RANKS}
    for rank in range(RANKS):
        at, own = place(rank), cut(qkv, rank)
        total = empty(len(own))
        target = torch.empty_like(own)
        for step in range(RANKS):
            how: Attributes = {**known, **PARTS[part], "step": step}
            held = keys[rank - step]
            more = empty(len(own)) if step else total
            attention.attention(op_of("attention", **how), [own, held], more, at)
            if step:
                merge = op_of("merge_attention", **how)
                pieces.merge_attention(merge, [*total, *more], total, at)
        torch.testing.assert_close(total[0], cut(context, rank))
        for step in range(RANKS):
            how = {**known, **PARTS[part], "step": step}
            d_keys = torch.empty_like(keys[rank])
            reads = [cut(grad, rank), own, keys[rank - step], *total, target]
            kernel = op_of("attention_grad", **how)
            attention.attention_grad(kernel, reads, [target, d_keys], at)
            found[rank - step] += d_keys
        torch.testing.assert_close(target[:, :24], cut(d_qkv, rank)[:, :24])
    for rank in range(RANKS):
        torch.testing.assert_close(found[rank], cut(d_qkv, rank)[:, 24:])


@pytest.mark.parametrize("part", PARTS)
def test_gathered_keys_give_what_whole_sequences_give(part: str) -> None:
    torch.manual_seed(2)
    qkv, grad = random(ROWS, COLUMNS), random(ROWS, 24)
    context, d_qkv = of_whole(qkv, grad, PARTS[part])
    every = torch.cat([cut(qkv, rank)[:, 24:] for rank in range(RANKS)])
    found = torch.zeros_like(every)
    how: Attributes = {"context": "all_gather", "sequences": SEQUENCES, "sequence": SEQUENCE}
    how |= PARTS[part]
    for rank in range(RANKS):
        at, own = place(rank), cut(qkv, rank)
        total, target, d_keys = empty(len(own)), torch.empty_like(own), torch.empty_like(every)
        attention.attention(op_of("attention", **how), [own, every], total, at)
        torch.testing.assert_close(total[0], cut(context, rank))
        kernel = op_of("attention_grad", **how)
        reads = [cut(grad, rank), own, every, *total]
        attention.attention_grad(kernel, reads, [target, d_keys], at)
        torch.testing.assert_close(target[:, :24], cut(d_qkv, rank)[:, :24])
        found += d_keys
    expected = torch.cat([cut(d_qkv, rank)[:, 24:] for rank in range(RANKS)])
    torch.testing.assert_close(found, expected)


def packed(qkv: torch.Tensor, document: int) -> torch.Tensor:
    """The context of documents, each of them a sequence of its own."""
    context = torch.empty(ROWS, 24, dtype=torch.float64)
    lse = torch.empty(ROWS // document, 6, document, dtype=torch.float64)
    how = op_of("attention", sequence=document, alibi=False)
    attention.attention(how, [qkv], [context, lse], place(0, 1))
    return context


@pytest.mark.parametrize(
    "limit",
    [*({"window": w} for w in (1, 3, 5, 20)), *({"document": d} for d in (2, 4, 8, 16, 32))],
)
def test_gathered_keys_in_a_window_give_what_whole_sequences_give(limit: Attributes) -> None:
    """Of chunks of four tokens a window ends within one, or three before; documents are parts of
    one, or several."""
    torch.manual_seed(4)
    qkv = random(ROWS, COLUMNS)
    part: Attributes = {"alibi": False, **limit}
    if "window" in limit:
        context, _ = of_whole(qkv, random(ROWS, 24), part)
    else:
        context = packed(qkv, limit["document"])
    every = torch.cat([cut(qkv, rank)[:, 24:] for rank in range(RANKS)])
    how: Attributes = {"context": "all_gather", "sequences": SEQUENCES, "sequence": SEQUENCE}
    how |= part
    for rank in range(RANKS):
        own = cut(qkv, rank)
        total = empty(len(own))
        attention.attention(op_of("attention", **how), [own, every], total, place(rank))
        torch.testing.assert_close(total[0], cut(context, rank))


def test_every_rank_has_a_chunk_from_either_end() -> None:
    """Of 32 tokens the first of four ranks has the first four and the last four."""
    rows = torch.arange(2 * SEQUENCE // RANKS)
    assert positions(rows, SEQUENCE, place(0)).tolist() == [0, 1, 2, 3, 28, 29, 30, 31] * 2
    assert positions(rows, SEQUENCE, place(3))[:8].tolist() == list(range(12, 20))


def test_whole_sequences_come_apart_by_the_ranks_of_their_rows_and_together_again() -> None:
    """Of four rows the first of two ranks has the first and the last."""
    op = op_of("split_tokens", sequences=2)
    whole, parts = torch.arange(8.0)[:, None], torch.zeros(2, 4, 1)
    exchange.split_tokens(op, [whole], [parts], place(0, 2))
    assert parts[..., 0].tolist() == [[0, 3, 4, 7], [1, 2, 5, 6]]
    again = torch.zeros(8, 1)
    exchange.join_tokens(op, [parts], [again], place(0, 2))
    assert torch.equal(again, whole)


@pytest.mark.parametrize("h", [1, 3, 13])
def test_goldfish_loss_leaves_out_the_same_tokens(h: int) -> None:
    targets = torch.randint(50, (SEQUENCES, SEQUENCE), generator=torch.Generator().manual_seed(3))
    how = op_of("goldfish", k=3, h=h, sequence=SEQUENCE)
    whole = torch.empty(ROWS, dtype=torch.uint8)
    goldfish.goldfish(how, [targets.flatten()], [whole], place(0, 1))
    for rank in range(RANKS):
        at = place(rank)
        mask = torch.empty(ROWS // RANKS, dtype=torch.uint8)
        before = before_chunks(targets, h, at)
        goldfish.goldfish(how, [of_rank(targets, at).flatten(), before], [mask], at)
        assert mask.tolist() == cut(whole, rank).flatten().tolist()


@pytest.mark.parametrize("ahead", [1, 3, 9])
def test_tokens_further_on_are_the_same_where_another_rank_has_them(ahead: int) -> None:
    """Chunks have four tokens, so that nine further is two chunks on."""
    targets = torch.randint(50, (SEQUENCES, SEQUENCE), generator=torch.Generator().manual_seed(3))
    how = op_of("next_targets", ahead=ahead, sequence=SEQUENCE)

    def found(reads: list[torch.Tensor], at: RankContext) -> list[torch.Tensor]:
        count = reads[0].numel()
        made = [torch.empty(count, dtype=dtype) for dtype in (torch.int64, torch.uint8)]
        next_targets(how, reads, made, at)
        return made

    whole = found([targets.flatten()], place(0, 1))
    for rank in range(RANKS):
        at = place(rank)
        reads = [of_rank(targets, at).flatten(), behind_chunks(targets, 9, at)]
        for own, every in zip(found(reads, at), whole, strict=True):
            assert own.tolist() == cut(every, rank).flatten().tolist()
