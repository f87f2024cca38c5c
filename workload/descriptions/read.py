"""The model that a user names, in whichever way: what every MODEL argument takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from topologies.files.printable import path_shown
from workload.descriptions.described import Described
from workload.descriptions.fields import model_from_text
from workload.descriptions.from_table import MODEL_FILE, model_from_table, read_model
from workload.descriptions.hub import hub_model, nearest_on_hub
from workload.descriptions.hugging_face import check_own, is_config, model_from_config
from workload.errors import ModelError
from workload.gpt import beyond_preset, find_model

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml")  # what `simgpt import` reads


def described_model(text: str) -> Described:
    """The model that a text stands for: a file, fields of a model, or a name.

    What ends in .toml or .json is a file: of the model's fields, or Hugging Face's `config.json`.
    Other text with "=" in it has the fields themselves, and what is no preset may be the name of a
    repository of the Hub whose sizes are packaged. A ModelError says what is wrong.
    """
    if text.endswith(".toml"):
        return Described(read_model(Path(text)))
    if text.endswith(".json"):
        return _from_json(Path(text), MODEL_FILE.document(text))
    if "=" in text:
        return Described(model_from_text(text))
    if text.endswith(SCRIPTS) and os.path.exists(text):
        raise ModelError(
            f"{path_shown(Path(text))} is a framework's file and no model; simgpt import "
            f"{path_shown(Path(text))} says what it asks for"
        )
    if "/" in text and os.path.exists(text):
        hint = "; give its config.json" if os.path.isdir(text) else ""
        raise ModelError(f"a model's file ends in .toml or .json, unlike {path_shown(text)}{hint}")
    try:
        preset = find_model(text)
    except ModelError as error:
        if (found := hub_model(text)) is not None:
            return found
        raise ModelError(f"{error}{nearest_on_hub(text)}") from None
    return Described(preset, beyond=beyond_preset(preset.name))


def model_from_json(text: str) -> Described:
    """The model of a text in JSON: Hugging Face's `config.json`, or the model's fields.

    It is called by its family, or "model", where the text has no name. A ModelError says what is
    wrong, as of a file.
    """
    document = MODEL_FILE.parsed(text, "the config")
    if is_config(document):
        return model_from_config(document, "the config", name="")
    check_own(document, "the config")
    return Described(model_from_table(document, "the config", name="model"))


def _from_json(path: Path, document: Any) -> Described:
    if is_config(document):
        name = path.parent.name if path.stem == "config" else path.stem
        return model_from_config(document, path_shown(path), name=name)
    check_own(document, path_shown(path))
    return Described(model_from_table(document, path_shown(path), name=path.stem))
