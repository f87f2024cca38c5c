"""The fields of a plan, and the counts that follow from them."""

from __future__ import annotations

from dataclasses import MISSING
from math import prod
from typing import Any, ClassVar

from topologies.records import record
from workload.flat_keys import Flat, keys_of
from workload.grid import AXES, SHARDS, USUAL
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import V_SHAPED, ways


@record(kw_only=True)
class Pipeline:
    """Pipeline stages: in which order their passes run, and which layers they have.

    `schedule` is the order; of "dualpipe" each stage is a part of two copies of the model, one from
    either end, which get half of the batch each. Layers are split evenly over the chunks or, from
    the first to the last, as `stage_layers` says; with `ends_as_layers` embedding and classifier
    count as a layer each in the even split.
    """

    schedule: str = "1f1b"
    stage_layers: tuple[int, ...] = ()
    ends_as_layers: bool = False


@record(kw_only=True)
class Context:
    """How keys and values of sequences that `cp` splits meet; a text's keys are these with
    `context_` before them.

    Before they go around a ring (`kind`), each `heads` neighbours may trade rows for heads. With
    `latents` ranks gather the compressed numbers of latent attention in place of keys and values.
    """

    PREFIX: ClassVar[str] = "context_"

    kind: str = "ring"
    heads: int = 1
    latents: bool = False


@record(kw_only=True)
class Experts:
    """How rows of tokens get to ranks that hold their experts.

    They get there as the `dispatcher` says (`workload/exchange/table.py`), with `fp8_dispatch` in 8
    bits with the scales of the recipe's blocks, and so do gradients on their way to experts.
    """

    dispatcher: str = "usual"
    fp8_dispatch: bool = False


@record(kw_only=True)
class Training:
    """What is computed and kept, in which precision, and what runs beside it.

    `gradients` is the dtype in which bf16 training sums gradients, `moments` that of AdamW's two
    moments, `master` that of the weights' master copies (`workload/splits/states.py`), `optimizer`
    the update rule (`workload/rules/table.py`). `offload` is what lives in the host's memory: the
    rule's states ("optimizer"), states that the host's processors update ("update"), sharded
    parameters and gradients with them ("parameters"), or what layers keep for their backward passes
    ("activations"). Of what the host updates `offload_share` is a share, of which the device
    updates the rest. Copies between host and device always run beside the update.
    With `matmul_forms` "tuned" each matmul runs in the form that is fastest on the machine, on
    operands transposed for it if need be. `recompute` runs again in the backward pass nothing, the
    attention core ("selective"), parts of layers by name, all but what chosen ops give ("per_op"),
    or layers whole: "full", or "full:N" for the first N layers of a chunk. The classifier and its
    `loss` take a micro-batch's rows in `loss_chunks` chunks, each with its gradients; a "fused"
    loss makes that of logits in place of these. `overlap` names what runs beside compute
    (`workload/overlaps.py`). `precision` is that of all but the layers' linears, which multiply by
    the `recipe`, if there is one (`workload/recipes/table.py`). With `fp8_swiglu_input` what SwiGLU
    reads is kept in 8 bits, with `fp8_params` the weights of linears that multiply in 8 bits,
    without copies of 16 bits.
    """

    gradients: str = "fp32"
    moments: str = "fp32"
    master: str = "fp32"
    optimizer: str = "adamw"
    offload: str = "none"
    offload_share: float = 1.0
    attention: str = "flash"
    matmul_forms: str = "plain"
    recompute: str = "none"
    loss: str = "plain"
    loss_chunks: int = 1
    overlap: tuple[str, ...] = OVERLAPS
    precision: str = "bf16"
    recipe: str = "none"
    fp8_swiglu_input: bool = False
    fp8_params: bool = False


@record(kw_only=True)
class PlanFields(Flat):
    """How one training step is split: the sizes of the grid's axes, and parts with all else.

    `tp`, `y` and `z` are the axes of 3D tensor parallelism, x, y and z of AxoNN; other frameworks
    have `tp` alone. `pp` counts pipeline stages of `vpp` chunks each. `dp` is the data-parallel
    axis, and `cp` splits each sequence. `ep` ranks, neighbours on cp and then on dp, hold different
    experts of a layer each; each of its matrices is split over tp and y as others are, unless `etp`
    says over how many ranks beside y: fewer than tp leave ranks of it to hold different experts, or
    the same, more are neighbours on cp and dp as well (`workload/splits/experts.py`). `batch`
    counts the sequences of a step; `mbs` those that one device pushes through the model at a time
    (z and dp split the batch, ranks of tp and y see the same sequences). With `sp`, sequence
    parallelism, norms and the residual stream are split over tp by rows. `zero` shards over dp and
    cp what z has not yet: 1 the optimizer state, 2 also gradients, 3 also parameters; with `shard`
    only over that many neighbours on dp, in copies over the rest, where such a run must hold all
    experts. `reshard` drops gathered weights after the forward pass. `order` places ranks on the
    axes: the first one's neighbours have neighbouring ranks.
    """

    tp: int = 1
    y: int = 1
    z: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    dp: int = 1
    batch: int
    mbs: int
    sp: bool = False
    zero: int = 0
    shard: int = 0
    reshard: bool = True
    pipeline: Pipeline = Pipeline()
    context: Context = Context()
    experts: Experts = Experts()
    training: Training = Training()
    order: str = USUAL

    @property
    def sizes(self) -> dict[str, Any]:
        """What overlaps matter by (`workload/overlaps.py`), with no sums over rows of tp."""
        found = {axis: getattr(self, axis) for axis in AXES}
        shard = self.shard or self.dp
        return {**found, "zero": self.zero, "shard": shard, "ep": self.ep, "sums_rows": 0}

    @property
    def in_pairs(self) -> bool:
        """Whether stages run a forward and a backward pass in turns (`workload/pipeline/pairs.py`);
        without a pipeline a pass over the whole step does it."""
        return "a2a" in self.training.overlap and self.pp > 1

    @property
    def expert_parts(self) -> int:
        """Over how many ranks an expert's matrices are split beside y."""
        return self.etp or self.tp

    @property
    def cells(self) -> int:
        """Into how many parts a step's sequences are split."""
        parts: int = prod(getattr(self, axis) for axis in SHARDS["sequences"])
        return parts * ways(self.pipeline.schedule)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a rank runs in one step, in each direction if there are two."""
        return self.batch // (self.cells * self.mbs)

    @property
    def has_even_turns(self) -> bool:
        """Whether chunks that take turns get as many micro-batches each as there are stages."""
        turns = self.vpp > 1 and self.pipeline.schedule not in V_SHAPED
        return not turns or self.micro_batches % self.pp == 0

    @property
    def is_3d(self) -> bool:
        """Whether tensor parallelism has more than one axis, which AxoNN calls x, y and z."""
        return self.y > 1 or self.z > 1


PlanFields.PARTS = {
    "pipeline": Pipeline,
    "context": Context,
    "experts": Experts,
    "training": Training,
}
PlanFields.KEYS = KEYS = keys_of(PlanFields, PlanFields.PARTS)
DEFAULTS = {key: each.default for key, each in KEYS.items() if each.default is not MISSING}
