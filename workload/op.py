"""Ops and buffers: the words a program is written in."""

from __future__ import annotations

from dataclasses import field, fields
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from topologies.records import record
from workload.kinds import ATTENTIONS, BROADCAST, COLLECTIVES, COMMUNICATION, MESSAGES
from workload.op_attributes import Attributes
from workload.transport import IN_STEPS, PLAIN, Transport

COMPUTE = "compute"
STEPS: Final = "steps"  # of an all-to-all: 2 inside nodes first, then across; 1 whatever the nodes
TRANSPORT: Final = "transport"  # and: how it travels, where kernels of a stack's own send it
PLACES: Final = "places_searched"  # of a sort of rows: how many it looks through for each
ELEMENTS: Final = "elements"  # of an op that takes so long for each, and
COUNTED: Final = "counted_as"  # the name under which its stack has how long
FOR_NODES: Final = "for_nodes"  # and: a token's row goes once to each node, there or back
THERE, BACK = "there", "back"
NONE = -1  # no micro-batch, layer or chunk
TURNED: Final = "turned"  # of a message's attributes: between chunks that stand the other way round
PAIRS = "pairs"  # in `Op.traffic`: all members of a group send to each other
CAUSAL: Final = "causal"  # of their attributes: False where half of the square has none of the mask
BUSIEST: Final = "busiest"  # how many times its FLOPs the rank has that has most
LONGEST: Final = "longest"  # and how many times its mean block of queries the longest takes
KERNELS: Final = "kernels"  # of an op that one call issues, how many there are on the device
QUERIES: Final = "queries"  # rows of all heads of a rank, where an op's FLOPs do not say
FORMS = ("NN", "NT", "TN")
ITEM_BYTES = {
    "fp8": 1,
    "uint8": 1,
    "bf16": 2,
    "fp16": 2,
    "uint16": 2,
    "fp32": 4,
    "fp64": 8,
    "int64": 8,
}
ACROSS_STAGES = frozenset(("pp", "ends", "opposite"))  # axes of ranks of several stages
ROLES = ("parameters", "gradients", "optimizer", "activations", "gathered", "workspace", "host")
HOST = ROLES[-1]
HOST_STREAM = "host_adamw"  # of what the host's processors do: the update, and what it reads
NO_ATTRIBUTES = cast(Attributes, MappingProxyType({}))

# What of a layer an op belongs to (`Op.module`): the mixer with the norm before it, and all without
# a module of its own; the router with the norm before it and the MLP that all tokens pass; the
# counting of each expert's rows; the MLP or experts; and what leads into the first layer of a depth
# that predicts further tokens, and follows its last one.
MIXER, ROUTING, COUNTING, FEED_FORWARD = "", "routing", "counting", "feed_forward"
AROUND_DEPTH = "around_depth"

FORWARD, RECOMPUTE, BACKWARD, WEIGHT = "forward", "recompute", "backward", "weight"
PERTURB = "perturb"

# What collectives, and some ops around them, are for: passes and bounds go by it.
WEIGHT_FETCH = "weight_fetch"  # a rank's part of a weight, copied from the host
WEIGHT_GATHER = "weight_gather"  # a linear's weight, or a table, made whole
SOURCE_GATHER = "source_gather"  # rows of a linear's input, for its weight's gradient
INPUT_GRAD = "input_grad"  # the matmul of a linear's input gradient
INPUT_GRAD_REDUCE = "input_grad_reduce"  # and its sum
WEIGHT_GRAD = "weight_grad"  # the matmul of a weight's gradient
GRAD_SCATTER = "grad_scatter"  # and its sum, each rank keeping a part
ADD_SCATTERED = "add_scattered"  # the addition of that part to the gradient
GRADIENT_SEND = "gradient_send"  # and what brings the sum to the host
BUCKET_SCATTER = "bucket_scatter"  # gradients of many parameters, summed at the end over S
BUCKET_REDUCE = "bucket_reduce"  # and over the copies
LOSS_REDUCE = "loss_reduce"  # the sum of all ranks' losses
NORM_REDUCE = "norm_reduce"  # and of what the gradient norm is the root of
EXPERT_DISPATCH = "expert_dispatch"  # rows on their way to the ranks of their experts
EXPERT_COMBINE = "expert_combine"  # and the experts' outputs on their way back
BY_MASKS = "by_masks"  # rows brought to places of experts, or back, by a product with a mask
KEYS_EXCHANGE = "keys_exchange"  # what mixers need of other parts of sequences, or gradients
PARAMETER_GATHER = "parameter_gather"  # parameters whose parts were updated apart
SLOPE_GATHER = "slope_gather"  # the projected gradients of all replicas
WEIGHT_CAST = "weight_cast"  # updated weights in the format that linears multiply in


class Part(NamedTuple):
    """A part of the model: "layer" with its number, "embed", "head"; or "", all of the model."""

    kind: str = ""
    layer: int = NONE

    @property
    def is_layer(self) -> bool:
        """Whether it is one of the layers."""
        return self.layer >= 0

    def __str__(self) -> str:
        return f"l{self.layer}" if self.is_layer else self.kind


def layer_part(number: int) -> Part:
    """A layer, by its number in the whole model."""
    return Part("layer", number)


MODEL, EMBED, HEAD = Part(), Part("embed"), Part("head")
Identity = tuple[int, Part, bool, str]  # micro-batch, part, whether it is recomputed, label


class Block(NamedTuple):
    """A run of ops: a part of the model in a phase of one micro-batch; what stands around the
    messages of a chunk, by the chunk's number in the whole model; or, of no micro-batch, the end of
    the step.

    Blocks that are `deferred` have the gradients of weights alone, in a slot of their own.
    """

    micro_batch: int = NONE
    part: Part = MODEL
    phase: str = ""
    deferred: bool = False
    chunk: int = NONE

    @property
    def work(self) -> str:
        """Which work of a slot it belongs to: "forward", "backward", "weight" or "perturb"."""
        if self.deferred or self.phase == WEIGHT:
            return WEIGHT
        if self.phase == PERTURB:
            return PERTURB
        return FORWARD if self.phase in (FORWARD, "") else BACKWARD

    @property
    def is_recomputed(self) -> bool:
        """Whether it runs once more what the forward pass ran, whatever slot it is in."""
        return self.phase == RECOMPUTE

    def __str__(self) -> str:
        """Its name: `m0.l3.backward`, `m0.head`, `m0.c2.forward` around messages, `step`."""
        if self.micro_batch < 0:
            return "step"
        if self.chunk >= 0:
            return f"m{self.micro_batch}.c{self.chunk}.{self.phase}"
        words = [f"m{self.micro_batch}", str(self.part)]
        plain = self.phase == FORWARD and not self.part.is_layer
        if not plain and not (self.deferred and self.phase == BACKWARD):
            words.append(self.phase)
        return ".".join([*words, "weight"] if self.deferred else words)


STEP = Block()  # what closes a step: sums of gradients, norm, clipping, the update


@record
class Buffer:
    """A named tensor of one rank.

    `role` says what it counts as in the memory report; what has the role "host" lies in the host's
    memory and takes none of the device's. A `persistent` buffer exists before and
    after the step; any other lives from the op that first writes it to the last op that needs it.
    `replicas` is the number of ranks of the whole grid that hold the same values. What belongs to a
    parameter (itself, its gradient, its states) has its name in `parameter`, and the `part` of the
    model that is updated with it; a micro-batch's inputs have their `micro_batch`. Where data
    decides how many rows there are, `rows_of` names the buffer whose sum that is, and the shape has
    the number that is expected. With (n, more) in `rows_in` there is a first index for each n whole
    rows, and so many more: room for the last blocks of experts, which rows do not fill. Where a few
    layers stand for all (`workload/lowering/few_layers.py`), it does so for `count` layers' such
    buffers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    persistent: bool = False
    replicas: int = 1
    parameter: str = ""
    part: Part = MODEL
    micro_batch: int = NONE
    rows_of: str = ""
    rows_in: tuple[int, int] = (1, 0)
    count: int = 1

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_parameter(self) -> bool:
        """Whether it is what a rank holds of a parameter, on the device or on the host."""
        return bool(self.parameter) and self.name == self.parameter

    @property
    def is_state(self) -> bool:
        """Whether it is a state of the update, or a master copy, on the device or on the host."""
        others = self.parameter, f"{self.parameter}.grad"
        kept = self.persistent and bool(self.parameter) and self.role in ("optimizer", HOST)
        return kept and self.name not in others


@record
class Op:
    """One thing that a rank does in a step.

    A collective or message has `axes` (its group) and its payload in `nbytes`: the gathered size of
    an all-gather, the input of a reduce-scatter, the buffer of an all-reduce or broadcast, all that
    a rank sends in an all-to-all (of which one of p equal parts, along dimension 0, stays with it),
    the message; in a ring shift each member sends its buffer to the next one and gets that of the
    one before.
    Any other op has the memory traffic in `nbytes` (each operand once) and, if it multiplies
    matrices, `flops`. `replicas` ranks of the grid compute the very same thing. An op that names a
    buffer both in `reads` and in `writes` works in place. `block` is the run of ops it is issued
    in, `attributes` what a kernel must know beyond its operands.

    What it works for is said by `micro_batch` and `part` (which differ from its block's where it
    was moved, and at the step's end), what it is by `label` and, where that matters to others, by
    `purpose`. `name` is printed from these (`workload/naming.py`). `launches` is how many kernels
    the host issues for it; 0: it runs inside a neighbour's kernel.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    block: Block = STEP
    stream: str = COMPUTE
    axes: tuple[str, ...] = ()
    nbytes: int = 0
    flops: int = 0
    replicas: int = 1
    dtype: str = "bf16"
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)
    micro_batch: int = NONE
    part: Part = MODEL
    label: str = ""
    purpose: str = ""
    launches: int = 1
    module: str = MIXER

    @property
    def is_collective(self) -> bool:
        """Whether a group of ranks meets in this op."""
        return self.kind in COLLECTIVES or self.kind == BROADCAST

    @property
    def is_message(self) -> bool:
        """Whether this op sends to another pipeline stage, or receives from one.

        Its attributes are `tag`, the same on both sides, `peer`, how many stages further the other
        side is, and `link`, the earlier of the two stages in the ring of stages.
        """
        return self.kind in MESSAGES

    @property
    def communicates(self) -> bool:
        """Whether this op moves data between ranks."""
        return self.kind in COMMUNICATION

    @property
    def transport(self) -> Transport:
        """How a collective or message travels."""
        how = self.attributes
        return how.get(TRANSPORT) or (IN_STEPS if how.get(STEPS, 1) > 1 else PLAIN[self.kind])

    @property
    def is_recomputed(self) -> bool:
        """Whether this op runs once more what the forward pass ran, whatever slot it is in."""
        return self.block.is_recomputed

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The sizes of a product of matrices."""
        how = self.attributes
        return how["m"], how["n"], how["k"]

    @property
    def kernel(self) -> str:
        """What performs it: its kind, and of attention on a part of each sequence how keys come
        there ("attention.ring"), and that none is masked ("attention.ring.unmasked")."""
        if self.kind not in ATTENTIONS or "context" not in self.attributes:
            return self.kind
        unmasked = "" if self.attributes.get(CAUSAL, True) else ".unmasked"
        return f"{self.kind}.{self.attributes['context']}{unmasked}"

    @property
    def is_beyond_model(self) -> bool:
        """Whether its FLOPs are none of the model's: of recomputation, the update, or masks."""
        return self.block.is_recomputed or self.block == STEP or self.purpose == BY_MASKS

    @property
    def identity(self) -> Identity:
        """What tells it from all others of its program."""
        again = self.micro_batch >= 0 and self.block.is_recomputed
        return self.micro_batch, self.part, again, self.label

    @property
    def direction(self) -> str:
        """Of a message, whether it goes forward through the model or backward."""
        forward = (self.attributes["peer"] > 0) == (self.kind == "send")
        return FORWARD if forward != self.is_turned else BACKWARD

    @property
    def is_turned(self) -> bool:
        """Of a message, whether it is one between chunks that stand the other way round, in the
        second half of a V."""
        return TURNED in self.attributes

    @property
    def time_key(self) -> str:
        """How the time that compute waits for it is reported: by its axes ("x", "z+dp"), else by
        its stream."""
        return "+".join(self.axes) or self.stream

    @property
    def group(self) -> tuple[str, ...]:
        """Whom it concerns, as `Grid.groups` understands it."""
        return (f"link{self.attributes['link']}",) if self.is_message else self.axes

    @property
    def traffic(self) -> tuple[str, ...]:
        """Whom it concerns and in which way: its group, and PAIRS behind it where all members send
        to each other, in place of to the next one round a ring."""
        return (*self.axes, PAIRS) if self.kind == "all_to_all" else self.group


_VALUES = attrgetter(*(each.name for each in fields(Op)))


def altered(op: Op, **changes: Any) -> Op:
    """The op with other values of some fields: as `replace`, in a third of the time."""
    other = Op(*_VALUES(op))
    for name, value in changes.items():
        setattr(other, name, value)
    return other
