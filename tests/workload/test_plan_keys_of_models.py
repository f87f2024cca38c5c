"""A plan that is given a key of the model says so, whichever key it is."""

from __future__ import annotations

import pytest

from workload.errors import PlanError
from workload.gpt import GPT
from workload.plan_text import plan_value


@pytest.mark.parametrize("key", sorted(GPT.KEYS))
def test_a_plan_names_every_key_of_a_model_as_such(key: str) -> None:
    with pytest.raises(PlanError, match=f"model, not of the plan; give --model-set {key}=1"):
        plan_value(key, "1")
