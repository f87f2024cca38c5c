"""Behaviour of software stacks as passes: what a framework makes of the ops of a slot or step.

Each pass rewrites ops of the program, so that volumes, memory and the list of ops are those of the
stack. Our executor has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from topologies.records import record
from workload.exchange.kernels import ExchangeKernels, by_exchange_kernels
from workload.exchange.own_rows import of_own_rows
from workload.held import NOTHING_HELD, Held
from workload.moving import as_sent
from workload.op import Buffer, Op
from workload.passes.accumulation import inside_neighbours
from workload.passes.coalesced import coalesced
from workload.passes.context_steps import in_context_steps
from workload.passes.copies import Rates, copied_around, forward_gathers_ahead
from workload.passes.elements import with_elements
from workload.passes.kinds_in_steps import in_kernels
from workload.passes.one_by_one import one_by_one
from workload.passes.reduce_scatters import in_dtype_of_sums
from workload.passes.whole_owners import by_whole_owners
from workload.recipes.cast_kernels import INSIDE, CastKernels

SUMS, TRAINING = "gradients", "training"  # dtypes in which gradients are reduced
Shares = tuple[tuple[str, float], ...]
Buffers = dict[str, Buffer]
Rewritten = tuple[list[Op], Buffers]


@record
class StackBehaviour:
    """What a stack does unlike one kernel for every op of the program.

    `fused` names kinds or labels of ops that run inside a neighbour's kernel. `casts` are the
    kernels that cast for a plan whose recipe is the stack's own fp8. `passes` has,
    for a kind of op made of several kernels, how often as many bytes go through memory as through
    one kernel, `launches` how many kernels the host issues. `payloads` has, for a kind of
    collective, how many bytes the stack sends for each of the program's: another data type, or sent
    more often. `scatter_gather` has the directions, "forward" and "backward", whose messages
    between stages each rank of x sends a part of, and the parts are gathered where they arrive.
    `messages` names the framework in whose order messages between stages are posted and awaited
    (`workload/pipeline/message_order.py`), or is "".
    With `gathers_ahead` weights of the forward pass alone are gathered one linear ahead; `copies`
    has what goes through memory around ops besides (`workload/passes/copies.py`).
    With `coalesced` gradients of all parts are summed, and parameters gathered, in one collective;
    with `one_by_one` gradients of each parameter in a collective of their own.
    With `context_steps` gathered keys are attended to in the steps of a ring
    (`workload/passes/context_steps.py`). With `own_rows` ranks that split experts send their own
    rows to these (`workload/exchange/own_rows.py`). With `early_stop` a recomputed layer
    ends with the last value that its backward pass needs. `exchange_kernels` are kernels that send
    experts' rows themselves (`workload/exchange/kernels.py`), where they do.
    `launches_of_slice` is how many kernels a stack launches behind a step for each slice of a
    weight, one for each rank of data. `held` is what it holds in memory unlike others.
    `reduce_dtype` says in what gradients of a micro-batch are
    reduced: SUMS, as they are summed, or TRAINING, as they are computed. With `once_a_step` stages
    of pipelines sum gradients whole, which data reduces behind the last micro-batch, whatever
    ZeRO shards, and gather weights once that they keep after the forward pass; others stay
    whole from a backward pass to the next forward pass. `counted` names ops that take a time for
    each element (`workload/passes/elements.py`).
    """

    fused: tuple[str, ...] = ()
    casts: CastKernels = INSIDE
    passes: Shares = ()
    payloads: Shares = ()
    launches: tuple[tuple[str, int], ...] = ()
    scatter_gather: tuple[str, ...] = ()
    messages: str = ""
    launches_of_slice: int = 0
    early_stop: bool = False
    gathers_ahead: bool = False
    coalesced: bool = False
    one_by_one: bool = False
    whole_owners: bool = False
    copies: tuple[tuple[str, Rates], ...] = ()
    context_steps: bool = False
    own_rows: bool = False
    exchange_kernels: ExchangeKernels | None = None
    held: Held = NOTHING_HELD
    reduce_dtype: str = TRAINING
    once_a_step: bool = False
    counted: tuple[str, ...] = ()


PLAIN_BEHAVIOUR = StackBehaviour()


def of_lowering(behaviour: StackBehaviour) -> StackBehaviour:
    """The behaviour that lowering itself heeds, before overlaps and all other behaviour: kernels
    for the slices of weights, where a recomputed layer ends, what is held in memory, and what
    pipelines do once a step."""
    return replace(
        PLAIN_BEHAVIOUR,
        launches_of_slice=behaviour.launches_of_slice,
        early_stop=behaviour.early_stop,
        held=behaviour.held,
        once_a_step=behaviour.once_a_step,
    )


def fuse(ops: Sequence[Op], buffers: Mapping[str, Buffer], behaviour: StackBehaviour) -> Rewritten:
    """Ops inside a neighbour's kernel."""
    return inside_neighbours(ops, buffers, behaviour.fused), {}


def with_copies(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], behaviour: StackBehaviour
) -> Rewritten:
    """Kernels that copy and cast around ops."""
    return copied_around(ops, buffers, dict(behaviour.copies)), {}


def by_kernels(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], behaviour: StackBehaviour
) -> Rewritten:
    """Experts' rows as kernels leave them that send them themselves."""
    own = behaviour.exchange_kernels or ExchangeKernels(1.0)
    return by_exchange_kernels(ops, buffers, own), {}


@record
class StackPass:
    """One pass: `matters` says of the behaviour of a stack whether it has this one.

    `scope` is what the pass goes over: the "ops" of a program (`rewrites`), or "messages" and the
    "step", whose lowering does it itself.
    """

    name: str
    words: str
    source: str
    scope: str
    matters: Callable[[StackBehaviour], bool]
    rewrites: Callable[[Sequence[Op], Mapping[str, Buffer], StackBehaviour], Rewritten] | None = (
        None
    )


STACK_PASSES = (
    StackPass(
        name="reduce_dtype",
        words="gradients of each micro-batch reduced in the dtype in which they are summed",
        source="pytorch/pytorch, torch/distributed/fsdp, MixedPrecisionPolicy.reduce_dtype",
        scope="ops",
        matters=lambda behaviour: behaviour.reduce_dtype == SUMS,
        rewrites=lambda ops, buffers, _: in_dtype_of_sums(ops, buffers),
    ),
    StackPass(
        name="gathers_ahead",
        words="weights of the forward pass alone gathered one linear ahead",
        source="axonn-ai/nanoGPT-AxoNN@performance-variability, train_frontier.py: "
        "optimize_communication around the forward pass",
        scope="ops",
        matters=lambda behaviour: behaviour.gathers_ahead,
        rewrites=lambda ops, _, __: (forward_gathers_ahead(ops), {}),
    ),
    StackPass(
        name="coalesced",
        words="gradients of all parts summed, and parameters gathered, in one collective",
        source="huggingface/nanotron, src/nanotron/distributed.py, reduce_scatter_coalesced and "
        "all_gather_coalesced: one collective of flattened tensors",
        scope="ops",
        matters=lambda behaviour: behaviour.coalesced,
        rewrites=lambda ops, buffers, _: (coalesced(ops, buffers), {}),
    ),
    StackPass(
        name="one_by_one",
        words="gradients of each parameter summed over copies in a collective of their own",
        source="axonn-ai/axonn@660a224, axonn/intra_layer/__init__.py, "
        "sync_gradients_data_parallel: a blocking all-reduce for each parameter",
        scope="ops",
        matters=lambda behaviour: behaviour.one_by_one,
        rewrites=lambda ops, buffers, _: (one_by_one(ops, buffers), {}),
    ),
    StackPass(
        name="whole_owners",
        words="every parameter updated whole by one rank, which broadcasts it",
        source="InternLM/InternEvo@c628a8c, internlm/solver/optimizer/hybrid_zero_optim.py, "
        "broadcast_params",
        scope="ops",
        matters=lambda behaviour: behaviour.whole_owners,
        rewrites=lambda ops, buffers, _: (by_whole_owners(ops, buffers), {}),
    ),
    StackPass(
        name="context_steps",
        words="attention on gathered keys in the steps of a ring, their gradients around it",
        source="pytorch/pytorch, torch/distributed/tensor/experimental/_attention.py",
        scope="ops",
        matters=lambda behaviour: behaviour.context_steps,
        rewrites=lambda ops, buffers, _: in_context_steps(ops, buffers),
    ),
    StackPass(
        name="copies",
        words="copies and casts around ops in kernels of their own",
        source="simulator/stacks/axonn-easy.toml, by the kernels of its modules",
        scope="ops",
        matters=lambda behaviour: bool(behaviour.copies),
        rewrites=with_copies,
    ),
    StackPass(
        name="fusion",
        words="ops that run inside a neighbour's kernel",
        source="validation/data/dialects.toml, for each framework",
        scope="ops",
        matters=lambda behaviour: bool(behaviour.fused),
        rewrites=fuse,
    ),
    StackPass(
        name="steps",
        words="ops that are several kernels",
        source="validation/data/dialects.toml, for each framework",
        scope="ops",
        matters=lambda behaviour: bool(behaviour.passes or behaviour.launches),
        rewrites=lambda ops, _, own: (in_kernels(ops, dict(own.passes), dict(own.launches)), {}),
    ),
    StackPass(
        name="own_rows",
        words="ranks of tensor parallelism send their own rows to experts, and gather what came",
        source="NVIDIA/Megatron-LM core_v0.12.0, megatron/core/transformer/moe/token_dispatcher.py",
        scope="ops",
        matters=lambda behaviour: behaviour.own_rows,
        rewrites=lambda ops, buffers, _: (of_own_rows(ops, buffers), {}),
    ),
    StackPass(
        name="wire",
        words="collectives in another data type, or sent more often",
        source="validation/data/dialects.toml, for each framework",
        scope="ops",
        matters=lambda behaviour: bool(behaviour.payloads),
        rewrites=lambda ops, _, behaviour: (as_sent(ops, dict(behaviour.payloads)), {}),
    ),
    StackPass(
        name="exchange_kernels",
        words="kernels that send experts' rows themselves, and copy them where they come",
        source="deepseek-ai/DeepEP@34152ae, csrc/hybrid_ep; docs/README_Hybrid-EP.md @94a9f8f",
        scope="ops",
        matters=lambda behaviour: behaviour.exchange_kernels is not None,
        rewrites=by_kernels,
    ),
    StackPass(
        name="counted",
        words="ops whose kernels take a time for each element, as sums by atomic additions do",
        source="pytorch/pytorch, aten/src/ATen/native/cuda/Indexing.cu and ScatterGatherKernel.cu",
        scope="ops",
        matters=lambda behaviour: bool(behaviour.counted),
        rewrites=lambda ops, buffers, own: (with_elements(ops, buffers, own.counted), {}),
    ),
    StackPass(
        name="scatter_gather",
        words="messages between stages in parts over several NICs",
        source="Narayanan et al. (SC21), section 4.1; microsoft/DeepSpeed, "
        "runtime/pipe/engine.py, is_pipe_partitioned and is_grad_partitioned",
        scope="messages",
        matters=lambda behaviour: bool(behaviour.scatter_gather),
    ),
    StackPass(
        name="messages",
        words="messages between stages that compute waits for on both sides, as in DeepSpeed "
        "everywhere and in Megatron where passes of one direction follow each other",
        source="deepspeedai/DeepSpeed, deepspeed/runtime/pipe/engine.py; NVIDIA/Megatron-LM, "
        "megatron/core/pipeline_parallel/schedules.py",
        scope="messages",
        matters=lambda behaviour: bool(behaviour.messages),
    ),
    StackPass(
        name="slices",
        words="kernels for the slices of weights one by one",
        source="github.com/huggingface/nanotron, ZeroDistributedOptimizer",
        scope="step",
        matters=lambda behaviour: bool(behaviour.launches_of_slice),
    ),
    StackPass(
        name="early_stop",
        words="recomputation that ends with the last value that the backward pass needs",
        source="pytorch/pytorch, torch/utils/checkpoint.py, set_checkpoint_early_stop: on by "
        "default where use_reentrant is off",
        scope="step",
        matters=lambda behaviour: behaviour.early_stop,
    ),
    StackPass(
        name="once_a_step",
        words="in pipelines gradients reduced over data, and kept weights gathered, once a step",
        source="pytorch/pytorch, torch/distributed/pipelining/stage.py, "
        "backward_maybe_with_nosync: set_requires_gradient_sync(False) but for the last",
        scope="step",
        matters=lambda behaviour: behaviour.once_a_step,
    ),
)


def with_behaviour(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], behaviour: StackBehaviour
) -> Rewritten:
    """The ops as a stack performs them, and the buffers that this takes."""
    result, added = list(ops), dict[str, Buffer]()
    for each in STACK_PASSES:
        if each.rewrites is not None and each.matters(behaviour):
            result, more = each.rewrites(result, buffers, behaviour)
            added |= more
    return result, added
