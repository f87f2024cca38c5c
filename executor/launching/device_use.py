"""How ranks use their devices beyond what a plan says: graphs, cores, kernels of attention. Free of
torch, so that a parent can refuse what ranks could not do."""

from __future__ import annotations

from executor.errors import LaunchError
from topologies.records import record
from workload.gpt import GPT
from workload.plan import Plan
from workload.splits.states import PARAMETERS, UPDATE

AUTO, FLASH, CUDNN, MATH, UNFUSED = "auto", "flash", "cudnn", "math", "unfused"
NONE, NUMA = "none", "numa"
EAGER_STEPS = 2  # before a step is captured
# The widest heads, and of what they are a multiple once padded, that fused kernels on CUDA take.
# Sources: PyTorch 2.13, aten/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash, and
# check_cudnn_tensor_shapes, whose limit before Hopper is taken for all.
WIDEST = {FLASH: 256, CUDNN: 128}


@record(kw_only=True)
class DeviceUse:
    """With `cuda_graphs` a step is captured and replayed. `bind` "numa" keeps a rank on the cores
    beside its GPU. `attention` names the kernels of the attention core; "auto" takes flash kernels
    where they suit the model, else single steps ("math")."""

    cuda_graphs: bool = False
    bind: str = NONE
    attention: str = AUTO


def attention_of(use: DeviceUse, gpt: GPT, plan: Plan, device: str) -> str:
    """What computes the attention core on a device, `cpu` or `cuda`; a LaunchError where the
    kernels that were asked for cannot."""
    if plan.training.attention == UNFUSED:
        if use.attention != AUTO:
            raise LaunchError(
                f"--attention-backend {use.attention} has no effect with attention=unfused, which "
                "computes the attention core by ops of its own"
            )
        return UNFUSED
    wanted = FLASH if use.attention == AUTO else use.attention
    why = _refusal(wanted, gpt, plan, device)
    if not why:
        return wanted
    if use.attention == AUTO:
        return MATH
    raise LaunchError(f"--attention-backend {wanted} {why}; leave it out, or take math")


def _refusal(backend: str, gpt: GPT, plan: Plan, device: str) -> str:
    """Why kernels do not take a model's attention; "" if they do."""
    if backend == MATH:
        return ""
    if gpt.dropout:
        return f"drops otherwise on each split of heads, and {gpt.name} has dropout={gpt.dropout:g}"
    if gpt.positions == "alibi":
        return f"takes no bias, and {gpt.name} has positions=alibi"
    if device == "cpu":
        return "needs --device cuda" if backend == CUDNN else ""
    if plan.training.precision in ("fp32", "fp64"):
        return f"takes 16 bits on a GPU, and the plan has precision={plan.training.precision}"
    if gpt.width > WIDEST[backend]:
        return f"takes heads of width {WIDEST[backend]} at most, and {gpt.name} has {gpt.width}"
    return ""


def check_host_use(gpt: GPT, plan: Plan, device: str) -> None:
    """Refuse states that no kernel updates, an update on the host of a run on GPUs, whose kernels
    are the devices', and activations on the host of which data decides how many there are."""
    for key, able in (("moments", ("fp32", "bf16")), ("master", ("fp32",))):
        if (value := plan.value(key)) not in able:
            raise LaunchError(
                f"{key}={value} has no kernel of an update; a run has {key}={' or '.join(able)}"
            )
    if plan.training.fp8_params:
        raise LaunchError(
            "fp8_params=true: a run has no kernel that casts master copies into 8-bit weights; "
            "take fp8_params=false"
        )
    if plan.training.offload in (UPDATE, PARAMETERS) and device != "cpu":
        raise LaunchError(
            f"offload={plan.training.offload} updates on the host's processors, which a run "
            "supports only "
            "with --device cpu; or take offload=optimizer, which copies states to the GPU"
        )
    if plan.training.offload == "activations" and gpt.moe.experts:
        raise LaunchError(
            "offload=activations needs tensors of fixed size, and the rows of an expert of "
            f"{gpt.name} vary by step; take offload=none for a run"
        )


def check_graphs(gpt: GPT, plan: Plan, device: str, *, traced: bool, steps: int) -> None:
    """Refuse graphs where a step does not only read its tensors, number and learning rate anew."""
    why = ""
    if device == "cpu":
        why = "needs GPUs, and this run computes on the CPU"
    elif plan.pp > 1:
        why = f"captures no messages between stages, and the plan has pp={plan.pp}"
    elif gpt.dropout:
        why = f"would drop the same in each step: {gpt.name} has dropout={gpt.dropout:g}"
    elif plan.training.recipe == "nvfp4":
        why = "would round gradients the same in each step, and the plan has recipe=nvfp4"
    elif gpt.moe.experts:
        why = f"captures no rows whose number the data decides, and {gpt.name} has experts"
    elif plan.training.optimizer != "adamw":
        why = f"takes optimizer=adamw alone: {plan.training.optimizer} has its rate from the host"
    elif plan.training.offload != "none":
        why = f"keeps all of a step on the GPU, and the plan has offload={plan.training.offload}"
    elif traced:
        why = "leaves no times of single ops, which --trace writes"
    elif steps <= EAGER_STEPS:
        why = f"captures step {EAGER_STEPS + 1}; --steps {steps} ends before it"
    if why:
        raise LaunchError(f"--cuda-graphs {why}")
