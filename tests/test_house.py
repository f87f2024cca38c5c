"""The house rules: which package may import which, and how the code reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.lengths import MOST_OF_A_FILE, MOST_OF_A_FUNCTION, file_lengths, function_lengths
from tests.lengths import main as print_lengths

ROOT = Path(__file__).resolve().parent.parent

# What each package may import of the others: a package, or single modules of it.
ALLOWED = {
    "topologies": [],
    "workload": [
        "topologies.errors",
        "topologies.exit_status",
        "topologies.files.budget",
        "topologies.files.printable",
        "topologies.files.reading",
        "topologies.files.units",
        "topologies.records",
        "topologies.session",
    ],
    "simulator": ["topologies", "workload"],
    "executor": ["topologies", "workload"],
    "validation": ["topologies", "workload", "simulator", "executor"],
    "simgpt": ["topologies", "workload", "simulator", "executor", "validation"],
}
HEAVY = ("executor",)  # brings torch, so those above it import it inside functions alone
EXCEPTIONS: frozenset[str] = frozenset()  # "package/file.py", each with its reason beside it

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """One imported name, as `package.module.name`, and whether importing the file runs it."""

    name: str
    line: int
    at_start: bool

    def within(self, module: str) -> bool:
        return f"{self.name}.".startswith(f"{module}.")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def all_sources() -> Iterator[Path]:
    for package in ALLOWED:
        for path in sources(package):
            if path.relative_to(ROOT).as_posix() not in EXCEPTIONS:
                yield path


@cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a source, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that is in the tree of a source."""
    return tuple(ast.walk(tree_of(path)))


def imports_of(tree: ast.Module, package: str) -> list[Import]:
    """Every import of a file of `package`; `package` is dotted, for the sake of relative ones."""
    return list(_imports(tree, package, at_start=True))


def _imports(node: ast.AST, package: str, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for name in _imported_names(child, package):
                yield Import(name, child.lineno, at_start)
        deferred = isinstance(child, FUNCTIONS) or _is_for_type_checkers(child)
        yield from _imports(child, package, at_start and not deferred)


def _imported_names(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, (base, node.module)))
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@cache
def all_imports(package: str) -> tuple[tuple[Path, Import], ...]:
    """All imports of a package's files, found once for all rules."""
    dotted = {path: ".".join(path.relative_to(ROOT).parent.parts) for path in sources(package)}
    return tuple(
        (path, found) for path, of in dotted.items() for found in imports_of(tree_of(path), of)
    )


def test_the_reader_of_imports_sees_relative_deferred_and_type_checking_ones() -> None:
    text = """
from ..op import Op
from . import grid
if TYPE_CHECKING:
    import torch
def f():
    from executor.run import go
"""
    found = [(i.name, i.at_start) for i in imports_of(ast.parse(text), "workload.passes")]
    assert found == [
        ("workload.op.Op", True),
        ("workload.passes.grid", True),
        ("torch", False),
        ("executor.run.go", False),
    ]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_up_the_house_only(package: str) -> None:
    allowed = [package, *ALLOWED[package]]
    wrong = [
        f"{place(path, found.line)} imports {found.name}"
        for path, found in all_imports(package)
        if found.name.partition(".")[0] in ALLOWED
        if not any(found.within(module) for module in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", [name for name in ALLOWED if name != "executor"])
def test_torch_lives_in_the_executor_alone(package: str) -> None:
    wrong = [place(p, found.line) for p, found in all_imports(package) if found.within("torch")]
    assert wrong == []


@pytest.mark.parametrize("package", ["validation", "simgpt"])
def test_the_executor_is_imported_inside_the_functions_that_use_it(package: str) -> None:
    wrong = [
        place(path, found.line)
        for path, found in all_imports(package)
        if found.at_start and any(found.within(heavy) for heavy in HEAVY)
    ]
    assert wrong == []


def test_no_file_is_longer_than_a_sitting() -> None:
    assert [each for each in file_lengths(all_sources()) if each.lines > MOST_OF_A_FILE] == []


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = (each for path in all_sources() for each in function_lengths(path, tree_of(path)))
    assert [each for each in lengths if each.lines > MOST_OF_A_FUNCTION] == []


def test_what_is_long_is_printed_the_longest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """41 lines are a long function, 40 are not; 301 lines are a long file."""
    function = "def {}():\n" + "    0\n" * 39
    (tmp_path / "a.py").write_text(function.format("f"), encoding="utf-8")
    more = function.format("g") + "    1\n", function.format("h") + "    1\n" * 2
    (tmp_path / "b.py").write_text("".join(more) + "0\n" * 218, encoding="utf-8")
    print_lengths([str(tmp_path)])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "1"
    assert rest[0].split() == ["301", str(tmp_path / "b.py")]
    assert rest[1].split()[0] == "2"
    assert [line.split()[::2] for line in rest[2:]] == [["42", "h"], ["41", "g"]]


def test_only_the_face_prints() -> None:
    wrong = [
        place(path, node.lineno)
        for path in all_sources()
        if path.relative_to(ROOT).parts[0] != "simgpt"
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_nothing_is_left_to_do() -> None:
    reminder = re.compile(r"\b(TODO|FIXME)\b")
    wrong = [
        place(path, number)
        for path in all_sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if reminder.search(line)
    ]
    assert wrong == []


def test_every_public_module_class_and_function_says_what_it_is() -> None:
    wrong = [
        place(path, getattr(node, "lineno", 1))
        for path in all_sources()
        for node in _public(tree_of(path))
        if not ast.get_docstring(node) and not _is_overload(node)
    ]
    assert wrong == []


def test_no_docstring_opens_with_a_pronoun() -> None:
    pronoun = re.compile(r"(The same|Those)\b")
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    wrong = [
        place(path, node.body[0].lineno)
        for path in all_sources()
        for node in nodes_of(path)
        if isinstance(node, documented) and pronoun.match(ast.get_docstring(node) or "")
    ]
    assert wrong == []


def _is_overload(node: ast.AST) -> bool:
    """Whether it is a signature alone, of a function that is documented below it."""
    return "overload" in [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]


def _public(
    tree: ast.Module,
) -> Iterator[ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    yield tree
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield node


@cache
def imports_between_modules() -> nx.DiGraph[str]:
    """Which module of ours imports which, in functions and for the type checker alone too."""
    paths = {module_name(path): path for path in all_sources()}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, path in paths.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for each in imports_of(tree_of(path), package):
            target = each.name if each.name in paths else each.name.rpartition(".")[0]
            if target in paths and target != name:
                graph.add_edge(name, target)
    return graph


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def folders_of(package: str) -> list[str]:
    """A package and those within it, by their dotted names."""
    return sorted({module_name(path.parent) for path in sources(package)})


def test_modules_import_each_other_in_no_circle() -> None:
    circles = nx.strongly_connected_components(imports_between_modules())
    assert [sorted(each) for each in circles if len(each) > 1] == []


@pytest.mark.parametrize("package", folders_of("workload"))
def test_rooms_of_a_package_import_each_other_in_one_direction(package: str) -> None:
    """A room is a module or a folder that stands right in the package, with all that is in it."""
    between: dict[tuple[str, str], list[str]] = {}
    for modules in imports_between_modules().edges:
        above, below = (room_of(package, module) for module in modules)
        if above and below and above != below:
            between.setdefault((above, below), []).append(" imports ".join(modules))
    rooms = nx.DiGraph(between.keys())
    for circle in nx.strongly_connected_components(rooms):
        within = rooms.subgraph(circle).edges
        assert [place for arrow in within for place in between[arrow]] == []


def room_of(package: str, module: str) -> str:
    """The first name behind a package's in that of a module; "" of other modules."""
    inside = module.removeprefix(f"{package}.")
    return inside.partition(".")[0] if inside != module else ""


def test_every_package_says_that_it_is_typed() -> None:
    assert [name for name in ALLOWED if not (ROOT / name / "py.typed").exists()] == []


NAMING = "workload/naming.py"  # the one module that makes names of ops, buffers and blocks
NAMES = re.compile(r"\b(op|ops|block|buffer|reads|writes|grad|grads|stream|label|labels)\b")
TAKES_APART = {"endswith", "startswith", "partition", "rpartition", "split", "removesuffix",
               "removeprefix", "match", "search", "fullmatch"}  # fmt: skip


def taken_apart(tree: ast.AST) -> Iterator[int]:
    """The lines in which text that may be the name of an op, a buffer or a block is taken apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            about = [node.func.value, *node.args]
            if node.func.attr in TAKES_APART and any(NAMES.search(ast.unparse(a)) for a in about):
                yield node.lineno
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            holder = node.comparators[0]
            if isinstance(holder, ast.Attribute) and holder.attr in ("name", "block", "label"):
                yield node.lineno


@pytest.mark.parametrize("package", ["workload", "simulator", "executor", "validation", "simgpt"])
def test_structure_is_never_read_from_names(package: str) -> None:
    found = [
        place(path, line)
        for path in sources(package)
        if path.relative_to(ROOT).as_posix() != NAMING
        for line in taken_apart(tree_of(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("op.name.endswith('.reduce')", True),
        ("'.grad.' in op.name", True),
        ("op.reads[0].endswith('.shard')", True),
        ("block.partition('.')[0]", True),
        ("LAYER.search(op.name)", True),
        ("re.match(r'm0', op.block)", True),
        ("op.label.startswith('router')", True),
        ("label.partition('.')[0]", True),
        ("labels[0].removesuffix('.grad')", True),
        ("re.fullmatch(PLACES, block.label)", True),
        ("op.label == 'up.matmul'", False),
        ("op.kind in KINDS", False),
        ("text.partition('=')", False),
    ],
)
def test_the_reader_of_names_taken_apart_sees_them(text: str, is_found: bool) -> None:
    assert bool(list(taken_apart(ast.parse(text)))) == is_found


# Words of theatre, aviation and offices, for what the field has words of its own.
FOREIGN = re.compile(
    "actors?|crews?|flights?|flying|heralds?|seats?|shelf|take_off|twins?|guess|crowds?"
)


@pytest.mark.parametrize("package", ALLOWED)
def test_names_are_the_fields_own_words(package: str) -> None:
    found = [
        f"{path.name}: {name}"
        for path in sources(package)
        for node in nodes_of(path)
        for name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "arg", ""))
        if name and FOREIGN.fullmatch(name)
    ]
    assert found == []


@pytest.mark.parametrize("package", ALLOWED)
def test_what_is_kept_between_calls_belongs_to_a_session(package: str) -> None:
    """`cache` is for data that ships with the package and is read once; `id()` is no key."""
    for path in sources(package):
        names = {node.id for node in nodes_of(path) if isinstance(node, ast.Name)}
        is_session = path.name == "session.py"
        assert is_session or "lru_cache" not in names or path.name == "evaluate.py", path
        assert "id" not in {
            node.func.id
            for node in nodes_of(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }, path
        for node in nodes_of(path):
            if isinstance(node, FUNCTIONS):
                marks = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
                assert "cache" not in marks or not node.args.args, f"{path}: {node.name}"
