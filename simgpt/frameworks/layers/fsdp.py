"""Megatron-FSDP's arguments: what it shards, the dtype of its gradients, and what it requires.

Source: NVIDIA/Megatron-LM@d98e8a6, megatron/training/arguments.py, validate_args (checkpoints as
fsdp_dtensor, connections not 1, gradients that no matmul adds to unless Transformer Engine can),
docs/user-guide/features/megatron_fsdp.md and examples/megatron_fsdp; core/distributed/fsdp/src/
megatron_fsdp/param_and_grad_buffer.py, _resolve_group_grad_dtype: gradients are summed, and sent,
in the dtype of the parameters unless `megatron-fsdp-main-grads-dtype` says another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
STRATEGY = "data-parallel-sharding-strategy"
NAMES = ("use-megatron-fsdp", "use-custom-fsdp")
MAIN_GRADIENTS = "megatron-fsdp-main-grads-dtype"
UNFUSED = "no-gradient-accumulation-fusion"
DTYPES, AUTO, OTHER = ("fp32", "bf16"), "auto", "fp16"


def is_on(reading: Reading) -> bool:
    """Whether Megatron-FSDP holds parameters, gradients and states."""
    return True in [reading.switch(name) for name in NAMES]


def read(reading: Reading) -> None:
    """Take over in what it sums gradients, where that is said; a product that is reduced over
    ranks before it is added is added by a kernel of its own, here as there."""
    if not is_on(reading):
        return
    fields = reading.fields
    dtype = reading.word(MAIN_GRADIENTS, reading.table["fsdp_sums"], (*DTYPES, AUTO, OTHER))
    if dtype == AUTO:
        dtype = "fp32" if fields.get("precision") == "fp32" else "bf16"
    if dtype in DTYPES and "gradients" in fields:
        fields["gradients"] = dtype
    elif dtype == OTHER:
        reading.differs(MAIN_GRADIENTS, reading.table["changes"][MAIN_GRADIENTS])
    if fields["zero"] > 1:
        reading.without(UNFUSED)


def notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence on the variable that it refuses, which no argument sets."""
    if fields["zero"] < 2:
        return ()
    return ("Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1: leave the variable unset",)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ZeRO 2 and 3. With 3 no rank ever holds the whole model, which is therefore
    made on the meta device."""
    if fields["zero"] < 2:
        return {}
    names = {number: name for name, number in STRATEGIES.items()}
    settings: dict[str, Any] = {"use-megatron-fsdp": True, "ckpt-format": "fsdp_dtensor"}
    settings |= {STRATEGY: names[fields["zero"]], UNFUSED: True}
    if fields["zero"] == 3:
        settings["init-model-with-meta-device"] = True
    if fields["precision"] != "fp32" and fields["gradients"] == "fp32":
        settings[MAIN_GRADIENTS] = "fp32"
    return settings
