"""On GPUs: kernels against their CPU selves, training, communicators, memory. `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from tests.executor.devices import (
    EXPECTED_OF_ONE,
    by_backends,
    captured,
    collectives_of_one,
    eight_plans,
    loss_errors,
    losses,
    on_devices,
    peaks,
    plan_of,
    repeated,
    two_ranks,
    waits,
)
from tests.executor.rehearsal import SMALL, TOLERANCE, cases_once, worst
from workload.gpt import find_model
from workload.plan import Plan

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS == 0, reason="torch sees no GPU on this machine"),
]
needs_two = pytest.mark.skipif(GPUS < 2, reason="two ranks over NCCL need a GPU each")
CUBLAS_BYTES = 64 << 20  # what cuBLAS asks of torch's allocator for its own use, at most


@pytest.mark.parametrize("precision", tuple(TOLERANCE))
def test_every_kernel_does_on_a_gpu_what_it_does_on_a_cpu(precision: str) -> None:
    gpu = torch.device("cuda", 0)
    found = {name: worst(case, gpu) for name, case in cases_once(precision).items()}
    assert {name: e for name, e in found.items() if e > TOLERANCE[precision]} == {}


def test_one_rank_over_nccl_trains_eight_plans_as_the_plain_model_does() -> None:
    errors = loss_errors(on_devices(1, losses, eight_plans()), eight_plans())
    assert {plan: error for plan, error in errors.items() if error > 1e-4} == {}


@needs_two
def test_two_ranks_over_nccl_train_as_the_plain_model_does() -> None:
    errors = loss_errors(on_devices(2, losses, two_ranks()), two_ranks())
    assert {plan: error for plan, error in errors.items() if error > 1e-4} == {}


def test_collectives_of_one_rank_over_nccl_leave_what_they_find() -> None:
    assert on_devices(1, collectives_of_one) == EXPECTED_OF_ONE


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_has_the_losses_of_one_issued_op_by_op_to_the_bit(precision: str) -> None:
    plan = plan_of(precision=precision, recompute="full")
    issued, replayed = on_devices(1, captured, SMALL, plan, 6)
    assert replayed == issued
    assert len(set(issued)) == 6


@pytest.mark.parametrize("backend", ["cudnn", "math"])
def test_attention_by_other_kernels_trains_as_flash_kernels_do(backend: str) -> None:
    plan = plan_of(precision="bf16")
    flash, other = on_devices(1, by_backends, SMALL, plan, ["flash", backend])
    assert other == pytest.approx(flash, rel=2e-3)
    assert other != flash


def test_bf16_training_on_one_batch_lowers_its_loss() -> None:
    (found,) = on_devices(1, repeated, [(SMALL, plan_of(precision="bf16"))], 20)
    assert found[-1] < found[0] - 0.5


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_torch_holds_as_much_memory_in_a_step_as_the_program_says(recompute: str) -> None:
    plan = Plan.of(batch=16, mbs=8, recompute=recompute, precision="bf16")
    held, said = on_devices(1, peaks, find_model("tiny-25m"), plan)
    assert said > 4 * CUBLAS_BYTES
    assert 0.98 * said <= held <= 1.05 * said + CUBLAS_BYTES


def test_a_step_never_makes_the_host_wait_before_its_loss_is_read() -> None:
    (loss,) = on_devices(1, waits, SMALL, plan_of(precision="bf16"))
    assert 0 < loss < 10
