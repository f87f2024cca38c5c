"""torchtitan's TOML, as fields of a model and a plan, and such fields as settings of it.

Source of defaults: pytorch/torchtitan 0.2.1, torchtitan/config/job_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.recipes.table import FP8
from workload.recomputation.parts import PER_OP, RECOMPUTES, SELECTIVE

STRAIGHT = {"1F1B": "1f1b", "Interleaved1F1B": "1f1b", "GPipe": "gpipe"}
IN_V = {"ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipe-v"}  # with two chunks a stage
SCHEDULES = STRAIGHT | IN_V
WORDS = {"1f1b": "1F1B", "gpipe": "GPipe", **{own: word for word, own in IN_V.items()}}
LESS = ("first", "last")
WHOLE, HALF = DTYPES = ("float32", "bfloat16")
MODES = ("none", "selective", "full", "memory_budget")
RESHARDS = ("default", "always", "never")
EAGER = "torchtitan-eager"
COMPONENTS, LAYERS = "compile.components", "model"  # what is compiled: these and the loss
P, T, AC = "parallelism.", "training.", "activation_checkpoint."
OFFLOAD = T + "enable_cpu_offload"
PARTS = P + "pipeline_parallel_microbatches"  # of older releases
PER_LAYER = T + "enable_selective_ac"
HIDES = P + "pipeline_parallel_expert_parallel_overlap"
_EVERY = re.compile(r"[1-9]\d{0,8}")  # which of the layers run again
DYNAMIC = "dynamic"
CHUNKS = "loss.num_chunks"  # of the configurations in Python
FLOAT8 = ("float8.enable_float8_linear", "float8.enable_fsdp_float8_all_gather")


def read(reading: Reading, devices: int | None) -> None:
    """Read all settings that bear on a model and a plan."""
    fields = reading.fields
    fields["sequence"] = 2048
    reading.read_simple()
    _read_model(reading)
    _read_experts(reading)
    _read_data(reading, devices)
    _read_pipeline(reading)
    _read_batch(reading, devices)
    _read_recompute(reading)
    parallel = reading.switch(P + "enable_sequence_parallel", default=True)
    if fields.get("tp", 1) > 1:
        fields["sp"] = parallel
    if reading.text(CHUNKS):
        fields["loss_chunks"] = reading.number(CHUNKS, least=1)
    converters = reading.text("model.converters")
    converted = "float8" in converters
    if any("float8" not in each for each in converters.split()):
        reading.differs("model.converters", "what is not float8 is in bf16")
    if converted or _has_float8(reading):
        fields["precision"] = "fp8"
        for part in ("input", "weight", "grad_output"):
            if reading.text(name := f"float8.scaling_type_{part}", DYNAMIC) != DYNAMIC:
                reading.differs(name, "scales are those of the step itself")
    else:
        reading.without("float8.*")
        reading.without("quantize.linear.float8.*")
    if reading.word(T + "mixed_precision_param", HALF, DTYPES) == WHOLE:
        fields["precision"] = "fp32"
    fp32 = reading.word(T + "mixed_precision_reduce", WHOLE, DTYPES) == WHOLE
    fields["gradients"] = "fp32" if fp32 else "bf16"
    if reading.word(T + "dtype", WHOLE, DTYPES) != WHOLE:
        reading.differs(T + "dtype", reading.table["changes"][T + "dtype"])
    compiled = reading.settings.get(COMPONENTS, LAYERS).split()
    if not (reading.switch("compile.enable") and LAYERS in compiled):
        reading.stack = EAGER
    _read_offload(reading)
    if reading.text("model.attn_mask_type", "causal") != "causal":
        reading.differs("model.attn_mask_type", "attention is over whole sequences")
    if reading.text("optimizer.name", "AdamW") not in ("AdamW", "Adam"):
        reading.differs("optimizer.name", "AdamW")


def _read_offload(reading: Reading) -> None:
    """FSDP's parameters with all that belongs to them in the host's memory; without FSDP nothing.

    Source: pytorch/torchtitan, torchtitan/models/llama3/infra/parallelize.py (apply_fsdp).
    """
    fields = reading.fields
    if fields["zero"] != 3:
        reading.without(OFFLOAD)
    elif reading.switch(OFFLOAD):
        fp8, pp = fields.get("precision") == "fp8", fields.get("pp", 1)
        if fp8 or pp > 1:
            beside = "float8" if fp8 else f"{P}pipeline_parallel_degree = {pp}"
            reading.refuse(OFFLOAD, f"parameters on the host are not modelled with {beside}")
        else:
            fields["offload"] = "parameters"


def _has_float8(reading: Reading) -> bool:
    """Whether linears are in fp8; in April 2024 the switch was the kind of scales."""
    return reading.text(FLOAT8[0]) == DYNAMIC or reading.switch(FLOAT8[0])


def _read_model(reading: Reading) -> None:
    """The preset of a name and a flavor, and the layers of that or of the user's model."""
    name, flavor = reading.text("model.name", "llama3"), reading.text("model.flavor", "debugmodel")
    preset = reading.table["models"].get(f"{name}.{flavor}")
    if "name" in reading.model:
        reading.fields["layers"] = reading.model["layers"]
        return
    if preset is None:
        reading.differs("model.flavor", "the model is not known here: give --model")
        return
    reading.fields["model"] = preset
    reading.fields["layers"] = find_model(preset).layers


def _read_experts(reading: Reading) -> None:
    """Ranks that hold different experts: parts of data alone, or of x and data."""
    fields = reading.fields
    name, whole = P + "expert_parallel_degree", P + "expert_tensor_parallel_degree"
    preset = find_model(fields["model"]).moe.experts if "model" in fields else None
    experts = reading.model.get("experts", preset)
    if experts == 0:
        reading.without(f"{P}expert_*")
        return
    if experts is None or reading.settings.get(name, "1") == "1":
        return
    x, within = fields.get("tp", 1), reading.number(whole, 1)
    fields["ep"] = reading.number(name, 1)
    if within not in (1, x):
        reading.refuse(whole, f"it is 1, or {P}tensor_parallel_degree")
    elif within == 1 < x:
        fields["etp"] = 1


def _read_data(reading: Reading, devices: int | None) -> None:
    """DDP where nothing is sharded, or FSDP over all ranks or within copies of them."""
    fields = reading.fields
    copies = reading.number(P + "data_parallel_replicate_degree", 1)
    shards = reading.number(P + "data_parallel_shard_degree", -1, least=-1)
    within = fields.get("tp", 1) * fields.get("pp", 1)
    context = fields.get("cp", 1)
    if reading.word(T + "data_parallel_type", "fsdp", ("fsdp", "ddp")) == "ddp":
        if shards < 0 and devices:
            shards = max(devices // (within * context), 1)
        copies, shards = max(shards, 1), 1
    if shards < 0 and devices:
        shards = max(devices // (within * context * copies), 1)
    elif shards > 0:
        fields["devices"] = within * context * copies * shards
    fields["zero"] = 0 if shards * context == 1 else 3
    if copies > 1 and shards * context > 1:
        fields["shard"] = shards
    word = reading.word(P + "fsdp_reshard_after_forward", RESHARDS[0], RESHARDS)
    never = word == "never" or (word == "default" and fields.get("pp", 1) > 1)
    if never and fields["zero"]:
        fields["reshard"] = False


def _read_pipeline(reading: Reading) -> None:
    fields, pp = reading.fields, reading.fields.get("pp", 1)
    word = reading.text(P + "pipeline_parallel_schedule", "1F1B")
    usual = 0 if _is_older(reading) else 1
    less = [reading.number(f"{P}pipeline_parallel_{end}_stage_less_layers", usual) for end in LESS]
    each = reading.number(P + "pipeline_parallel_layers_per_stage")
    if pp == 1:
        return
    word = next((each for each in SCHEDULES if each.lower() == word.lower()), word)
    if word not in SCHEDULES:
        reading.refuse(P + "pipeline_parallel_schedule", f"simgpt reads {', '.join(SCHEDULES)}")
        return
    fields["schedule"] = SCHEDULES[word]
    fields["ends_as_layers"] = all(less)
    if less not in ([0, 0], [1, 1]):
        name = f"{P}pipeline_parallel_{LESS[0]}_stage_less_layers"
        reading.differs(name, "embedding and classifier count as a layer both, or neither")
    if word.startswith("Interleaved") or word in IN_V:
        chunks = -(-(fields.get("layers", 0) + sum(less)) // each) if each else 2 * pp
        fields["vpp"] = max(chunks // pp, 1)
    if word in IN_V and fields["vpp"] != 2:
        name = P + "pipeline_parallel_layers_per_stage"
        reading.refuse(name, f"{word} has two chunks a stage, not {fields['vpp']}")
    if word == "DualPipeV" and fields.get("ep", 1) > 1 and reading.switch(HIDES, default=True):
        reading.differs(HIDES, "all-to-alls of experts run beside no other micro-batch")


def _read_batch(reading: Reading, devices: int | None) -> None:
    """`local_batch_size` is a rank's share of an accumulation step; a pipeline splits it again."""
    fields = reading.fields
    local = reading.number(T + "local_batch_size") or reading.number(T + "batch_size", 8)
    batch = reading.number(T + "global_batch_size", -1, least=-1)
    split = reading.number(P + "pipeline_parallel_microbatch_size", 1)
    piped = fields.get("pp", 1) > 1
    chunks = fields.get("pp", 1) * fields.get("vpp", 1)
    parts = reading.number(PARTS, chunks if _is_older(reading) else 0)
    if parts and piped:
        split = max(local // parts, 1)
        if local % parts:
            reading.refuse(PARTS, f"it does not divide {local} sequences of a rank")
    fields["mbs"] = split if piped else local
    devices = devices or fields.get("devices")
    within = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    ranks = devices // within if devices else 0
    if batch <= 0 and ranks:
        batch = local * ranks
    if batch > 0:
        fields["batch"] = batch
    if piped and ranks and batch > local * ranks:
        why = "the pipeline drains once a step, not once an accumulation step"
        reading.differs(T + "global_batch_size", why)


def _is_older(reading: Reading) -> bool:
    """Whether pipelines are those of releases before March 2025: of layers alone, without a part
    for embedding and classifier, and of as many micro-batches as there are chunks of all stages
    (pytorch/torchtitan@785c34c, torchtitan/distributed/pipeline.py, num_total_stages)."""
    return P + "pipeline_parallel_degree" in reading.names


def _read_recompute(reading: Reading) -> None:
    fields = reading.fields
    mode = reading.word(AC + "mode", "selective", MODES)
    which = reading.text(AC + "selective_ac_option", "2")
    if reading.settings.get(AC + "mode") == "none":
        mode = "none"
    if reading.text(PER_LAYER):  # of torchtrain, February 2024
        mode, which = ("selective", "op") if reading.switch(PER_LAYER) else ("full", which)
    if mode == "selective" and which != "op" and not _EVERY.fullmatch(which):
        reading.refuse(AC + "selective_ac_option", "it is op, or a number of layers")
    elif mode == "selective" and "layers" not in fields and which != "op":
        reading.differs(
            AC + "selective_ac_option", "op: every second matmul of all layers runs again"
        )
    elif mode == "selective" and "layers" in fields and which != "op":
        chunks = fields.get("pp", 1) * fields.get("vpp", 1)
        kept = fields.get("layers", 0) // chunks // int(which)
        mode = "full" if which == "1" else f"full:{kept}" if kept else "none"
    elif mode == "memory_budget":
        reading.refuse(AC + "mode", "what the compiler keeps for a budget is not modelled")
        return
    fields["recompute"] = mode


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings beyond those that are one field each."""
    table = fields["table"]
    names = {preset: name for name, preset in table["models"].items()}
    name, _, flavor = names.get(fields["model"], ".").partition(".")
    fp8 = fields["recipe"] == FP8
    settings: dict[str, Any] = {"model.name": name, "model.flavor": flavor}
    settings |= {"model.converters": ["float8"]} if fp8 else {}
    settings |= _written_data(fields) | _written_experts(fields) | _written_pipeline(fields)
    fp32 = fields["precision"] == "fp32"
    settings[T + "mixed_precision_param"] = "float32" if fp32 else "bfloat16"
    reduced = "float32" if fields["gradients"] == "fp32" else "bfloat16"
    settings[T + "mixed_precision_reduce"] = reduced
    settings |= {OFFLOAD: True} if fields["offload"] == "parameters" else {}
    settings["compile.enable"] = fields["stack"] != EAGER
    return settings | _written_recompute(fields)


def _written_data(fields: Mapping[str, Any]) -> dict[str, Any]:
    data = fields["dp"]
    shards = data if fields["zero"] else 1
    if fields["zero"] and fields["shard"]:
        shards = fields["shard"]
    ranks = fields["batch"] // data
    piped = fields["pp"] > 1
    return {
        P + "data_parallel_replicate_degree": data // shards,
        P + "data_parallel_shard_degree": shards,
        P + "fsdp_reshard_after_forward": "always" if fields["reshard"] else "never",
        T + "local_batch_size": ranks if piped else fields["mbs"],
        T + "global_batch_size": fields["batch"],
    }


def _written_experts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Source: torchtitan, distributed/parallel_dims.py, whose experts take all of context, and of
    tensor parallelism all or nothing."""
    if fields["ep"] == 1 and fields["etp"] in (0, fields["tp"]):
        return {}
    return {
        P + "expert_parallel_degree": fields["ep"],
        P + "expert_tensor_parallel_degree": fields["etp"] or fields["tp"],
    }


def _written_pipeline(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields["pp"] == 1:
        return {}
    word = WORDS.get(fields["schedule"], fields["schedule"])
    if word == "1F1B" and fields["vpp"] > 1:
        word = f"Interleaved{word}"
    ends = int(fields["ends_as_layers"])
    settings: dict[str, Any] = {
        P + "pipeline_parallel_schedule": word,
        P + "pipeline_parallel_microbatch_size": fields["mbs"],
        **{f"{P}pipeline_parallel_{end}_stage_less_layers": ends for end in LESS},
    }
    if fields["vpp"] > 1:
        chunks = fields["pp"] * fields["vpp"]
        each = -(-(fields["layers"] + 2 * ends) // chunks)
        settings[P + "pipeline_parallel_layers_per_stage"] = each
    if word == "DualPipeV" and fields["ep"] > 1:
        settings[HIDES] = False
    return settings


def _written_recompute(fields: Mapping[str, Any]) -> dict[str, Any]:
    word, _, count = fields["recompute"].partition(":")
    word = SELECTIVE if word == PER_OP else word
    if word not in RECOMPUTES:
        raise PlanCannotRunError(f"torchtitan has no setting for recompute={word}")
    settings = {AC + "mode": word}
    if word == "selective":
        settings[AC + "selective_ac_option"] = "op"
    if count:
        layers = fields["layers"] // (fields["pp"] * fields["vpp"])
        settings = {AC + "mode": "selective", AC + "selective_ac_option": str(layers // int(count))}
    return settings
