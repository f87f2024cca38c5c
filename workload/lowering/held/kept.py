"""What frameworks keep for the backward pass that the program makes again or drops at once.

An activation that runs as several kernels keeps the first one's output, since autograd of a
product keeps both factors: the SiLU of the gate for PyTorch's SwiGLU, the GELU for experts whose
scores are multiplied in by another kernel. Gradients that are accumulated after a backward pass,
not within it, stay until it ends; PyTorch's DistributedDataParallel has them once more in its
buckets. Where weights are in 16 bits and linears multiply in fp8, fp8 copies of the weights stay
from one micro-batch to the next, with a transposed copy of each where matmuls need one.
Sources: pytorch/pytorch, tools/autograd/derivatives.yaml, mul and silu; NVIDIA/Megatron-LM@93ebf8d,
megatron/core/transformer/moe/experts.py, bias_act_func: no fused kernel weighs a GELU;
huggingface/nanotron@c252843, src/nanotron/nn/activations.py and models/llama.py, GLUActivation, and
src/nanotron/optim/gradient_accumulator.py, FP32GradientAccumulator.backward; pytorch/pytorch,
torch/csrc/distributed/c10d/reducer.cpp, Reducer::initialize_buckets; NVIDIA/TransformerEngine,
transformer_engine/pytorch/module/base.py, get_weight_workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workload.lowering.builder import Builder
from workload.op import WEIGHT_GRAD, Op, altered
from workload.pipeline.pairs import is_between_slots
from workload.pipeline.schedule import BACKWARD
from workload.recipes.table import FP8

OF_TABLE = "embedding_grad"  # the kind of the op that makes the gradient of the embedding's table


def with_kept(b: Builder, ops: Sequence[Op], *, transposes: bool) -> list[Op]:
    """The ops, with what the stack keeps of activations and of gradients; further buffers of
    gradients and of weights are added to the builder's. With `transposes` matmuls in fp8 want
    transposed copies too."""
    if b.held.gradient_buckets:
        _add_buckets(b)
    if b.held.fp8_weights and not b.plan.training.fp8_params:
        _add_copies_of_weights(b, ops, 2 if transposes else 1)
    kept = _with_inner(b, ops) if b.held.inner_activations else list(ops)
    return _with_gradients(b, kept) if b.held.gradients_until_end else kept


def _add_buckets(b: Builder) -> None:
    """Gradients of all parameters in the dtype of training, as long as the program runs."""
    for name in b.parameters:
        of = b.buffers[name]
        b.add(replace(of, name=f"{name}.bucket", dtype=b.dtype, role="gradients"))


def _add_copies_of_weights(b: Builder, ops: Sequence[Op], count: int) -> None:
    """So many fp8 copies of the weights that linears multiply by in fp8, where a rank holds them
    whole."""
    operands = (name for op in ops if op.dtype == FP8 for name in op.reads[:2])  # no bias
    found = (name for name in operands if name in b.parameters)
    for name in dict.fromkeys(found):
        for number in range(count):
            b.add(replace(b.buffers[name], name=f"{name}.fp8{number}", dtype=FP8))


def _with_inner(b: Builder, ops: Sequence[Op]) -> list[Op]:
    """With what is inside of activations of the kinds that the stack has in several kernels."""
    result, inner = list(ops), dict[str, str]()
    kinds = b.held.inner_activations
    gradients = {f"{kind}_grad" for kind in kinds}
    for at, op in enumerate(ops):
        if op.kind in kinds:
            (out, *_) = op.writes
            name = b.add(replace(b.buffers[out], name=f"{out}.inner"))
            inner[op.reads[0]] = name
            result[at] = altered(op, writes=(*op.writes, name))
        elif op.kind in gradients and op.reads[1] in inner:
            result[at] = altered(op, reads=(*op.reads, inner[op.reads[1]]))
    return result


def _with_gradients(b: Builder, ops: Sequence[Op]) -> list[Op]:
    """With gradients of weights that the last op of their backward pass still reads."""
    result = list(ops)
    last, made = dict[int, int](), dict[int, list[str]]()
    for at, op in enumerate(ops):
        if op.block.work != BACKWARD or op.communicates or is_between_slots(op):
            continue
        last[op.block.micro_batch] = at
        if op.purpose == WEIGHT_GRAD or op.kind == OF_TABLE:
            made.setdefault(op.block.micro_batch, []).append(op.writes[0])
    for micro_batch, at in last.items():
        read = {*ops[at].reads, *ops[at].writes}
        more = (name for name in dict.fromkeys(made.get(micro_batch, ())) if name not in read)
        result[at] = altered(result[at], reads=(*result[at].reads, *more))
    return result
