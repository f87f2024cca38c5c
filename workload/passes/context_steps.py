"""Context parallelism as PyTorch does it: keys are gathered at once, attention goes in steps.

Letters: c ranks of `context`; r heads of queries for each head of keys. The stack repeats keys and
values r times before attention, so all exchanges have those of every head. One all-gather brings
them, beside the first step, in which a rank attends to its own under the mask; in each of the c - 1
later steps it does half of the square with another rank's, without a mask (all queries with half of
the keys, or half of the queries with all of them). Contexts are merged in fp32: 10 bytes an element
(4 and 2 read, 4 written). Backward the keys' gradients go around a ring in fp32, each step's beside
the next one's attention, and home with the last; they and the queries' are summed in fp32, 10 bytes
an element; those of repeated heads are summed at the end.
Source: pytorch/pytorch@1963fc8, torch/distributed/tensor/experimental/_attention.py
(_templated_ring_attention and its backward, convert_to_f32, _AllGatherRotater for keys and
_AllToAllRotater for gradients); pytorch/torchtitan@9dec370, models/llama/model.py (repeat_kv).
Not modelled: copies that put keys and values in one buffer, casts of the last sums to bf16, memory
for sums of contexts and queries' gradients in fp32, and windows and documents, which PyTorch's has
not: with these the ops stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from topologies.records import record
from workload.kinds import RING_SHIFT
from workload.naming import op_name
from workload.op import CAUSAL, Buffer, Op, altered
from workload.op_attributes import Attributes

SUM_BYTES = 10  # of an element: a sum in fp32 and a part in bf16 are read, the sum is written
GATHERED = "all_gather"  # the kind of context
UNLIKE = ("window", "document", "documents", "queries_alone")
Buffers = Mapping[str, Buffer]


def in_context_steps(ops: Sequence[Op], buffers: Buffers) -> tuple[list[Op], dict[str, Buffer]]:
    """The ops with attention on gathered keys in steps, and the buffers that are new or larger."""
    cores = {op.reads[2 if _is_grad(op) else 1]: op for op in ops if _is_gathered(op)}
    gathers = {op.writes[0]: op for op in ops if op.kind == "all_gather" and op.writes[0] in cores}
    grads = {op.writes[1]: op for op in cores.values() if _is_grad(op)}
    scatters = [op for op in ops if op.kind == "reduce_scatter" and op.reads[0] in grads]
    found = {
        "owns": {op.reads[0]: cores[whole] for whole, op in gathers.items()},
        "homes": {op.writes[0]: grads[op.reads[0]] for op in scatters},
    }
    homes_of = {op.reads[0]: op.writes[0] for op in scatters}
    pass_ = _Steps(buffers, cores, gathers, homes_of=homes_of, added={}, **found)
    return [new for op in ops for new in pass_.of(op)], pass_.added


def _is_grad(op: Op) -> bool:
    return op.kind == "attention_grad"


def _is_gathered(op: Op) -> bool:
    if op.kind not in ("attention", "attention_grad") or op.attributes.get("context") != GATHERED:
        return False
    return not any(key in op.attributes for key in UNLIKE)


@record(slots=False)
class _Steps:
    """`cores` are the attention ops by the gathered keys that they read, `owns` by a rank's own
    keys, `gathers` what brings those; `homes` are the backward ones by the buffers in which a rank
    gets the gradients of its own keys back, `homes_of` these by those of all keys; `added` takes
    new buffers."""

    buffers: Buffers
    cores: Mapping[str, Op]
    gathers: Mapping[str, Op]
    owns: Mapping[str, Op]
    homes: Mapping[str, Op]
    homes_of: Mapping[str, str]
    added: dict[str, Buffer]

    def of(self, op: Op) -> Iterator[Op]:
        """What stands in the place of an op."""
        if op.kind == "take_keys" and op.writes[0] in self.owns:
            r = self._repeated(self.owns[op.writes[0]])
            self._resize(op.writes[0], r, "")
            yield altered(op, nbytes=(op.nbytes // 2) * (1 + r))
        elif op.kind == "all_gather" and op.writes[0] in self.cores:
            r = self._repeated(self.cores[op.writes[0]])
            self._resize(op.writes[0], r, "")
            yield altered(op, nbytes=op.nbytes * r, stream="+".join(op.axes))
        elif _is_gathered(op):
            yield from self._backward(op) if _is_grad(op) else self._forward(op)
        elif op.kind == "put_keys" and op.reads[0] in self.homes:
            own, core = op.nbytes // 2, self.homes[op.reads[0]]  # keys that are not repeated
            yield altered(op, nbytes=own + 2 * own * self._repeated(core))
        elif op.kind != "reduce_scatter" or op.writes[0] not in self.homes:
            yield op

    @staticmethod
    def _repeated(op: Op) -> int:
        return op.attributes["heads"] // op.attributes["kv_heads"]

    def _resize(self, name: str, r: int, dtype: str) -> None:
        old = self.buffers[name]
        rows, width = old.shape
        self.added[name] = replace(old, shape=(rows, width * r), dtype=dtype or old.dtype)

    def _own(self, op: Op) -> tuple[str, str, Op]:
        """A rank's own keys, all of them, and the gather between."""
        whole = op.reads[2 if _is_grad(op) else 1]
        return self.gathers[whole].reads[0], whole, self.gathers[whole]

    def _in_step(self, op: Op, step: int, c: int) -> Op:
        sequence = op.attributes["sequence"] // c
        how: Attributes = {**op.attributes, "sequence": sequence, "step": step, CAUSAL: step == 0}
        own = altered(op, flops=op.flops // c, attributes=how)
        return self._named(own, f"{op.label}.{step}")

    @staticmethod
    def _named(op: Op, label: str) -> Op:
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        return altered(op, name=name, label=label)

    def _count(self, own: str, whole: str) -> int:
        return int(self.buffers[whole].shape[0] // self.buffers[own].shape[0])

    def _forward(self, op: Op) -> Iterator[Op]:
        own, whole, _ = self._own(op)
        c, (context, sums) = self._count(own, whole), op.writes
        for step in range(c):
            at_hand, outputs = (whole, self._parts(op, step)) if step else (own, op.writes)
            reads = tuple(at_hand if name == whole else name for name in op.reads)
            yield altered(self._in_step(op, step, c), reads=reads, writes=outputs)
            if step:
                nbytes = SUM_BYTES * self.buffers[context].elements
                merged = (context, sums)
                merge = altered(op, kind="merge_attention", flops=0, nbytes=nbytes, attributes={})
                merge = altered(merge, reads=(*merged, *outputs), writes=merged)
                yield self._named(merge, f"{op.label}.{step}.merge")

    def _parts(self, op: Op, step: int) -> tuple[str, ...]:
        """The buffers of one step's context and sums."""
        return tuple(self._like(name, f"{name}.{step}") for name in op.writes)

    def _like(self, name: str, new: str, dtype: str = "") -> str:
        old = self.added.get(name, self.buffers[name])
        self.added[new] = replace(old, name=new, dtype=dtype or old.dtype)
        return new

    def _backward(self, op: Op) -> Iterator[Op]:
        own, whole, gather = self._own(op)
        c, out = self._count(own, whole), op.writes[0]
        home = self.homes_of[op.writes[1]]
        self._resize(home, self._repeated(op), "fp32")
        arrived = ""
        keys = self.added[own].elements
        for step in range(c):
            part = self._like(own, f"{home}.{step}")
            reads = tuple(own if name == whole and not step else name for name in op.reads)
            reads = (*reads, *([out] if step else []))
            core = self._in_step(op, step, c)
            yield altered(core, reads=reads, writes=(out, part, *op.writes[2:]))
            total = self._like(own, f"{home}.{step}.sum", "fp32")
            queries = self.buffers[op.reads[0]].elements
            add = altered(
                op, kind="add", flops=0, attributes={}, nbytes=SUM_BYTES * (keys + queries)
            )
            add = altered(add, reads=(out, part, *([arrived] if arrived else [])))
            yield self._named(altered(add, writes=(out, total)), f"{op.label}.{step}.add")
            last = step == c - 1
            arrived = home if last else self._like(own, f"{home}.{step}.next", "fp32")
            shift = altered(gather, kind=RING_SHIFT, reads=(total,), writes=(arrived,))
            shift = altered(shift, nbytes=4 * keys, stream="+".join(gather.axes))
            yield self._named(shift, f"{op.label}.dkv.{step}.shift")
