"""The arguments that a job prints into its log, as blocks of lines.

Sources of the lines, on GitHub: NVIDIA/Megatron-LM, megatron/training/arguments.py (_print_args);
AMD-AGI/Primus, primus/core/utils/module_utils.py (log_dict_aligned); pytorch/torchtitan,
torchtitan/trainer.py and earlier torchtitan/config/job_config.py (`Running with …`);
deepspeedai/DeepSpeed, deepspeed/runtime/config.py (print_user_config); NVIDIA/NeMo,
examples/nlp/language_modeling/megatron_gpt_pretraining.py (`Experiment configuration`);
NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py (print_yaml); huggingface/
nanotron, src/nanotron/trainer.py (`Config(`); allenai/OLMo, scripts/train.py (`Configuration:`);
huggingface/transformers, src/transformers/configuration_utils.py (`Model config`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from topologies.records import record
from validation.jobs.log_lines import split_label, uncoloured

MEGATRON, PRIMUS, TITAN, DEEPSPEED = "Megatron-LM", "Primus", "torchtitan", "DeepSpeed"
NEMO, BRIDGE, NANOTRON, OLMO = "NeMo", "Megatron-Bridge", "nanotron", "OLMo"
MODEL = "a model of Hugging Face"
VOCABULARY = "a vocabulary"  # of Megatron-LM, which pads it after it has printed its arguments
MOST_LINES = 20_000  # of a block
LONGEST = 2**20  # characters of a line
_YAML = re.compile(r"\s*$|\s+\S|[a-z_][\w.]*:(?:\s|$)|- ")
_NANOTRON_PREFIX = re.compile(r"^[^\[\]]{0,40}\[[^\]]*\]: ?")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")


@record
class Kind:
    """A kind of block: a text of its first line, where in that line it begins, and the line behind
    it; without `end` it is what follows the match, until all brackets are closed. `follows` are
    the only lines that a block may have."""

    name: str
    mark: str
    begin: re.Pattern[str]
    end: re.Pattern[str] | None = None
    follows: re.Pattern[str] | None = None


@dataclass(slots=True)
class Block:
    """The lines of a block so far; `rank` is the label of the lines, `depth` how many brackets are
    open."""

    kind: Kind
    rank: str
    lines: list[str] = field(default_factory=list)
    depth: int = 0

    @property
    def text(self) -> str:
        """The block's text."""
        return "\n".join(self.lines)

    def ends_before(self, line: str) -> bool:
        """Whether a line is no more of the block."""
        if self.kind.follows is not None and not self.kind.follows.match(line):
            return True
        return self.kind.end is not None and self.kind.end.search(line) is not None

    @property
    def is_closed(self) -> bool:
        """Whether the block, of which brackets say the end, is whole."""
        return self.kind.end is None and self.kind.follows is None and self.depth <= 0

    def add(self, line: str) -> None:
        """Add a line."""
        if self.kind.name == NANOTRON and self.lines:
            line = _NANOTRON_PREFIX.sub("", line)
        self.lines.append(line)
        bare = _QUOTED.sub("", line)
        self.depth += sum(map(bare.count, "([{")) - sum(map(bare.count, ")]}"))


KINDS = (
    Kind(MEGATRON, "- arguments -", re.compile(r"-{9,} arguments -{9,}\s*$"),
         re.compile(r"-{9,} end of arguments -{9,}")),
    Kind(PRIMUS, " parameters)",
         re.compile(r"(?:backend args[^:]*|ConfigContainer): \(\d+ parameters\)\s*$", re.I),
         re.compile(r"-{60,}\s*$")),
    Kind(TITAN, "Running with ", re.compile(r"Running with (?:args|configs?): (?=\{)")),
    Kind(DEEPSPEED, "json = {", re.compile(r"\bjson = (?=\{)")),
    Kind(NEMO, "Experiment configuration", re.compile(r"\*{6,} Experiment configuration \*{6,}"),
         re.compile(r"^\[NeMo [A-Z] .*\] *\S")),
    Kind(BRIDGE, "_target_: megatron.bridge",
         re.compile(r"(?=^ *_target_: megatron\.bridge\.\S+$)"), follows=_YAML),
    Kind(NANOTRON, "Config(general=", re.compile(r"\b(?=Config\(general=)")),
    Kind(OLMO, "TrainConfig(", re.compile(r"\b(?=TrainConfig\(run_name=)")),
    Kind(MODEL, "Model config ", re.compile(r"Model config \w+ (?=\{)")),
    Kind(VOCABULARY, "padded vocab (size:", re.compile(r"padded vocab \(size: (?=\d{1,9}\))")),
)  # fmt: skip


def blocks_of(lines: Iterable[str], beside: Callable[[str], object]) -> Iterator[Block]:
    """The blocks of a log that are whole; `beside` takes in every line without its label. A line
    without a label may go on a block of one that has one."""
    block: Block | None = None
    for each in lines:
        rank, line = split_label(uncoloured(each).rstrip("\r\n"))
        beside(line)
        if block is not None and rank in (block.rank, ""):
            if block.ends_before(line):
                yield block
                block = None
            else:
                block.add(line)
        if block is None:
            block = _begun(rank, line)
        if block is not None and (block.is_closed or len(block.lines) >= MOST_LINES):
            yield block
            block = None
    if block is not None and block.kind.follows is not None:
        yield block


def _begun(rank: str, line: str) -> Block | None:
    for kind in KINDS:
        if kind.mark in line and (found := kind.begin.search(line)):
            block = Block(kind, rank)
            if kind.end is None:
                block.add(line[found.end() :])
            return block
    return None
