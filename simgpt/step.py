"""From a question to the step that it asks for: job, machine and placement, and its prediction."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simgpt import options
from simgpt.arguments.machine import assumed_of_parts, in_segments, own_machine
from simgpt.near_batches import near_batches, words_of
from simgpt.question import USUAL_PLAN, Question
from simgpt.question_rows import QuestionError
from topologies.errors import SimgptError
from topologies.files.named_files import is_plan_file
from topologies.files.reading import UserFile
from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError, RestError
from workload.plan_text import REALS, REST, parse_fields, parse_plan
from workload.recipes.table import FP8

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.stacks.job import Job
    from simulator.stacks.stack import Stack
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.descriptions.described import Described
    from workload.gpt import GPT
    from workload.plan import Plan

PLAN = UserFile("plan", PlanError)
FOR_INFORMATION = ("device.matmul.best", "node.nics.latency")  # keys of a machine's file
OF_RUNS = ("reliability.", "storage.")  # which say nothing of a step
PROFILE, MEASURED = "profile", "measured"  # where times of compute come from
# Of keys whose values in a plan's file are of other types than whole numbers, texts and switches.
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("overlap", "stage_layers"), (list, str)),
    **dict.fromkeys(REALS, (float, int, str)),
}


class Sources:
    """What the names of a question stand for: what ships with simgpt, and files. With
    `tells`, notes on what a description leaves open are printed."""

    def __init__(self, *, tells: bool = True) -> None:
        self.tells = tells

    def model(self, question: Question) -> GPT:
        """The model with the fields that are set of it and the histogram of its experts."""
        from workload.descriptions.from_table import with_fields

        described, given = self.described(question.model), question.model_set
        gpt = with_fields(described.gpt, given) if given else described.gpt
        if self.tells:
            for text in described.notes_on(gpt, given):
                options.note(text)
        return self.routed(gpt, question.routing) if question.routing else gpt

    def described(self, name: str) -> Described:
        """What describes the model of a name."""
        from workload.descriptions.read import described_model

        return described_model(name)

    def routed(self, gpt: GPT, file: str) -> GPT:
        """The model with the histogram of a file."""
        from workload.expert_loads.histogram_file import read_routed

        return read_routed(gpt, file)

    def machine(self, question: Question) -> Machine:
        """The machine with the values that are set of it."""
        return options.machine_of(question.machine, question.set, tells=self.tells)

    def stack(self, name: str) -> Stack:
        """The stack of a name."""
        from simulator.stacks import load_stack

        return load_stack(name)

    def plan(self, text: str) -> str | Mapping[str, Any]:
        """The text of a plan, or the table of its file."""
        return plan_table(text)

    def placed(self, policy: str, machine: Machine, ranks: int) -> Placement:
        """Where a policy places ranks."""
        from topologies.placement_names import parse_placement

        return parse_placement(policy, machine, ranks)


@record(slots=False)
class Step:
    """What a question stands for."""

    question: Question
    job: Job
    machine: Machine
    placement: Placement

    @property
    def gpt(self) -> GPT:
        """The model, as a device has it."""
        return self.job.gpt

    @property
    def plan(self) -> Plan:
        """The plan, in simgpt's keys."""
        return self.job.plan

    @property
    def is_measured(self) -> bool:
        """Whether ops are timed on the device at hand, which only those of this plan are."""
        return self.question.compute == MEASURED

    @cached_property
    def op_seconds(self) -> dict[str, float] | None:
        """The seconds of the plan's distinct ops on the device at hand, measured where not yet
        kept; None where the machine's file tells times."""
        if not self.is_measured:
            return None
        from executor.calibrating.calibrate import measured_ops
        from executor.launching.device_use import check_host_use
        from simgpt.progress import Ticker

        check_host_use(self.gpt, self.plan, "cpu")
        with Ticker() as ticker:
            return measured_ops(
                self.gpt, self.plan, threads=1, progress=ticker, announce=options.note
            )

    def predicted(self, *, timeline: bool = False) -> Prediction:
        """The prediction, by the one path of everything that predicts a single step; with the spans
        of its ops for a `timeline`."""
        from simulator.predict import predict

        with _naming_default(self.question, self.job.stack, self.job.chosen):
            return predict(
                self.gpt,
                self.plan,
                self.machine,
                placement=self.placement,
                timeline=timeline,
                stack=self.job.stack,
                op_seconds=self.op_seconds,
            )

    def changed(self, plan: Plan) -> Prediction:
        """The prediction of another plan for the same devices."""
        from simulator.predict import predict

        where, stack = self.placement, self.job.stack
        return predict(self.gpt, plan, self.machine, placement=where, stack=stack)


def step_of(question: Question, sources: Sources | None = None, *, of_runs: bool = False) -> Step:
    """The step that a question asks for, or one sentence on why there is none; `of_runs` counts
    what a machine's file says of whole runs as used."""
    from simulator.stacks.job import job_of
    from topologies.placement import with_room

    told = Sources() if sources is None else sources
    gpt = told.model(question)
    if question.routing and question.compute == MEASURED:
        raise QuestionError("compute=measured runs ops of even rows; give no routing")
    sequences = batch_of(question, gpt)
    built = told.machine(question)
    if question.devices is not None:
        built = with_room(built, question.devices)
    words = told.plan(question.plan)
    stack, chosen = stack_of(question, built, words, told)
    if told.tells:
        options.note_engine()
        _note_unused(question, stack, built, of_runs=of_runs)
    try:
        with _naming_default(question, stack, chosen):
            job = job_of(gpt, words, stack, devices=question.devices, batch=sequences)
    except RestError as error:
        if own_machine(question.machine) is None:
            raise
        raise RestError(f"{error}; -n {built.devices} is all of {built.name}") from None
    ranks = job.plan.grid.ranks
    built = with_room(built, ranks)
    remarks = (*assumed_of_parts(question.machine, built), *in_segments(built, ranks))
    job = replace(job, remarks=(*job.remarks, *remarks), chosen=chosen)
    return Step(question, job, built, told.placed(question.placement, built, ranks))


@contextmanager
def _naming_default(question: Question, stack: Stack, chosen: str) -> Iterator[None]:
    """Say in a refusal that nobody named the stack, where simgpt's own does not refuse the plan."""
    try:
        yield
    except PlanCannotRunError as error:
        if not chosen or not _is_of_stack(question, stack):
            raise
        hint = f"--stack was not given, and {stack.name} is {chosen}; --stack simgpt may run it"
        raise PlanCannotRunError(f"{error}; {hint}") from None


def _is_of_stack(question: Question, stack: Stack) -> bool:
    """Whether a refusal is of this stack: simgpt's own makes a step of the same question."""
    from simulator.stacks.stack import EXECUTOR

    if stack.name == EXECUTOR.name:
        return False
    try:
        step_of(question.changed(stack=EXECUTOR.name), Sources(tells=False))
    except SimgptError:
        return False
    return True


def stack_of(
    question: Question,
    machine: Machine,
    words: str | Mapping[str, Any],
    sources: Sources,
    *,
    searches: bool = False,
) -> tuple[Stack, str]:
    """The stack of a question, and why it is that one where the question names none."""
    from simulator.stacks.default_stack import default_stack
    from simulator.stacks.stack import EXECUTOR

    name, why = question.stack, ""
    if not name and question.compute == MEASURED:
        name, why = EXECUTOR.name, "whose kernels are measured"
    elif not name:
        name, why = default_stack(machine, words, searches=searches)
    return replace(sources.stack(name), tabled=question.compute == PROFILE), why


def _note_unused(question: Question, stack: Stack, machine: Machine, *, of_runs: bool) -> None:
    """Say which settings change nothing; `of_runs` are those of whole runs used."""
    for key in question.set:
        if key in FOR_INFORMATION or key.startswith("run_to_run."):
            options.note(f"{key} is for information and changes no prediction")
        if key.startswith(OF_RUNS) and not of_runs:
            options.note(f"{key} changes no step; simgpt plan-run asks for it")
        for table in stack.stands_over(machine):
            if key.startswith(f"{table}."):
                options.note(f"{key} changes nothing: the stack {stack.name} has its own {table}")


def batch_of(question: Question, gpt: GPT) -> int | None:
    """Sequences per step. Tokens that are not a whole number of sequences are refused; the message
    names near batches that the devices divide (powers of two if the devices are unknown)."""
    tokens = question.batch_tokens
    if tokens is None:
        return question.batch
    if question.batch is not None:
        raise QuestionError("give batch or batch_tokens, not both")
    sequences, rest = divmod(tokens, gpt.sequence)
    if rest or sequences < 1:
        near = near_batches(tokens / gpt.sequence, question.devices or 1) or [max(sequences, 1)]
        raise PlanError(
            f"a batch of {tokens:,} tokens is not a whole number of sequences of "
            f"{gpt.sequence:,}; try {words_of(near, gpt.sequence)}"
        )
    return sequences


def plan_table(text: str) -> str | dict[str, Any]:
    """The text of a plan as it is, or the table of the TOML or JSON file that it names."""
    if not is_plan_file(text):
        if "=" not in text and os.path.isfile(text):
            raise PlanError(f"a plan's file ends in .toml or .json, unlike {text}")
        return text
    table = _plan_of_answer(PLAN.document(text))
    if not isinstance(table, dict):
        raise PlanError(f"{text} is not a plan: it should be a table of keys such as tp and dp")
    for key, value in table.items():
        if type(value) not in KINDS.get(key, (int, str, bool)):
            raise PlanError(
                f"{text}: {key} = {json.dumps(value, default=str)} is not a plan's value"
            )
    return table


def _plan_of_answer(document: Any) -> Any:
    """The plan of an answer in JSON, of a search the best; another document as it is."""
    answer = document
    if isinstance(answer, dict) and isinstance(answer.get("plans"), list):
        if not answer["plans"]:
            raise PlanError("the search's answer has no plan")
        answer = answer["plans"][0]
    if not isinstance(answer, dict) or not isinstance(answer.get("plan"), dict):
        return answer
    return {**answer["plan"], **({"recipe": FP8} if answer.get("fp8") is True else {})}


def plan_of_run(question: Question, ranks: int | None) -> Plan:
    """The plan that `simgpt run` trains on so many ranks: on one, where neither says how many."""
    devices = ranks or (1 if question.plan == USUAL_PLAN else None)
    return parse_plan(plan_table(question.plan), devices=devices, batch=question.batch)


def fixed_of(text: str) -> dict[str, Any]:
    """Fields of a plan that a search keeps: `pp=1,zero=1`, or those of a plan's file; dp=rest
    keeps nothing."""
    fixed = parse_fields(plan_table(text))
    return {key: value for key, value in fixed.items() if (key, value) != ("dp", REST)}
