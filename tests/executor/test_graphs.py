"""Captured steps: what is replayed is what would have been issued. A tape plays the CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.buffer_table import BufferTable
from executor.dry.groups import LoneGroups, fake_job
from executor.errors import LaunchError
from executor.launching.device_use import check_graphs
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from executor.training.graphs import Carried, GraphedSteps
from tests.executor.devices import rising
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

TINY = find_model("tiny-30k")
PLANS = ("dp=1,mbs=4", "dp=1,mbs=2,recompute=full", "dp=2,mbs=2")
STEPS = 6


class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call of torch's operators with its operands and what it returned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, returned))
        return returned


class Tape:
    """Plays a CUDA graph on the CPU: a capture leaves all lasting tensors as they were; a replay
    makes the noted calls anew, with the tensors and the numbers that they had."""

    def __init__(self) -> None:
        self.lasting: Callable[[], list[torch.Tensor]] = list
        self.captures = self.replays = 0

    def capture(self, step: Callable[[], Carried]) -> Carried:
        self.captures += 1
        before = [(tensor, tensor.clone()) for tensor in self.lasting()]
        with Noting() as noting:
            carried = step()
        self._calls = noting.calls
        for tensor, value in before:
            tensor.copy_(value)
        return carried

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, noted in self._calls:
            returned = func(*args, **kwargs)
            for old, new in zip(tree_leaves(noted), tree_leaves(returned), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def lasting(table: BufferTable) -> list[torch.Tensor]:
    return [
        tensor
        for buffer, tensor in zip(table._buffers, table._tensors, strict=False)
        if buffer.persistent
    ]


def batches() -> Iterator[torch.Tensor]:
    """Batches whose rows have the same tokens in another order: on a CPU, not on a GPU, what the
    embedding's gradient allocates depends on how many different ones there are."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(TINY.vocab, (4, TINY.sequence), generator=generator)
    for _ in range(STEPS):
        order = torch.rand(rows.shape, generator=generator).argsort(1)
        last = torch.randint(TINY.vocab, (4, 1), generator=generator)
        yield torch.cat([rows.gather(1, order), last], 1)


def losses(text: str, tape: Tape | None) -> list[float]:
    plan, cpu = parse_plan(text, batch=4), torch.device("cpu")
    with fake_job(0, plan.grid.ranks):
        trainer = Trainer(
            lower(TINY, plan, 0),
            LoneGroups(0),
            rank=0,
            device=cpu,
            adamw=AdamW(),
            lr_of=rising,
            graph=tape,
        )
        trainer.start_afresh(0)
        if tape is not None:
            tape.lasting = lambda: [*lasting(trainer.table), trainer.grad_norm]
        run = trainer.run(batches())
    return [value for step in run.steps for value in (step.loss, step.grad_norm)]


@pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")
@pytest.mark.parametrize("text", PLANS)
def test_replayed_steps_give_to_the_bit_what_steps_issued_op_by_op_give(text: str) -> None:
    tape = Tape()
    issued = losses(text, None)
    assert losses(text, tape) == issued
    assert (tape.captures, tape.replays) == (1, STEPS - 2)
    assert len(set(issued)) == 2 * STEPS


def test_once_captured_a_step_issues_nothing_itself() -> None:
    tape, issued = Tape(), 0

    def step() -> Carried:
        nonlocal issued
        issued += 1
        return {"tp": issued}

    steps = GraphedSteps(tape)
    assert [steps.perform(step) for _ in range(5)] == [{"tp": n} for n in (1, 2, 3, 3, 3)]
    assert issued == 3


@pytest.mark.parametrize(
    ("model", "plan", "how", "named"),
    [
        ("", "dp=1", {"device": "cpu"}, "CPU"),
        ("", "pp=2", {}, "pp=2"),
        ("dropout=0.1", "dp=1", {}, "dropout=0.1"),
        ("", "optimizer=muon", {}, "optimizer=adamw"),
        ("", "offload=optimizer", {}, "offload=optimizer"),
        ("", "dp=1", {"traced": True}, "--trace"),
        ("", "dp=1", {"steps": 2}, "--steps 2"),
    ],
)
def test_what_a_graph_would_freeze_is_refused_by_name(
    model: str, plan: str, how: dict[str, Any], named: str
) -> None:
    gpt = replace(TINY, dropout=0.1) if model else TINY
    how = {"device": "cuda", "traced": False, "steps": 10, **how}
    device = how.pop("device")
    with pytest.raises(LaunchError, check=names("--cuda-graphs", named)):
        check_graphs(gpt, parse_plan(plan, batch=4), device, **how)


def test_graphs_on_a_cpu_are_refused_before_a_rank_starts() -> None:
    said = simgpt("run", "tiny-30k", "--device", "cpu", "--cuda-graphs", "--no-predict")
    assert (said.status, said.out) == (5, "")
    assert_names(said.err, "--cuda-graphs", "CPU")
