"""What the tests on GPUs compare and run, on the CPU: it fails where it should."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from executor.kernels import KERNELS
from executor.rank_context import RankContext
from tests.executor.devices import (
    EXPECTED_OF_ONE,
    Case,
    collectives_of_one,
    eight_plans,
    loss_errors,
    losses,
    on_devices,
    plan_of,
    repeated,
    two_ranks,
)
from tests.executor.rehearsal import CPU, SMALL, TOLERANCE, cases_once, worst
from workload.op import Op

PRECISIONS = ["fp32", pytest.param("bf16", marks=pytest.mark.slow)]
without_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where torch sees a GPU, the same runs there"
)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kernel_has_a_case_to_compare(precision: str) -> None:
    assert {case.op.kind for case in cases_once(precision).values()} == set(KERNELS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_kernel_does_the_same_once_more(precision: str) -> None:
    cases = cases_once(precision)
    assert {name: worst(case, CPU) for name, case in cases.items()} == dict.fromkeys(cases, 0.0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_kernel_that_is_a_little_off_is_found(precision: str) -> None:
    def off(
        op: Op, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], at: RankContext
    ) -> None:
        KERNELS[op.kind](op, reads, writes, at)
        if writes[0].dtype == torch.int64:  # numbers of rows: one is that of another
            writes[0][0] += 1 + int(writes[0].double().norm())
        elif not writes[0].is_floating_point():  # a mask: one choice in 64 is the other
            writes[0][0] = 1 - writes[0][0]
        elif float(writes[0].double().norm()):
            writes[0].mul_(1.03)
        else:
            writes[0].fill_(1)

    cases = {name: case for name, case in cases_once(precision).items() if case.op.writes}
    found = {name: worst(case, CPU, off) for name, case in cases.items()}
    assert [name for name, error in found.items() if error < TOLERANCE[precision]] == []


def test_a_kernel_that_makes_infinities_is_found() -> None:
    def infinite(
        op: Op, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], at: RankContext
    ) -> None:
        writes[0].fill_(torch.inf)

    assert worst(cases_once("fp32")["gelu"], CPU, infinite) == torch.inf


def rows_of(found: list[list[float]]) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in found]


@without_gpu
@pytest.mark.distributed
def test_collectives_of_one_rank_leave_what_they_find() -> None:
    assert rows_of(on_devices(1, collectives_of_one)) == EXPECTED_OF_ONE


@without_gpu
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (1, eight_plans()[3:4]),
        pytest.param(1, eight_plans(), marks=pytest.mark.slow),
        pytest.param(2, two_ranks(), marks=pytest.mark.slow),
    ],
)
def test_what_is_to_train_on_gpus_trains_on_a_cpu(ranks: int, cases: list[Case]) -> None:
    assert len(eight_plans()) == 8
    errors = loss_errors(on_devices(ranks, losses, cases), cases)
    assert {plan: error for plan, error in errors.items() if error > 1e-4} == {}


@without_gpu
@pytest.mark.slow
@pytest.mark.distributed
def test_bf16_training_on_one_batch_lowers_its_loss() -> None:
    (found,) = on_devices(1, repeated, [(SMALL, plan_of(precision="bf16"))], 10)
    assert found[-1] < found[0] - 0.3
