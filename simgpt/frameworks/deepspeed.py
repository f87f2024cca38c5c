"""DeepSpeed's JSON, as keys of a plan, and such keys as settings of it.

Source of defaults: microsoft/DeepSpeed 0.19, deepspeed/runtime/zero/config.py (`overlap_comm` is on
with stage 3 alone) and deepspeed/runtime/engine.py, `get_data_types` (gradients are accumulated in
the dtype of training).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Reading

Z = "zero_optimization."
OFFLOAD, WEIGHTS = Z + "offload_optimizer.", Z + "offload_param."
RULE, ADAM = "optimizer.type", ("adam", "adamw")
ZENFLOW = Z + "zenflow."
PLACES = ("none", "cpu", "nvme")
HALVES = ("bf16.enabled", "bfloat16.enabled", "fp16.enabled")
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
HELD = {"reduce_bucket_size": (1, 500_000_000), "sub_group_size": (3, 1_000_000_000)}
DTYPE = "data_types.grad_accum_dtype"
# deepspeed/runtime/config_utils.py and utils/torch.py: names of dtypes
WIDE = ("fp32", "float32", "float", "torch.float32")
HALF = ("bf16", "bfloat16", "torch.bfloat16", "fp16", "float16", "half", "torch.float16")
AUTO = "auto"  # what a training script fills in, as Hugging Face's does
STEPS = "as many accumulation steps as the batch and the micro-batch make; one where they say none"
ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        SIZES[0]: "the micro-batches of all ranks and accumulation steps",
        SIZES[1]: "what the batch, the ranks and the accumulation steps make",
        SIZES[2]: STEPS,
        Z + "stage": "stage 0, DeepSpeed's own default",
        Z + "overlap_comm": "on with stage 3 alone, DeepSpeed's own default",
        Z + "reduce_bucket_size": "500,000,000 elements, DeepSpeed's own default",
        Z + "sub_group_size": "1,000,000,000 elements, DeepSpeed's own default",
        Z + "mics_shard_size": "state is sharded over all ranks",
        DTYPE: "the dtype of training",
        **dict.fromkeys(HALVES, "bf16, which simgpt plans by default"),
    }
)


def read(reading: Reading, devices: int | None) -> None:
    """Read all settings that bear on a plan."""
    filled_in = _read_auto(reading)
    reading.read_simple()
    fields = reading.fields
    if reading.switch(Z.rstrip(".")):  # true alone, of 2020: runtime/zero/config.py
        fields["zero"] = 1
    stage = fields.setdefault("zero", 0)
    _read_batch(reading, devices)
    beside = reading.switch(Z + "overlap_comm", default=stage == 3)
    found = {0: ["dp"], 1: ["dp"], 2: ["ors", "dp"], 3: ["ors", "oag"]}.get(stage, [])
    fields["overlap"] = "+".join(found) if beside and found else "none"
    within = reading.number(Z + "mics_shard_size", -1, least=-1)
    if within > 1 and stage == 3:
        fields["shard"] = within
    _read_held(reading, stage)
    _read_offload(reading)
    _read_optimizer(reading)
    _read_precision(reading, half=any(name in filled_in for name in HALVES))


def _read_auto(reading: Reading) -> list[str]:
    """The settings that the training script fills in, taken out of those that are given; said of
    all that bear on a plan is what is assumed in their place."""
    table, found = reading.table, []
    for name in [name for name, value in reading.settings.items() if value.lower() == AUTO]:
        kinds = [table[kind] for kind in ("changes", "refused")]
        listed = any(name in each or name in each.get("above_one", {}) for each in kinds)
        if name not in ASSUMED and not listed and not reading.matters(name):
            continue
        usual = "off, as it is by default" if listed else "not known here: left out"
        reading.differs(name, ASSUMED.get(name, usual))
        del reading.settings[name]
        found.append(name)
    return found


def _read_held(reading: Reading, stage: int) -> None:
    """What bears on memory alone, from some stage of ZeRO on, and is the default's here."""
    for name, (first, usual) in HELD.items():
        if reading.number(Z + name, usual) != usual and stage >= first:
            reading.differs(Z + name, ASSUMED[Z + name])


def _read_offload(reading: Reading) -> None:
    """What lives in the host's memory: states, which are updated there, and with them parameters.

    Source: deepspeedai/DeepSpeed, runtime/zero/offload_config.py and config.py; `cpu_offload` and
    `cpu_offload_param` are of before 0.4.
    """
    device = reading.word(OFFLOAD + "device", "none", PLACES)
    older = reading.switch(Z + "cpu_offload")
    if device == "nvme":
        reading.refuse(OFFLOAD + "device", "states on NVMe are not modelled; cpu is offload=update")
    elif device == "cpu" or older:
        reading.fields["offload"] = "update"
    _read_parameters(reading)
    _read_ratio(reading)


def _read_optimizer(reading: Reading) -> None:
    """Say what of the update is another than AdamW's right behind the backward pass.

    Source: deepspeedai/DeepSpeed@edaa722, deepspeed/runtime/config.py (names in any case), and
    runtime/zenflow/zenflow_config.py, whose section alone switches it on.
    """
    if reading.text(RULE, ADAM[0]).lower() not in ADAM:
        reading.differs(RULE, "AdamW, whose gradients are summed whole")
    late = [name for name in reading.settings if name.startswith(ZENFLOW)]
    for name in late[:1]:
        reading.refuse(name, reading.table["refused"][ZENFLOW.rstrip(".")])
    reading.without(f"{ZENFLOW}*")


def _read_ratio(reading: Reading) -> None:
    """Which share of the update is the host's, of those that stage 3 may split.

    Source: deepspeedai/DeepSpeed@edaa722, runtime/zero/stage3.py (subgroup_to_device).
    """
    fields, ratio = reading.fields, reading.real(OFFLOAD + "ratio", 1.0, least=0, most=1)
    if fields["zero"] != 3 or fields.get("offload") not in ("update", "parameters"):
        reading.without(OFFLOAD + "ratio")
    elif ratio < 1 and fields["offload"] == "parameters":
        why = "where parameters are on the host, it updates them all"
        reading.refuse(OFFLOAD + "ratio", why)
    elif not ratio:
        reading.refuse(
            OFFLOAD + "ratio",
            "gradients through the host, for an update on the device, are not modelled",
        )
    elif ratio < 1:
        fields["offload_share"] = ratio


def _read_parameters(reading: Reading) -> None:
    """Parameters in the host's memory, which stage 3 alone can have there."""
    name, older = WEIGHTS + "device", Z + "cpu_offload_param"
    place = reading.word(name, "none", PLACES)
    said = name if place != "none" else older
    if place == "nvme":
        reading.refuse(name, "parameters on NVMe are not modelled; cpu is offload=parameters")
    elif place == "cpu" or reading.switch(older):
        if reading.fields.get("offload") == "update":
            reading.fields["offload"] = "parameters"
        else:
            reading.refuse(said, "parameters on the host need offload_optimizer = cpu too")


def _read_batch(reading: Reading, devices: int | None) -> None:
    """Any two of the batch, a rank's micro-batch and the accumulation steps say the third; all
    three say how many ranks share the batch, which DeepSpeed checks."""
    fields = reading.fields
    batch, micro, steps = (reading.number(name) for name in SIZES)
    if batch and micro and steps:
        if batch % (micro * steps):
            raise FrameworkError(f"train_batch_size = {batch} is not a multiple of {micro * steps}")
        ranks = batch // (micro * steps)
        if devices in (None, ranks):
            fields["devices"] = ranks
        else:
            why = f"it is {micro} x {steps} sequences of {ranks:,} ranks, and there are {devices:,}"
            reading.refuse(SIZES[0], why)
    elif micro and devices and not batch:
        fields["batch"] = micro * max(steps, 1) * devices
    elif batch and steps and devices and not micro:
        fields["mbs"] = max(batch // (steps * devices), 1)
        if batch % (steps * devices):
            why = f"it is not a multiple of {steps} sequences of {devices:,} ranks"
            reading.refuse(SIZES[0], why)


def _read_precision(reading: Reading, *, half: bool) -> None:
    """The dtype of training; `half` where the training script says which of 16 bits it is."""
    fields, dtype = reading.fields, reading.word(DTYPE, "", (*WIDE, *HALF))
    fp16 = reading.switch("fp16.enabled")
    if fp16:
        reading.differs("fp16.enabled", "bf16, which has as many bytes and the same rate")
    brain = is_bf16(reading)
    autocast = reading.switch("torch_autocast.enabled") or reading.switch("amp.enabled")
    if not (half or fp16 or brain or autocast):
        fields["precision"] = "fp32"
        return
    fields["gradients"] = "fp32" if dtype in WIDE else "bf16"


def is_bf16(reading: Reading) -> bool:
    """Whether training is in bf16, for certain."""
    return any(reading.switch(name) for name in HALVES[:2])


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings beyond those that are one field each."""
    steps = fields["batch"] // (fields["dp"] * fields["mbs"])
    settings: dict[str, Any] = {"gradient_accumulation_steps": steps}
    settings[Z + "overlap_comm"] = bool(fields["overlap"])
    if fields["shard"]:
        settings[Z + "mics_shard_size"] = fields["shard"]
    if fields["offload"] in ("update", "parameters"):
        settings[OFFLOAD + "device"] = "cpu"
    if fields["offload"] == "parameters":
        settings[WEIGHTS + "device"] = "cpu"
    if fields["offload_share"] < 1:
        settings[OFFLOAD + "ratio"] = fields["offload_share"]
    if fields["precision"] == "bf16":
        settings |= {"bf16.enabled": True, DTYPE: fields["gradients"]}
    return settings
