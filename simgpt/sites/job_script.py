"""A job script for Slurm: the options of sbatch, the site's environment, and the run of a plan."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence

from simgpt.sites.site import SRUN, JobCannotRunError, JobError, Setting, Site
from topologies.files.printable import printable, shown
from topologies.records import record

MARGIN, START_S, ROUND_S = 1.25, 600.0, 300.0  # of a time limit that nobody gave
LONGEST_DAYS = 365
MOST_LETTERS = 64  # of a job's name
SIMGPT = "-m simgpt run"
# Python imports nothing from the folder that the job starts in, nor do the ranks of torchrun.
_SAFE = "export PYTHONSAFEPATH=1"
# What torchrun would tell each rank that srun starts; a task that sees one device has it as 0.
_AS_TORCHRUN = 'export RANK=$SLURM_PROCID LOCAL_RANK={local} WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
_TIME = re.compile(
    r"(?:(?P<d>\d{1,3})-(?P<dh>\d{1,2})(?::(?P<dm>\d{1,2})(?::(?P<ds>\d{1,2}))?)?"
    r"|(?:(?P<h>\d{1,5}):(?P<hm>\d{1,2}):(?P<hs>\d{1,2}))"
    r"|(?P<m>\d{1,6})(?::(?P<s>\d{1,2}))?)"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+,-]{0,127}")


@record
class JobRequest:
    """What a job runs: a program of python's, on so many ranks of each node, for `limit_s`.

    `program` and lines of `prepared` before it are shell as they are, `words` after it are quoted.
    `about` are comments, `setup` lines of shell before the run. `is_full` says that the ranks take
    all devices of their nodes, `by_torch` that the program takes its rank from torchrun's variables
    and not from Slurm's. `segment` are the nodes that lie in one rack together, 0 where none need.
    """

    name: str
    nodes: int
    ranks_per_node: int
    is_full: bool
    limit_s: float
    words: tuple[str, ...]
    about: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    account: str = ""
    partition: str = ""
    program: str = SIMGPT
    prepared: tuple[tuple[str, ...], ...] = ()
    by_torch: bool = False
    segment: int = 0


def nodes_of(ranks: int, devices_per_node: int) -> int:
    """The nodes of so many ranks; a JobCannotRunError if the last one would have fewer."""
    if ranks <= devices_per_node:
        return 1
    nodes, rest = divmod(ranks, devices_per_node)
    if rest:
        near = nodes * devices_per_node
        raise JobCannotRunError(
            f"{ranks:,} ranks do not fill nodes of {devices_per_node} devices, on each of which a "
            f"job starts as many; nearest: {near:,} or {near + devices_per_node:,}"
        )
    return nodes


def limit_of(step_s: float, steps: int) -> float:
    """A time limit in seconds for steps of that length: a quarter more, ten minutes to start, and
    rounded up to five minutes."""
    return math.ceil((MARGIN * step_s * steps + START_S) / ROUND_S) * ROUND_S


def seconds_of(text: str) -> float:
    """The seconds of a time limit as Slurm takes it: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]].

    Source: slurm.schedmd.com/sbatch.html, --time.

    >>> seconds_of("02:00:00"), seconds_of("1-12"), seconds_of("90"), seconds_of("5:30")
    (7200, 129600, 5400, 330)
    """
    found = _TIME.fullmatch(text)
    part = {k: int(v) for k, v in found.groupdict().items() if v} if found else {}
    days, hours = part.get("d", 0), part.get("dh", part.get("h", 0))
    minutes = part.get("dm", part.get("hm", part.get("m", 0)))
    seconds = part.get("ds", part.get("hs", part.get("s", 0)))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if found is None or not 0 < total <= LONGEST_DAYS * 86_400:
        raise JobError(
            f"{shown(text)} is not a time limit; write it like 02:00:00, 1-12:00:00 or 90 (minutes)"
        )
    return total


def time_text(seconds: float) -> str:
    """A time limit as Slurm takes it.

    >>> time_text(5400), time_text(200_000)
    ('01:30:00', '2-07:33:20')
    """
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock


def slurm_name(text: str, what: str) -> str:
    """An account or a partition, if Slurm may have one of that name; a JobError else, so that
    nothing else gets into the script."""
    if not _NAME.fullmatch(text):
        raise JobError(
            f"{shown(text)} is not a {what} of Slurm: letters, digits and _ . @ + , - alone"
        )
    return text


def shell_line(text: str) -> str:
    """A line of shell, if it is one line; a JobError else."""
    if not text.strip() or not text.isprintable():
        raise JobError(f"--setup takes one line of shell, unlike {shown(text)}")
    return text


def one_line(text: str) -> str:
    """A word of the command line, if it is on one line; a JobError else."""
    if not text.isprintable():
        raise JobError(f"a job script has no room for {shown(text)}, which is not on one line")
    return text


def job_name(text: str) -> str:
    """A job's name from a model's.

    >>> job_name("my model; rm -r *")
    'my-model-rm-r'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:MOST_LETTERS] or "simgpt"


def job_script(site: Site, job: JobRequest) -> str:
    """The script, which sbatch takes as it is."""
    parts = [
        ["#!/bin/bash", *(f"# {printable(line)}" for line in job.about)],
        [f"#SBATCH {name}{value and f'={value}'}" for name, value in _directives(site, job)],
        [f"# {line}" for line in (f"Settings of {site.title}, from:", *_indented(site.sources))],
        [f"# {note}" for note in site.notes],
        [f"module load {each.value}" for each in site.modules],
        list(job.setup),
        [_export(each) for each in site.environment] + [_SAFE] * (job.program == SIMGPT),
        [
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
            "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
            "export MASTER_ADDR MASTER_PORT",
        ],
        *map(list, job.prepared),
        [_command(site, job)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _directives(site: Site, job: JobRequest) -> Iterator[tuple[str, str]]:
    tasks = job.ranks_per_node if site.launcher == SRUN else 1
    yield "--job-name", job.name
    yield "--nodes", f"{job.nodes}"
    if job.segment:
        yield "--segment", f"{job.segment}"
    yield "--ntasks-per-node", f"{tasks}"
    if site.cpus_per_task:
        yield "--cpus-per-task", f"{site.cpus_per_task * (job.ranks_per_node // tasks)}"
    for each in site.directives:
        own = job.partition if each.name == "--partition" else ""
        yield each.name, own or each.value.format(devices=job.ranks_per_node)
    if job.partition and all(each.name != "--partition" for each in site.directives):
        yield "--partition", job.partition
    if job.account:
        yield "--account", job.account
    yield "--time", time_text(job.limit_s)
    yield "--output", "%x-%j.out"


def _command(site: Site, job: JobRequest) -> str:
    """The run: a rank for each task of srun, or torchrun on each node."""
    options = [each for each in site.srun if job.is_full or not each.full]
    if site.cpus_per_task:  # which srun does not take over from sbatch since Slurm 22.05
        options.insert(0, Setting('"$SLURM_CPUS_PER_TASK"', "", "--cpus-per-task", expands=True))
    srun = ["srun", *(_option(each) for each in options)]
    run = ["python"]
    if site.launcher != SRUN:
        run += [
            "-P -m torch.distributed.run",
            '--nnodes="$SLURM_JOB_NUM_NODES"',
            f"--nproc-per-node={job.ranks_per_node}",
            '--rdzv-id="$SLURM_JOB_ID"',
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
        ]
    elif job.by_torch:
        alone = any(each.name == "--gpus-per-task" for each in site.srun)
        run = [
            "bash -c",
            shlex.quote(_AS_TORCHRUN.format(local="0" if alone else "$SLURM_LOCALID")),
        ]
        run += ["bash", "python"]
    words = map(shlex.quote, job.words)
    parts = [" ".join(part) for part in (srun, (*run, job.program), words)]
    return " \\\n    ".join(filter(None, parts))


def _option(setting: Setting) -> str:
    value = setting.value if setting.expands else shlex.quote(setting.value)
    return f"{setting.name}={value}" if setting.value else setting.name


def _export(setting: Setting) -> str:
    value = f'"{setting.value}"' if setting.expands else shlex.quote(setting.value)
    return f"export {setting.name}={value}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
