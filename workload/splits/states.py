"""In what dtypes AdamW's moments and master copies are kept, and which plans can have them.

Moments in `int8` are those of bitsandbytes and torchao: a byte each with a scale in fp32 for each
256 of them, and fp32 for norms, biases and learned positions, which are small. In `fp8` they are
those of Transformer Engine's FusedAdam: a byte each with one scale a tensor. Master copies of
`remainders` have the 16 bits that a bf16 weight lacks of its fp32 value, so that both together are
that value, and `fp16` has 2 bytes with one scale a tensor.

Sources: Dettmers et al. (2110.02861), section 2; bitsandbytes, optim/adamw.py (AdamW8bit:
block-wise by 256, 8 bits from 4,096 elements on); pytorch/ao, optim/subclass_8bit.py (256);
NVIDIA/Megatron-LM@d98e8a6, core/optimizer/optimizer_config.py (exp_avg_dtype, main_params_dtype,
store_param_remainders); NVIDIA/TransformerEngine, pytorch/optimizers/fused_adam.py. Not modelled:
matrices of fewer than 4,096 elements, which stay in fp32 there.
"""

from __future__ import annotations

from workload.errors import PlanError
from workload.plan_fields import PlanFields

MOMENTS = {"fp32": "", "bf16": "bf16", "fp8": "fp8", "int8": "uint8"}  # dtypes of buffers
MASTERS = {"fp32": "", "remainders": "uint16", "fp16": "fp16"}
BLOCK = 256  # moments that share a scale
UPDATE, PARAMETERS = "update", "parameters"  # values of `offload` with which the host updates
ON_HOST = ("optimizer", UPDATE, PARAMETERS)  # and with which it has the states in its memory


def check(plan: PlanFields) -> None:
    """Refuse with a PlanError dtypes of states that no update has."""
    said = [
        f"{key}={value}"
        for key, value in (("moments", plan.training.moments), ("master", plan.training.master))
        if value != "fp32"
    ]
    if said and (plan.training.precision, plan.training.optimizer) != ("bf16", "adamw"):
        raise PlanError(
            f"{said[0]} needs optimizer=adamw and precision=bf16, not "
            f"optimizer={plan.training.optimizer} and precision={plan.training.precision}"
        )
    if plan.training.offload in (UPDATE, PARAMETERS) and plan.training.optimizer != "adamw":
        raise PlanError(
            f"offload={plan.training.offload} runs optimizer=adamw on the host, not optimizer="
            f"{plan.training.optimizer}; offload=optimizer brings its states to the device"
        )
    if plan.training.offload == PARAMETERS and (why := _keeps_parameters(plan)):
        raise PlanError(f"offload=parameters {why}")
    if plan.training.offload_share < 1 and plan.training.offload != UPDATE:
        raise PlanError(
            f"offload_share={plan.training.offload_share:g} is a share of offload=update, and "
            "the plan has "
            f"offload={plan.training.offload}"
        )
    kept = [each for each in said if each != "moments=bf16"]
    if kept and plan.training.offload in ON_HOST:
        raise PlanError(
            f"{kept[0]} is supported only for states on the device, and "
            f"offload={plan.training.offload} "
            "keeps them on the host; leave one of the two out"
        )


def _keeps_parameters(plan: PlanFields) -> str:
    """Why parameters do not come from the host for each pass; "" if they may."""
    if plan.zero != 3:
        return (
            "keeps each rank's part of the parameters on the host and needs zero=3, not "
            f"zero={plan.zero}; offload=update leaves parameters on the device"
        )
    if plan.pp > 1:
        return (
            "copies parameters within the passes of one stage, and pipelines are not supported: "
            f"take pp=1, not {plan.pp}"
        )
    if plan.training.recipe != "none":
        return (
            f"copies parameters of 16 or 32 bits and does not support recipe={plan.training.recipe}"
        )
    if {"a2a", "wgrad"} & {*plan.training.overlap}:
        return "has each layer's passes as a whole, which overlap=a2a and wgrad cut"
    return ""


def moment_dtype(plan: PlanFields, wide: str, *, sharded: bool) -> str:
    """The dtype of a buffer of moments: of those that are not `sharded`, small ones."""
    if plan.training.moments == "int8" and not sharded:
        return wide
    return MOMENTS[plan.training.moments] or wide


def master_dtype(plan: PlanFields, wide: str) -> str:
    """The dtype of a buffer of master copies."""
    return MASTERS[plan.training.master] or wide


def scales(plan: PlanFields, elements: int, *, sharded: bool) -> int:
    """How many scales so many moments have."""
    if plan.training.moments == "fp8":
        return 1
    return -(-elements // BLOCK) if plan.training.moments == "int8" and sharded else 0
