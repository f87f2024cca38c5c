"""A `config.json` of Hugging Face beside the row of its family: what its keys say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from topologies.files.printable import shown
from topologies.records import record
from workload.descriptions.configs.families import value_of
from workload.errors import ModelError


@record
class Config:
    """A config beside what is known of its family; `origin` names it in sentences."""

    origin: str
    family: str
    row: Mapping[str, Any]  # of `families.toml`, joined with those that it is like
    document: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """What a key says, or what transformers takes for it where it is absent."""
        return value_of(self.document, key, self.row["absent"].get(key))

    def has(self, key: str) -> bool:
        """Whether the config has a key."""
        return value_of(self.document, key, self) is not self

    def key_of(self, field: str) -> str:
        """The key that the config has a field under, or the usual one if it has none."""
        keys: list[str] = self.row["keys"][field]
        given = [key for key in keys if self.has(key)]
        given = [key for key in given if self.get(key) is not None] or given
        usual = [key for key in keys if key in self.row["absent"]]
        return (given or usual or keys)[0]

    def keys_in(self, sentence: str) -> str:
        """The end of a sentence on fields: the config's keys of them, where they differ."""
        fields = [field for field in self.row["keys"] if f"{field}=" in sentence]
        named = {self.key_of(field): field for field in fields}
        keys = [f"{key} is {field}" for key, field in named.items() if key not in sentence]
        return f" ({self.origin}: {', '.join(keys)})" if keys else ""

    @property
    def activation_key(self) -> str:
        """The key that names the activation; "" in a family that has but one."""
        keys: list[str] = self.row["activation"].get("key", [])
        return next((key for key in keys if self.get(key) is not None), (keys or [""])[0])

    @property
    def dropouts(self) -> dict[str, float]:
        """The dropouts by their keys; a ModelError names one that is no share."""
        rates = {key: self.get(key) or 0 for key in self.row["dropouts"]}
        for key, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
                self.wrong(key, rate, "must be a number from 0 to below 1")
        return rates

    def wrong(self, key: str, value: Any, what: str) -> NoReturn:
        """Refuse a key's value."""
        raise ModelError(f"{self.origin}: {key} = {as_json(value)} {what}")


def as_json(value: Any) -> str:
    """A value as JSON writes it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else shown(value)
