"""What a software stack holds in memory unlike our executor, as its file says."""

from __future__ import annotations

from topologies.records import record
from workload.gpt import GPT
from workload.plan import Plan

UNEVEN = 1.25  # by how much a rank's part may exceed an even one


@record
class Held:
    """What a stack holds in memory; sizes are counts of elements.

    With `sharded_masters` the parts of parameters that zero=3 shards are the fp32 master copies,
    cast as they are gathered, and the gradients of these parts are fp32 too (FSDP). With
    `step_copies` the update works on fp32 copies of the rank's gradients, made before it: of all of
    them or, under zero=3 with a `sub_group`, of so many elements at a time. A `bucket` collects
    gradients on their way to the ranks that keep them (DeepSpeed). With `frees_gradients` there are
    none between an update and the first gradients of the next step (PyTorch's optimizers set them
    to None). The update makes so many fp32 `temporaries`, each as large as what it updates at a
    time (the roots of PyTorch's AdamW, unless it is fused). The loss makes copies of logits of so
    many `loss_bytes` for each beside those of the program (`workload/lowering/held/loss.py`). Of
    activations of the kinds `inner_activations` what their first kernel gives is kept, and with
    `gradients_until_end` gradients of weights until a backward pass ends; with `gradient_buckets`
    they are there once more, and with `fp8_weights` copies of weights in fp8
    (`workload/lowering/held/kept.py`). With `keeps_unread` layers that run again per op keep also
    outputs that nothing reads (PyTorch without a compiler).

    Source: pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_param.py
    (all_gather_inputs, to_accumulated_grad_if_needed), torch/optim/optimizer.py (zero_grad) and
    adam.py (_multi_tensor_adam);
    deepspeedai/DeepSpeed@edaa722, deepspeed/runtime/zero/stage_1_and_2.py (step, setup_buckets)
    and stage3.py (_create_fp16_sub_groups, _prepare_fp32_grad_for_sub_group,
    _setup_for_real_optimizer).
    Not modelled: weights that ZeRO-3 keeps whole since they are needed again soon
    (stage3_max_live_parameters), and what it prefetches beyond one linear.
    """

    sharded_masters: bool = False
    step_copies: bool = False
    sub_group: int = 0
    bucket: int = 0
    frees_gradients: bool = False
    temporaries: int = 0
    loss_bytes: int = 0
    inner_activations: tuple[str, ...] = ()
    gradients_until_end: bool = False
    gradient_buckets: bool = False
    fp8_weights: bool = False
    keeps_unread: bool = False

    def copies_gradients(self, plan: Plan, *, wide: bool) -> bool:
        """Whether the update works on copies of gradients, which are summed in fp32 if `wide`.

        DeepSpeed's optimizers for zero=0 and 1 update from fp32 gradients in place.
        """
        return self.step_copies and (not wide or plan.zero > 1)

    def updates_in_groups(self, gpt: GPT, plan: Plan) -> bool:
        """Whether a rank may hold more parameters than the update takes at a time, so that the
        update of many layers is not that of a few, repeated; or whether the host updates some of
        them alone."""
        if plan.training.offload_share < 1:
            return True
        if not (self.step_copies and self.sub_group and plan.zero == 3):
            return False
        ranks = plan.tp * plan.y * plan.z * plan.cp * (plan.shard or plan.dp)
        return gpt.parameters * UNEVEN > self.sub_group * ranks


NOTHING_HELD = Held()
