"""The machines that come with the package: their names, their variants and their files."""

from __future__ import annotations

from pathlib import Path

from topologies.files.reading import shipped_toml
from topologies.variants import variants_in

FOLDER = Path(__file__).parent / "machines"


def machine_names() -> list[str]:
    """The machines that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def variant_names(name: str) -> list[str]:
    """The variants of a machine that comes with the package, its default first."""
    return variants_in(shipped_toml("topologies", f"machines/{name}.toml"))
