"""Every kind of op has one row, and whoever asks about a kind without one hears so."""

from __future__ import annotations

from itertools import islice
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from executor.calibrating.sample_values import COUNTS, NUMBERED
from executor.kernels import KERNELS
from simulator.attribution.critical_path import cause_of
from simulator.costs.analytic import AnalyticCosts
from simulator.costs.calibrated import CalibratedCosts
from simulator.explain.roofline import kind_of
from tests.simulator.drawn_steps import drawn_steps
from topologies.hardware.profile import Profile
from topologies.machine_files import load_machine
from workload.kinds import COMMUNICATION, KINDS, Costs, Work
from workload.lowering import lower
from workload.op import Op
from workload.op_attributes import Attributes

# Of stacks alone, whose programs do not run here.
OF_STACKS = {"slice", "copies", "launches", "pad_rows", "unpad_rows", "host_add"}
STRANGE = Op("op", "strange", (), (), nbytes=1)


def test_what_runs_here_has_a_row_and_every_row_a_kernel_or_a_network() -> None:
    assert set(KINDS) == {*KERNELS, *COMMUNICATION, *OF_STACKS}


def test_operands_of_measurements_are_those_of_known_kinds() -> None:
    assert {*COUNTS, *NUMBERED} <= set(KINDS)


def test_a_stand_in_is_measured_itself() -> None:
    stand_ins = {row.measured_as for row in KINDS.values()} - {""}
    assert stand_ins
    for name in stand_ins:
        assert KINDS[name].measured_as == ""
        assert KINDS[name].costs is Costs.MEMORY


@pytest.mark.parametrize(
    "ask",
    [
        AnalyticCosts(load_machine("perlmutter")).seconds,
        CalibratedCosts(Profile(kernels={}), 1, 1e9).seconds,
        cause_of,
        kind_of,
    ],
)
def test_a_kind_without_a_row_is_refused_by_its_name(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(LookupError, match="strange"):
        ask(STRANGE)


@pytest.mark.parametrize(
    ("kind", "gradient"),
    [("rmsnorm", "rmsnorm_grad"), ("weighted_gelu", "weighted_gelu_grad")],
)
def test_a_gradient_reaches_the_share_of_the_gradient_that_its_kind_is_like(
    kind: str, gradient: str
) -> None:
    forward, backward = KINDS[kind], KINDS[gradient]
    assert (backward.share, backward.work) == (f"{forward.share}_grad", forward.work)


def test_every_class_of_work_has_a_kind() -> None:
    assert {row.work for row in KINDS.values()} == set(Work)


def fits(value: object, hint: object) -> bool:
    """Whether a value has the type that a hint names."""
    if hint is Any:
        return True
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(fits(each, get_args(hint)[0]) for each in value)
    assert isinstance(hint, type)
    return type(value) is hint or (hint is float and type(value) is int)


@pytest.mark.parametrize(
    ("value", "hint", "does"),
    [
        (1, int, True),
        (True, int, False),
        (("a",), tuple[str, ...], True),
        ((1,), tuple[str], False),
    ],
)
def test_a_value_of_another_type_is_seen(value: object, hint: object, does: bool) -> None:
    assert fits(value, hint) == does


def test_attributes_are_those_that_are_declared_and_have_their_types() -> None:
    hints, seen = get_type_hints(Attributes), set[str]()
    for step in islice(drawn_steps(seed=63), 40):
        for stage in range(step.plan.pp):
            for op in lower(step.gpt, step.plan, stage).ops:
                for name, value in op.attributes.items():
                    assert fits(value, hints[name]), (op.kind, name, value)
                    seen.add(name)
    assert len(seen) > 30
