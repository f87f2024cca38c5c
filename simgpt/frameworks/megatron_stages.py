"""Layers of Megatron-LM's pipeline stages, which it is told in five ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Reading
from workload.errors import PlanError
from workload.models.field_limits import MOST as MOST_OF_MODELS
from workload.pipeline.layout import uneven_stages, written_out

ENDS = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
UNEVEN = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
PER_CHUNK = "num-layers-per-virtual-pipeline-stage"
CHUNKS = "num-virtual-stages-per-pipeline-rank"
LAYOUT = "pipeline-model-parallel-layout"


def read(reading: Reading) -> None:
    """Read the chunks of each stage, and the layers of each chunk where they are not even."""
    fields, pipe = reading.fields, reading.fields.get("pipe", 1)
    most = MOST_OF_MODELS["layers"]
    ends = [reading.switch(name) for name in ENDS]
    first, last = (reading.number(name, most=most) for name in UNEVEN)
    per_chunk, chunks = reading.number(PER_CHUNK), reading.number(CHUNKS, 1, least=1, most=most)
    layout = reading.text(LAYOUT)
    layers = fields.get("layers", 0) + sum(ends)
    if layout:
        _read_layout(reading, layout, pipe)
        return
    if per_chunk and pipe > 1:
        chunks = layers // pipe // per_chunk
        if chunks * pipe * per_chunk != layers:
            raise FrameworkError(
                f"--{PER_CHUNK} = {per_chunk} does not divide {layers} layers over {pipe} stages"
            )
    if pipe * chunks > most:
        raise FrameworkError(f"{pipe} stages of {chunks} chunks each must be at most {most:,}")
    if chunks > 1 and pipe > 1:
        fields["interleave"] = chunks
    if all(ends):
        fields["ends_as_layers"] = True
    elif pipe > 1 and any(ends):
        each = layers // (pipe * chunks)
        own = [each] * (pipe * chunks)
        own[0 if ends[0] else -1] -= 1
        fields["stage_layers"] = "+".join(map(str, own))
    if pipe > 1 and (first or last):
        _read_uneven(reading, pipe, first, last)


def _read_uneven(reading: Reading, pipe: int, first: int, last: int) -> None:
    """Layers of the first and the last stage; the stages between share the others evenly."""
    if reading.fields.get("interleave", 1) > 1:
        name = UNEVEN[0] if first else UNEVEN[1]
        reading.refuse(name, "with several chunks of a stage, simgpt wants the layers of each")
        return
    own = uneven_stages(reading.fields.get("layers", 0), pipe, 1, first or None, last or None)
    reading.fields["stage_layers"] = "+".join(map(str, own))


def _read_layout(reading: Reading, layout: str, pipe: int) -> None:
    """Layers as `Et|(tt|)*3tmL` has them: a chunk between two bars, t for a layer, m for one that
    predicts further tokens, which stand behind all others here."""
    try:
        text = written_out(layout)
    except PlanError as error:
        raise FrameworkError(f"--{LAYOUT}: {error}") from None
    chunks = text.split("|")
    if re.sub(r"[EtmL|]", "", text) or len(chunks) % pipe:
        why = f"simgpt reads E, t, m and L, in a multiple of {pipe} chunks between bars"
        reading.refuse(LAYOUT, why)
        return
    ahead, further = text.count("m"), reading.of_model("mtp_layers")
    if not text.removesuffix("L").endswith("m" * ahead):
        reading.refuse(LAYOUT, "simgpt reads m in the last chunk alone, behind all t")
        return
    if ahead != further and reading.of_model("layers"):
        reading.refuse(LAYOUT, f"it has {ahead} m, and mtp_layers={further} predict further tokens")
        return
    if len(chunks) > pipe > 1:
        reading.fields["interleave"] = len(chunks) // pipe
    if pipe > 1:
        reading.fields["stage_layers"] = "+".join(str(chunk.count("t")) for chunk in chunks)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say how layers lie on stages."""
    chunks = fields["pipe"] * fields["interleave"]
    if fields["stage_layers"]:
        return {LAYOUT: _layout(fields["stage_layers"], fields["mtp_layers"])}
    settings: dict[str, Any] = {name: True for name in ENDS if fields["ends_as_layers"]}
    if fields["interleave"] > 1:
        layers = fields["layers"] + len(settings)
        settings[PER_CHUNK] = layers // chunks
    return settings


def _layout(stage_layers: tuple[int, ...], further: int) -> str:
    """Layers of chunks in the letters of a layout, with so many that predict further tokens.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py
    (`validate_layer_layout` counts both).

    >>> _layout((1, 2, 1), 1)
    'Et|tt|tmL'
    """
    chunks = ["t" * count for count in stage_layers]
    return "|".join(["E" + chunks[0], *chunks[1:]]) + "m" * further + "L"
