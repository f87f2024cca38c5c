"""The figures that do not follow from a predicted step alone: of AxoNN's communication model, its
bandwidths of groups, and the runs whose kernels were profiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.search.baselines import by_axonn
from simulator.search.problem import SearchProblem
from topologies.files.reading import shipped_toml
from topologies.machine_files import load_machine
from validation.axonn_groups import MEASURED_ON, axonn_group_bandwidths
from validation.published.predicting import predict_runs
from validation.published.runs import read_runs
from validation.seeds.figures import Range
from workload.gpt import find_model
from workload.grid import USUAL
from workload.overlaps import OVERLAPS

TEN = 10
MANY = 10_000  # more grids than there are
Figure = tuple[str, float, Range, Mapping[str, float]]  # an id, published, predicted, parts in s


def top_ten(row: Mapping[str, Any]) -> Range:
    """How many of the ten grids that AxoNN's model ranks first are among the ten fastest that we
    simulate; `low` and `high` count those that are certainly, and possibly, among them, by the
    error of a difference between two plans."""
    fixed = {"recompute": "full", "overlap": OVERLAPS, "order": USUAL}
    problem = SearchProblem(find_model(row["model"]), row["devices"], row["batch"], fixed)
    ranked = by_axonn(problem, load_machine(row["machine"]), top=MANY)
    steps = sorted(each.prediction.step_s for each in ranked)
    tenth_s = steps[min(TEN, len(steps)) - 1]
    error = 1 + ranked[0].prediction.difference_error.share
    limits = (tenth_s, tenth_s / error, tenth_s * error)
    counts = [sum(each.prediction.step_s <= at for each in ranked[:TEN]) for at in limits]
    return Range(*map(float, counts))


def groups() -> Iterator[Figure]:
    """The published bandwidths of groups beside what we predict for large collectives; up to what
    links and NICs allow."""
    for machine in map(load_machine, MEASURED_ON):
        for each in axonn_group_bandwidths(machine):
            ours, nominal = each.reached_bytes_per_s / 1e9, each.nominal_bytes_per_s / 1e9
            id = f"axonn-group-{machine.name}-{each.size}-ranks-{each.inner}-apart"
            yield id, each.published_bytes_per_s / 1e9, Range(ours, ours, nominal), {}


def traced(row: Mapping[str, Any]) -> Iterator[Figure]:
    """A published run by the path of `simgpt validate published`: its step, and the parts of which
    the time on the devices is known; no range, as AxoNN has no other published runs."""
    (run,) = [run for run in read_runs() if run.id == row["run"]]
    (outcome,) = predict_runs([run], lambda _: None)
    assert outcome.predicted_s is not None, "the rows with a trace have whole plans"
    assert outcome.measured_s is not None, "and a measured step"
    whole = Range(outcome.predicted_s)
    yield f"{row['id']}-step", outcome.measured_s, whole, outcome.breakdown_s
    measured = shipped_toml("validation", "data/traces.toml")["seconds"][run.id]
    for part, seconds in measured.items():
        yield f"{row['id']}-{part}", seconds, Range(outcome.breakdown_s.get(part, 0.0)), {}
