"""Megatron-LM's arguments, as fields of a model and a plan, and such fields as arguments.

Sources of defaults and of what follows from several arguments: NVIDIA/Megatron-LM,
megatron/training/arguments.py and megatron/core/transformer/transformer_config.py. Layers of
stages: `simgpt/frameworks/megatron_stages.py`; the update rule: `megatron_optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from simgpt.frameworks import megatron_deepspeed, megatron_optimizer, megatron_stages
from simgpt.frameworks.layers import (
    activations,
    context,
    experts,
    fsdp,
    fusions,
    latent,
    offloaded,
    quantised,
    recomputed,
    rotary,
    windows,
)
from simgpt.frameworks.reading import DIGITS, ON, FrameworkError, Reading
from simgpt.frameworks.switches import OFF
from simulator.stacks import load_stack
from topologies.files.printable import shown
from workload.errors import ModelError
from workload.gpt import find_model
from workload.models.rope_scaling import YARN, RopeScaling, scaling_of
from workload.recipes.table import NO_RECIPE

DROPOUT, NORM_EPS, MTP_LOSS = 0.1, 1e-5, 0.1
SCHEDULE, MAIN_GRADIENTS = "step-batch-size-schedule", "main-grads-dtype"
# Which change no time.
UNTIMED = ("norm-epsilon", "use-rope-scaling", "rope-scaling-factor")
# What `--use-rope-scaling` does, but for its factor: megatron/core/models/common/embeddings/
# rotary_pos_embedding.py, RotaryEmbedding._apply_scaling.
LLAMA3 = RopeScaling(
    method="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
MULTIPLE = 128  # to which times tp the vocabulary is padded
BACKENDS = ("flash", "fused", "unfused", "local", "auto")
IMPLEMENTATIONS = ("local", "transformer_engine", "inference_optimized")
FP8_SWITCHES = ("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3")
FORKS_FLASH = ("use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton")


def read(reading: Reading, devices: int | None) -> None:
    """Read all arguments that bear on a model and a plan; `devices` is their number if known."""
    reading.read_simple()
    fields = reading.fields
    _read_schedule(reading)
    _read_model(reading)
    activations.read(reading)
    rotary.read(reading)
    context.read(reading)
    latent.read(reading)
    experts.read(reading)
    _read_vocabulary(reading)
    megatron_stages.read(reading)
    _read_precision(reading)
    _read_state(reading, devices)
    _read_overlaps(reading)
    recomputed.read(reading)
    offloaded.read(reading)
    quantised.read_params(reading)
    backend = reading.word("attention-backend", "auto", BACKENDS)
    kind = reading.word("transformer-impl", "", IMPLEMENTATIONS)
    flash, local = reading.switch("use-flash-attn"), kind == IMPLEMENTATIONS[0]
    if reading.switch("deepspeed"):
        megatron_deepspeed.read(reading)
        local, flash = True, flash or any(map(reading.switch, FORKS_FLASH))
    else:
        fusions.read(reading)
    if load_stack(reading.taken_stack).plan.get("attention") == "unfused":
        local = True  # where flash attention is asked for alone
    unfused = backend in ("unfused", "local") or (local and backend == "auto" and not flash)
    fields["attention"] = "unfused" if unfused else "flash"
    if not unfused:
        reading.without("no-masked-softmax-fusion")
    if fields.get("tp", 1) == 1:
        fields.pop("sp", None)  # as Megatron does
    elif not reading.switch("deepspeed"):
        fields.setdefault("sp", False)  # Megatron's own default, no recipe's
    of_recipe = "fused_unless_said" in reading.table
    if "mbs" not in fields and not of_recipe:  # which Megatron-LM refuses
        reading.differs("micro-batch-size", "not given: all that a rank has of the batch, at once")


def _read_model(reading: Reading) -> None:
    fields = reading.fields
    hidden, heads = fields.get("hidden"), fields.get("heads")
    groups = reading.number("num-query-groups", 1)
    if reading.switch("group-query-attention") and groups != heads:
        fields["kv_heads"] = groups
    width = reading.number("kv-channels")
    if width and hidden and heads and width * heads != hidden:
        fields["head_width"] = width
    gated = fields.get("activation") == "swiglu"
    if hidden:
        usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
        fields["ffn"] = reading.number("ffn-hidden-size", usual)
    if reading.switch("use-rotary-position-embeddings"):
        fields["positions"] = "rope"
    if fields.get("positions") == "rope":
        fields["rope_base"] = reading.number("rotary-base", 10_000)
    elif 0 < fields.get("sequence", 0) < reading.number("max-position-embeddings"):
        reading.differs("max-position-embeddings", "the table of positions is as long as sequences")
    if reading.real("rotary-percent", 1.0, least=0, most=1) == 1.0:
        reading.settings.pop("rotary-percent", None)
    if reading.switch("add-qkv-bias") and not fields.get("biases", True):
        fields["qkv_bias"] = True
    if reading.switch("qk-layernorm"):
        _read_head_norms(reading)
    if further := reading.number("mtp-num-layers"):
        loss = reading.real("mtp-loss-scaling-factor", MTP_LOSS)
        fields |= {"mtp_layers": further, "mtp_loss": loss}
    windows.read(reading)
    fields["dropout"] = reading.real("hidden-dropout", DROPOUT)
    if reading.real("attention-dropout", DROPOUT) != fields["dropout"]:
        reading.differs("attention-dropout", f"{fields['dropout']} is dropped everywhere")


def _read_schedule(reading: Reading) -> None:
    """Read the last batch of a schedule, `0:768 250B:1536`, which stands in place of the batch.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/num_microbatches_calculator.py.
    """
    text = reading.text(SCHEDULE)
    if not text:
        return
    batches = [part.rpartition(":")[2] for part in text.strip("'\"").split()]
    if not (batches[-1].isdecimal() and 0 < len(batches[-1]) <= DIGITS):
        raise FrameworkError(f"--{SCHEDULE} = {shown(text)} must be as 0:768 250B:1536")
    reading.fields.setdefault("batch", int(batches[-1]))
    reading.differs(SCHEDULE, reading.table["changes"][SCHEDULE])


def _read_head_norms(reading: Reading) -> None:
    if reading.fields.get("norm") == "rmsnorm":
        reading.fields["qk_norm"] = True
    else:
        why = "norms of queries and keys are left out, unless they are RMSNorms"
        reading.differs("qk-layernorm", why)


def _read_vocabulary(reading: Reading) -> None:
    """The rows of the embedding; padded here only where the stack would pad otherwise."""
    kind, size = reading.text("tokenizer-type"), reading.number("vocab-size")
    padded = reading.number("padded-vocab-size") or reading.number("pad-vocab-size-to")
    if padded:
        size = padded
    elif not size:
        size = int(reading.table["vocabularies"].get(kind, 0)) or _vocabulary_of(reading)
    if not size and reading.text("vocab-file") and not kind:
        size = reading.table["vocabularies"]["GPT2BPETokenizer"]
    multiple = reading.number("make-vocab-size-divisible-by", MULTIPLE) * reading.fields.get(
        "tp", 1
    )
    stack = MULTIPLE * reading.fields.get("tp", 1)
    if size and multiple and multiple != stack:
        size = ceil(size / multiple) * multiple
        if size % stack:
            why = f"the stack pads the vocabulary to multiples of {stack}"
            reading.differs("make-vocab-size-divisible-by", why)
    if size:
        reading.fields["vocab"] = size


def _vocabulary_of(reading: Reading) -> int:
    """The vocabulary of the preset whose tokenizer is named, or 0."""
    named = reading.text("tokenizer-model") or reading.text("tokenizer-name-or-path")
    try:
        return find_model(named.rstrip("/").rpartition("/")[2]).vocab if named else 0
    except ModelError:
        return 0


def _read_precision(reading: Reading) -> None:
    fields = reading.fields
    half = reading.switch("bf16") or reading.switch("fp16")
    if reading.switch("fp16"):
        reading.differs("fp16", reading.table["changes"]["fp16"])
    recipe = quantised.read(reading)
    for name in FP8_SWITCHES:
        reading.word(name, "", (*quantised.FORMATS, *ON, *OFF))
    of_stack = True in [reading.given(each) for each in FP8_SWITCHES]
    if recipe != NO_RECIPE:
        fields["recipe"] = recipe
        if not half:
            reading.differs("bf16", "all but the layers' linears is in bf16, not fp32")
    elif of_stack:
        fields["precision"] = "fp8"
        if not half:
            reading.differs("fp8-format", "all but the layers' linears is in bf16, not fp32")
    elif not half:
        fields["precision"] = "fp32"
        return
    wide = reading.text(MAIN_GRADIENTS, "fp32") in megatron_optimizer.WIDE
    if reading.text(MAIN_GRADIENTS) in megatron_optimizer.FP16:
        reading.differs(MAIN_GRADIENTS, "gradients are in bf16, which has as many bytes")
    in_fp32 = reading.switch("bf16") and wide
    in_fp32 |= reading.switch("accumulate-allreduce-grads-in-fp32")
    in_half = reading.switch("grad-reduce-in-bf16")
    fields["gradients"] = "bf16" if in_half or (half and not in_fp32) else "fp32"


def _read_state(reading: Reading, devices: int | None) -> None:
    """What data parallelism shards, and over how many ranks."""
    fields = reading.fields
    sharded = fsdp.is_on(reading)
    strategy = reading.text(fsdp.STRATEGY, reading.table["fsdp_shards"])
    fields["zero"] = int(reading.switch("use-distributed-optimizer"))
    if sharded and strategy not in fsdp.STRATEGIES:
        reading.refuse(fsdp.STRATEGY, f"known: {', '.join(fsdp.STRATEGIES)}")
    elif sharded:
        fields["zero"] = fsdp.STRATEGIES[strategy]
    fsdp.read(reading)
    copies = reading.number("num-distributed-optimizer-instances", 1)
    if copies > 1 and devices:
        split = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1) * copies
        fields["shard"] = max(devices // split, 1)
    elif copies > 1:
        why = "the optimizer's state is sharded over all data-parallel ranks; give -n"
        reading.differs("num-distributed-optimizer-instances", why)
    megatron_optimizer.read(reading)


def _read_overlaps(reading: Reading) -> None:
    fields, zero = reading.fields, reading.fields["zero"]
    found = []
    if not reading.switch("no-async-tensor-model-parallel-allreduce"):
        found.append("oar")
    sums, gathers = reading.switch("overlap-grad-reduce"), reading.switch("overlap-param-gather")
    found += ["ors"] * (sums and zero >= 2) + ["oag"] * (gathers and zero == 3)
    found += ["dp"] * (sums and (zero < 3 or "shard" in fields))
    if sums and 0 < zero < 3 and not gathers:
        reading.differs("overlap-grad-reduce", "updated parameters are gathered beside AdamW too")
    waits = reading.switch("no-overlap-p2p-communication")
    found += ["pp"] * (fields.get("vpp", 1) > 1 and not waits)
    found += experts.read_shared(reading)
    found += experts.read_turns(reading)
    fields["overlap"] = "+".join(found) or "none"


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments beyond those that are one field each."""
    settings: dict[str, Any] = {"ffn-hidden-size": fields["ffn"], "vocab-size": fields["vocab"]}
    if fields["kv_heads"]:
        settings |= {"group-query-attention": True, "num-query-groups": fields["kv_heads"]}
    if fields["head_width"] and not fields["kv_rank"]:
        settings["kv-channels"] = fields["head_width"]
    settings["max-position-embeddings"] = fields["sequence"]
    if fields["positions"] == "rope":
        settings["rotary-base"] = fields["rope_base"]
    settings |= _written_untimed(fields) | rotary.written(fields) | windows.written(fields)
    if fields["mtp_layers"]:
        settings["mtp-num-layers"] = fields["mtp_layers"]
        settings["mtp-loss-scaling-factor"] = fields["mtp_loss"]
    settings |= dict.fromkeys(("attention-dropout", "hidden-dropout"), fields["dropout"])
    backends = fields["table"]["backends"].get(fields["family"], {})
    settings["attention-backend"] = backends.get(fields["attention"], fields["attention"])
    settings |= activations.written(fields)
    settings |= latent.written(fields) | experts.written(fields) | context.written(fields)
    settings |= megatron_stages.written(fields)
    if fields["precision"] != "fp32":
        settings["bf16"] = True
    settings |= quantised.written(fields) | fusions.written(fields)
    if fields["gradients"] == "bf16":
        settings["grad-reduce-in-bf16"] = True
    flags = fields["table"]["beyond"]
    settings |= {flags[each]: True for each in fields["beyond"] if each in flags}
    settings |= megatron_optimizer.written(fields) | offloaded.written(fields)
    return settings | _written_state(fields) | fsdp.written(fields) | recomputed.written(fields)


def _written_untimed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What queries and keys have beyond their linear, and how they turn; the norms' epsilon."""
    settings: dict[str, Any] = {}
    if fields["qkv_bias"]:
        settings["add-qkv-bias"] = True
    if fields["qk_norm"]:
        settings["qk-layernorm"] = True
    if fields["norm_eps"] != NORM_EPS:
        settings["norm-epsilon"] = fields["norm_eps"]
    scaling = scaling_of(fields["rope_scaling"])
    if scaling is not None and scaling == replace(LLAMA3, factor=scaling.factor):
        settings |= {"use-rope-scaling": True, "rope-scaling-factor": scaling.factor}
    return settings


def scales_rope(fields: Mapping[str, Any]) -> bool:
    """Whether arguments tell how a model's rotary positions are scaled, if they are."""
    scaling = scaling_of(fields["rope_scaling"])
    if scaling is None or scaling.method == YARN:
        return True
    return scaling == replace(LLAMA3, factor=scaling.factor) and not fields["kv_rank"]


def _written_state(fields: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    zero, overlap = fields["zero"], fields["overlap"]
    if zero and fields["optimizer"] != megatron_optimizer.MUON:
        settings["use-distributed-optimizer"] = True
    if fields["shard"]:
        copies = fields["dp"] // fields["shard"]
        settings["num-distributed-optimizer-instances"] = copies
    summed = "dp" in overlap and (zero < 3 or fields["shard"])
    if summed or {"ors", "oag"} & set(overlap):
        settings["overlap-grad-reduce"] = True
        if zero in (1, 2) or "oag" in overlap:
            settings["overlap-param-gather"] = True
    if "oar" not in overlap and fields["tp"] > 1:
        settings["no-async-tensor-model-parallel-allreduce"] = True
    if "pp" not in overlap and fields["vpp"] > 1:
        settings["no-overlap-p2p-communication"] = True
    return settings
