"""Records nested in code and flat in texts: one home for each key, there and back."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from workload.errors import ModelError
from workload.flat_keys import Flat
from workload.gpt import GPT, find_model, model_names
from workload.plan import Plan
from workload.plan_text import parse_plan

PLAN = parse_plan("tp=2,pp=4,dp=2,zero=1,recompute=full,context_kind=all_gather", batch=64)


@pytest.mark.parametrize("kind", [GPT, Plan])
def test_every_field_of_a_part_has_one_flat_key(kind: type[Flat]) -> None:
    own = [each.name for each in fields(kind) if each.name not in kind.PARTS]  # type: ignore[arg-type]
    parts = [(name, each.name) for name, part in kind.PARTS.items() for each in fields(part)]
    homes = [(key.part, key.name) for key in kind.KEYS.values()]
    assert sorted(homes) == sorted([*(("", name) for name in own), *parts])


def test_a_key_is_its_field_behind_the_prefix_of_its_part() -> None:
    homes = {key: (found.part, found.name) for key, found in {**GPT.KEYS, **Plan.KEYS}.items()}
    assert homes["ssm_conv"] == ("mamba2", "conv")
    assert homes["mtp_layers"] == ("mtp", "layers")
    assert homes["context_kind"] == ("context", "kind")
    assert homes["kv_rank"] == ("latent", "kv_rank")
    assert homes["zero"] == ("", "zero")


@pytest.mark.parametrize("name", model_names())
def test_a_model_is_made_again_of_its_flat_keys(name: str) -> None:
    gpt = find_model(name)
    assert GPT.of(**gpt.flat()) == gpt


def test_a_plan_is_made_again_of_its_flat_keys() -> None:
    assert Plan.of(**PLAN.flat()) == PLAN
    assert PLAN.flat()["context_kind"] == PLAN.context.kind == "all_gather"


def test_a_changed_key_changes_its_part_alone() -> None:
    changed = PLAN.changed(context_kind="ring", zero=2)
    assert changed == replace(PLAN, zero=2, context=replace(PLAN.context, kind="ring"))
    assert changed.training is PLAN.training


def test_a_key_that_no_part_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        PLAN.changed(colour="red")
    with pytest.raises(TypeError, match="colour"):
        Plan.of(batch=1, mbs=1, colour="red")


def test_what_is_given_differs_from_the_default() -> None:
    assert [key for key in Plan.KEYS if PLAN.is_given(key)] == [
        *("tp", "pp", "dp", "batch", "mbs", "zero", "context_kind", "recompute"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("router_bias_rate", 0.5, "router_bias_rate=0.5 needs experts"),
        ("balance_over", "micro_batch", "balance_over=micro_batch needs experts"),
        ("mtp_pattern", "M", "mtp_pattern=M needs mtp_layers"),
        ("mtp_loss", 0.5, "mtp_loss=0.5 needs mtp_layers"),
        ("mtp_shared", True, "mtp_shared=true needs mtp_layers"),
        ("q_rank", 8, "q_rank=8 needs kv_rank"),
        ("ssm_conv", 2, "ssm_conv=2 needs pattern"),
    ],
)
def test_a_key_of_a_part_that_a_model_lacks_is_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        find_model("tiny-30k").changed(**{key: value})
