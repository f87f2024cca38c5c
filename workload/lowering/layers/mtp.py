"""What predicts further tokens (`workload/models/mtp.py`), depth by depth, on the stage of the
classifier.

The layers of a depth are parts of the model with the numbers that further layers would have. What
leads into the first of them is of its part, what follows the last one of that one's. A depth that
shares the parameters of the first has ops of its own on these, and adds to the gradients that the
depths behind it, whose backward pass comes first, left there. The stage has the embedding's table
too, whose gradients are summed with those of the first stage as a tied table's are, unless it is
the first one. The stream's rows are looked up, joined and put through the linear by each rank of x
alike, or its own ones with sequence parallelism; where y splits their columns these are gathered
for the linear, whose weight has copies there too.
Source: Megatron-Core, transformer/multi_token_prediction.py. Not modelled: its linear split over x.
"""

from __future__ import annotations

from collections.abc import Sequence

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import copied_linear, layer, norm, vocabulary
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.linear import Linear, add_gradient, gather
from workload.models import mtp
from workload.op import AROUND_DEPTH, RECOMPUTE, Part, layer_part


@record
class Saved:
    """Names of what a depth's forward leaves behind for its backward: the tokens looked up, source
    and statistics of its norms, the linear's input and weight, the layers', and the classifier's.
    """

    tokens: str
    embedded: tuple[str, str]
    stream: tuple[str, str]
    joined: str
    weight: str
    layers: tuple[layer.AllSaved, ...]
    head: vocabulary.Head


def declare(b: Builder) -> None:
    """Declare the parameters of all depths, and the embedding's table where it is not yet."""
    vocabulary.declare_shared_embedding(b)
    for depth in range(mtp.depths_held(b.gpt)):
        owners = _parts(b, depth)
        for name in ("enorm", "hnorm"):
            norm.declare(b, f"{owners[0]}.{name}", owners[0])
        copied_linear.declare(b, _linear(b), owners[0])
        for owner in owners:
            layer.declare(b, owner)
        norm.declare(b, f"{owners[-1]}.head_norm", owners[-1])


def forward(b: Builder, source: str) -> list[Saved]:
    """Emit all depths on the stream behind the last layer, up to their losses' gradients."""
    found, tokens = list[Saved](), b.input_name("targets")
    for depth in range(b.gpt.mtp.layers):
        source, saved = _forward(b, depth, source, tokens)
        tokens = saved.head.targets
        found.append(saved)
    return found


def _forward(b: Builder, depth: int, source: str, tokens: str) -> tuple[str, Saved]:
    """Emit a depth, which looks these tokens up; returns the stream behind its layers."""
    parts, owners = _parts(b, depth), _owners(b, depth)
    b.block = b.block._replace(part=parts[0])
    with b.within(AROUND_DEPTH):
        out, saved = _joined(b, owners[0], source, tokens)
    kept = list[layer.AllSaved]()
    for part, owner in zip(parts, owners, strict=True):
        b.block = b.block._replace(part=part)
        out, own = layer.forward(b, owner, out)
        kept.append(own)
    with b.within(AROUND_DEPTH):
        head = vocabulary.head(b, out, norm_of=f"{owners[-1]}.head_norm", further=depth + 1)
    return out, Saved(tokens, *saved, tuple(kept), head)


Joined = tuple[tuple[str, str], tuple[str, str], str, str]  # as `Saved` has them


def _joined(b: Builder, owner: Part, source: str, tokens: str) -> tuple[str, Joined]:
    """Emit what leads into a depth's first layer; returns that, and what is saved of it."""
    weight = gather(b, "mtp.embed", "embed.w", vocabulary.tile(b))
    full = b.tensor("mtp.embed.o", (b.rows, b.gpt.hidden))
    traffic = 2 * b.rows * b.gpt.hidden * b.item_bytes()
    b.op("mtp.embed.lookup", "embedding", [tokens, weight], [full], nbytes=traffic)
    full = rows.reduce(b, "mtp.embed.reduce", full, *b.shards_of("vocabulary"))
    full = vocabulary.take_columns(b, "mtp.embed.columns", full, "mtp.embed.part")
    embedded, stats = norm.forward(b, "enorm", f"{owner}.enorm", full)
    stream, more = norm.forward(b, "hnorm", f"{owner}.hnorm", source)
    pair = (("mtp.e", embedded), ("mtp.h", stream))
    whole = [vocabulary.merge_columns(b, label, part) for label, part in pair]
    count, width = b.buffers[whole[0]].shape
    joined = b.tensor("mtp.joined", (count, 2 * width))
    b.op("mtp.join", "join_columns", whole, [joined])
    out, used = copied_linear.forward(b, _linear(b), owner, joined)
    out = vocabulary.take_columns(b, "mtp.columns", out, "mtp.part")
    return out, ((full, stats), (source, more), joined, used)


def backward(b: Builder, saved: Sequence[Saved], again: str) -> str:
    """Emit the gradients of all depths, the last one first; returns that of the stream behind the
    last layer. `again` says what of their layers is recomputed."""
    more = ""
    for depth in reversed(range(b.gpt.mtp.layers)):
        b.adds = b.gpt.mtp.shared and depth < b.gpt.mtp.layers - 1
        more = _backward(b, depth, saved[depth], more, again)
    b.adds = False
    return more


def _backward(b: Builder, depth: int, saved: Saved, more: str, again: str) -> str:
    """Emit a depth's gradients; `more` is that of its stream from the depth behind it, if any."""
    d = _layers_backward(b, depth, saved, more, again)
    with b.within(AROUND_DEPTH):
        return _joined_grad(b, _owners(b, depth)[0], saved, d, more)


def _joined_grad(b: Builder, owner: Part, saved: Saved, d: str, more: str) -> str:
    """Emit the gradients of what leads into a depth's first layer from `d`, that of this layer's
    input; returns that of the stream."""
    d = vocabulary.merge_columns(b, "mtp.grad", d)
    d = copied_linear.backward(b, _linear(b), owner, saved.joined, "", d)
    count, width = b.buffers[d].shape
    names = "mtp.de", "mtp.dh"
    whole = [b.tensor(name, (count, width // 2)) for name in names]
    b.op("mtp.split", "split_columns", [d], whole)
    embedded, stream = (
        vocabulary.take_columns(b, f"{name}.columns", each, f"{name}.part")
        for name, each in zip(names, whole, strict=True)
    )
    norm.backward(b, "enorm", f"{owner}.enorm", saved.embedded, embedded)
    norm.backward(b, "hnorm", f"{owner}.hnorm", saved.stream, stream)
    embedded = rows.gather(b, "mtp.embed.grad.rows", embedded)
    embedded = vocabulary.merge_columns(b, "mtp.embed.grad", embedded)
    full = b.tensor("mtp.embed.dw", vocabulary.tile(b), role="workspace")
    traffic = b.buffers[full].nbytes + 2 * b.rows * b.gpt.hidden * b.item_bytes()
    reads = [saved.tokens, embedded]
    b.op("mtp.embed.grad.weight", "embedding_grad", reads, [full], nbytes=traffic)
    first = b.block.micro_batch == 0 and not (b.gpt.tied or more)
    add_gradient(b, "mtp.embed", "embed.w", full, first=first)
    return stream


def _layers_backward(b: Builder, depth: int, saved: Saved, more: str, again: str) -> str:
    """Emit the gradients of classifier and layers; returns that of the first layer's input."""
    parts, owners = _parts(b, depth), _owners(b, depth)
    b.block = b.block._replace(part=parts[-1])
    with b.within(AROUND_DEPTH):
        d = vocabulary.head_backward(b, saved.head, gathered=False)
        if more:
            b.op("mtp.further.add", "add", [d, more], [d])
    for part, owner, found in reversed([*zip(parts, owners, saved.layers, strict=True)]):
        kept, block = found, b.block._replace(part=part)
        if again == "full":
            b.block = block._replace(phase=RECOMPUTE)
            _, kept = layer.forward(b, owner, found[0].source)
        b.block = block
        d = layer.backward(b, owner, kept, d, again=again)
    return d


def _parts(b: Builder, depth: int) -> list[Part]:
    """The layers of a depth, as parts of the model."""
    return [layer_part(number) for number in mtp.numbers(b.gpt, depth)]


def _owners(b: Builder, depth: int) -> list[Part]:
    """The layers whose parameters a depth has."""
    return _parts(b, 0 if b.gpt.mtp.shared else depth)


def _linear(b: Builder) -> Linear:
    return Linear("eh_proj", 2 * b.gpt.hidden, (b.gpt.hidden,))
