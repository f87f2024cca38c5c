"""Pages of the documentation that are made from the code, as a hook of mkdocs.

`make docs` calls it: commands from click's help, modules from their docstrings. Nothing of it is
kept in the repository, so it cannot differ from the code. Without mkdocs, `reference_pages` gives
the same pages as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "topologies": "machines: devices, links, routing, placement and collective algorithms",
    "workload": "models, plans, and the program of a step",
    "simulator": "the time of a step: costs, engine, noise, attribution, search",
    "executor": "the same program run with torch",
    "validation": "predictions beside measurements, and report pages",
    "simgpt": "the command line and the Python interface",
}
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
SOURCE_PATH = re.compile(r"(?<![\[`])`((?:" + "|".join(PACKAGES) + r")/[\w/]+\.py)`(?!`)")
LABEL = re.compile(r"\b(Source|Not modelled):")


def reference_pages() -> dict[str, str]:
    """Each generated page by its path in the documentation, as Markdown."""
    pages = {"reference/commands.md": _commands()}
    return pages | {f"reference/{name}.md": _package(name) for name in PACKAGES}


def anchor(source: str) -> str:
    """The anchor of a module on its package's page, from its path in the repository.

    >>> anchor("simulator/costs/analytic.py")
    'simulator-costs-analytic'
    """
    return re.sub(r"[/_]+", "-", source.removesuffix(".py").lower()).strip("-")


def linked(markdown: str, prefix: str) -> str:
    """A page whose mentions of modules lead to the reference, but not those within code."""

    def link(match: re.Match[str]) -> str:
        source = match[1]
        if not (ROOT / source).exists():
            return match[0]
        return f"[{match[0]}]({prefix}reference/{source.split('/')[0]}.md#{anchor(source)})"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [SOURCE_PATH.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join((*parts, SOURCE_PATH.sub(link, markdown[end:])))


def on_files(files: Any, *, config: Any) -> Any:
    """Called by mkdocs with the files of docs/: adds the pages that are made from the code."""
    from mkdocs.structure.files import File

    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_env(env: Any, *, config: Any, **_: Any) -> Any:
    """Called by mkdocs before pages are written: no page asks another host for a script."""
    config.extra.pop("polyfills", None)
    return env


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page's text."""
    return linked(markdown, "../" * page.file.src_uri.count("/"))


def _commands() -> str:
    from simgpt.cli import cli

    wide: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100}
    context = click.Context(cli, info_name="simgpt", **wide, **cli.context_settings)
    parts = ["# Commands\n\nThe help of every command, as `--help` prints it."]
    parts += [
        f"## {name}\n\n```text\n{command.get_help(within).rstrip()}\n```"
        for name, command, within in _walk(cli, context)
    ]
    return "\n\n".join(parts) + "\n"


def _walk(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """A command and those below it, each with its whole name."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                settings = {**below.context_settings, "terminal_width": 100}
                yield from _walk(below, click.Context(below, context, name, **settings))


def _package(name: str) -> str:
    paths = sorted((ROOT / name).rglob("*.py"), key=lambda path: (str(path.parent), path.name))
    modules = (_module(path) for path in paths)
    head = f"# {name}\n\nPackage `{name}`: {PACKAGES[name]}. From the docstrings of its modules."
    return "\n\n".join((head, *(text for text in modules if text))) + "\n"


def _module(path: Path) -> str:
    source = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = [_text(ast.get_docstring(tree) or "")]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            parts += _definition(node, "")
    if not any(parts):
        return ""
    name = source.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    return "\n\n".join((f"## {name} {{ #{anchor(source)} }}", *(part for part in parts if part)))


def _definition(node: ast.ClassDef | ast.FunctionDef, owner: str) -> list[str]:
    """A public definition with its docstring, and its methods; none if there is nothing to say."""
    text = ast.get_docstring(node)
    if node.name.startswith("_"):
        return []
    parts = [f"**`{owner}{_signature(node)}`**\n\n{_text(text)}"] if text else []
    if isinstance(node, ast.ClassDef):
        for below in node.body:
            if isinstance(below, ast.FunctionDef):
                parts += _definition(below, f"{node.name}.")
    return parts


def _signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def _text(docstring: str) -> str:
    """A docstring as Markdown: examples become blocks of code, the labels of a formula bold."""
    paragraphs = []
    for paragraph in docstring.strip().split("\n\n"):
        is_example = paragraph.startswith(">>>")
        text = f"```pycon\n{paragraph}\n```" if is_example else LABEL.sub(r"**\1:**", paragraph)
        paragraphs.append(text)
    return "\n\n".join(paragraphs)
