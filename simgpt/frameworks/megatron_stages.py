"""Layers of Megatron-LM's pipeline stages, which it is told in five ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Reading
from workload.errors import PlanError
from workload.model.fields import MOST as MOST_OF_MODELS
from workload.pipeline.layout import uneven_stages, written_out

ENDS = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
UNEVEN = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
PER_CHUNK = "num-layers-per-virtual-pipeline-stage"
CHUNKS = "num-virtual-stages-per-pipeline-rank"
LAYOUT = "pipeline-model-parallel-layout"


def read(reading: Reading) -> None:
    """Read the chunks of each stage, and the layers of each chunk where they are not even."""
    fields, pp = reading.fields, reading.fields.get("pp", 1)
    most = MOST_OF_MODELS["layers"]
    ends = [reading.switch(name) for name in ENDS]
    first, last = (reading.number(name, most=most) for name in UNEVEN)
    per_chunk, chunks = reading.number(PER_CHUNK), reading.number(CHUNKS, 1, least=1, most=most)
    layout = reading.text(LAYOUT)
    layers = fields.get("layers", 0) + sum(ends)
    if layout:
        _read_layout(reading, layout, pp)
        return
    if per_chunk and pp > 1:
        chunks = layers // pp // per_chunk
        if chunks * pp * per_chunk != layers:
            raise FrameworkError(
                f"--{PER_CHUNK} = {per_chunk} does not divide {layers} layers over {pp} stages"
            )
    if pp * chunks > most:
        raise FrameworkError(f"{pp} stages of {chunks} chunks each must be at most {most:,}")
    if chunks > 1 and pp > 1:
        fields["vpp"] = chunks
    if all(ends):
        fields["ends_as_layers"] = True
    elif pp > 1 and any(ends):
        each = layers // (pp * chunks)
        own = [each] * (pp * chunks)
        own[0 if ends[0] else -1] -= 1
        fields["stage_layers"] = "+".join(map(str, own))
    if pp > 1 and (first or last):
        _read_uneven(reading, pp, first, last)


def _read_uneven(reading: Reading, pp: int, first: int, last: int) -> None:
    """Layers of the first and the last stage; the stages between share the others evenly."""
    if reading.fields.get("vpp", 1) > 1:
        name = UNEVEN[0] if first else UNEVEN[1]
        reading.refuse(name, "with several chunks of a stage, simgpt needs the layers of each")
        return
    own = uneven_stages(reading.fields.get("layers", 0), pp, 1, first or None, last or None)
    reading.fields["stage_layers"] = "+".join(map(str, own))


def _read_layout(reading: Reading, layout: str, pp: int) -> None:
    """Layers as `Et|(tt|)*3tmL` has them: a chunk between two bars, t for a layer, m for one that
    predicts further tokens, which stand behind all others here."""
    try:
        text = written_out(layout)
    except PlanError as error:
        raise FrameworkError(f"--{LAYOUT}: {error}") from None
    chunks = text.split("|")
    if re.sub(r"[EtmL|]", "", text) or len(chunks) % pp:
        why = f"simgpt reads E, t, m and L, in a multiple of {pp} chunks between bars"
        reading.refuse(LAYOUT, why)
        return
    ahead, further = text.count("m"), reading.of_model("mtp_layers")
    if not text.removesuffix("L").endswith("m" * ahead):
        reading.refuse(LAYOUT, "simgpt reads m in the last chunk alone, behind all t")
        return
    if ahead != further and reading.of_model("layers"):
        reading.refuse(LAYOUT, f"it has {ahead} m, and mtp_layers={further} predict further tokens")
        return
    if len(chunks) > pp > 1:
        reading.fields["vpp"] = len(chunks) // pp
    if pp > 1:
        reading.fields["stage_layers"] = "+".join(str(chunk.count("t")) for chunk in chunks)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say how layers lie on stages."""
    chunks = fields["pp"] * fields["vpp"]
    if fields["stage_layers"]:
        return {LAYOUT: _layout(fields["stage_layers"], fields["mtp_layers"])}
    settings: dict[str, Any] = {name: True for name in ENDS if fields["ends_as_layers"]}
    if fields["vpp"] > 1:
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
