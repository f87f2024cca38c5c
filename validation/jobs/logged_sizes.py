"""Which question a job answered: sizes of its plan and its model, as its log states them.

Sources of the lines: github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py (the line `using
world size`, and print_args: a name, full stops, a value); github.com/pytorch/torchtitan,
torchtitan/distributed/parallel_dims.py (`Building … device mesh`) and torchtitan/train.py (`Trainer
is initialized`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

DEVICES, TENSOR, PIPELINE, CONTEXT = "devices", "tp", "pp", "cp"
BATCH, MICRO_BATCH, SEQUENCE = "batch", "micro-batch", "sequence"
LAYERS, HIDDEN, HEADS, FFN = "layers", "hidden", "heads", "ffn"
ARGUMENTS = {
    "world_size": DEVICES,
    "tensor_model_parallel_size": TENSOR,
    "pipeline_model_parallel_size": PIPELINE,
    "context_parallel_size": CONTEXT,
    "global_batch_size": BATCH,
    "micro_batch_size": MICRO_BATCH,
    "seq_length": SEQUENCE,
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "ffn_hidden_size": FFN,
}
_COUNT = r"(\d{1,9})(?!\d)"
_ARGUMENT = re.compile(rf"^\s*(\w+) \.{{2,}} {_COUNT}\s*$")
_WORLD = re.compile(rf"\busing world size: {_COUNT}")
_SPLIT = {
    TENSOR: re.compile(rf"(?<!-)tensor-model-parallel size: {_COUNT}"),
    PIPELINE: re.compile(rf"(?<!-)pipeline-model-parallel size: {_COUNT}"),
    CONTEXT: re.compile(rf"(?<!-)context-parallel size: {_COUNT}"),
}
_MESH = re.compile(r"Building \d-D device mesh with \[([\w', ]+)\], \[([\d, ]+)\]")
_PARALLELISM = re.compile(r"Building device mesh with parallelism: ((?:\w+=\d{1,9}(?:, )?)+)")
_AXES = ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp")  # whose product are the devices
_TRAINER = re.compile(rf"initialized with local batch size {_COUNT}, global batch size {_COUNT},")
_LENGTH = re.compile(rf" sequence length {_COUNT}")
# One of which stands in each line that states a size.
MARKS = (" ..", "using world size", "device mesh with", "initialized with local batch size")


class LoggedSizes:
    """The sizes that lines of a log state, by the names above; of a job that started several times
    those of its last start."""

    def __init__(self) -> None:
        self._stated: dict[str, int] = {}

    def take(self, line: str) -> None:
        """Take in a line."""
        self._stated |= dict(_of_line(line))

    def found(self) -> dict[str, int]:
        """The sizes of all lines so far."""
        found = dict(self._stated)
        local = found.pop("local batch", None)
        if local is not None and found.get(PIPELINE) == 1:  # a pipeline splits it again
            found[MICRO_BATCH] = local
        return found


def _of_line(line: str) -> Iterator[tuple[str, int]]:
    if argument := _ARGUMENT.match(line):
        if argument[1] in ARGUMENTS:
            yield ARGUMENTS[argument[1]], int(argument[2])
    elif world := _WORLD.search(line):
        yield DEVICES, int(world[1])
        for name, pattern in _SPLIT.items():
            if split := pattern.search(line):
                yield name, int(split[1])
    elif mesh := _MESH.search(line):
        names = re.findall(r"\w+", mesh[1])
        yield from _of_mesh(dict(zip(names, map(int, re.findall(r"\d+", mesh[2])), strict=False)))
    elif stated := _PARALLELISM.search(line):
        words = re.findall(r"(\w+)=(\d+)", stated[1])
        yield from _of_mesh({name: int(size) for name, size in words})
    elif (trainer := _TRAINER.search(line)) and (length := _LENGTH.search(line, trainer.end())):
        sizes = (*trainer.groups(), length[1])
        yield from zip(("local batch", BATCH, SEQUENCE), map(int, sizes), strict=True)


def _of_mesh(mesh: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Sizes of a mesh of devices, in which axes of 1 may be left out."""
    if set(mesh) <= {*_AXES, "ep", "etp"}:
        yield DEVICES, prod(mesh.get(axis, 1) for axis in _AXES)
        yield from ((name, mesh.get(name, 1)) for name in (TENSOR, PIPELINE, CONTEXT))


def contradictions(job: Mapping[str, int], asked: Mapping[str, int]) -> Iterator[str]:
    """Sentences on the sizes in which a job differs from what was asked.

    >>> list(contradictions({"tp": 4, "batch": 64}, {"tp": 2, "batch": 64}))
    ["the job's tp is 4, the prediction's 2"]
    """
    for name, size in job.items():
        if asked.get(name, size) != size:
            yield f"the job's {name} is {size:,}, the prediction's {asked[name]:,}"
