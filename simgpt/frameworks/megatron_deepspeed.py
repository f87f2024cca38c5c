"""What Megatron-DeepSpeed's arguments say otherwise than Megatron-LM's.

Sources: deepspeedai/Megatron-DeepSpeed@4efb479, megatron/arguments.py and megatron/optimizer/
__init__.py; bigscience-workshop/Megatron-DeepSpeed, megatron/model/gpt_model.py (how layers lie on
stages). The stage of ZeRO is that of DeepSpeed's JSON, which scripts repeat as --zero-stage.
"""

from __future__ import annotations

from simgpt.frameworks.reading import Reading

STACK = "megatron-deepspeed"
STAGE, CONFIG = "zero-stage", "deepspeed-config"
METHOD, EVEN, WITH_ENDS = "pp-partition-method", "type:transformer", "type:transformer|embedding"
ALONE = "no-pipeline-parallel"
KEYS = "num-key-value-heads"
ON_HOST = "cpu-optimizer"


def read(reading: Reading) -> None:
    """Read ZeRO of DeepSpeed's, which overlaps nothing of Megatron-LM's, and the fork's names."""
    fields = reading.fields
    reading.stack = STACK
    fields["zero"] = reading.number(STAGE, most=3)
    fields["zero"] = stage_that_runs(reading, fields["zero"], bf16=reading.switch("bf16"))
    if not reading.has_deepspeed and reading.given(CONFIG) and not reading.text(STAGE):
        reading.differs(CONFIG, f"it is not given, and taken for one of stage {fields['zero']}")
    fields["overlap"] = "none"
    if reading.switch("embed-layernorm"):
        fields["embedding_norm"] = True
    if (keys := reading.number(KEYS)) and keys != fields.get("heads"):
        fields["kv_heads"] = keys
    if reading.switch(ON_HOST):
        fields["offload"] = "update"
    _read_stages(reading)


def stage_that_runs(reading: Reading, stage: int, *, bf16: bool) -> int:
    """The stage of ZeRO: in bf16 behind DeepSpeed's pipeline, stage 0 shards states as 1 does.

    Source: deepspeedai/DeepSpeed@edaa722, deepspeed/runtime/engine.py (_do_optimizer_sanity_check)
    and bf16_optimizer.py. The pipeline's engine runs with one stage too, unless it is switched off.
    """
    return max(stage, int(bf16 and not reading.switch(ALONE)))


def _read_stages(reading: Reading) -> None:
    """Read by what layers are split over stages: evenly, or with embeddings as layers. A classifier
    that is not tied is none."""
    method = reading.text(METHOD, EVEN).strip("'\"")
    if reading.fields.get("pp", 1) == 1 or method == EVEN:
        return
    if method == WITH_ENDS and reading.of_model("tied", True):
        reading.fields["ends_as_layers"] = True
    else:
        reading.differs(METHOD, "layers are split evenly over stages")
