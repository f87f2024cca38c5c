"""How far the times of one job differ from run to run, where somebody ran it often on a machine."""

from __future__ import annotations

from typing import Annotated, Any

from topologies.errors import MachineError
from topologies.files.keys import Key
from topologies.records import record

SHARE = 0.8  # of the runs that a band holds: those from the tenth to the ninetieth percentile


@record(slots=False)
class Band:
    """What eight of ten runs of one job took, over their median.

    `low` is the tenth percentile over the median and `high` the ninetieth, of so many `runs` of
    what `of` names, on `nodes` nodes each. A MachineError if the median is not between them.
    Not modelled: how it changes with the job and with more nodes.
    """

    of: Annotated[str, Key("of")]
    nodes: Annotated[int, Key("nodes")]
    runs: Annotated[int, Key("runs")]
    low: Annotated[float, Key("low", share=True)]
    high: Annotated[float, Key("high")]

    def __post_init__(self) -> None:
        """Refuses a band above its median."""
        if self.high < 1:
            raise MachineError(
                f"run_to_run has high = {self.high:g}, but the median is 1: write 1.1 where the "
                "ninetieth of a hundred runs took 10 % longer"
            )

    def around(self, seconds: float) -> tuple[float, float]:
        """What eight of ten runs take whose median takes so many seconds."""
        return seconds * self.low, seconds * self.high

    @property
    def words(self) -> str:
        """Where the band comes from: `145 runs of GPT-20B on 64 nodes`."""
        return f"{self.runs:,} runs of {self.of} on {self.nodes:,} nodes"

    def as_dict(self, seconds: float) -> dict[str, Any]:
        """The band around a median in seconds, as it stands in JSON."""
        low_s, high_s = self.around(seconds)
        about = {"low_s": low_s, "high_s": high_s, "low": self.low, "high": self.high}
        return about | {"share": SHARE, "runs": self.runs, "nodes": self.nodes, "of": self.of}


@record(slots=False)
class RunToRun:
    """The bands of a machine: of whole training steps, and of the collectives in them."""

    step: Annotated[Band | None, Key("step")] = None
    all_gather: Annotated[Band | None, Key("all_gather")] = None
    reduce_scatter: Annotated[Band | None, Key("reduce_scatter")] = None
    all_reduce: Annotated[Band | None, Key("all_reduce")] = None

    def band(self, what: str, nodes: int) -> Band | None:
        """The band of a step or of a kind of collective on so many nodes; None where nobody
        measured one, and on fewer nodes than those on which it was measured."""
        bands = {
            "step": self.step,
            "all_gather": self.all_gather,
            "reduce_scatter": self.reduce_scatter,
            "all_reduce": self.all_reduce,
        }
        found = bands.get(what)
        return found if found is not None and nodes >= found.nodes else None
