"""The run of another framework in a job script: its entry point, its settings, and variables that
are left to fill in.

Sources: NVIDIA/Megatron-LM, megatron/training/arguments.py (names of arguments, which plans want
CUDA_DEVICE_MAX_CONNECTIONS=1); pytorch/torchtitan 0.2.1, run_train.sh and
torchtitan/config/job_config.py; microsoft/DeepSpeed, deepspeed/__init__.py (add_config_arguments).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from simgpt.frameworks.exported import Exported
from simgpt.frameworks.files import DEEPSPEED, MEGATRON, TORCHTITAN
from simgpt.frameworks.rendering import rendered
from simgpt.sites.job_script import one_line
from topologies.records import record
from workload.plan import Plan

SCRIPTS = {MEGATRON: "pretrain_gpt.py", DEEPSPEED: "train.py"}
MODULES = {TORCHTITAN: "torchtitan.train"}
END = "SETTINGS"
ARGUMENTS = '"${ARGUMENTS[@]}"'


@record
class Variable:
    """A variable of the script that nobody but the user can fill in, and what it means."""

    name: str
    means: str
    argument: str


TO_FILL: Mapping[str, tuple[Variable, ...]] = {
    MEGATRON: (
        Variable(
            "DATA_PATH", "prefix of the .bin and .idx files of preprocess_data.py", "--data-path"
        ),
        Variable("TOKENIZER_TYPE", "as HuggingFaceTokenizer", "--tokenizer-type"),
        Variable("TOKENIZER_MODEL", "a folder, a file or a name, by its type", "--tokenizer-model"),
        Variable("LEARNING_RATE", "as 3e-4", "--lr"),
    ),
    TORCHTITAN: (
        Variable("DATASET", "as c4", "--training.dataset"),
        Variable("ASSETS_PATH", "folder of the tokenizer", "--model.hf_assets_path"),
        Variable("LEARNING_RATE", "as 3e-4", "--optimizer.lr"),
    ),
    DEEPSPEED: (),
}
# What every run is told: so many steps, and to log each as `simgpt compare` reads it.
RUN: Mapping[str, tuple[str, ...]] = {
    MEGATRON: (
        *("--train-iters {steps}", "--eval-iters 0"),
        *("--log-interval 1", "--log-throughput"),
    ),
    TORCHTITAN: ("--training.steps {steps}", "--metrics.log_freq 1"),
    DEEPSPEED: ("--deepspeed", '--deepspeed_config "$CONFIG"'),
}


@record
class FrameworkRun:
    """What a job script runs of a framework: groups of lines before the run, and the program with
    its arguments as a shell has them after `python`."""

    prepared: tuple[tuple[str, ...], ...]
    program: str


def framework_run(exported: Exported, plan: Plan, steps: int, script: str | None) -> FrameworkRun:
    """The run of exported settings for so many steps; `script` is a file in place of the usual
    entry point."""
    framework = exported.framework
    module = MODULES.get(framework) if script is None else None
    entry = f"-m {module}" if module else '"$SCRIPT"'
    groups = [] if module else [_entry(script or SCRIPTS[framework])]
    groups += [_to_fill(framework), _environment(framework, plan), _settings(exported, steps)]
    return FrameworkRun(tuple(map(tuple, filter(None, groups))), f"{entry} {ARGUMENTS}")


def _entry(script: str) -> list[str]:
    return ["# The training script.", f"SCRIPT={shlex.quote(one_line(script))}"]


def _to_fill(framework: str) -> list[str]:
    """Variables to fill in, and a line for each that ends the job where one is empty."""
    variables = TO_FILL[framework]
    if not variables:
        return []
    given = [f"{each.name}=${{{each.name}:-}}  # {each.means}" for each in variables]
    checks = [f': "${{{each.name}:?fill it in, in this script}}"' for each in variables]
    return ["# To fill in: what the time of a step does not depend on.", *given, *checks]


def _environment(framework: str, plan: Plan) -> list[str]:
    """The variable without which Megatron-LM refuses to split tensors on devices before
    Blackwell; its FSDP refuses the same value."""
    if framework == MEGATRON and plan.zero > 1:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    split = framework == MEGATRON and plan.tp > 1
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if split else []


def _settings(exported: Exported, steps: int) -> list[str]:
    """The settings as `simgpt export` writes them: arguments, or a file beside the job's output."""
    framework, text = exported.framework, rendered(exported)
    own = [each.format(steps=steps) for each in RUN[framework]]
    own += [f'{each.argument} "${each.name}"' for each in TO_FILL[framework]]
    if framework == MEGATRON:
        own = [*text.replace(" \\\n", "\n").splitlines(), *own]
        return ["ARGUMENTS=(", *(f"    {each}" for each in own), ")"]
    ending = "toml" if framework == TORCHTITAN else "json"
    if framework == TORCHTITAN:
        own = ['--job.config_file "$CONFIG"', *own]
    return [
        f'CONFIG="$SLURM_SUBMIT_DIR/simgpt-$SLURM_JOB_ID.{ending}"',
        f"cat > \"$CONFIG\" <<'{END}'",
        *text.splitlines(),
        END,
        *("ARGUMENTS=(", *(f"    {each}" for each in own), ")"),
    ]
