"""Which question a job answered: sizes of its plan and its model, as its log states them.

Sources of the lines, on GitHub: NVIDIA/Megatron-LM, megatron/training/arguments.py (the line `using
world size`, and print_args: a name, full stops, a value); pytorch/torchtitan,
torchtitan/distributed/parallel_dims.py (`Building … device mesh`) and torchtitan/train.py (`Trainer
is initialized`); deepspeedai/DeepSpeed, deepspeed/runtime/config.py (print: as print_args);
huggingface/nanotron, src/nanotron/trainer.py (pre_training: `mbs: … | grad_accum:`);
huggingface/transformers, src/transformers/trainer.py (`***** Running training *****`);
mlcommons/logging, mlperf_logging/mllog/constants.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

DEVICES, TENSOR, PIPELINE, CONTEXT = "devices", "tp", "pp", "cp"
BATCH, MICRO_BATCH, SEQUENCE, STEPS = "batch", "micro-batch", "sequence", "steps"
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
    "train_batch_size": BATCH,
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
}
OF_DEEPSPEED = "[config.py:"  # whose world_size is the data-parallel ranks, where others split too
_COUNT = r"(\d{1,9})(?!\d)"
_ARGUMENT = re.compile(rf"(?:^|\s)(\w+) \.{{2,}} {_COUNT}\s*$")
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
_NANOTRON = re.compile(
    rf"\bmbs: {_COUNT} \| grad_accum: \d+ \| cp: {_COUNT} \| sequence_length: {_COUNT} \| "
    rf"global_batch_size: {_COUNT} \|"
)
_TRAINERS = {
    BATCH: re.compile(rf"\bTotal train batch size \(w\. parallel[^)]*\) = {_COUNT}$"),
    STEPS: re.compile(r"\bTotal optimization steps = ([\d,]{1,15})$"),
}
_MLLOG = re.compile(
    r':::MLLOG .*"key": "(global_batch_size|max_sequence_length)", "value": (\d{1,9})[,}]'
)
_OF_MLLOG = {"global_batch_size": BATCH, "max_sequence_length": SEQUENCE}
# One of which stands in each line that states a size.
MARKS = (
    *(" ..", "using world size", "device mesh with", "initialized with local batch size"),
    *("| grad_accum: ", "Total train batch size (w", "Total optimization steps", ":::MLLOG"),
)


class LoggedSizes:
    """The sizes that lines of a log state, by the names above; of a job that started several times
    those of its last start."""

    def __init__(self) -> None:
        self._stated: dict[str, int] = {}

    def take(self, line: str) -> bool:
        """Take in a line; whether it states a size that differs from what was stated before."""
        stated = dict(_of_line(line))
        differs = any(self._stated.get(name, size) != size for name, size in stated.items())
        self._stated |= stated
        return differs

    def found(self) -> dict[str, int]:
        """The sizes of all lines so far."""
        found = dict(self._stated)
        local = found.pop("local batch", None)
        if local is not None and found.get(PIPELINE) == 1:  # a pipeline splits it again
            found[MICRO_BATCH] = local
        return found


def _of_line(line: str) -> Iterator[tuple[str, int]]:
    if argument := _ARGUMENT.search(line):
        of_ranks = argument[1] == "world_size" and OF_DEEPSPEED in line
        if argument[1] in ARGUMENTS and not of_ranks:
            yield ARGUMENTS[argument[1]], int(argument[2])
    elif world := _WORLD.search(line):
        yield DEVICES, int(world[1])
        for name, pattern in _SPLIT.items():
            if split := pattern.search(line):
                yield name, int(split[1])
    elif mesh := _MESH.search(line):
        names = re.findall(r"\w+", mesh[1])
        yield from _of_mesh(dict(zip(names, map(int, re.findall(r"\d+", mesh[2])), strict=False)))
    elif axes := _PARALLELISM.search(line):
        words = re.findall(r"(\w+)=(\d+)", axes[1])
        yield from _of_mesh({name: int(size) for name, size in words})
    elif (trainer := _TRAINER.search(line)) and (length := _LENGTH.search(line, trainer.end())):
        sizes = (*trainer.groups(), length[1])
        yield from zip(("local batch", BATCH, SEQUENCE), map(int, sizes), strict=True)
    elif begun := _NANOTRON.search(line):
        stated = (MICRO_BATCH, CONTEXT, SEQUENCE, BATCH)
        yield from zip(stated, map(int, begun.groups()), strict=True)
    elif told := _MLLOG.search(line):
        yield _OF_MLLOG[told[1]], int(told[2])
    else:
        for name, pattern in _TRAINERS.items():
            if size := pattern.search(line.rstrip()):
                yield name, int(size[1].replace(",", ""))


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
