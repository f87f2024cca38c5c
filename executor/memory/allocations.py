"""What torch's allocator holds while a with statement lasts: measured, not counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.autograd.profiler import profile
from torch.profiler import ProfilerActivity

QUIET = "99"  # above all levels of the profiler's own log, which goes to stderr
# Not recorded beside what they allocate, which takes as long as the ops of a small model. Torch
# warns where only some of these are left out.
OPS = (ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU)


@dataclass(slots=True)
class Allocations:
    """Bytes that were allocated and not freed: at the end, and the most at any time.

    On a CPU those of the with statement alone, of the thread that entered it; on a GPU all that the
    process holds there. Known once the with statement is left.
    """

    held_bytes: int = 0
    peak_bytes: int = 0


@contextmanager
def allocations(device: torch.device) -> Iterator[Allocations]:
    """Measure what is allocated on a device."""
    found = Allocations()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found.held_bytes = torch.cuda.memory_allocated(device)
        found.peak_bytes = torch.cuda.max_memory_allocated(device)
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    with profile(profile_memory=True) as profiler:
        profiler.toggle_collection_dynamic(False, OPS)
        yield found
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]":
            found.held_bytes += event.nbytes()
            found.peak_bytes = max(found.peak_bytes, found.held_bytes)
