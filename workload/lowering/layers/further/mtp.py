"""The module that predicts the token after the next (`workload/models/mtp.py`), on the last stage.

It is a part of the model of its own, with the number that the next layer would have. The stage has
the embedding's table too, whose gradients are summed with those of the first stage as a tied
table's are. The stream's rows are looked up, joined and put through the linear by each rank of x
alike, or its own ones with sequence parallelism.
Source: Megatron-Core, transformer/multi_token_prediction.py. Not modelled: its linear split over x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workload.lowering.builder import Builder
from workload.lowering.layers import layer, norm, vocabulary
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.further import copied_linear
from workload.lowering.layers.linear import Linear, add_gradient, gather
from workload.op import RECOMPUTE, Part, layer_part


@dataclass(frozen=True, slots=True)
class Saved:
    """Names of what the module's forward leaves behind for its backward: source and statistics of
    its norms, the linear's input and weight, the layer's, and the classifier's."""

    embedded: tuple[str, str]
    stream: tuple[str, str]
    joined: str
    weight: str
    layer: layer.AnySaved
    head: vocabulary.Head


def part(b: Builder) -> Part:
    """The module, as a part of the model."""
    return layer_part(b.gpt.layers)


def declare(b: Builder) -> None:
    """Declare its parameters, and the embedding's table where it is not yet."""
    owner = part(b)
    vocabulary.declare_shared_embedding(b)
    for name in ("enorm", "hnorm"):
        norm.declare(b, f"{owner}.{name}", owner)
    copied_linear.declare(b, _linear(b), owner)
    layer.declare(b, owner)
    norm.declare(b, f"{owner}.head_norm", owner)


def forward(b: Builder, source: str) -> Saved:
    """Emit the module on the stream behind the last layer, up to its loss' gradient."""
    owner = part(b)
    weight = gather(b, "mtp.embed", "embed.w", vocabulary.tile(b))
    full = b.tensor("mtp.embed.o", (b.rows, b.gpt.hidden))
    traffic = 2 * b.rows * b.gpt.hidden * b.item_bytes()
    reads = [b.input_name("targets"), weight]
    b.op("mtp.embed.lookup", "embedding", reads, [full], nbytes=traffic)
    full = rows.reduce(b, "mtp.embed.reduce", full, *b.shards_of("vocabulary"))
    embedded, stats = norm.forward(b, "enorm", f"{owner}.enorm", full)
    stream, more = norm.forward(b, "hnorm", f"{owner}.hnorm", source)
    count, width = b.buffers[stream].shape
    joined = b.tensor("mtp.joined", (count, 2 * width))
    b.op("mtp.join", "join_columns", [embedded, stream], [joined])
    out, used = copied_linear.forward(b, _linear(b), owner, joined)
    out, saved = layer.forward(b, owner, out)
    head = vocabulary.head(b, out, norm_of=f"{owner}.head_norm", further=True)
    return Saved((full, stats), (source, more), joined, used, saved, head)


def backward(b: Builder, saved: Saved, again: str) -> str:
    """Emit its gradients; returns that of the stream behind the last layer. `again` says what of
    its layer is recomputed."""
    owner, kept = part(b), saved.layer
    d = vocabulary.head_backward(b, saved.head, gathered=False)
    if again == "full":
        block, b.block = b.block, replace(b.block, phase=RECOMPUTE)
        _, kept = layer.forward(b, owner, kept.source)
        b.block = block
    d = layer.backward(b, owner, kept, d, again=again)
    d = copied_linear.backward(b, _linear(b), owner, saved.joined, "", d)
    count, width = b.buffers[d].shape
    embedded, stream = (b.tensor(f"mtp.{n}", (count, width // 2)) for n in ("de", "dh"))
    b.op("mtp.split", "split_columns", [d], [embedded, stream])
    norm.backward(b, "enorm", f"{owner}.enorm", saved.embedded, embedded)
    norm.backward(b, "hnorm", f"{owner}.hnorm", saved.stream, stream)
    whole = rows.gather(b, "mtp.embed.grad.rows", embedded)
    full = b.tensor("mtp.embed.dw", vocabulary.tile(b), role="workspace")
    traffic = b.buffers[full].nbytes + 2 * b.rows * b.gpt.hidden * b.item_bytes()
    reads = [b.input_name("targets"), whole]
    b.op("mtp.embed.grad.weight", "embedding_grad", reads, [full], nbytes=traffic)
    first = b.block.micro_batch == 0 and not b.gpt.tied
    add_gradient(b, "mtp.embed", "embed.w", full, first=first)
    return stream


def _linear(b: Builder) -> Linear:
    return Linear("eh_proj", 2 * b.gpt.hidden, (b.gpt.hidden,))
