"""What is assumed of a machine whose file says nothing of it."""

from __future__ import annotations

from collections.abc import Collection

# By key, or by the table that holds several: the value that stands for it, and what that means.
# Left out are values that say nothing but what a machine has (its links and algorithms), the
# details of a curve, and what a collective without a curve answers: that one is missing.
ASSUMED = {
    "device.reserve": "0 B: programs get all of the memory",
    "device.matmul.sustained": "1: long runs are as fast as the short ones that were timed",
    "device.matmul.unaligned": "1: rows of any length are as fast as aligned ones",
    "device.vector_flops": "batched matmuls with unaligned rows run as other matmuls do",
    "device.matmul.forms": "1: matmuls of all forms are alike",
    "device.matmul.fp8": "1: fp8 reaches the share of its peak that bf16 reaches",
    "device.matmul.fp8_k0": "0: fp8 gains as much in shallow matmuls as in deep ones",
    "device.matmul.nvfp4": "0: nvfp4 reaches the share of its peak that fp8 reaches",
    "device.matmul.grouped": "0: a grouped matmul is as fast as one of all its rows",
    "device.attention.shape": "1: attention of all shapes runs at the rate of large ones",
    "device.scan": "Mamba-2: products as matmuls of that shape, convolutions as on the H100",
    "device.efficiency_of": "memory_efficiency, for kernels of all kinds",
    "device.slowest": "1: the slowest of many devices is as fast as the mean",
    "device.variability": "0: one run is as the other",
    "device.power": "unknown: no energy is predicted",
    "device.power.waiting": "devices that wait in collectives draw as idle ones",
    "node.host.update": "56 GB/s a node: the host updates as those of eight A100 do",
    "node.host.memory": "no limit: what plans keep in the host's memory has room there",
    "node.host.memory_bandwidth": "no limit: devices reach the host's memory at their links' rate",
    "interconnect.background": "0: no other jobs are on the network",
    "software.tuner": "none: the cheapest algorithm is taken",
    "software.pair_share": "efficiency_within, for groups of two devices too",
    "software.compute_share": "0: collectives do not slow the compute beside them",
    "software.reduce_scatter": "as all_gather",
    "software.all_reduce": "a reduce_scatter and an all_gather, both as rings",
    "power": "unknown: no energy is predicted",
}
_IF = {
    "device.matmul.fp8": "device.peak_flops.fp8",
    "device.matmul.fp8_k0": "device.peak_flops.fp8",
    "device.power.waiting": "device.power.max",
    "device.matmul.nvfp4": "device.peak_flops.nvfp4",
    "interconnect.background": "node.nics.count",
    "node.host.memory_bandwidth": "node.links.p2p",
}


def assumed(given: Collection[str]) -> dict[str, str]:
    """What is assumed, by the key or the table that is not among the given keys.

    >>> list(assumed({key for key in ASSUMED if key != "device.reserve"}))
    ['device.reserve']
    """
    tables = {key.rpartition(".")[0] for key in given} | {key.partition(".")[0] for key in given}
    known = {*given, *tables}
    return {
        key: text
        for key, text in ASSUMED.items()
        if key not in known and (key not in _IF or _IF[key] in known)
    }
