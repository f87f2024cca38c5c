"""The learning rate of each step: a warm-up, and how it falls from there."""

from __future__ import annotations

import math
from collections.abc import Callable

from topologies.records import record

CONSTANT, COSINE, LINEAR, WSD = "constant", "cosine", "linear", "wsd"


@record(kw_only=True)
class Schedule:
    """How the learning rate goes over a run, in steps counted from 1.

    It rises from 0 in equal parts, to be whole in step `warmup_steps`. Then "cosine" and "linear"
    let it fall to `least` within the next `decay_steps` (0: the rest of the run); "wsd" keeps it
    (warm-up, stable, decay) and lets it fall linearly within the last `decay_steps` of the run (0:
    a tenth of it). Sources: Loshchilov and Hutter (1608.03983) for the cosine; Hu et al.
    (MiniCPM, 2404.06395) and Haegele et al. (2405.18392) for the last decay.
    """

    kind: str = CONSTANT
    warmup_steps: int = 0
    decay_steps: int = 0
    least: float = 0.0

    def decays_from(self, steps: int) -> tuple[int, int]:
        """The last step before the decay, and how many it takes, in a run of so many steps."""
        if self.kind == WSD:
            count = self.decay_steps or max(steps // 10, 1)
            return steps - count, count
        return self.warmup_steps, self.decay_steps or steps - self.warmup_steps

    def rate(self, step: int, *, lr: float, steps: int) -> float:
        """The learning rate of a step of a run whose highest is `lr`.

        >>> cosine = Schedule(kind="cosine", warmup_steps=2, least=0.1)
        >>> [round(cosine.rate(step, lr=1.0, steps=4), 3) for step in range(1, 5)]
        [0.5, 1.0, 0.55, 0.1]
        """
        if step <= self.warmup_steps:
            return lr * step / self.warmup_steps
        if self.kind == CONSTANT:
            return lr
        last, count = self.decays_from(steps)
        share = min(max((step - last) / count, 0.0), 1.0)
        return self.least + (lr - self.least) * FALLS[self.kind](share)


FALLS: dict[str, Callable[[float], float]] = {
    COSINE: lambda share: (1 + math.cos(math.pi * share)) / 2,
    LINEAR: lambda share: 1 - share,
    WSD: lambda share: 1 - share,
}
KINDS = (CONSTANT, *FALLS)
