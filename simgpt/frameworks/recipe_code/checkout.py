"""The modules of a checkout: found by their dotted names, parsed, and bounded in size."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path

from simgpt.frameworks.recipe_code.values import RecipeError
from topologies.files.printable import path_shown
from topologies.files.reading import UserFile

ROOTS = ("src", "scripts/performance", "")  # where imports of the recipes' own modules start
MOST_BYTES = 2 * 2**20  # of one module
MOST_MODULES = 400
_FILE = UserFile("recipe module", RecipeError, MOST_BYTES)
PART = 80  # characters of one part of a module's name


class Checkout:
    """A folder with a repository of recipes; nothing is read outside of it."""

    def __init__(self, folder: Path, roots: Sequence[str] = ROOTS) -> None:
        if not folder.is_dir():
            raise RecipeError(f"{path_shown(folder)} is not a folder with a checkout")
        self.folder = folder.resolve()
        self.roots = tuple(self.folder / root for root in roots)
        self._parsed: dict[Path, ast.Module] = {}

    def find(self, name: str) -> Path | None:
        """The file of a module of the checkout, None where it has no such module."""
        parts = name.split(".")
        if not all(part.isidentifier() and len(part) <= PART for part in parts):
            return None
        for root in self.roots:
            base = root.joinpath(*parts)
            for path in (base / "__init__.py", base.with_name(base.name + ".py")):
                if self._is_inside(path):
                    return path
        return None

    def file(self, path: str) -> Path | None:
        """A file by its path within the checkout; None where it has no such file."""
        parts = path.split("/")
        if len(parts) > 20 or any(part in ("", ".", "..") or len(part) > PART for part in parts):
            return None
        found = self.folder.joinpath(*parts)
        return found if self._is_inside(found) and found.is_file() else None

    def before(self, folder: str) -> Checkout:
        """The checkout where imports look into one of its folders first."""
        return Checkout(self.folder, (folder, *ROOTS))

    def is_package(self, name: str) -> bool:
        """Whether a dotted name is a folder of modules, with or without a file of its own."""
        parts = name.split(".")
        found = (root.joinpath(*parts) for root in self.roots)
        return any(path.is_dir() and self._is_inside(path) for path in found)

    def shown(self, path: Path) -> str:
        """A file's path within the checkout."""
        return path.relative_to(self.folder).as_posix()

    def mentions(self, path: Path, words: str) -> bool:
        """Whether the text of a file has some words."""
        return words in _FILE.text(path)

    def tree(self, path: Path) -> ast.Module:
        """The syntax tree of a file; a RecipeError says why it has none."""
        if path not in self._parsed:
            if len(self._parsed) >= MOST_MODULES:
                raise RecipeError(f"the recipe takes in more than {MOST_MODULES} modules")
            self._parsed[path] = self._parse(path)
        return self._parsed[path]

    def _parse(self, path: Path) -> ast.Module:
        shown = self.shown(path)
        text = _FILE.text(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(text)
        except SyntaxError as error:
            raise RecipeError(f"{shown}, line {error.lineno}, is not Python") from None
        except (RecursionError, MemoryError, ValueError):
            raise RecipeError(f"{shown} is nested too deeply") from None

    def _is_inside(self, path: Path) -> bool:
        try:
            real = path.resolve()
        except OSError:
            return False
        return path.exists() and real.is_relative_to(self.folder)
