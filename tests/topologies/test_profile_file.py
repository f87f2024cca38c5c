"""The tables of a calibration: each cell of its kind and in its range, or a sentence."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.profiles import measured_by_bytes
from tests.simgpt.face import simgpt
from topologies.errors import MachineError
from topologies.hardware.profile_file import FORMS as MOST_FORMS
from topologies.hardware.profile_file import TABLES, read_profile
from topologies.machine import machine_from_dict, machine_to_dict
from topologies.machine_files import load_machine
from workload.kinds import ATTENTIONS
from workload.op import FORMS

DEVICES = 4
OF_BYTES = ["ranks", "nbytes", "seconds"]
PROFILE: dict[str, Any] = {
    "kernels": {
        "matmul@fp32": {
            "columns": ["ranks", "form", "m", "n", "k", "seconds"],
            "rows": [
                [ranks, form, m, 8, 8, 1e-5]
                for ranks in (1, 4)
                for form in range(3)
                for m in (8, 64)
            ],
        },
        "batched_matmul@fp32": {
            "columns": ["ranks", "form", "flops", "seconds"],
            "rows": [[1, form, 10**6, 1e-5] for form in range(3)],
        },
        **{
            f"{kind}@fp32": {
                "columns": ["ranks", "rows", "heads", "width", "sequence", "seconds"],
                "rows": [[1, 128, 8, 8, 128, 1e-4]],
            }
            for kind in ("attention", "attention_grad", "attention.ring")
        },
        "gelu@fp32": {"columns": OF_BYTES, "rows": [[1, 100, 1e-6], [1, 10**6, 1e-5]]},
        "gelu@int64": {"columns": OF_BYTES, "rows": [[4, 100, 1e-6]]},
    },
    "collectives": {
        kind: {"columns": ["ranks", "bytes", "seconds"], "rows": [[2, 1024, 1e-5], [4, 1, 1e-6]]}
        for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")
    },
    "host": {"matmul@fp32": 0.0},
    "provenance": {"measured": "today"},
}
TABLES_OF = [(part, name) for part in ("kernels", "collectives") for name in PROFILE[part]]
EVERYWHERE = [
    *(0, -1, 5e-324, -0.0, math.nan, math.inf, -math.inf, 1e300, 2.0**53, 2**64, 10**30),
    *(True, False, None, "1", "", [], [1], {}, {"value": 1}),
]
WRONG: dict[str, list[Any]] = {
    "ranks": [0.5, 1.5, 3600.5, DEVICES + 1],
    "form": [7.5, 0.5, 3],
    "seconds": [86_400, 86_400.0, 1e9],
    **{key: [0.001, 1.5] for key in ("m", "n", "k", "flops", "nbytes", "bytes")},
    **{key: [0.001, 1.5] for key in ("rows", "heads", "width", "sequence")},
}


def refused(document: Any) -> str:
    with pytest.raises(MachineError) as raised:
        read_profile(document, DEVICES, "host.json")
    return str(raised.value)


def test_the_forms_and_attentions_are_those_of_ops() -> None:
    assert len(FORMS) == MOST_FORMS
    assert {kind for kind in TABLES if "attention" in kind} == set(ATTENTIONS)


def test_what_is_sound_is_read() -> None:
    profile = read_profile(PROFILE, DEVICES, "host.json")
    assert profile.kernels["attention.ring@fp32"].rows == ((1.0, 128.0, 8.0, 8.0, 128.0, 1e-4),)
    assert {*profile.kernels, *profile.collectives} == {name for _, name in TABLES_OF}
    assert profile.host == {"matmul@fp32": 0.0}


@pytest.mark.parametrize(("part", "name"), TABLES_OF)
def test_every_cell_has_a_kind_and_a_range(part: str, name: str) -> None:
    columns = PROFILE[part][name]["columns"]
    for at, column in enumerate(columns):
        zero = column == "form"
        for value in [*EVERYWHERE, *WRONG[column]]:
            is_zero = isinstance(value, int | float) and value == 0 and value is not False
            if zero and is_zero:
                continue
            document = copy.deepcopy(PROFILE)
            row = len(document[part][name]["rows"])
            document[part][name]["rows"][-1][at] = value
            said = refused(document)
            assert f"{part}.{name}" in said, value
            assert f"row {row}" in said, value
            assert column in said, value


@pytest.mark.parametrize("value", ["x", 1, None, [], {}, [1], {"columns": [], "rows": []}])
@pytest.mark.parametrize(("part", "name"), TABLES_OF)
def test_a_table_has_its_columns_and_rows(part: str, name: str, value: Any) -> None:
    for way in ("itself", "columns", "rows", "row"):
        document = copy.deepcopy(PROFILE)
        if way == "itself":
            document[part][name] = value
        elif way == "row":
            document[part][name]["rows"].append(value)
        else:
            document[part][name][way] = value
        assert name in refused(document)


@pytest.mark.parametrize(
    "change",
    [
        {"kernels": 7},
        {"collectives": []},
        {"host": {"add@fp32": math.inf}},
        {"host": {"add@fp32": -1}},
        {"host": {"add@fp32": "1"}},
        {"host": 1},
        {"provenance": "today"},
        {"provenance": {"at": 1}},
        {"kernel": {}},
    ],
)
def test_a_profile_has_nothing_else(change: dict[str, Any]) -> None:
    assert "host.json: profile." in refused(PROFILE | change)
    nothing: list[Any] = [7, "x", [], None]
    assert all("profile" in refused(document) for document in nothing)


def _whole(profile: dict[str, Any]) -> dict[str, Any]:
    """The profile with the table of one kind for all that a step has."""
    kernels = profile["kernels"]
    more = {f"{kind}@fp32": kernels["gelu@fp32"] for kind in measured_by_bytes()}
    return profile | {"kernels": kernels | more}


def test_a_file_without_sound_tables_is_refused_by_commands(tmp_path: Path) -> None:
    """Ranks that no machine has, once with a traceback: the logarithm of ranks that round to 0."""
    document = machine_to_dict(load_machine("perlmutter"))
    path = tmp_path / "host.json"
    whole = _whole(PROFILE)
    for profile, status in (
        (whole, 0),
        (7, 2),
        ({"kernels": {"matmul@fp32": {"columns": OF_BYTES, "rows": [[5e-324, 1, 1]]}}}, 2),
    ):
        path.write_text(json.dumps(document | {"profile": profile}), encoding="utf-8")
        plan = ("--plan", "dp=rest,precision=fp32", "-n", "4")
        said = simgpt("predict", "tiny-30k", "-m", str(path), *plan, "--batch", "8")
        assert said.status == status, said.err
        assert (str(path.name) in said.err.splitlines()[-1]) if status else True


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (1, 1e-30),
        (2, 86_399.9),
        (2**50, 1e-6),
        *(
            pytest.param(size, seconds, marks=pytest.mark.slow)
            for size in (1, 2, 2**50 - 1, 2**50)
            for seconds in (1e-30, 1e-6, 86_399.9)
        ),
    ],
)
def test_interpolation_at_the_edges_of_what_a_table_may_hold_is_a_time(
    size: int, seconds: float, tmp_path: Path
) -> None:
    document, profile = machine_to_dict(load_machine("perlmutter")), copy.deepcopy(PROFILE)
    extremes = [(size, seconds), (2**50 - 1, 86_399.9), (2**50, 1e-30)]
    for part, name in TABLES_OF:
        table = profile[part][name]
        first = table["columns"].index("form") + 1 if "form" in table["columns"] else 1
        table["rows"] = [
            [4, *([form] if first == 2 else []), *[at] * (len(table["columns"]) - first - 1), s]
            for form in range(3 if first == 2 else 1)
            for at, s in extremes
        ]
    sizes = sorted({at for at, _ in extremes})
    profile["kernels"]["matmul@fp32"]["rows"] = [
        [4, form, m, n, k, 1e-30] for form in range(3) for m in sizes for n in sizes for k in sizes
    ]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document | {"profile": _whole(profile)}), encoding="utf-8")
    plan = ("--plan", "dp=rest,precision=fp32", "-n", "4")
    said = simgpt("predict", "tiny-30k", "-m", str(path), *plan, "--batch", "8", "--json")
    assert said.status in (0, 3), said.err  # 3: no picosecond, or more than 106 days
    if not said.status:
        assert 0 < json.loads(said.out)["step_s"] < math.inf


def test_a_calibration_reads_back_as_it_was_written() -> None:
    document = machine_to_dict(load_machine("perlmutter")) | {"profile": PROFILE}
    machine = machine_from_dict(document, "host.json")
    again = machine_from_dict(json.loads(json.dumps(machine_to_dict(machine))), "host.json")
    assert again == machine
