"""Kinds of ops: what each is, in one row, for all who ask.

A kind says what an op does to its operands. Everything else that depends on it (how its time is
modelled, what it is measured as, under which name reports file it) is a column here; only the
kernel that performs it stands elsewhere, in `executor/kernels`. An op of a kind that has no row is
a mistake, which `KINDS[...]` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from topologies.records import record
from workload.model.fields import GATED

# Names that emission, passes and networks compare with.
RING_SHIFT, BROADCAST, SEND, RECV = "ring_shift", "broadcast", "send", "recv"
OWN_PLACES = "own_places"  # which choices of all tokens own experts are
QUANTISE_ROWS, DEQUANTISE_ROWS = "quantise_rows", "dequantise_rows"
LAUNCHES = "launches"  # kernels whose bytes are those of another op
GRAD = "_grad"  # behind the name of a kind: its gradient's
Columns = dict[str, Any]


class Work(Enum):
    """Class of work, by the words with which a critical path files it."""

    MATMULS = "matmuls"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise kernels"
    ROWS = "permutation of experts' rows"
    ROUTING = "routing"
    CASTS = "casts to 8 or 4 bits"
    ALL_GATHERS = "all-gathers"
    REDUCE_SCATTERS = "reduce-scatters"
    ALL_REDUCES = "all-reduces"
    BROADCASTS = "broadcasts"
    ALL_TO_ALLS = "all-to-alls"
    RING_SHIFTS = "ring shifts"
    MESSAGES = "messages"


# Filed under their own names, also at the step's end.
BY_THEMSELVES = (Work.ROWS, Work.ROUTING, Work.CASTS)


class Costs(Enum):
    """Cost family: which formula of the analytic model times an op (simulator/costs)."""

    NETWORK = "a collective or message, which the network times"
    PRODUCT = "2 m n k FLOPs at a rate by shape"
    ATTENTION = "fused attention"
    SCAN = "the scan of a Mamba-2 layer, kernel by kernel"
    CONVOLUTION = "its convolution"
    GROUP_NORM_GRAD = "the gradient of its norm, row by row"
    MEMORY = "bytes at a share of the memory's bandwidth"
    LAUNCH = "launches alone"
    HOST_COPY = "bytes between the host and the device"
    HOST = "bytes at the rate of the host's processors"


class Roofline(Enum):
    """Under which name a roofline counts an op that multiplies nothing."""

    NORMS = "norms"
    SOFTMAX = "softmax"
    ACTIVATIONS = "activation functions"
    CONVOLUTIONS = "convolutions"
    DROPOUT = "dropout"
    ACCUMULATION = "gradient accumulation"
    LOSS = "loss"
    EMBEDDING = "embedding"
    OTHERS = "other elementwise"


class Sampled(Enum):
    """In which small programs a calibration measures a kind."""

    ANY = "any that has it"
    CONTEXT = "of sequences split over ranks, whose place on the axis it needs"
    EXPERTS = "of experts that other ranks send rows to"
    NEVER = "none: it takes no time, or has a measurement of its own"


@record
class Kind:
    """A row.

    `share` is the name by which a machine's file knows the share of the memory's bandwidth that the
    kernel reaches (its own where that is empty), `share_otherwise` that of widths for which a stack
    has no kernels of their own. A norm that `is_norm` may run as several kernels. `measured_as` is
    the kind that moves as many bytes in the same way, whose measured times serve where a profile
    has none of this one. The host issues all kinds but those that are not `issued`.
    """

    name: str
    work: Work = Work.ELEMENTWISE
    costs: Costs = Costs.MEMORY
    share: str = ""
    share_otherwise: str = ""
    is_norm: bool = False
    measured_as: str = ""
    roofline: Roofline = Roofline.OTHERS
    sampled: Sampled = Sampled.ANY
    issued: bool = True

    @property
    def gradient(self) -> Kind:
        """The row of its gradient, with those of what it is like."""
        named = ("name", "share", "share_otherwise", "measured_as")
        like = {key: own + GRAD for key in named if (own := getattr(self, key))}
        return replace(self, **like)


class _Kinds(dict[str, Kind]):
    def __missing__(self, name: str) -> Kind:
        raise LookupError(f"{name} is no kind of op: workload/kinds.py has no row of it")


def _rows(*names: str, **columns: Any) -> Iterator[Kind]:
    """Kinds that have all columns alike."""
    return (Kind(name, **columns) for name in names)


def _with_gradients(*kinds: Kind) -> Iterator[Kind]:
    for kind in kinds:
        yield from (kind, kind.gradient)


def _network() -> Iterator[Kind]:
    """What moves data between ranks."""
    about: Columns = {"costs": Costs.NETWORK, "sampled": Sampled.NEVER}
    yield from _rows("all_gather", work=Work.ALL_GATHERS, **about)
    yield from _rows("reduce_scatter", work=Work.REDUCE_SCATTERS, **about)
    yield from _rows("all_reduce", work=Work.ALL_REDUCES, **about)
    yield from _rows("all_to_all", work=Work.ALL_TO_ALLS, **about)
    yield from _rows(RING_SHIFT, work=Work.RING_SHIFTS, **about)
    yield from _rows(BROADCAST, work=Work.BROADCASTS, **about)  # of stacks alone
    yield from _rows(SEND, RECV, work=Work.MESSAGES, issued=False, **about)


def _products() -> Iterator[Kind]:
    """What multiplies matrices, and its operands on the way there."""
    about: Columns = {"work": Work.MATMULS, "costs": Costs.PRODUCT}
    yield from _rows("matmul", "grouped_matmul", "stacked_matmul", sampled=Sampled.NEVER, **about)
    yield from _rows("batched_matmul", **about)
    yield from _rows("transpose", "merge_columns", "take_columns", "split_columns", "join_columns")
    casts = ("amax", "quantise", "update_scales", QUANTISE_ROWS, DEQUANTISE_ROWS)
    yield from _rows(*casts, work=Work.CASTS)
    yield from _rows("cast", measured_as="add", sampled=Sampled.EXPERTS)
    yield from _rows("bias", "column_sum", "slice", "copies")


def _attention() -> Iterator[Kind]:
    """Attention, whole or by its parts, and what stands around it."""
    attention = Kind("attention", Work.ATTENTION, Costs.ATTENTION)
    softmax = Kind("softmax", roofline=Roofline.SOFTMAX)
    yield from _with_gradients(attention, softmax, Kind("rope"), Kind("latent_qkv"))
    context: Columns = {"sampled": Sampled.CONTEXT}
    yield from _with_gradients(*_rows("latent_turn", "latent_keys", **context))
    yield from _rows("take_keys", "put_keys", "merge_attention", **context)
    yield from _rows("split_heads", "join_heads", "split_tokens", "join_tokens", **context)


def _norms() -> Iterator[Kind]:
    """Norms, also in two steps where ranks have a part of each row."""
    about: Columns = {"share": "layernorm", "roofline": Roofline.NORMS}
    whole: Columns = {"share_otherwise": "general_norm", "is_norm": True, **about}
    layernorm = Kind("layernorm", **(whole | {"share": ""}))
    yield from _with_gradients(layernorm, Kind("rmsnorm", **whole))
    yield from _with_gradients(Kind("head_norm", is_norm=True, **about))
    group_norm = Kind("group_norm", measured_as="rmsnorm", **about)
    yield group_norm
    yield replace(group_norm.gradient, costs=Costs.GROUP_NORM_GRAD)
    for norm in ("layernorm", "rmsnorm"):
        parts = ("_sums", "_apply", "_grad_sums", "_grad_apply")
        yield from _rows(*(f"{norm}{part}" for part in parts), roofline=Roofline.NORMS)


def _activations() -> Iterator[Kind]:
    """Activation functions, those of experts weighted with their scores."""
    about: Columns = {"roofline": Roofline.ACTIVATIONS}
    known = {"gelu": "", "swiglu": "", "squared_relu": "gelu", "clamped_swiglu": "swiglu"}
    assert set(known) > set(GATED), "every activation function that a model may have has a row"
    for name, like in known.items():
        share = "" if name == "gelu" else "gelu"
        yield from _with_gradients(Kind(name, share=share, measured_as=like, **about))
        like_weighted = "" if name == "swiglu" else "weighted_swiglu"
        weighted = Kind(f"weighted_{name}", share="gelu", measured_as=like_weighted, **about)
        yield from _with_gradients(weighted)
    yield from _with_gradients(Kind("output_gate", share="gelu", measured_as="swiglu", **about))


def _mamba() -> Iterator[Kind]:
    """What stands between the linears of a Mamba-2 layer, its norm left out."""
    convolution: Columns = {"costs": Costs.CONVOLUTION, "roofline": Roofline.CONVOLUTIONS}
    yield from _with_gradients(Kind("ssd", costs=Costs.SCAN), Kind("ssd_conv", **convolution))


def _experts() -> Iterator[Kind]:
    """Routing, and rows on their way to experts and back."""
    yield from _with_gradients(Kind("route", Work.ROUTING), Kind("expert_bias"))
    yield from _rows("balance_sums", "balance_loss", "balance_grad", "balance_bias")
    yield from _rows("count_choices")
    yield from _rows("places", "take_rows", "sum_rows", "take_scores", "put_scores", work=Work.ROWS)
    yield from _rows("pad_rows", "unpad_rows", work=Work.ROWS, measured_as="take_rows")
    sent: Columns = {"sampled": Sampled.EXPERTS}
    yield from _rows("sort_rows", "unsort_rows", work=Work.ROWS, measured_as="take_rows", **sent)
    yield from _rows("count_own", OWN_PLACES, **sent)
    yield from _rows("take_weighted_rows", measured_as="take_rows", **sent)
    yield from _rows("sum_weighted_rows", "score_rows", measured_as="sum_rows", **sent)
    yield from _rows("scores_of_places", measured_as="put_scores", **sent)
    yield from _rows("one_hot_places", "weigh_places", "is_nonzero", measured_as="add", **sent)


def _ends() -> Iterator[Kind]:
    """The model's ends: embedding and loss."""
    embedding = _rows("embedding", "position", roofline=Roofline.EMBEDDING)
    yield from _with_gradients(*embedding)
    loss = ("loss_maximum", "loss_sums", "loss_mean", "loss_grad", "fused_loss")
    of_tokens = ("goldfish", "next_targets", "take_chunk", "put_chunk")
    yield from _rows(*loss, *of_tokens, roofline=Roofline.LOSS)
    yield from _rows("kept_mean")


def _updates() -> Iterator[Kind]:
    """Gradients once they are there, and the update."""
    yield from _rows("accumulate", roofline=Roofline.ACCUMULATION)
    yield from _rows("square_sum", "clip_scale", "scale", "adamw", "sgd", "lomo")
    yield from _rows("muon", "muon_momentum", "merge_tiles", "take_tile")
    yield from _rows("perturb", "slope", "slopes_loss", "zeroth_order_update")
    yield from _rows("to_device", "to_host", costs=Costs.HOST_COPY)
    on_host = ("host_adamw", "host_add", "host_scale", "host_square_sum")
    yield from _rows(*on_host, costs=Costs.HOST, issued=False)


def _others() -> Iterator[Kind]:
    yield from _rows("add", "zero")
    yield from _with_gradients(Kind("dropout", roofline=Roofline.DROPOUT))
    yield from _rows(LAUNCHES, costs=Costs.LAUNCH)
    yield from _rows("fence", sampled=Sampled.NEVER, issued=False)


_GROUPS = (
    *(_network, _products, _attention, _norms, _activations, _mamba, _experts, _ends, _updates),
    _others,
)
KINDS = _Kinds((row.name, row) for group in _GROUPS for row in group())


def _named(*costs: Costs) -> tuple[str, ...]:
    return tuple(name for name, row in KINDS.items() if row.costs in costs)


MESSAGES = SEND, RECV
COMMUNICATION = _named(Costs.NETWORK)
# Those that programs have which run here; a broadcast is one of stacks alone.
COLLECTIVES = tuple(name for name in COMMUNICATION if name not in (*MESSAGES, BROADCAST))
MATMULS, ATTENTIONS = _named(Costs.PRODUCT), _named(Costs.ATTENTION)
HOST_KINDS = _named(Costs.HOST)
