"""What a job script asks Slurm for: its `#SBATCH` lines, and the variables that the job then has.

Source: SchedMD, sbatch(1), "Output environment variables".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINE = re.compile(r"^[ \t]*#SBATCH\s(.*)", re.MULTILINE)
_OPTION = re.compile(r"(?:^|\s)(-\w(?=[\s\d])|--[\w-]+(?=[=\s]))(?:=|\s*)([^\s=-]\S*)")
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z]\w*:)?(\d{1,4})")
_NODES = ("--nodes", "-N")
_PER_NODE = ("--gpus-per-node", "--gres", "--ntasks-per-node")  # the first of them that is given
AS_GIVEN = {  # which Slurm sets where the option is given, to its value
    "--gpus-per-node": "SLURM_GPUS_PER_NODE",
    "--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "--cpus-per-task": "SLURM_CPUS_PER_TASK",
}
VARIABLES = {"nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "each": ("SLURM_GPUS_ON_NODE",)}


def job_variables(text: str) -> dict[str, str]:
    """The variables of a job that tell of its nodes and of a node's devices.

    >>> job_variables("#SBATCH -N4 --gres=gpu:a100:8")
    {'SLURM_NNODES': '4', 'SLURM_JOB_NUM_NODES': '4', 'SLURM_GPUS_ON_NODE': '8'}
    """
    lines = (line.partition(" #")[0] for line in _LINE.findall(text))
    given = {name: value for line in lines for name, value in _OPTION.findall(line)}
    nodes = next((given[key] for key in _NODES if key in given), "")
    each = [_GPUS.match(given[key]) for key in _PER_NODE if key in given]
    found: dict[str, str] = {}
    if nodes.isdecimal():
        found |= dict.fromkeys(VARIABLES["nodes"], nodes)
    if each and each[0]:
        found |= dict.fromkeys(VARIABLES["each"], each[0][1])
    return found | {name: given[key] for key, name in AS_GIVEN.items() if key in given}


def devices_of_job(variables: Mapping[str, str]) -> int | None:
    """The devices of such a job, or None where its script does not say them."""
    sizes = [variables.get(names[0], "") for names in VARIABLES.values()]
    return int(sizes[0]) * int(sizes[1]) or None if all(0 < len(s) < 8 for s in sizes) else None
