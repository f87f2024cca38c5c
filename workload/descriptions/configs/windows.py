"""The sliding window of a `config.json` of Hugging Face, and which layers have it."""

from __future__ import annotations

from workload.descriptions.configs.config import Config
from workload.errors import ModelError

WHOLE, WITHIN = "full_attention", "sliding_attention"  # in `layer_types`
PATTERN_OF_WHOLE = "G"  # as EXAONE 4 writes LLLG


def switch_of(config: Config) -> str:
    """The key of the window's switch; "" where there is none."""
    return str(config.row["window"].get("switch", ""))


def window_of(config: Config) -> int:
    """Tokens of the sliding window; 0 if there is none."""
    window, switch = config.row["window"], switch_of(config)
    if not window or (switch and not config.get(switch)):
        return 0
    tokens = config.get(window["key"])
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        config.wrong(window["key"], tokens, "must be a whole number of tokens")
    return tokens or 0


def fields_of(config: Config, layers: int) -> dict[str, int]:
    """The model's window and which layers attend to all tokens, where the config says so."""
    window = window_of(config)
    if not window or switch_of(config):
        return {}
    every = _whole_every(config, layers)
    if every == 1:
        return {}
    return {"window": window} | ({"global_every": every} if every is not None else {})


def _whole_every(config: Config, layers: int) -> int | None:
    """n if every n-th layer attends to all tokens, by `layer_types`, a key of the family, or the
    family's default; 0 if none does, None in a family without such layers."""
    types = config.document.get("layer_types") or []
    usual = _usual(config)
    if not types:
        return usual
    whole = [n for n, each in enumerate(types, start=1) if each == WHOLE]
    every = whole[1] - whole[0] if len(whole) > 1 else 0
    if len(whole) == 1:
        every = max(whole[0], layers - whole[0] + 1)  # so that there is no other
    alike = whole == list(range(whole[0], layers + 1, every)) if whole else True
    if len(types) != layers or not alike or len(whole) != (layers // every if every else 0):
        raise ModelError(
            f"{config.origin}: layer_types has {len(types)} layers, of which {len(whole)} attend "
            f"to all tokens; it must have {layers}, of which every n-th attends to all tokens"
        )
    return every


def are_elsewhere(config: Config, every: int) -> bool:
    """Whether full-attention layers are every n-th one, but not the last of each n as in `GPT`."""
    types = config.document.get("layer_types") or []
    return bool(every) and WHOLE in types and types.index(WHOLE) != every - 1


def _usual(config: Config) -> int | None:
    """The family's default for `_whole_every`, without `layer_types`."""
    window = config.row["window"]
    for key in window.get("every", []):
        said = config.get(key)
        if isinstance(said, str) and said.find(PATTERN_OF_WHOLE) == len(said) - 1:
            return len(said)
        if said is not None and (type(said) is not int or said < 1):
            config.wrong(key, said, "must be a whole number of layers")
        if said is not None:
            return int(said)
    found: int | None = window.get("whole_every")
    return found
