"""What other frameworks call a plan's keys and a model's fields, so that a refusal can say ours.

Names are those of Megatron-LM, NeMo, torchtitan, DeepSpeed, vLLM's and Hugging Face's trainers, in
lower case with underscores. One that stands for a key with its value has both: `fp8` is
`precision=fp8`.
"""

from __future__ import annotations

from typing import Any

_DEGREES = {
    "tp": ("tensor", "tensor_model", "model"),
    "pp": ("pipeline", "pipeline_model", "pipe"),
    "cp": ("context", "context_model"),
    "dp": ("data", "data_model"),
    "ep": ("expert", "expert_model"),
    "etp": ("expert_tensor", "expert_tensor_model"),
    "vpp": ("virtual_pipeline", "virtual_pipeline_model"),
}
_ENDS = ("{}_parallel", "{}_parallel_size", "{}_parallel_degree", "{}_parallelism")
_BY_KEY = {
    "tp": ("tp_size", "tp_degree", "g_intra_r"),
    "pp": ("pp_size", "pp_degree", "num_stages", "stages", "g_inter"),
    "cp": ("cp_size", "cp_degree"),
    "dp": ("dp_size", "dp_degree", "data_parallel_replicate_degree", "g_data"),
    "ep": ("ep_size", "ep_degree"),
    "etp": ("etp_size",),
    "vpp": ("vp", "vp_size", "vpp_size", "num_virtual_stages", "chunks", "virtual_stages"),
    "mbs": (
        *("micro_batch_size", "microbatch_size", "micro_bs", "local_batch_size", "micro_batches"),
        *("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ),
    "gbs": ("global_batch_size", "global_batch", "train_batch_size", "batch_size"),
    "zero": ("zero_stage", "stage", "zero_optimization", "zero_level"),
    "hsdp": ("data_parallel_shard_degree", "mics_shard_size", "hsdp_shard_size"),
    "recompute": (
        *("recompute_granularity", "activation_checkpointing", "activation_checkpoint"),
        *("gradient_checkpointing", "activation_recompute", "ac", "recomputation"),
        *("activations_checkpoint_granularity", "checkpoint_activations"),
    ),
    "schedule": ("pipeline_schedule", "pipeline_parallel_schedule", "pp_schedule"),
    "precision": ("dtype", "torch_dtype", "compute_dtype", "mixed_precision", "fp8_format"),
    "gradients": ("grad_dtype", "reduce_dtype", "gradient_dtype", "main_grads_dtype", "grad_type"),
    "loss_chunks": ("num_output_chunks", "num_chunks"),
    "context_kind": ("cp_comm_type", "context_parallel_rotate_method"),
    "dispatcher": ("moe_token_dispatcher_type", "moe_dispatcher", "token_dispatcher"),
    "recipe": ("fp8_recipe",),
    "optimizer": ("optim", "optimizer_name"),
    "precision=fp8": ("fp8", "use_fp8", "float8"),
    "precision=bf16": ("bf16", "bfloat16", "fp16", "half"),
    "precision=fp32": ("fp32", "float32"),
    "zero=1": ("use_distributed_optimizer", "distributed_optimizer"),
    "zero=3": ("use_megatron_fsdp", "use_torch_fsdp2", "full_shard", "use_fsdp"),
    "attention=flash": ("flash_attention", "use_flash_attn", "flash_attn", "use_flash_attention"),
    "recompute=selective": ("recompute_activations",),
    "gradients=fp32": ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32"),
    "gradients=bf16": ("grad_reduce_in_bf16",),
    "loss=fused": (
        *("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger_kernel"),
        *("fused_linear_cross_entropy", "liger_fused_linear_cross_entropy"),
    ),
    "overlap=dp": ("overlap_grad_reduce", "overlap_comm", "overlap_param_gather"),
    "offload=update": (
        *("cpu_offload", "optimizer_offload", "offload_optimizer", "optimizer_cpu_offload"),
    ),
    "offload=parameters": (
        *("offload_param", "offload_params", "fsdp_offload_params", "param_offload"),
        *("enable_cpu_offload", "parameter_offload"),
    ),
    "offload=activations": (
        *("activation_offloading", "enable_activation_offloading", "offload_activations"),
    ),
}
_FIELDS = {
    "sequence": (
        *("seq_len", "seq_length", "sequence_length", "max_seq_len", "encoder_seq_length"),
        *("max_position_embeddings", "context_length", "block_size", "seqlen", "max_seq_length"),
    ),
    "layers": ("num_layers", "n_layers", "num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "d_model", "n_embd", "dim"),
    "heads": ("num_attention_heads", "n_heads", "num_heads", "n_head"),
    "kv_heads": ("num_query_groups", "num_key_value_heads", "n_kv_heads"),
    "ffn": ("ffn_hidden_size", "intermediate_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "num_moe_experts", "n_experts"),
}
PLAN_WORDS = {
    **{end.format(of): key for key, every in _DEGREES.items() for of in every for end in _ENDS},
    **{name: key for key, names in _BY_KEY.items() for name in names},
}
MODEL_WORDS = {name: field for field, names in _FIELDS.items() for name in names}


def plain(name: str) -> str:
    """A name as the tables have it.

    >>> plain("--tensor-model-parallel-size")
    'tensor_model_parallel_size'
    """
    return name.rpartition(".")[2].strip("-").replace("-", "_").lower()


def plan_word(name: str, value: Any) -> str:
    """What a plan says instead of a foreign key and its value; "" where that is not known.

    >>> plan_word("tensor_parallel", "8"), plan_word("fp8", "true"), plan_word("colour", 3)
    ('tp=8', 'precision=fp8', '')
    """
    known = PLAN_WORDS.get(plain(name), "")
    return known if not known or "=" in known else f"{known}={value}"
