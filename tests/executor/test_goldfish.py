"""Goldfish loss: which tokens are left out, and training without them as the plain model does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.kernels.goldfish import kept, kept_mean
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.executor.test_parity import TINY, batches, check, plan_of, reference
from tests.executor.test_parity_pipe import plan_of as staged
from tests.reference_goldfish import IGNORED, hashed, without_dropped
from workload.gpt import find_model
from workload.grid import Grid
from workload.op import Op

GOLDFISH = replace(TINY, goldfish_k=3, goldfish_h=4)


def test_targets_whose_hash_is_small_are_left_out_and_the_first_h_never() -> None:
    targets = torch.tensor([[5, 1, 4, 1, 5, 9, 2, 6]])
    numbers = [hashed(targets[0, i - 2 : i].tolist()) for i in range(2, 8)]
    by_hand = [True, True, *(number >= 2**52 for number in numbers)]
    assert by_hand == [True, True, False, True, True, False, True, True]
    assert kept(targets, 2, 2).tolist() == [by_hand]


def test_a_context_as_long_as_the_sequence_leaves_nothing_out() -> None:
    assert kept(torch.tensor([[1, 2, 3]]), 2, 3).all()


def test_a_passage_that_comes_again_leaves_out_the_same_tokens() -> None:
    passage = torch.randint(256, (40,), generator=torch.Generator().manual_seed(0))
    one = torch.cat([torch.zeros(7, dtype=torch.int64), passage])[None]
    other = torch.cat([passage, torch.full((7,), 9)])[None]
    assert torch.equal(kept(one, 4, 13)[0, 7 + 13 :], kept(other, 4, 13)[0, 13:40])
    assert not kept(one, 4, 13).all()


def test_one_in_k_is_left_out() -> None:
    targets = torch.randint(256, (64, 1024), generator=torch.Generator().manual_seed(0))
    for k in (2, 4, 50):
        share = 1 - kept(targets, k, 13)[:, 13:].double().mean().item()
        deviation = (1 / k * (1 - 1 / k) / (64 * 1011)) ** 0.5
        assert abs(share - 1 / k) < 4 * deviation


tokens = st.integers(0, 50_303)


@given(st.lists(tokens, min_size=1, max_size=24), st.integers(2, 60), st.integers(1, 20))
def test_the_kernel_leaves_out_what_plain_numbers_do(row: list[int], k: int, h: int) -> None:
    targets = torch.tensor([row])
    assert torch.equal(kept(targets, k, h), without_dropped(targets, k, h) != IGNORED)


def test_the_loss_and_the_norm_of_its_gradient_are_over_the_kept_tokens_alone() -> None:
    """Of 8 tokens 2 are kept, whose losses are 1 and 3. Divided by 8, their gradient is a quarter
    of that of their mean, and the square of its norm a sixteenth."""
    loss, norm_square = torch.zeros(1), torch.zeros(1)
    total = torch.tensor([(1 + 3) / 8, 2 / 8])
    at = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW())
    op = Op("op", "kept_mean", (), ())
    kept_mean(op, [total, torch.tensor([0.5])], [loss, norm_square], at)
    assert (loss.item(), norm_square.item()) == (2.0, 8.0)


def test_ranks_keep_different_counts_in_what_parity_is_tested_on() -> None:
    counts = kept(batches(TINY)[0][:, 1:], 3, 4).sum(1)
    assert len({int(part.sum()) for part in counts.view(-1, 2)}) > 3
    assert reference(GOLDFISH)[0][0] != reference(TINY)[0][0]


SPLITS = [
    plan_of((2, 1, 1, 2), True, "none", 2),
    plan_of((1, 2, 2, 1), False, "full", 1),
    staged(4, pp=2, dp=2),
    replace(plan_of((1, 1, 1, 4), True, "none", 4), zero=3),
    replace(plan_of((2, 1, 2, 1), True, "none", 2), sp=True),
    staged(4, pp=2, tp=2, schedule="zb-h1"),
    replace(staged(1, dp=4), batch=12, mbs=3),  # 192 tokens, no power of two
]


@pytest.mark.distributed
def test_without_the_dropped_tokens_every_split_trains_as_the_plain_model_does() -> None:
    """On stages, and with 192 tokens, no power of two; other plans are in the slow set below."""
    check(2, GOLDFISH, [staged(2, pp=2)])
    uneven = replace(staged(1, dp=2), batch=12, mbs=6)
    check(2, replace(GOLDFISH, layers=1), [uneven])


@pytest.mark.distributed
@pytest.mark.slow
def test_without_the_dropped_tokens_it_does_so_under_all_of_these_plans() -> None:
    check(4, GOLDFISH, SPLITS)


@pytest.mark.distributed
@pytest.mark.slow
def test_without_the_dropped_tokens_other_models_and_pipelines_train_alike() -> None:
    llama = replace(find_model("tiny-llama-40k"), layers=4, goldfish_k=4, goldfish_h=5)
    check(4, llama, [staged(4, pp=2, vpp=2, y=2), staged(2, pp=4, overlap=())])
    deep = replace(GOLDFISH, layers=8, tied=False, goldfish_k=2, goldfish_h=1)
    check(8, deep, [staged(4, pp=2, tp=2, z=2), staged(2, pp=2, dp=4, zero=2)])
