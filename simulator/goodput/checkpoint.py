"""What a checkpoint of a plan holds: the parameters and the optimizer's states, each value once."""

from __future__ import annotations

from topologies.records import record
from workload.gpt import GPT
from workload.lowering.builder import Builder
from workload.lowering.chunk import Chunks
from workload.lowering.lower import declare
from workload.plan import Plan
from workload.stages import like_stages


@record
class Checkpoint:
    """The bytes of a checkpoint by what they are of, and those that all ranks hold together, which
    is what they read to go on: with copies on several ranks."""

    parameter_bytes: int
    state_bytes: int
    held_bytes: int

    @property
    def total_bytes(self) -> int:
        """What is written."""
        return self.parameter_bytes + self.state_bytes


def checkpoint_of(gpt: GPT, plan: Plan) -> Checkpoint:
    """The checkpoint of a model under a plan: the program's buffers for parameters and states.

    In bf16 these are 14 bytes a parameter (2, and 4 each for two moments and the master copy), in
    fp32 12. Not modelled: what a framework adds (random states, metadata) or leaves out.
    """
    parameters = states = held = 0
    ranks = plan.grid.ranks // plan.pp
    like = like_stages(gpt, plan)
    for stage in sorted(set(like)):
        builder = Builder(gpt, plan, stage)
        declare(builder, Chunks(builder, early_stop=False))
        count = like.count(stage)
        for buffer in builder.buffers.values():
            if not (buffer.is_parameter or buffer.is_state):
                continue
            once = buffer.nbytes * ranks // buffer.replicas * count
            held += buffer.nbytes * ranks * count
            if buffer.is_parameter:
                parameters += once
            else:
                states += once
    return Checkpoint(parameters, states, held)
