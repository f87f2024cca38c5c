"""What Megatron-LM's arguments say of the update rule, and what Muon does otherwise there.

Source: NVIDIA/Megatron-LM, megatron/core/optimizer: muon.py (every matrix but tables is Muon's, a
fused linear is one but for queries, keys and values, tensor-parallel ranks iterate as
--muon-tp-mode says) and layer_wise_optimizer.py (dist_muon: each rank has the states of some
parameters whole, and updates these for all); optimizer_config.py (moments in other dtypes are those
of the precision-aware optimizer alone, which keeps remainders of bf16 weights with Transformer
Engine from 2.1 on, but not by the other recipes of 8 bits); megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading

MUON, DIST_MUON = "muon", "dist_muon"
ADAM = ("adam", "adamw")
REFUSED = ("use-distributed-optimizer", "use-megatron-fsdp", "use-custom-fsdp")
DTYPES = ("exp-avg-dtype", "exp-avg-sq-dtype", "main-grads-dtype", "main-params-dtype")
FP32 = ("fp32", "float32", "torch.float32")
STEPS, DUPLICATED = 5, "duplicated"
AWARE = "use-precision-aware-optimizer"
OFFLOAD, FRACTION = "optimizer-cpu-offload", "optimizer-offload-fraction"
MAIN = "main-params-dtype"
MOMENTS = ("exp-avg-dtype", "exp-avg-sq-dtype")
WIDE, HALF = ("fp32", "float32", "torch.float32"), ("bf16", "bfloat16", "torch.bfloat16")
FP16 = ("fp16", "float16", "torch.float16")


def read(reading: Reading) -> None:
    """Read the update rule, and say what of Muon is not carried over."""
    for name in DTYPES:
        if reading.settings.get(name) in FP32:
            reading.without(name)
    optimizer = reading.text("optimizer", ADAM[0])
    if optimizer not in (*ADAM, MUON, DIST_MUON):
        reading.differs("optimizer", "AdamW")
    _read_offload(reading)
    _read_moments(reading, adam=optimizer not in (MUON, DIST_MUON))
    if optimizer not in (MUON, DIST_MUON):
        return
    fields = reading.fields
    fields["optimizer"] = MUON
    said = "Muon, but for routers, whose rule is AdamW; gate and up are a matrix each"
    if optimizer == DIST_MUON:
        fields["zero"] = max(fields["zero"], 1)
        said += (
            "; each data-parallel rank has a part of every state (zero=1) and iterates on all "
            "matrices, where Megatron-LM's has some matrices whole"
        )
    reading.differs("optimizer", said)
    if fields.get("tp", 1) > 1 and reading.text("muon-tp-mode") != DUPLICATED:
        why = "matrices are gathered over tensor-parallel ranks, each of which iterates on them all"
        reading.differs("muon-tp-mode", why)
    if reading.number("muon-num-ns-steps", STEPS) != STEPS:
        reading.differs("muon-num-ns-steps", f"Muon iterates {STEPS} times")
    for flag in REFUSED:
        if reading.switch(flag):
            why = "Muon's states are sharded, which Megatron-LM has by dist_muon alone"
            reading.differs(flag, why)


def _read_offload(reading: Reading) -> None:
    """Read whether the update runs on the host, and which share: all, by default.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/training/arguments.py.
    """
    fraction = reading.real(FRACTION, 1.0, least=0, most=1)
    if not reading.switch(OFFLOAD) or not fraction:
        return
    if reading.fields.get("optimizer", "adamw") == "adamw":
        reading.fields["offload"] = "update"
        if fraction < 1:
            reading.fields["offload_share"] = fraction


def _read_moments(reading: Reading, *, adam: bool) -> None:
    """Read in which dtypes the precision-aware optimizer keeps moments and master copies: of two
    moments the wider one. Beside bf16 weights it keeps the other 16 bits of fp32 ones alone."""
    aware = reading.switch(AWARE) and adam
    given = [reading.text(name, WIDE[0]) for name in MOMENTS]
    masters = reading.text(MAIN, WIDE[0])
    if not aware:
        return
    known = {**dict.fromkeys(WIDE, "fp32"), **dict.fromkeys((*HALF, "fp16"), "bf16"), "fp8": "fp8"}
    for name, value in zip((*MOMENTS, MAIN), (*given, masters), strict=True):
        if value not in known or (name == MAIN and known[value] == "fp8"):
            reading.refuse(name, f"it is none of {', '.join(dict.fromkeys(known.values()))}")
            return
    own = min((known[value] for value in given), key=list(dict.fromkeys(known.values())).index)
    for name, value in zip(MOMENTS, given, strict=True):
        if known[value] != own:
            reading.differs(name, f"both moments are in {own}")
    if own != "fp32":
        reading.fields["moments"] = own
    fields = reading.fields
    in_half = fields.get("precision", "") != "fp32" and "offload" not in fields
    if in_half and fields["zero"] == 1 and fields.get("recipe", "") in ("", "fp8-delayed"):
        fields["master"] = "fp16" if masters == "fp16" else "remainders"


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an update rule that is not the usual one, of moments in bf16, and of one
    that runs on the host, which wants the precision-aware optimizer."""
    if fields["optimizer"] == MUON:
        return {"optimizer": DIST_MUON if fields["zero"] else MUON}
    settings: dict[str, Any] = {}
    if fields["offload"] == "update":
        settings |= {OFFLOAD: True, FRACTION: fields["offload_share"], AWARE: True}
    if fields["moments"] != WIDE[0] or fields["master"] != WIDE[0]:
        settings |= {AWARE: True, **dict.fromkeys(MOMENTS, fields["moments"])}
    if fields["master"] == "fp16":
        settings[MAIN] = "fp16"
    return settings
