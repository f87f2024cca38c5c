"""All update rules, one row each: what a plan's `optimizer` may name.

The plan, the lowering of a step's end, calibration and the executor's initial states read them
here; a new rule is a module beside this one, a row, and a kernel for each new kind of op.
"""

from __future__ import annotations

from workload.rules import adamw, fedkseed, lomo, mezo, muon, sgd
from workload.rules.rule import UpdateRule

RULES: tuple[UpdateRule, ...] = (
    adamw.RULE,
    sgd.RULE,
    sgd.WITH_MOMENTUM,
    muon.RULE,
    lomo.RULE,
    mezo.RULE,
    fedkseed.RULE,
)
NAMES = tuple(rule.name for rule in RULES)
_BY_NAME = {rule.name: rule for rule in RULES}


def rule_of(name: str) -> UpdateRule:
    """The rule that a plan names."""
    return _BY_NAME[name]
