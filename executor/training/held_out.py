"""The held-out data of a run's evaluations, and when they are due; free of torch."""

from __future__ import annotations

from executor.data.dataset import Dataset
from executor.data.sources import dataset_of
from executor.errors import TextError
from topologies.records import record
from workload.gpt import GPT
from workload.plan import Plan


@record(kw_only=True)
class HeldOut:
    """Every `every` steps, and after the last, the loss of the first `batches` batches of what
    `text` names, as `--data` would; `tokenizer` is the file that makes tokens of a text."""

    text: str
    every: int
    batches: int
    tokenizer: str | None = None

    def is_due(self, step: int, steps: int) -> bool:
        """Whether a run of so many steps is evaluated after this one."""
        return step % self.every == 0 or step == steps

    def read(self, gpt: GPT, plan: Plan) -> Dataset:
        """The data, refused if there are too few for the batches."""
        data, needed = dataset_of(self.text, self.tokenizer), self.batches * plan.batch
        data.check(gpt)
        there = sum(source.samples(gpt.sequence) for source in data.sources)
        if there < needed:
            raise TextError(
                f"{self.text} has {there} sequences of {gpt.sequence} tokens, but an evaluation of "
                f"{self.batches} batches of {plan.batch} takes {needed}"
            )
        return data
