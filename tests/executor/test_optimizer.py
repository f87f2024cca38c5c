"""AdamW and clipping, by hand, and without holding up the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import pytest
import torch
from torch.overrides import TorchFunctionMode

from executor.kernels import KERNELS
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from workload.grid import Grid
from workload.op import STEP, Op
from workload.op_attributes import Attributes

HOW = AdamW(lr=0.1, beta1=0.5, beta2=0.75, eps=0.0, weight_decay=0.5, clip=0.5)


def place(step: int = 1) -> RankContext:
    return RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=HOW, step=step)


def tensors(*values: float, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.full((2,), value, dtype=dtype) for value in values]


def run(
    kind: str,
    reads: Sequence[Any],
    writes: Sequence[Any],
    step: int = 1,
    /,
    **how: Unpack[Attributes],
) -> None:
    KERNELS[kind](Op(kind, kind, (), (), STEP, attributes=how), reads, writes, place(step))


def test_the_norm_counts_each_gradient_by_its_share() -> None:
    # 2 * 3^2 = 18 whole and 2 * 4^2 = 32 held by four ranks: 18 + 32 / 4.
    norm = torch.zeros(1, dtype=torch.float64)
    run("square_sum", tensors(3, 4), [norm], shares=(1.0, 0.25))
    assert norm.tolist() == pytest.approx([26.0], rel=1e-15)


@pytest.mark.parametrize(("norm", "expected"), [(0.25, 1.0), (0.5, 1.0), (2.0, 0.25)])
def test_gradients_above_the_clip_are_scaled_down_to_it_and_others_stay(
    norm: float, expected: float
) -> None:
    scale = torch.zeros(1, dtype=torch.float64)
    run("clip_scale", [torch.tensor([norm**2], dtype=torch.float64)], [scale])
    assert scale.tolist() == pytest.approx([expected], rel=1e-5)


def test_the_norm_of_bf16_gradients_is_taken_in_its_own_dtype() -> None:
    # With 8 bits the root of 257 ones is 16, and its square 256.
    norm = torch.zeros(1)
    run("square_sum", [torch.ones(257, dtype=torch.bfloat16)], [norm], shares=(1.0,))
    assert float(norm) == pytest.approx(257, rel=1e-6)


def test_gradients_are_scaled_to_the_clip_and_never_up() -> None:
    for square, expected in ((4.0, 0.25), (0.01, 1.0)):
        scale = torch.zeros(1, dtype=torch.float64)
        run("clip_scale", [torch.tensor([square], dtype=torch.float64)], [scale])
        assert scale.tolist() == pytest.approx([expected], rel=1e-5)


def test_moments_in_bf16_are_rounded_behind_an_update_in_fp32() -> None:
    wide = {"m": tensors(0.25), "v": tensors(0.5), "w": tensors(1.0)}
    wide = {name: [own.float() for own in column] for name, column in wide.items()}
    narrow = {name: [own.clone() for own in column] for name, column in wide.items()}
    narrow |= {name: [own.bfloat16() for own in narrow[name]] for name in ("m", "v")}
    grads = [torch.full((2,), 0.3)]
    for state in (wide, narrow):
        writes = [tensor for column in state.values() for tensor in column]
        run("adamw", [*grads, *writes], writes, decays=(True,), copied=(False,))
    assert torch.equal(wide["w"][0], narrow["w"][0])
    for name in ("m", "v"):
        assert narrow[name][0].dtype == torch.bfloat16
        assert torch.equal(wide[name][0].bfloat16(), narrow[name][0])


def update(step: int) -> Mapping[str, list[float]]:
    """A weight that decays and a bias that does not, one update in."""
    state = {"m": tensors(0.2, 0.4), "v": tensors(0.1, 0.2), "w": tensors(1.0, 2.0)}
    writes = [tensor for column in state.values() for tensor in column]
    how: Attributes = {"decays": (True, False), "copied": (False, False)}
    run("adamw", [*tensors(0.5, -1.0), *writes], writes, step, **how)
    return {name: [float(tensor[0]) for tensor in column] for name, column in state.items()}


def adamw_by_hand(
    w: float, g: float, m: float, v: float, step: int, decay: float
) -> tuple[float, float, float]:
    m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * g * g
    moved = m / (1 - 0.5**step) / (v / (1 - 0.75**step)) ** 0.5
    return w * (1 - 0.1 * decay) - 0.1 * moved, m, v


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_adamw_corrects_its_moments_by_the_step_and_decays_weights_alone(step: int) -> None:
    found = update(step)
    for at, case in enumerate([(1.0, 0.5, 0.2, 0.1, step, 0.5), (2.0, -1.0, 0.4, 0.2, step, 0.0)]):
        w, m, v = adamw_by_hand(*case)
        assert found["w"][at] == pytest.approx(w, rel=1e-12)
        assert found["m"][at] == pytest.approx(m, rel=1e-12)
        assert found["v"][at] == pytest.approx(v, rel=1e-12)


@pytest.mark.parametrize(
    ("weight_decay", "calls"), [(0.5, [[8, 10], [9, 11]]), (0.0, [[8, 9, 10, 11]])]
)
def test_adamw_is_one_fused_call_for_each_rate_of_decay(
    monkeypatch: pytest.MonkeyPatch, weight_decay: float, calls: list[list[int]]
) -> None:
    updated: list[list[float]] = []
    monkeypatch.setattr(
        torch,
        "_fused_adamw_",
        lambda trained, *_, **__: updated.append([float(w[0]) for w in trained]),
    )
    states = tensors(*range(12))
    how: Attributes = {"decays": (True, False, True, False), "copied": (False,) * 4}
    op = Op("adamw", "adamw", (), (), STEP, attributes=how)
    at = replace(place(), adamw=replace(HOW, weight_decay=weight_decay))
    KERNELS["adamw"](op, [*tensors(*range(4)), *states], states, at)
    # Trained are the last four of the states; the first and the third of them decay.
    assert updated == calls


def test_bf16_parameters_follow_the_master_copies_of_those_that_have_one() -> None:
    state = tensors(0.2, 0.4, 0.1, 0.2, 1.0, 2.0, dtype=torch.float32)
    copies = tensors(0.0, dtype=torch.bfloat16)
    reads, writes = [*tensors(0.5, -1.0, dtype=torch.float32), *state], [*state, *copies]
    run("adamw", reads, writes, decays=(True, False), copied=(False, True))
    assert copies[0].tolist() == state[5].to(torch.bfloat16).tolist()


class NothingFromTheHost(TorchFunctionMode):
    """Refuses what makes a host wait for a GPU: tensors made of numbers, and numbers of tensors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        waits = (torch.tensor, torch.as_tensor, torch.Tensor.item, torch.Tensor.__float__)
        assert func not in waits, f"{func.__name__} waits for the device"
        return func(*args, **(kwargs or {}))


def test_no_kernel_of_the_optimizer_makes_the_host_wait() -> None:
    norm, scale = torch.zeros(1), torch.zeros(1)
    grads = tensors(0.5, -1.0, dtype=torch.float32)
    state = tensors(0.2, 0.4, 0.1, 0.2, 1.0, 2.0, dtype=torch.float32)
    with NothingFromTheHost():
        run("square_sum", grads, [norm], shares=(1.0, 0.5))
        run("clip_scale", [norm], [scale])
        run("scale", [scale, *grads], grads)
        run("adamw", [*grads, *state], state, decays=(True, False), copied=(False, False))
    with pytest.raises(AssertionError, match="tensor waits"), NothingFromTheHost():
        torch.tensor(1.0)
