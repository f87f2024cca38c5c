"""The question that several commands ask: which step, of which model, on which machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simgpt import options
from simgpt.arguments.machine import (
    assumed_of_parts,
    in_segments,
    own_machine,
    settings_options,
)
from simgpt.arguments.model import model_of, model_set_option, routed_model, routing_option
from topologies.records import record
from workload.errors import RestError

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.stacks.job import Job
    from simulator.stacks.stack import Stack
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.gpt import GPT
    from workload.plan import Plan

FOR_INFORMATION = ("device.matmul.best", "node.nics.latency")  # keys of a machine's file
OF_RUNS = ("reliability.", "storage.")  # which say nothing of a step
Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("-m", "--machine", required=True, help=options.MACHINE_HELP),
    click.option("-n", "--devices", type=options.DEVICES, help="Devices; dp=rest fills them."),
    click.option(
        "--plan",
        "-p",
        default="dp=rest",
        show_default=True,
        help="key=value,… or a TOML or JSON file.",
    ),
    click.option("--batch", "-b", type=options.SEQUENCES, help="Sequences per step."),
    click.option("--batch-tokens", type=options.BATCH_TOKENS, help=options.BATCH_TOKENS_HELP),
    settings_options,
    model_set_option,
    routing_option,
    click.option(
        "--placement",
        default="scheduler",
        show_default=True,
        help="Where ranks land: scheduler, contiguous, scattered:30, random:seed=1, "
        "hosts:NAME[1-64].",
    ),
    click.option(
        "--stack",
        default="simgpt",
        show_default=True,
        help="The software that trains, by name (simgpt stacks), or its TOML file.",
    ),
)


def step_options(function: Command) -> Command:
    """Give a command the options by which `simgpt predict` is told of a step."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("predict")
@click.argument("model")
@step_options
def _step(**how: Any) -> dict[str, Any]:
    return how


NAMES = tuple(str(param.name) for param in _step.params)


def step_of_words(
    words: Iterable[str], parent: click.Context | None = None, **settings: Any
) -> dict[str, Any]:
    """The values of the words after `simgpt predict` that name a step, as a command receives them,
    with the errors of the command line."""
    with _step.make_context("predict", list(words), parent, **settings) as context:
        return dict(context.params)


@record(slots=False)
class StepQuestion:
    """What the words of a command line stand for that names a step."""

    job: Job
    machine: Machine
    placement: Placement

    @property
    def gpt(self) -> GPT:
        """The model, as a device has it."""
        return self.job.gpt

    @property
    def plan(self) -> Plan:
        """The plan, in our own words."""
        return self.job.plan

    def predicted(
        self,
        *,
        timeline: bool = False,
        tabled: bool = False,
        op_seconds: Mapping[str, float] | None = None,
    ) -> Prediction:
        """The prediction, by the one path of every command that predicts a single step; with the
        spans of its ops, with matmuls from published tables or with measured times of ops."""
        from simulator.predict import predict

        return predict(
            self.gpt,
            self.plan,
            self.machine,
            placement=self.placement,
            timeline=timeline,
            stack=replace(self.job.stack, tabled=tabled),
            op_seconds=op_seconds,
        )

    def changed(self, plan: Plan) -> Prediction:
        """The prediction of another plan for the same devices."""
        from simulator.predict import predict

        where, stack = self.placement, self.job.stack
        return predict(self.gpt, plan, self.machine, placement=where, stack=stack)


def _note_unused(
    settings: tuple[str, ...], stack: Stack, machine: Machine, *, of_runs: bool
) -> None:
    """Say which settings change nothing; `of_runs` are those of whole runs used."""
    for key in options.settings_of(settings):
        if key in FOR_INFORMATION or key.startswith("run_to_run."):
            options.note(f"{key} is for information and changes no prediction")
        if key.startswith(OF_RUNS) and not of_runs:
            options.note(f"{key} changes no step; simgpt plan-run asks for it")
        for table in stack.stands_over(machine):
            if key.startswith(f"{table}."):
                options.note(f"{key} changes nothing: the stack {stack.name} has its own {table}")


def question_of(
    model: str,
    machine: str,
    how: Mapping[str, Any],
    *,
    tells: bool = True,
    of_runs: bool = False,
) -> StepQuestion:
    """What those arguments and options ask; `tells` has notes said on stderr, `of_runs` counts what
    a machine's file says of whole runs as used."""
    from simulator.stacks import load_stack
    from simulator.stacks.job import job_of
    from topologies.placement import with_room
    from topologies.placement_names import parse_placement

    gpt = routed_model(model_of(model, how["model_fields"], tells=tells), how["routing"])
    sequences = options.batch_of(how["batch"], how["batch_tokens"], gpt, how["devices"])
    built = options.machine_of(machine, how["settings"])
    if how["devices"] is not None:
        built = with_room(built, how["devices"])
    stack, text = load_stack(how["stack"]), options.plan_table(how["plan"])
    if tells:
        options.note_engine()
        _note_unused(how["settings"], stack, built, of_runs=of_runs)
    try:
        job = job_of(gpt, text, stack, devices=how["devices"], batch=sequences)
    except RestError as error:
        if own_machine(machine) is None:
            raise
        raise RestError(f"{error}; -n {built.devices} is all of {built.name}") from None
    built = with_room(built, job.plan.grid.ranks)
    told = (*assumed_of_parts(machine, built), *in_segments(built, job.plan.grid.ranks))
    job = replace(job, remarks=(*job.remarks, *told))
    placed = parse_placement(how["placement"], built, job.plan.grid.ranks)
    return StepQuestion(job, built, placed)
