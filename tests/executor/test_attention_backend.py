"""Which kernels compute the attention core: by name, or as suits the model; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.dry.fake_gpu import GPU, fake_gpu
from executor.errors import LaunchError
from executor.kernels.attentions.attention import attention, attention_grad
from executor.kernels.attentions.flash import has_flash
from executor.launching.device_use import DeviceUse, attention_of
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.blocks import BLOCK
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from workload.gpt import GPT, find_model
from workload.grid import Grid
from workload.lowering import lower
from workload.op import Op
from workload.op_attributes import Attributes
from workload.plan_text import parse_plan

SMALL = find_model("tiny-30k").changed(hidden=64, heads=4)
MODELS = {
    "small": SMALL,
    "alibi": replace(SMALL, positions="alibi"),
    "dropout": replace(SMALL, dropout=0.1),
    "wide": SMALL.changed(hidden=576, heads=2),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("model", MODELS)
def test_what_a_run_says_of_its_attention_is_what_its_kernel_does(
    model: str, precision: str, device: str
) -> None:
    plan = parse_plan(f"precision={precision}", batch=1)
    said = attention_of(DeviceUse(), MODELS[model], plan, device)
    op = next(op for op in lower(MODELS[model], plan, 0).ops if op.kind == "attention")
    with fake_gpu():
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        tensor = torch.empty(1, dtype=dtype, device=GPU if device == "cuda" else "cpu")
        assert has_flash(op, tensor, place(said)) == (said == "flash")


def place(attention: str) -> RankContext:
    return RankContext(grid=Grid(), rank=0, device=GPU, adamw=AdamW(), attention=attention)


@pytest.mark.parametrize("backend", ["flash", "cudnn"])
@pytest.mark.parametrize("width", [64, 12])
def test_fused_kernels_of_a_gpu_take_and_give_what_the_program_says(
    backend: str, width: int
) -> None:
    shape: Attributes = {"heads": 4, "kv_heads": 2, "width": width}
    shape |= {"sequence": 16, "alibi": False}
    op = Op("op", "attention", (), (), BLOCK, attributes=shape)
    with fake_gpu():
        qkv = torch.empty(32, 8 * width, dtype=torch.bfloat16, device=GPU)
        context = torch.empty(32, 4 * width, dtype=torch.bfloat16, device=GPU)
        logsumexp = torch.empty(2, 4, 16, device=GPU)
        attention(op, [qkv], [context, logsumexp], place(backend))
        grads = [context, qkv, context, logsumexp]
        attention_grad(op, grads, [torch.empty_like(qkv)], place(backend))


@pytest.mark.parametrize(
    ("backend", "gpt", "text", "device", "named"),
    [
        ("cudnn", SMALL, "precision=bf16", "cpu", ["--device cuda"]),
        ("flash", MODELS["alibi"], "precision=bf16", "cuda", ["positions=alibi"]),
        ("flash", SMALL, "precision=fp32", "cuda", ["precision=fp32"]),
        ("cudnn", MODELS["wide"], "precision=bf16", "cuda", ["128", "288"]),
        ("flash", MODELS["dropout"], "precision=bf16", "cpu", ["dropout=0.1"]),
        ("math", SMALL, "attention=unfused", "cpu", ["attention=unfused"]),
    ],
)
def test_kernels_that_cannot_are_refused_by_name(
    backend: str, gpt: GPT, text: str, device: str, named: list[str]
) -> None:
    with pytest.raises(LaunchError, check=names(f"--attention-backend {backend}", *named)):
        attention_of(DeviceUse(attention=backend), gpt, parse_plan(text, batch=1), device)


@pytest.mark.parametrize(("backend", "widest"), [("auto", 256), ("flash", 256), ("cudnn", 128)])
def test_the_widest_heads_that_kernels_take_are_not_refused(backend: str, widest: int) -> None:
    gpt, plan = SMALL.changed(hidden=2 * widest, heads=2), parse_plan("precision=bf16", batch=1)
    taken = "flash" if backend == "auto" else backend
    assert attention_of(DeviceUse(attention=backend), gpt, plan, "cuda") == taken


def test_a_run_refuses_them_before_a_rank_starts() -> None:
    words = ("--device", "cpu", "--attention-backend", "cudnn", "--no-predict")
    said = simgpt("run", "tiny-30k", *words)
    assert (said.status, said.out) == (5, "")
    assert_names(said.err, "--attention-backend cudnn", "--device cuda")
