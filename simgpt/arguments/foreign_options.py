"""What to write instead of an option, or a keyword of Python, that other frameworks have.

A word is a plan's key, a field of the model, another option, or said by an argument; the tables of
keys and fields are those of `workload/words/foreign_words.py`.
"""

from __future__ import annotations

from typing import Any

import click

from workload.descriptions.fields import KINDS
from workload.plan_text import ALIASES, KEYS, SHARDED
from workload.words.foreign_words import MODEL_WORDS, plain, plan_word

_NODES = ("nodes", "num_nodes", "nnodes", "n_nodes")
_DEVICES = (
    *("gpus", "num_gpus", "n_gpus", "world_size", "ngpu", "num_devices", "device_count", "ranks"),
    *("nproc", "devices", "num_processes"),
)
_SHAPE = ("gpus_per_node", "num_gpus_per_node", "nproc_per_node", "ntasks_per_node")
_MACHINE = ("machine", "cluster", "gpu", "gpu_type", "hardware", "system", "hw")
_MODEL = ("model", "model_name", "model_name_or_path", "model_size")
_BATCH = ("gbs", "global_batch_size", "global_batch", "train_batch_size", "batch_size")
_TOKENS = ("tokens_per_batch", "batch_size_in_tokens", "global_batch_tokens")
_SWITCHES = {
    "sequence_parallel": "sp=true",
    "sp": "sp=true",
    "fsdp": "fsdp=true",
    "zero": "zero=1",
}
_STACK = ("framework", "backend", "trainer", "launcher")
NODE = 8  # devices of a node, where a machine is not looked at


def instead_of(command: click.Command | None, name: str, value: Any = None) -> str:
    """What to write in place of an option of this name, whose value is None where it has none;
    "" where that is not known."""
    word = plain(name)
    can = {opt for param in (command.params if command else ()) for opt in param.opts}
    said = "N" if value is None else str(value)
    if word in _NODES and can & {"-n", "--ranks"}:
        return f"{_option(can)} counts devices: {_of_nodes(said, _option(can))}"
    if word in _DEVICES and can & {"-n", "--ranks"}:
        return f"give the number of devices: {_option(can)} {said}"
    if word in _BATCH and "--batch" in can:
        return f"give the sequences of a step: --batch {said}"
    if word in _TOKENS and "--batch-tokens" in can:
        return f"give the tokens of a step: --batch-tokens {said}"
    if word in _SHAPE and "-m" in can:
        return f"the machine says it: -m 8x{said}xH100 is 8 nodes of {said}"
    if word in _MACHINE and "-m" in can:
        return f"the machine is -m {said}, as in -m 8x8xH100,8xNDR"
    if word in _MODEL:
        return "the model is the first argument, without an option"
    if word in _STACK and "--stack" in can:
        return f"give the software: --stack {said}"
    return _of_plan(can, word, value) or _of_model(can, word, said)


def _option(can: set[str]) -> str:
    return "-n" if "-n" in can else "--ranks"


def _of_nodes(said: str, option: str) -> str:
    if said.isdecimal():
        return f"{option} {int(said) * NODE} for {said} nodes of {NODE}"
    return f"as many as nodes times those of a node, {option} 64 for 8 nodes of {NODE}"


def _of_plan(can: set[str], word: str, value: Any) -> str:
    own = word in KEYS or word in ALIASES or word in SHARDED
    ours = _SWITCHES.get(word) if value is None or value is True else None
    ours = ours or (f"{word}={'...' if value is None else value}" if own else "")
    ours = ours or plan_word(word, "..." if value is None else value)
    if not ours:
        return ""
    key = f"{ours.partition('=')[0]} is a key of the plan"
    return f"{key}: --plan {ours}" if "--plan" in can else f"{key}, which a study or --plan says"


def _of_model(can: set[str], word: str, said: str) -> str:
    field = MODEL_WORDS.get(word, word if word in KINDS else "")
    if not field or "--model-set" not in can:
        return ""
    return f"{field} is a field of the model: --model-set {field}={said}"


def value_of(words: list[str], option: str) -> str | None:
    """What stands behind an option in a command line, where it is a value.

    >>> value_of(["predict", "--tp", "8"], "--tp"), value_of(["--bf16", "--json"], "--bf16")
    ('8', None)
    """
    for at, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            after = words[at + 1 : at + 2]
            return after[0] if after and not after[0].startswith("-") else None
    return None
