"""How often a machine's nodes fail, and how fast its file system is: what a whole run asks for."""

from __future__ import annotations

from typing import Annotated

from topologies.files.keys import Key
from topologies.records import record

DAY_S = 86_400.0
NODE_DAYS = 1000.0  # on which rates of failures are published


@record(slots=False)
class Reliability:
    """Failures that end a job, for each thousand days of a node in it.

    Not modelled: nodes that fail more often than others, failures that come together, and how the
    rate changes with a machine's age.
    """

    failures: Annotated[float, Key("failures_per_1000_node_days")]

    @property
    def failures_per_s(self) -> float:
        """The rate of one node."""
        return self.failures / (NODE_DAYS * DAY_S)


@record(slots=False)
class Storage:
    """The file system that checkpoints go to: what all of it writes and reads, what one node does,
    which is the rate of its NICs where the file says nothing, and the share that one job gets.

    Not modelled: metadata, and files too small for its rate.
    """

    write_bytes_per_s: Annotated[float, Key("write", "bytes/s")]
    read_bytes_per_s: Annotated[float, Key("read", "bytes/s")]
    node_bytes_per_s: Annotated[float | None, Key("node", "bytes/s")] = None
    job_share: Annotated[float, Key("job_share", share=True)] = 1.0

    def share_of(self, nodes_share: float) -> float:
        """The share that a job gets which has so much of the machine's nodes: no less than that."""
        return min(max(self.job_share, nodes_share), 1.0)
