"""Names of ops and buffers, printed from their structure for people; nobody reads them back."""

from __future__ import annotations

from workload.op import Part

AGAIN = "re"  # what a recomputed op has in its name


def op_name(micro_batch: int, part: Part, label: str, *, recomputed: bool = False) -> str:
    """The name of an op, or of a buffer: `m0.l3.up.matmul`, `m0.l3.re.up.matmul`, `l3.adamw`.

    Ops at the ends of the model have these in their labels already, but for those of the step's
    end, which go by whose parameters they work on.
    """
    return op_prefix(micro_batch, part, recomputed=recomputed) + label


def op_prefix(micro_batch: int, part: Part, *, recomputed: bool = False) -> str:
    """What the names of all ops and buffers of a block begin with: `m0.l3.re.`."""
    words = [f"m{micro_batch}"] if micro_batch >= 0 else []
    if part.is_layer or (part.kind and micro_batch < 0):
        words.append(str(part))
    return ".".join([*words, *[AGAIN] * recomputed, ""])
