"""The timeline tells what ran, in the order of issue, whatever the program says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from executor import prepared
from executor.kernels import KERNELS
from executor.rank_context import RankContext
from executor.timing import HostRecorder
from tests.executor.peaks import trainers
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan_text import parse_plan
from workload.program import Program

Tensors = Sequence[torch.Tensor]
TINY = find_model("tiny-30k")
# Torch's own wrappers say so in-process, whatever they are called with.
pytestmark = pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")


def program() -> Program:
    return lower(TINY, parse_plan("dp=1", batch=2))


def names(recorder: HostRecorder) -> list[str]:
    return [span.op.name for span in recorder.timeline(program(), rank=0).spans]


def test_an_op_that_did_not_run_is_not_in_the_timeline() -> None:
    recorder = HostRecorder(len(program().ops))
    for index in (0, 2):
        recorder.begin(index)
        recorder.end(index)
    assert names(recorder) == [program().ops[0].name, program().ops[2].name]


def test_ops_stand_in_the_timeline_in_the_order_of_issue() -> None:
    recorder = HostRecorder(len(program().ops))
    for index in (1, 0):
        recorder.begin(index)
        recorder.end(index)
    assert names(recorder) == [program().ops[1].name, program().ops[0].name]


@pytest.mark.parametrize(
    "spec",
    [
        "dp=1,mbs=2,recompute=full,precision=fp32",
        "tp=2,z=2,dp=2,zero=3,mbs=1,attention=unfused",
        "pp=2,schedule=zb-h1,mbs=2,y=2",
    ],
)
def test_every_kernel_runs_once_in_the_order_of_the_program(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is called is noted by the kernels themselves, and not by what calls them."""
    called: list[str] = []

    def noting(kind: str) -> object:
        def kernel(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
            called.append(kind)
            KERNELS[kind](op, reads, writes, at)

        return kernel

    monkeypatch.setattr(prepared, "KERNELS", {kind: noting(kind) for kind in KERNELS})
    plan = parse_plan(spec, batch=8)
    for trainer in trainers(TINY, plan):
        called.clear()
        batch = torch.randint(TINY.vocab, (8, TINY.sequence + 1))
        run = trainer.run([batch])
        ops = trainer.program.ops
        assert called == [op.kind for op in ops if not op.communicates]
        assert [span.op for span in run.timeline.spans] == list(ops)
