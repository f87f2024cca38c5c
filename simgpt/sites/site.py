"""Computing centres as data: one file for each, every setting with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.files.reading import shipped_toml
from topologies.files.units import quantity
from topologies.records import record

NAMES = ("frontier", "perlmutter", "alps", "lumi", "generic")
GENERIC = NAMES[-1]
SRUN, TORCHRUN = "srun", "torchrun"


class JobError(SimgptError):
    """A job that cannot be written: a name that Slurm does not take, nodes that are not filled."""


class JobCannotRunError(JobError):
    """A job that `simgpt run` has no program for, or ranks that do not fill their nodes."""

    exit_code = ExitStatus.CANNOT_RUN


@record
class Setting:
    """An option, a module or a variable; `full` ones are for nodes whose devices are all used, and
    in one that `expands` the shell expands variables. One with a `memory` replaces those of its
    name where a device has as many bytes or more. `source` is spelled out."""

    value: str
    source: str
    name: str = ""
    full: bool = False
    expands: bool = False
    memory: float = 0.0


@record
class Site:
    """A computing centre, by the keys that simgpt/sites/generic.toml explains."""

    name: str
    title: str
    machines: tuple[str, ...]
    devices_per_node: int
    launcher: str
    cpus_per_task: int
    account: bool
    directives: tuple[Setting, ...]
    modules: tuple[Setting, ...]
    environment: tuple[Setting, ...]
    srun: tuple[Setting, ...]
    notes: tuple[str, ...]

    def of_devices(self, memory_bytes: float) -> Site:
        """The site as nodes whose devices have that memory are asked for."""
        found = [each for each in self.directives if each.memory <= memory_bytes]
        return replace(self, directives=tuple({each.name: each for each in found}.values()))

    @property
    def sources(self) -> list[str]:
        """Where its settings are from, each once."""
        settings = (*self.directives, *self.modules, *self.environment, *self.srun)
        return list(dict.fromkeys(each.source for each in settings))


def site_of(machine: str) -> Site:
    """The site of a machine by its name; the generic one, where it is none of the shipped ones'.

    >>> site_of("frontier").launcher, site_of("my cluster").name
    ('srun', 'generic')
    """
    return next((each for each in sites().values() if machine in each.machines), sites()[GENERIC])


@cache
def sites() -> Mapping[str, Site]:
    """All sites by their names."""
    return {name: _site(name, shipped_toml("simgpt", f"sites/{name}.toml")) for name in NAMES}


def _site(name: str, table: dict[str, Any]) -> Site:
    sources = table.pop("sources")
    for key in ("directives", "modules", "environment", "srun"):
        table[key] = tuple(
            _setting({**each, "source": sources[each["source"]]}) for each in table[key]
        )
    table |= {key: tuple(table[key]) for key in ("machines", "notes")}
    return Site(name=name, **table)


def _setting(table: dict[str, Any]) -> Setting:
    memory = quantity(table.pop("memory", "0 B"), "bytes")
    return Setting(**{"value": "", **table}, memory=memory)
