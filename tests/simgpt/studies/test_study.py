"""Study files: keys by short and full names, values in their kind, points in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.question import MACHINE_TABLES, MODEL_KEYS, PLAIN, PLAN_KEYS, canonical, value
from simgpt.question_rows import QuestionError
from simgpt.studies.inputs import inputs_of
from simgpt.studies.study import MOST_POINTS, read_study, study_of
from tests.messages import names
from tests.simgpt.studies.worlds import GRID, SMALL, study
from topologies.errors import SimgptError

STACK = """
base = "usual"
title = "our own"
source = "a test"
[plan]
overlap = ["dp", "oag"]
"""


def test_no_short_name_means_two_things() -> None:
    names = [*PLAIN, *PLAN_KEYS, *MODEL_KEYS, *MACHINE_TABLES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("zero", "plan.zero"),
        ("plan.tp", "plan.tp"),
        ("plan.x", "plan.tp"),
        ("pipe", "plan.pp"),
        ("layers", "model.layers"),
        ("model.hidden", "model.hidden"),
        ("device.launch", "machine.device.launch"),
        ("segment", "machine.node.segment"),
        ("machine.network.background", "machine.network.background"),
        ("nodes", "machine.nodes"),
        ("plan.batch", "batch"),
        ("devices", "devices"),
    ],
)
def test_a_key_has_one_full_name(short: str, whole: str) -> None:
    assert canonical(short) == whole


@pytest.mark.parametrize("key", ["machine.devcie.launch", "machine.layers"])
def test_a_key_of_no_table_of_a_machine_is_refused(key: str) -> None:
    with pytest.raises(QuestionError, check=names(f"'{key}'")):
        canonical(key)


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("devices", "512", 512),
        ("plan.zero", "1", 1),
        ("plan.sp", "true", True),
        ("plan.overlap", ["ors", "oar"], "oar+ors"),
        ("plan.overlap", "none", "none"),
        ("plan.stage_layers", [5, 6], "5+6"),
        ("plan.dp", "rest", "rest"),
        ("plan.shard", 4, 4),
        ("plan.vpp", 2, 2),
        ("plan.offload_share", 0.5, 0.5),
        ("plan.offload_share", "0.25", 0.25),
        ("plan", {"offload": "update", "offload_share": 0.5}, "offload=update,offload_share=0.5"),
        ("plan", {"tp": 2, "overlap": ["oar"]}, "tp=2,overlap=oar"),
        ("model.dropout", "0.1", 0.1),
        ("model.tied", "false", False),
        ("tokens", "300B", 3e11),
        ("machine.device.launch", "5 us", "5 us"),
    ],
)
def test_a_value_from_a_file_or_a_command_line_is_the_same(key: str, given: Any, kept: Any) -> None:
    assert value(key, given) == kept


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sweep": {"xx": [1]}}, ["'xx'", "tp"]),
        ({"sweep": {"model.layer": [1]}}, ["model.layer", "layers"]),
        ({"sweep": {"tp": []}}, ["sweep.tp"]),
        ({"sweep": {"tp": 3}}, ["sweep.tp", "3"]),
        ({"sweep": {"tp": "12"}}, ["sweep.tp", "12"]),
        ({"sweep": 3}, ["sweep", "3"]),
        ({"sweep": {"tp": [1], "plan.tp": [2]}}, ["plan.tp"]),
        ({"sweep": {"tp": ["a"]}}, ["tp=a"]),
        ({"sweep": {"tp": [1.5]}}, ["1.5"]),
        ({"sweep": {"tp": [0]}}, ["tp=0", "1"]),
        ({"sweep": {"zero": [4]}}, ["zero=4", "0", "1", "2", "3"]),
        ({"sweep": {"precision": ["fp9"]}}, ["precision=fp9"]),
        ({"sweep": {"shard": [-1]}}, ["shard=-1", "0"]),
        ({"sweep": {"overlap": ["all+b2b"]}}, ["overlap=b2b"]),
        ({"sweep": {"recompute": ["half"]}}, ["recompute=half"]),
        ({"sweep": {"layers": [1.5]}}, ["model.layers", "1.5"]),
        ({"sweep": {"layers": [True]}}, ["model.layers", "True"]),
        ({"sweep": {"tied": ["maybe"]}}, ["tied", "maybe"]),
        ({"sweep": {"devices": [0]}}, ["devices", "0", "1"]),
        ({"sweep": {"batch": ["many"]}}, ["batch", "many"]),
        ({"sweep": {"model": [3]}}, ["model", "3"]),
        ({"sweep": {"model": ["nope"]}}, ["model", "'nope'"]),
        ({"sweep": {"machine": ["nope"]}}, ['"nope"']),
        ({"sweep": {"device.launc": ["5 us"]}}, ["device.launc", "device.launch"]),
        ({"sweep": {"device.launch": ["5"]}}, ['"5"']),
        ({"set": {"nodes": 1.5}}, ["nodes", "1.5"]),
        ({"sweep": {"placement": ["nowhere"]}}, ['"nowhere"']),
        ({"sweep": {"placement": ["random:sed=1"]}}, ["sed=1"]),
        ({"sweep": {"placement": ["random:order=up"]}}, ['"up"']),
        ({"plan": "tp"}, ["'tp'"]),
        ({"plan": "dp=rest,tp=0"}, ["tp=0", "1"]),
        ({"tokens": "many"}, ["many"]),
        ({"point": {"tp": 1}}, ["[[point]]"]),
        ({"point": [{"tp": 1}], "sweep": {"tp": [2]}}, ["plan.tp"]),
        ({"batch_tokens": 64}, ["batch", "batch_tokens"]),
        ({"sweep": {"tp": list(range(1, 400)), "y": list(range(1, 400))}}, [f"{MOST_POINTS:,}"]),
    ],
)
def test_a_study_that_nobody_can_mean(change: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(SimgptError, check=names(*named)) as refused:
        inputs_of(study(SMALL, **change))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("plan.schedule", "zb-v"),
        ("plan.schedule", "dualpipe"),
        ("plan.overlap", "a2a"),
        ("plan.etp", 4),
        ("plan.shard", 8),
        ("plan.vpp", 2),
        ("plan.precision", "fp8-blockwise"),
        ("plan.precision", "fp8"),
        ("plan.gradients", "bf16"),
        ("plan", "pp=4,vpp=2,schedule=dualpipe-v,dp=rest"),
        ("plan", "tp=2,ep=8,etp=2,dp=rest,precision=mxfp8"),
    ],
)
def test_a_value_that_some_plans_take_is_for_each_point_to_tell(key: str, given: Any) -> None:
    assert value(key, given) == given


@pytest.mark.parametrize("key", ["model", "machine"])
def test_every_point_has_a_model_and_a_machine(key: str) -> None:
    with pytest.raises(QuestionError, check=names(key)):
        study({k: v for k, v in SMALL.items() if k != key})


@pytest.mark.parametrize("key", ["devices", "batch"])
def test_the_best_plan_is_that_of_so_many_devices_and_a_batch(key: str) -> None:
    with pytest.raises(QuestionError, check=names("plan", "devices", "batch")):
        study({k: v for k, v in SMALL.items() if k != key}, plan="best")


def test_the_last_key_varies_fastest() -> None:
    found = [(p["plan.tp"], p["plan.zero"]) for p in study(GRID).points()]
    assert found == [(x, zero) for x in (1, 2, 3) for zero in (0, 1, 2)]
    assert study(GRID).varied == ("plan.tp", "plan.zero")


def test_listed_points_come_with_every_combination() -> None:
    listed = [{"devices": 1}, {"devices": 2, "tp": 2}]
    points = list(study(SMALL, point=listed, sweep={"zero": [0, 1]}).points())
    assert [(p["devices"], p.get("plan.tp"), p["plan.zero"]) for p in points] == [
        (1, None, 0),
        (1, None, 1),
        (2, 2, 0),
        (2, 2, 1),
    ]
    assert len(points) == len(study(SMALL, point=listed, sweep={"zero": [0, 1]}))


def test_a_single_key_stands_over_the_plan_s_text() -> None:
    asked = study(SMALL, plan="tp=2,dp=rest", set={"tp": 1})
    (question,) = map(asked.question_of, asked.points())
    assert question.plan == "tp=1,dp=rest"


def test_keys_in_another_order_make_the_same_points() -> None:
    backwards = dict(reversed(GRID.items()))
    assert [list(p.items()) for p in study(backwards).points()] == [
        list(p.items()) for p in study(GRID).points()
    ]


def test_dotted_and_quoted_keys_read_alike(tmp_path: Path) -> None:
    head = 'model = "tiny-30k"\nmachine = "host"\n[sweep]\n'
    texts = (
        "plan.x = [1, 2]\ndevice.launch = ['1 us']",
        "'plan.x' = [1, 2]\n'device.launch' = ['1 us']",
    )
    (tmp_path / "a.toml").write_text(head + texts[0], encoding="utf-8")
    (tmp_path / "b.toml").write_text(head + texts[1], encoding="utf-8")
    first, second = (list(read_study(tmp_path / f"{name}.toml").points()) for name in "ab")
    assert first == second
    assert first[0]["machine.device.launch"] == "1 us"


@pytest.mark.parametrize(
    ("key", "content", "change"),
    [
        ("stack", STACK, 'overlap = ["dp"]'),
        ("routing", "tokens = [4, 2, 1, 1]", "tokens = [4, 3, 1, 1]"),
    ],
)
def test_a_file_beside_a_study_is_read_and_another_content_is_another_study(
    key: str, content: str, change: str, tmp_path: Path
) -> None:
    """The same study with the same file has the same digests, so that its rows are kept."""
    (tmp_path / "own.toml").write_text(content, encoding="utf-8")
    document = {**SMALL, "model": "tiny-mixtral-2m", key: "own.toml"}
    asked = study_of(document, title="a study", folder=tmp_path)
    first, again = inputs_of(asked).digests, inputs_of(asked).digests
    changed = content.replace('overlap = ["dp", "oag"]', change) if key == "stack" else change
    (tmp_path / "own.toml").write_text(changed, encoding="utf-8")
    assert first == again != inputs_of(asked).digests
