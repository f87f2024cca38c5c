"""One function per op kind: it reads its operands and fills the buffers that the op writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from executor.kernels import (
    attention,
    dense,
    dropout,
    goldfish,
    norms,
    optimizer,
    pointwise,
    unfused,
    vocabulary,
)
from executor.kernels.context import exchange, pieces
from executor.kernels.updates import muon, sgd
from executor.rank_context import RankContext
from workload.op import Op

Kernel = Callable[[Op, Sequence[torch.Tensor], Sequence[torch.Tensor], RankContext], None]

KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "matmul": dense.matmul,
        "transpose": dense.transpose,
        "attention": attention.attention,
        "attention_grad": attention.attention_grad,
        "take_keys": pieces.take_keys,
        "put_keys": pieces.put_keys,
        "merge_attention": pieces.merge_attention,
        "split_heads": exchange.split_heads,
        "join_heads": exchange.join_heads,
        "split_tokens": exchange.split_tokens,
        "join_tokens": exchange.join_tokens,
        "batched_matmul": unfused.batched_matmul,
        "softmax": unfused.softmax,
        "softmax_grad": unfused.softmax_grad,
        "dropout": dropout.dropout,
        "dropout_grad": dropout.dropout_grad,
        "rope": attention.rope,
        "rope_grad": attention.rope_grad,
        "layernorm": norms.layernorm,
        "layernorm_sums": norms.layernorm_sums,
        "layernorm_apply": norms.layernorm_apply,
        "layernorm_grad": norms.layernorm_grad,
        "layernorm_grad_sums": norms.layernorm_grad_sums,
        "layernorm_grad_apply": norms.layernorm_grad_apply,
        "rmsnorm": norms.rmsnorm,
        "rmsnorm_sums": norms.rmsnorm_sums,
        "rmsnorm_apply": norms.rmsnorm_apply,
        "rmsnorm_grad": norms.rmsnorm_grad,
        "rmsnorm_grad_sums": norms.rmsnorm_grad_sums,
        "rmsnorm_grad_apply": norms.rmsnorm_grad_apply,
        "gelu": pointwise.gelu,
        "gelu_grad": pointwise.gelu_grad,
        "swiglu": pointwise.swiglu,
        "swiglu_grad": pointwise.swiglu_grad,
        "add": pointwise.add,
        "bias": pointwise.add,
        "cast": pointwise.cast,
        "column_sum": pointwise.column_sum,
        "accumulate": pointwise.accumulate,
        "merge_columns": pointwise.merge_columns,
        "take_columns": pointwise.take_columns,
        "embedding": vocabulary.embedding,
        "embedding_grad": vocabulary.embedding_grad,
        "position": vocabulary.position,
        "position_grad": vocabulary.position_grad,
        "loss_maximum": vocabulary.loss_maximum,
        "loss_sums": vocabulary.loss_sums,
        "loss_mean": vocabulary.loss_mean,
        "loss_grad": vocabulary.loss_grad,
        "goldfish": goldfish.goldfish,
        "kept_mean": goldfish.kept_mean,
        "square_sum": optimizer.square_sum,
        "clip_scale": optimizer.clip_scale,
        "scale": optimizer.scale,
        "adamw": optimizer.adamw,
        "sgd": sgd.sgd,
        "lomo": sgd.lomo,
        "muon_momentum": muon.momentum,
        "merge_tiles": muon.merge_tiles,
        "take_tile": muon.take_tile,
        "muon": muon.muon,
        "fence": pointwise.fence,
        "zero": pointwise.zero,
        "to_device": optimizer.move,
        "to_host": optimizer.move,
    }
)
