"""What a stack's file says of the memory that its programs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workload.held import Held


def held_of(memory: Mapping[str, Any]) -> Held:
    """What a stack holds, by the keys of its table `memory`."""
    return Held(
        sharded_masters=bool(memory.get("sharded_masters", False)),
        step_copies=bool(memory.get("step_copies", False)),
        sub_group=int(memory.get("sub_group_size", 0)),
        bucket=int(memory.get("reduce_bucket_size", 0)),
        frees_gradients=bool(memory.get("frees_gradients", False)),
        temporaries=int(memory.get("update_temporaries", 0)),
        loss_bytes=int(memory.get("loss_bytes", 0)),
        inner_activations=tuple(memory.get("inner_activations", ())),
        gradients_until_end=bool(memory.get("gradients_until_end", False)),
        gradient_buckets=bool(memory.get("gradient_buckets", False)),
        fp8_weights=bool(memory.get("fp8_weights", False)),
        keeps_unread=bool(memory.get("keeps_unread", False)),
    )
