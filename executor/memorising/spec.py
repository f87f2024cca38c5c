"""What a rank is told of a run that measures memorisation; free of torch, for the parent's sake."""

from __future__ import annotations

from math import prod

from topologies.records import record
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT
from workload.plan import Plan

# Controls that training does not see, and documents that stand in each pass so many times, as in
# the study of AxoNN's authors (Singh et al., SC24).
REPETITIONS = (0, 1, 4, 6)
LAST = 50  # tokens at a document's end that are to be generated; as there
KIND = {"norm": "layernorm", "activation": "gelu", "positions": "learned", "embedding_norm": False}


@record(kw_only=True)
class Memorisation:
    """One model trained on a stream of documents; it travels as JSON.

    There are `documents` of each count of repetitions, of the model's sequence and one token more,
    cut from `text`; the stream is gone through `passes` times, in a new order each time, `batch`
    documents a step, split over `ranks`.
    """

    gpt: GPT
    documents: int
    passes: int
    batch: int
    ranks: int = 1
    lr: float
    seed: int = 0
    text: str | None = None
    threads: int = 1
    timeout_s: float = 300.0
    device: str = "cpu"

    @property
    def plan(self) -> Plan:
        """Data parallelism over the ranks, in fp32."""
        share = max(self.batch // self.ranks, 1)
        return Plan.of(dp=self.ranks, batch=self.batch, mbs=share, precision="fp32")

    @property
    def steps(self) -> int:
        """How many steps training takes."""
        return self.passes * sum(REPETITIONS) * self.documents // self.batch

    @property
    def prefix(self) -> int:
        """How many tokens of a document generation is given."""
        return self.gpt.sequence + 1 - LAST

    def check(self) -> None:
        """Refuse a model that generation does not know, one whose sequence is too short, and a
        batch that does not divide the stream."""
        gpt = self.gpt
        for key, value in KIND.items():
            if gpt.value(key) != value:
                raise ModelError(
                    f"{gpt.name} has {key}={gpt.value(key)}; generation knows GPT-2's alone, "
                    f"{key}={value}"
                )
        if gpt.key_heads != gpt.attention.heads:
            raise ModelError(
                f"{gpt.name} has kv_heads={gpt.attention.kv_heads}; generation knows none"
            )
        if gpt.sequence <= LAST:
            raise ModelError(
                f"{gpt.name} has sequence={gpt.sequence}, which leaves no prefix before the last "
                f"{LAST} tokens"
            )
        stream = prod((self.passes, sum(REPETITIONS), self.documents))
        if stream % self.batch:
            raise PlanCannotRunError(
                f"batch={self.batch} does not divide the {stream:,} documents of the stream "
                f"({self.documents} documents 1, 4 and 6 times in {self.passes} passes)"
            )
