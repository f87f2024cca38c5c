"""What a stack says of eager modules, held to the kernels that PyTorch itself dispatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simulator.stacks import load_stack
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan

ROWS, WIDTH, HEADS = 256, 1024, 16
LLAMA = GPT.of(
    name="llama",
    layers=1,
    hidden=WIDTH,
    heads=HEADS,
    ffn=WIDTH,
    sequence=ROWS,
    vocab=512,
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
)
Module = tuple[Callable[[], Tensor], list[Tensor]]  # a forward pass, and what has gradients
FREE = ("aten.empty", "aten.detach", "aten.new_empty")  # no kernels


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels, and the bytes of their operands and results; a view is no kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes, self.kernels = 0, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        read, written = (
            [each for each in tree_leaves(side) if isinstance(each, Tensor)]
            for side in ((args, kwargs), out)
        )
        kept = {each.untyped_storage().data_ptr() for each in read}
        if str(op).startswith("aten.slice_backward"):  # fills with zeros, then copies
            self._count(2, 2 * in_memory(read[0]) + in_memory(written[0]))
        elif written[0].untyped_storage().data_ptr() not in kept and not str(op).startswith(FREE):
            self._count(1, sum(map(in_memory, (*read, *written))))
        return out

    def _count(self, kernels: int, nbytes: int) -> None:
        self.kernels, self.nbytes = self.kernels + kernels, self.nbytes + nbytes


def in_memory(tensor: Tensor) -> int:
    """Bytes of a tensor, of which an expanded one has fewer than its elements."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in strides if stride) * tensor.element_size()


def leaf(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16, requires_grad=True)


def rmsnorm() -> Module:
    x, weight = leaf(ROWS, WIDTH), leaf(WIDTH)

    def forward() -> Tensor:
        wide = x.float()
        root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return torch.mul(weight, (wide * root).to(x.dtype))

    return forward, [x, weight]


def rope() -> Module:
    """Queries alone; keys are the same kernels once more."""
    width = WIDTH // HEADS
    x, (cos, sin) = leaf(HEADS, ROWS, width), torch.ones(2, ROWS, width).bfloat16()

    def forward() -> Tensor:
        low, high = x[..., : width // 2], x[..., width // 2 :]
        return torch.add(x * cos, torch.cat((-high, low), -1) * sin)

    return forward, [x]


def swiglu() -> Module:
    gate, up = leaf(ROWS, WIDTH), leaf(ROWS, WIDTH)
    return lambda: F.silu(gate) * up, [gate, up]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "module", "times"), [
    ("rmsnorm", rmsnorm, 1), ("rope", rope, 2), ("swiglu", swiglu, 1),
])  # fmt: skip
def test_eager_modules_of_accelerate_go_through_memory_as_pytorch_dispatches_them(
    kind: str, module: Callable[[], Module], times: int
) -> None:
    """Within 2 % of its bytes, of which a row's statistics, cosines and weights are not counted."""
    ops = {op.kind: op for op in lower(LLAMA, Plan(batch=1, mbs=1)).ops}
    said = load_stack("accelerate").own_kernels
    forward, leaves = module()
    with Traffic() as there:
        out = forward()
    grad = torch.ones_like(out)
    with Traffic() as back:
        torch.autograd.grad(out, leaves, grad)
    for name, found in ((kind, there), (f"{kind}_grad", back)):
        nbytes = ops[name].nbytes * said["passes"][name]
        assert nbytes == pytest.approx(times * found.nbytes, rel=0.02)
        assert said["launches"][name] == times * found.kernels
