"""Defaults of Megatron-Core's classes, which recipes construct and whose source is not in their
checkout.

Source: NVIDIA/Megatron-LM core_v0.12.0 to core_v0.16.0, megatron/core/distributed/
distributed_data_parallel_config.py, megatron/core/optimizer/optimizer_config.py,
megatron/core/transformer/transformer_config.py and megatron/core/model_parallel_config.py. Of
models that a checkpoint describes only fields stand here that no checkpoint's configuration sets
(src/megatron/bridge/models of NVIDIA-NeMo/Megatron-Bridge v0.2.0 to v0.6.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.recipe_code.values import External

OF_CHECKPOINTS = "the model of a checkpoint"
_FP32 = External("torch.float32")
_OF_MODELS: Mapping[str, Any] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "sequence_parallel": False,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "cuda_graph_impl": "none",
    "cuda_graph_scope": "full",
    "enable_cuda_graph": False,
    "moe_enable_deepep": False,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_expert_capacity_factor": None,
    "cpu_offloading_num_layers": 0,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
}
_OF_DESCRIBED = {
    **_OF_MODELS,
    "num_moe_experts": None,
    "moe_token_dispatcher_type": "allgather",
    "mtp_num_layers": None,
}
_OF_LATENT = {
    **_OF_DESCRIBED,
    "multi_latent_attention": True,
    **{"q_lora_rank": 512, "kv_lora_rank": 512},
    **{"qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128},
}
CORE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    OF_CHECKPOINTS: _OF_MODELS,
    "TransformerConfig": _OF_DESCRIBED,
    "MLATransformerConfig": _OF_LATENT,
    "DistributedDataParallelConfig": {
        "grad_reduce_in_fp32": False,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "use_distributed_optimizer": False,
        "use_megatron_fsdp": False,
        "nccl_ub": False,
        "data_parallel_sharding_strategy": "no_shard",
    },
    "OptimizerConfig": {
        "optimizer": "adam",
        "use_precision_aware_optimizer": False,
        "use_distributed_optimizer": False,
        "overlap_param_gather_with_optimizer_step": False,
        "optimizer_cpu_offload": False,
        "main_params_dtype": _FP32,
        "main_grads_dtype": _FP32,
        "exp_avg_dtype": _FP32,
        "exp_avg_sq_dtype": _FP32,
    },
}
