"""The command line: one lazily imported module per command, errors as one sentence."""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from simgpt.arguments.completion import completed
from simgpt.interrupts import unwinding
from simgpt.little_memory import take_room_for_matrices
from simgpt.plain_words import plain_words
from simgpt.stderr import tell
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.files.printable import sentence
from topologies.session import Session, gc_paused

# What a system says when it has no more memory, disk, descriptors or processes, or a broken disk.
RAN_OUT = (
    *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO),
)
HELP = ["-h", "--help"]  # what asks any command for its help
COMMANDS = {
    "predict": ("simgpt.commands.predict", "Predict one training step of a model on a machine."),
    "search": ("simgpt.commands.search", "Find the fastest plan that fits, with proof."),
    "why": ("simgpt.commands.why", "Explain what limits a step, and what would make it faster."),
    "plan-run": ("simgpt.commands.jobs.plan_run", "Estimate when a training run will finish."),
    "sweep": ("simgpt.commands.sweep", "Predict every point of a study; resumable."),
    "run": (
        "simgpt.commands.run",
        "Train for real under the same plan, predicted beside measured.",
    ),
    "memorise": (
        "simgpt.commands.memorise",
        "Train on repeated documents; count those reproduced word for word.",
    ),
    "sbatch": (
        "simgpt.commands.jobs.sbatch",
        "Write a job script for Slurm that runs a plan at a computing centre.",
    ),
    "compare": (
        "simgpt.commands.jobs.compare",
        "Compare a measured job's log or trace with its prediction.",
    ),
    "calibrate": ("simgpt.commands.calibrate", "Measure this machine into a file for predict -m."),
    "validate": ("simgpt.commands.validate", "Compare predictions with measurements."),
    "report": ("simgpt.commands.report", "Put answers on one page with figures and a timeline."),
    "serve": ("simgpt.commands.serve", "Predict in a browser: a page served on this machine."),
    "bench-network": (
        "simgpt.commands.bench_network",
        "Predict a collective benchmark (nccl-tests) on a machine.",
    ),
    "import": (
        "simgpt.commands.import_",
        "Read a Megatron, torchtitan, NeMo or DeepSpeed job.",
    ),
    "export": ("simgpt.commands.export", "Print another framework's settings for a plan."),
    "models": ("simgpt.commands.models", "List the model presets, or show one."),
    "stacks": ("simgpt.commands.stacks", "List the software stacks, or show one with its source."),
    "machines": ("simgpt.commands.machines", "List the machines, or show one with its sources."),
    "completion": (
        "simgpt.commands.shell.completion",
        "Print the completion script for bash, zsh or fish.",
    ),
}
SECTIONS = {
    "Commands to ask": (
        *("predict", "search", "why", "plan-run", "sweep", "report", "serve", "import", "export"),
    ),
    "Commands to measure": ("run", "calibrate", "compare", "validate", "memorise", "sbatch"),
    "Commands to look up": ("models", "machines", "stacks", "bench-network", "completion"),
}


class LazyGroup(click.Group):
    """Commands by name; a command's module is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        with gc_paused():
            module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return completed(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


@click.group(cls=LazyGroup, context_settings={"help_option_names": HELP})
@click.version_option(package_name="simgpt")
@click.pass_context
def cli(context: click.Context) -> None:
    """How long will one training step of this GPT take, split this way, on this machine?

    \b
    simgpt predict llama-3.1-70b -m 64x8xH100,8xNDR -n 512 \\
        --plan tp=8,pp=4,dp=rest,mbs=1,zero=1 --batch 1024
    simgpt search gpt-5b -m perlmutter -n 64 --batch 256
    simgpt run tiny-2m --plan dp=2 --ranks 2 --steps 20
    """
    session = Session()
    context.call_on_close(lambda: _note_refused(session))  # once the session has been left
    context.with_resource(session)


def _note_refused(session: Session) -> None:
    """Say why what was kept from earlier commands was not believed."""
    from topologies.files.cache_folder import Refused

    for why in session.the(Refused).reasons:
        tell(f"{why}: nothing that is kept there is used")


def main() -> None:
    """Run the command line, and turn an error into a sentence and a status."""
    try:
        with unwinding():
            take_room_for_matrices()
            sys.exit(cli.main(prog_name="simgpt", standalone_mode=False))
    except NoArgsIsHelpError as error:
        tell(error.ctx.get_help() + "\n")
        _fail(f"missing command; see {error.ctx.command_path} --help", ExitStatus.WRONG_INPUT)
    except click.ClickException as error:
        _fail(sentence_of(error), ExitStatus.WRONG_INPUT)
    except SimgptError as error:
        _fail(str(error), error.exit_code, error.lines)
    except MemoryError:
        _fail("this machine has too little memory for that", ExitStatus.MACHINE_FAILED)
    except (ImportError, OSError, SystemError) as error:
        if not _is_of_the_machine(error):
            raise
        _fail(f"this machine failed: {type(error).__name__}: {error}", ExitStatus.MACHINE_FAILED)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", ExitStatus.SIGNALLED + signal.SIGINT)


def _is_of_the_machine(error: Exception) -> bool:
    """Whether a library or the system ran out of something; all else is a bug of simgpt, whose
    traceback is wanted."""
    if isinstance(error, OSError):
        return error.errno in RAN_OUT
    return not isinstance(error, ModuleNotFoundError)


def _fail(words: str, status: int, lines: tuple[str, ...] = ()) -> NoReturn:
    tell("\n".join((f"simgpt: {sentence(words)}", *lines)))
    sys.exit(status)


def sentence_of(error: click.ClickException) -> str:
    """What click has to say, and where the command's options are explained."""
    said = click_words(error)
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{said}; see {context.command_path} --help" if context is not None else said


def click_words(error: click.ClickException) -> str:
    """What click has to say, in our words."""
    said = plain_words(_unknown(error) or error.format_message().removesuffix("."))
    return said[:1].lower() + said[1:]


def _unknown(error: click.ClickException) -> str:
    """What is said of an option that other frameworks have."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    from simgpt.arguments.foreign_options import instead_of, value_of

    name = error.option_name
    command = error.ctx.command if error.ctx is not None else None
    known = instead_of(command, name, value_of(sys.argv[1:], name))
    return f"no such option {name!r}: {known}" if known else ""
