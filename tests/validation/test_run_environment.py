"""The environment that a published row ran in, by words of its notes and columns."""

from __future__ import annotations

import pytest

from validation.published.predicting import predict_runs
from validation.published.run_machine import environment_of, machine_of
from validation.published.runs import PublishedRun, read_runs

ROWS = {run.id: run for run in read_runs()}


def row(machine: str, notes: str, fabric: str = "slingshot") -> PublishedRun:
    """A row of that machine, with these notes."""
    like = ROWS["axonn-008"] if machine == "Frontier" else ROWS["jupiter-124"]
    cells = {**like.columns, "machine": machine, "notes": notes, "fabric": fabric}
    return PublishedRun(cells)


@pytest.mark.parametrize(
    ("notes", "variant", "environments"),
    [
        ("[plan:full] compile", "", ()),
        ("GPUDirect RDMA disabled (NCCL_NET_GDR_LEVEL=0)", "", ("no-gdr",)),
        ("ran without GPUDirect", "", ("no-gdr",)),
        ("NCCL_NET_GDR_LEVEL=3 set", "", ()),
        ("job script lacks NCCL_NET_GDR_LEVEL", "", ("no-gdr",)),
        ("ROCm stack without aws-ofi-rccl plugin", "rccl-default", ()),
        ("with aws-ofi-rccl plugin", "rccl-default", ()),
        ("aws-ofi-rccl, rendezvous settings of OLCF", "", ()),
        ("aws-ofi-rccl; GPU-direct was off", "rccl-default", ("no-gdr",)),
    ],
)
def test_notes_select_variant_and_environment(
    notes: str, variant: str, environments: tuple[str, ...]
) -> None:
    assert environment_of(row("Frontier", notes)) == (variant, environments)


def test_left_out_gpudirect_counts_on_slingshot_alone_and_variants_where_they_are() -> None:
    notes = "job script lacks NCCL_NET_GDR_LEVEL; network plugin of our own"
    assert environment_of(row("JUPITER", notes, "infiniband")) == ("", ())
    off = row("JUPITER", "NCCL_NET_GDR_LEVEL=0", "infiniband")
    assert machine_of(off).full_name == "jupiter-booster:no-gdr"


def test_the_jobs_of_a_source_may_have_switched_gpudirect_off() -> None:
    """As their YAML does, which no note says."""
    like = row("JUPITER", "torch.compile=yes", "infiniband").columns
    named = {name: f"OpenEuroLLM oellm-autoexp JUPITER, {name}" for name in ("Qwen3 30B", "dense")}
    found = {n: environment_of(PublishedRun({**like, "source": s}))[1] for n, s in named.items()}
    assert found == {"Qwen3 30B": ("no-gdr",), "dense": ()}


@pytest.mark.slow
def test_axonn_s_runs_of_20b_are_within_15_percent_on_both_machines() -> None:
    """8.2 s on 256 A100; 26.6 s on 512 GCDs without GPUDirect, with libfabric's own settings."""
    assert machine_of(ROWS["axonn-008"]).variant == "rccl-default:no-gdr"
    for found in predict_runs([ROWS["axonn-007"], ROWS["axonn-008"]], lambda _: None):
        assert found.predicted_s is not None
        assert found.measured_s is not None
        assert abs(found.predicted_s / found.measured_s - 1) < 0.15
