"""The evaluator of recipes: modules, names, attributes and calls of a checkout's syntax trees.

Invariant: every value is a literal that the recipe's text determines, an object whose known
attributes are such, or unknown with the place where it became so. Nothing is imported or run: a
call of a function of the checkout is followed in its syntax tree, a call of anything else gives an
object whose attributes are the keywords that it was given. Work is bounded by `MOST_STEPS` nodes,
`MOST_DEPTH` calls within each other and `MOST_ITEMS` elements of a container or characters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from simgpt.frameworks.recipe_code import statements
from simgpt.frameworks.recipe_code.builtins import BUILTINS, known_external
from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.core_defaults import CORE_DEFAULTS
from simgpt.frameworks.recipe_code.expressions import evaluate, place_of
from simgpt.frameworks.recipe_code.journal import Container, Journal
from simgpt.frameworks.recipe_code.methods import method_of
from simgpt.frameworks.recipe_code.parameters import (
    bound_parameters,
    defaults_of,
    parameter_names,
)
from simgpt.frameworks.recipe_code.paths import of_path
from simgpt.frameworks.recipe_code.tables import method_of_table
from simgpt.frameworks.recipe_code.values import (
    Builtin,
    Class,
    External,
    FieldSpec,
    FilePath,
    Function,
    Imported,
    Module,
    Place,
    RaisedError,
    RecipeError,
    Scope,
    Table,
    Thing,
    TooMuchError,
    unknown,
)

Found = TypeVar("Found")
MOST_STEPS = 400_000
MOST_DEPTH = 24
SILENT = ("logging.", "warnings.")  # modules whose functions change no object


class Evaluator:
    """Evaluates one recipe of a checkout; `device` has what is known of the GPU by the names of
    torch.cuda.get_device_properties, `models` facts of a checkpoint by its name on the hub."""

    def __init__(
        self,
        checkout: Checkout,
        device: Mapping[str, Any] | None = None,
        models: Callable[[str], Mapping[str, Any]] = lambda name: {},
    ) -> None:
        self.checkout = checkout
        self.device = dict(device or {})
        self.models = models
        self.journal = Journal()
        self.notes: list[tuple[Place, str]] = []
        self.model_name = ""
        self.words: dict[str, Any] = {}  # of a script's options, by their names
        self.command: Sequence[str] = ()  # a script's command line
        self.taken: list[Any] = []  # what a script gives to run
        self._modules: dict[str, Module] = {}
        self._steps = 0
        self._depth = 0

    def step(self) -> None:
        """Count one node; a TooMuchError ends a recipe that takes too many."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooMuchError(f"the recipe takes more than {MOST_STEPS:,} steps")

    def note(self, place: Place, why: str) -> None:
        """Remember what is left out at a place."""
        if (place, why) not in self.notes and len(self.notes) < 1000:
            self.notes.append((place, why))

    def write(self, container: Container, key: Any, value: Any) -> None:
        """Set an entry of a container, so that it can be put back."""
        self.journal.before_write(container)
        container[key] = value  # type: ignore[index]

    # modules and names

    def module(self, name: str) -> Module | External:
        """A module of the checkout with its body evaluated, or the name of another one."""
        if name in self._modules:
            return self._modules[name]
        return self._evaluated(name, {})

    def main(self, name: str) -> Module | External:
        """A module of the checkout as the one that is run."""
        return self._evaluated(name, {"__name__": "__main__"})

    def _evaluated(self, name: str, variables: dict[str, Any]) -> Module | External:
        path = self.checkout.find(name)
        if path is None and not self.checkout.is_package(name):
            return External(name)
        shown = self.checkout.shown(path) if path else name.replace(".", "/")
        module = self._modules[name] = Module(name, shown, variables)
        if path:
            before, self.journal = self.journal, Journal()
            self._follow(module, self.checkout.tree(path).body)
            self.journal = before
        return module

    def _follow(self, module: Module, body: Sequence[ast.stmt]) -> None:
        """Follow a module's body. In one that is imported a statement that raises is left out: it
        is about the process, as a look for a device or for a package, not about the recipe."""
        scope = Scope(module, module.variables)
        if "__name__" in module.variables:
            statements.run(self, body, scope)
            return
        for node in body:
            try:
                statements.run(self, [node], scope)
            except RaisedError as error:
                place = place_of(scope, node)
                self.note(place, f"a statement is left out: {error}")
                for name in _bound_names(node):
                    module.variables.setdefault(name, unknown(name, place))

    def lookup(self, name: str, scope: Scope, place: Place) -> Any:
        """The value of a name: of the function, of those around it, of the module, or built in."""
        at: Scope | None = scope
        while at is not None:
            if name in at.variables:
                return self.loaded(at.variables[name], place)
            at = at.outer
        if name in scope.module.variables:
            return self.loaded(scope.module.variables[name], place)
        if name in ("__name__", "__file__"):
            return scope.module.name if name == "__name__" else scope.module.file
        if name in BUILTINS:
            return Builtin(name, lambda p, a, k: BUILTINS[name](self, p, a, k))
        return unknown(f"the name {name}", place)

    def loaded(self, value: Any, place: Place) -> Any:
        """What an import of a name stands for; other values as they are."""
        if not isinstance(value, Imported):
            return value
        module = self.module(value.module)
        if not value.name:
            return module
        if isinstance(module, External):
            return self.external(f"{value.module}.{value.name}")
        return self.attribute(module, value.name, place)

    def external(self, name: str) -> Any:
        """A name of a module that is not in the checkout; functions that are known as such."""
        call = known_external(name)
        return Builtin(name, lambda p, a, k: call(self, p, a, k)) if call else External(name)

    # attributes

    def attribute(self, value: Any, name: str, place: Place) -> Any:
        """An attribute of any value."""
        if isinstance(value, Thing):
            return self._of_thing(value, name, place)
        if isinstance(value, Module):
            return self._of_module(value, name, place)
        if isinstance(value, External):
            return self.external(f"{value.name}.{name}")
        if isinstance(value, Class):
            return self._of_class(value, name, place)
        if isinstance(value, FilePath):
            method = of_path(self, value, name)
        elif isinstance(value, Table):
            method = method_of_table(value, name)
        else:
            method = method_of(self, value, name)
        return method if method is not None else unknown(f"the attribute {name}", place)

    def _of_module(self, module: Module, name: str, place: Place) -> Any:
        own = module.variables.get(name)
        if name in module.variables and own != Imported(module.name, name):
            return self.loaded(own, place)
        inner = self.module(f"{module.name}.{name}")
        if isinstance(inner, Module):
            return inner
        raise RaisedError(f"{module.name} has no {name}")

    def _of_thing(self, thing: Thing, name: str, place: Place) -> Any:
        if name in thing.fields:
            return thing.fields[name]
        if thing.is_config:
            if name == "__fn_or_cls__":
                return thing.of
            if name in (defaults := self._defaults_of(thing)):
                return defaults[name]
        found = self._from_classes(thing, name, place) if thing.cls else None
        if found is not None:
            return found[0]
        for kind in [".".join(thing.kind), *(self.bases_outside(thing.cls) if thing.cls else ())]:
            if name in CORE_DEFAULTS.get(kind, {}):
                return CORE_DEFAULTS[kind][name]
        child = unknown(f"{name} of {thing.label}", thing.place if thing.is_unknown else place)
        child.default_of = (*thing.kind, name)
        self.journal.settle(thing.fields, name, child)
        return child

    def takes(self, config: Thing, name: str) -> bool:
        """Whether what a configuration calls has a parameter of a name."""
        called = self._called(config)
        return called is not None and name in parameter_names(called)

    def takes_others(self, config: Thing) -> bool:
        """Whether a configuration may have attributes that the checkout does not name."""
        called = self._called(config)
        return called is None or called.node.args.kwarg is not None

    def _called(self, config: Thing) -> Function | None:
        """The function that a configuration calls, or the constructor of its class."""
        if isinstance(config.of, Function):
            return config.of
        for each in self.classes(config.of) if isinstance(config.of, Class) else ():
            if isinstance(node := each.definition("__init__"), ast.FunctionDef):
                return Function(node, each.scope)
        return None

    def _defaults_of(self, config: Thing) -> dict[str, Any]:
        called = self._called(config)
        return {} if called is None else defaults_of(self, called)

    def bases_outside(self, cls: Class) -> list[str]:
        """Names of the bases that are not in the checkout."""
        bases = [base for each in self.classes(cls) for base in each.bases]
        return [base.last for base in bases if isinstance(base, External)]

    def _from_classes(self, thing: Thing, name: str, place: Place) -> tuple[Any] | None:
        """An attribute that the classes of an object define, in a tuple; None if none does."""
        assert thing.cls is not None
        for cls in self.classes(thing.cls):
            node = cls.definition(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return (self._method(node, cls, thing, place),)
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                value = self.default_of(evaluate(self, node.value, cls.scope), place)
                if not isinstance(value, int | float | str | None):
                    self.journal.settle(thing.fields, name, value)
                return (value,)
        return None

    def default_of(self, value: Any, place: Place) -> Any:
        """The default that a dataclass' `field(...)` gives; other values as they are."""
        if not isinstance(value, FieldSpec):
            return value
        if "default_factory" in value.keywords:
            return self.call(value.keywords["default_factory"], [], {}, place)
        return value.keywords.get("default", unknown("a field without default", place))

    def _method(self, node: Any, cls: Class, owner: Any, place: Place) -> Any:
        named = {_decorator(each) for each in node.decorator_list}
        if "staticmethod" in named:
            return Function(node, cls.scope)
        if "classmethod" in named:
            own = owner if isinstance(owner, Class) else owner.cls
            return Function(node, cls.scope, own, is_bound=True)
        if isinstance(owner, Class):
            return Function(node, cls.scope)
        method = Function(node, cls.scope, owner, is_bound=True)
        if named & {"property", "cached_property"}:
            return self.call(method, [], {}, place)
        return method

    def _of_class(self, owner: Class, name: str, place: Place) -> Any:
        if known := known_external(f"{owner.name}.{name}"):
            return Builtin(name, lambda p, a, k: known(self, p, a, k))
        if name == "__name__":
            return owner.name
        if name == "__init__" and owner.definition(name) is None:
            return Builtin(name, lambda p, a, k: self._fill(a, k))
        for cls in self.classes(owner):
            node = cls.definition(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return self._method(node, cls, owner, place)
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                if cls.is_enum:
                    return External(f"{cls.name}.{name}")
                return self.default_of(evaluate(self, node.value, cls.scope), place)
        return unknown(f"{name} of {owner.name}", place)

    def classes(self, cls: Class) -> list[Class]:
        """A class and its bases that are in the checkout, depth first."""
        found: list[Class] = []
        waiting = [cls]
        while waiting and len(found) < 50:
            each = waiting.pop(0)
            if each not in found:
                found.append(each)
                waiting[:0] = [base for base in each.bases if isinstance(base, Class)]
        return found

    # calls

    def call(self, called: Any, given: list[Any], named: dict[str, Any], place: Place) -> Any:
        """What a call gives."""
        self.step()
        if isinstance(called, Builtin):
            return called.call(place, given, named)
        if isinstance(called, Function):
            return self._call_function(called, given, named, place)
        if isinstance(called, Class):
            return self._construct(called, given, named, place)
        if isinstance(called, External):
            return self._call_external(called, given, named, place)
        what = f"the call of {called.label}" if isinstance(called, Thing) else "a call"
        self._may_change(what, [*given, *named.values()], place)
        return unknown(what, place)

    def _call_function(
        self, called: Function, given: list[Any], named: dict[str, Any], place: Place
    ) -> Any:
        if self._depth >= MOST_DEPTH:
            raise TooMuchError(f"{place}: calls lie more than {MOST_DEPTH} deep")
        arguments = [called.bound, *given] if called.is_bound else given
        variables = bound_parameters(self, called, arguments, named, place)
        scope = Scope(called.scope.module, variables, _around(called.scope))
        self._depth += 1
        try:
            if isinstance(called.node, ast.Lambda):
                return evaluate(self, called.node.body, scope)
            return statements.result_of(self, called.node.body, scope)
        finally:
            self._depth -= 1

    def _construct(self, cls: Class, given: list[Any], named: dict[str, Any], place: Place) -> Any:
        thing = Thing(cls.name, place, cls=cls, kind=(cls.name,))
        for each in self.classes(cls):
            node = each.definition("__init__")
            if isinstance(node, ast.FunctionDef):
                method = Function(node, each.scope, thing, is_bound=True)
                self._call_function(method, given, named, place)
                return thing
        names = self.field_names(cls)
        thing.fields.update(zip(names, given, strict=False))
        thing.fields.update(named)
        return thing

    def field_names(self, cls: Class) -> list[str]:
        """The fields of a dataclass in their order, bases first."""
        found: list[str] = []
        for each in reversed(self.classes(cls)):
            for node in each.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found += [node.target.id] if node.target.id not in found else []
        return found

    def _call_external(
        self, called: External, given: list[Any], named: dict[str, Any], place: Place
    ) -> Any:
        """An object that is not of the checkout's classes: its attributes are the keywords."""
        if called.last == "__init__":  # of a base, which takes fields
            return self._fill(given, named)
        if called.last in ("Config", "Partial", "partial") and given:  # nemo_run's, of a class
            first = given[0]
            label = getattr(first, "name", called.last).rpartition(".")[2]
            cls = first if isinstance(first, Class) else None
            return Thing(label, place, dict(named), cls, of=first, kind=(label,))
        if called.last[:1].isupper():
            own = {f"argument {number}": each for number, each in enumerate(given)}
            kind = _class_names(called)
            return Thing(".".join(kind), place, own | named, kind=kind)
        if not called.name.startswith(SILENT):
            self._may_change(f"the call of {called.name}", [*given, *named.values()], place)
        return unknown(f"the call of {called.name}", place)

    def _fill(self, given: list[Any], named: dict[str, Any]) -> None:
        """Set the fields that a base's constructor takes for an object."""
        if given and isinstance(given[0], Thing):
            for name, value in named.items():
                self.write(given[0].fields, name, value)

    def _may_change(self, what: str, values: list[Any], place: Place) -> None:
        """Note that a call which cannot be followed is given objects."""
        for value in values:
            if isinstance(value, Thing) and value.fields:
                self.note(place, f"{what} may change {value.label}")


def _around(scope: Scope) -> Scope | None:
    """The scope around a function, where that is not the module's."""
    return scope if scope.variables is not scope.module.variables else None


def _bound_names(node: ast.stmt) -> list[str]:
    """Names that the assignments of a statement bind."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return [each.id for each in names if isinstance(each.ctx, ast.Store)]


def _class_names(called: External) -> tuple[str, ...]:
    """The name of a class; of one within another both, as of torchtitan's `Trainer.Config`."""
    names = called.name.split(".")
    return tuple(names[-2:] if names[-1] == "Config" else names[-1:])


def _decorator(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def evaluated_call(
    evaluator: Evaluator, module: str, name: str, given: list[Any], named: dict[str, Any]
) -> Any:
    """What a function of a module of the checkout returns; a RecipeError says why it cannot."""
    place = Place(module, 0)

    def call() -> Any:
        found = evaluator.module(module)
        if isinstance(found, External):
            raise RecipeError(f"the checkout has no module {module}")
        if name not in found.variables:
            raise RecipeError(f"{found.file} defines no {name}")
        return evaluator.call(evaluator.attribute(found, name, place), given, named, place)

    return guarded(call, module)


def guarded(call: Callable[[], Found], module: str) -> Found:
    """What an evaluation gives, with a RecipeError for what the recipe raises."""
    try:
        return call()
    except RaisedError as error:
        raise RecipeError(f"the recipe refuses: {error}") from None
    except RecursionError:
        raise TooMuchError(f"{module}: expressions are nested too deeply") from None
