"""What torch is asked to hold: every storage counted when it is made, and when it is let go.

Nothing here knows of a program or its buffers: torch says which storages its operators return, and
Python when nobody holds one any more. So the count is evidence of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that are held, on the GPU and in the host's memory, while it is on.

    `most_bytes` is the most on the GPU since it was last set. What an operator's own kernel holds
    while it runs, and gives back, no fake tensor shows.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held_bytes = {"cuda": 0, "cpu": 0}
        self.most_bytes = 0
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Perform an operator, and count what it made."""
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor):
            self._count(returned)
        else:
            for leaf in tree_leaves(returned):
                if isinstance(leaf, torch.Tensor):
                    self._count(leaf)
        return returned

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        nbytes, where = storage.nbytes(), tensor.device.type

        def gone(_: object) -> None:
            del self._held[key]
            self.held_bytes[where] -= nbytes

        self._held[key] = weakref.ref(storage, gone)
        self.held_bytes[where] += nbytes
        self.most_bytes = max(self.most_bytes, self.held_bytes["cuda"])
