"""How long a save and a restart take: bytes of the program over the machine's file system."""

from __future__ import annotations

from simulator.goodput.checkpoint import Checkpoint
from topologies.hardware.reliability import Storage
from topologies.machine import Machine
from topologies.records import record

DETECTION_S = 600.0
DETECTION_SOURCE = "PyTorch's NCCL time-out (torch.distributed.init_process_group)"
RESTART_S = 600.0
RESTART_SOURCE = "5 to 20 min in Kokolis et al. (arXiv 2410.21680)"


@record
class SaveTimes:
    """Seconds that a save takes to be durable, for which it stalls training, and in which all ranks
    read what they hold; `limit` names what bounds the write."""

    write_s: float
    stall_s: float
    read_s: float
    limit: str


def save_times(
    checkpoint: Checkpoint, machine: Machine, storage: Storage, devices: int, *, async_save: bool
) -> SaveTimes:
    """The times of a checkpoint: each value is written once, evenly by all nodes, and every rank
    reads what it holds, at the job's share of the file system or what its nodes do, the lesser.

    An asynchronous save stalls training while a device's part goes to its host's memory, and no
    longer. Not modelled: how writing slows training, and the time of many small files.
    """
    nodes = machine.segments(devices).nodes
    nics = machine.node.nics
    per_node = storage.node_bytes_per_s or nics.count * nics.bytes_per_s or float("inf")
    all_nodes = nodes * per_node
    share = storage.share_of(nodes / machine.nodes)
    written = share * storage.write_bytes_per_s
    write_s = checkpoint.total_bytes / min(written, all_nodes)
    read_s = checkpoint.held_bytes / min(share * storage.read_bytes_per_s, all_nodes)
    copy_s = checkpoint.total_bytes / devices / machine.node.host.bytes_per_s
    return SaveTimes(
        write_s=write_s,
        stall_s=min(copy_s, write_s) if async_save else write_s,
        read_s=read_s,
        limit=_limit(share) if written <= all_nodes else "the nodes",
    )


def _limit(share: float) -> str:
    """What bounds a write at a share of the file system.

    >>> _limit(1.0), _limit(0.25)
    ('the file system', '25 % of the file system, the share of one job')
    """
    whole = "the file system"
    return whole if share == 1.0 else f"{100 * share:.0f} % of {whole}, the share of one job"
