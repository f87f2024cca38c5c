"""Hypothesis for every test: no deadlines (ranks share the cores), the same examples in CI."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# A mutation is noticed by whichever example fails; the smallest is not looked for.
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile(
    os.environ.get("SIMGPT_HYPOTHESIS") or ("ci" if os.environ.get("CI") else "local")
)
