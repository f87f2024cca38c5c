"""The evaluator of recipes: what a recipe's text determines, what it does not, and its bounds."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from simgpt.frameworks.recipe_code import evaluator
from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator, evaluated_call
from simgpt.frameworks.recipe_code.values import RecipeError, Thing
from tests.messages import names


def evaluated(tmp_path: Path, body: str, **modules: str) -> Any:
    """What the function `recipe` of a module with this text returns."""
    (tmp_path / "job.py").write_text(dedent(body))
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(dedent(text))
    ev = Evaluator(Checkout(tmp_path, ("",)), {"major": 9})
    return evaluated_call(ev, "job", "recipe", [], {})


def test_a_replaced_dataclass_keeps_what_is_not_replaced(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        from dataclasses import dataclass, replace
        @dataclass
        class Plan:
            tp: int = 1
            pp: int = 1
            @property
            def split(self):
                return self.tp * self.pp
        BASE = Plan(pp=4)
        WIDE = replace(BASE, tp=2)
        def recipe():
            return [WIDE.tp, WIDE.split, BASE.split]
        """,
    )
    assert found == [2, 8, 4]


def test_names_come_from_other_modules_and_from_names_put_together(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        import importlib
        from plans import base as plan
        def recipe(model="llama", gpu="h100"):
            module = importlib.import_module("plans")
            return getattr(module, f"{model}_{gpu}".upper()), plan(3)["h100"][1]
        """,
        plans="LLAMA_H100 = 7\ndef base(n):\n    return {'h100': (1, n), 'b200': (2, n)}\n",
    )
    assert found == (7, 3)


@pytest.mark.parametrize(
    ("imports", "value"),
    [
        ("import plans.wide", "plans.wide.TP"),
        ("import plans.wide as wide", "wide.TP"),
        ("import plans.wide, plans.deep", "plans.wide.TP"),
        ("import plans.deep as deep, plans.wide", "plans.wide.TP"),
        ("import torch.cuda", "torch.cuda.get_device_properties(0).major"),
    ],
)
def test_an_import_without_as_binds_the_outermost_package(
    tmp_path: Path, imports: str, value: str
) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "wide.py").write_text("TP = 9\n")
    (tmp_path / "plans" / "deep.py").write_text("TP = 1\n")
    assert evaluated(tmp_path, f"{imports}\ndef recipe():\n    return {value}\n") == 9


def test_functions_change_the_object_that_they_are_given(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        from elsewhere import Config
        def common(cfg, overlap=False):
            cfg.model.recompute = None
            if overlap:
                cfg.comm.overlap = True
        def recipe(gpu="gb200"):
            cfg = Config(model=Config(recompute="full"), comm=Config(overlap=False))
            common(cfg, overlap=gpu in ("gb200", "gb300"))
            return cfg.model.recompute, cfg.comm.overlap
        """,
    )
    assert found == (None, True)


@pytest.mark.parametrize(
    ("key", "found"), [("-1", [1, 9]), ("2", [1, 2]), ("elsewhere.count()", [1, 2])]
)
def test_an_element_is_set_where_a_list_is_known_to_have_it(
    key: str, found: list[int], tmp_path: Path
) -> None:
    body = f"import elsewhere\ndef recipe():\n    a = [1, 2]\n    a[{key}] = 9\n    return a\n"
    assert evaluated(tmp_path, body) == found


def test_a_branch_that_cannot_be_told_leaves_unknown_what_it_decides_and_nothing_else(
    tmp_path: Path,
) -> None:
    found = evaluated(
        tmp_path,
        """
        import elsewhere
        def recipe():
            cfg = elsewhere.Config(a=1, b=1, c=1)
            if elsewhere.measured():
                cfg.a = 2
                cfg.b = 3
            else:
                cfg.a = 2
            return cfg
        """,
    )
    assert found.fields["a"] == 2
    assert found.fields["c"] == 1
    unknown = found.fields["b"]
    assert isinstance(unknown, Thing)
    assert unknown.is_unknown
    assert str(unknown.place) == "job.py:5"


@pytest.mark.parametrize(
    ("before", "change"),
    [
        *(("[2, 1]", each) for each in ("append(3)", "extend([3])", "insert(0, 3)", "remove(2)")),
        *(("[2, 1]", each) for each in ("pop()", "clear()", "reverse()")),
        *(("{'a': 1}", each) for each in ("update(a=2)", "pop('a')", "clear()")),
        ("{}", "setdefault('a', 2)"),
        *(("{1}", each) for each in ("add(2)", "update({2})", "discard(1)", "clear()")),
    ],
)
def test_what_a_method_changes_in_one_of_two_ways_is_unknown(
    before: str, change: str, tmp_path: Path
) -> None:
    body = f"""
        import elsewhere
        def recipe():
            both, one = {before}, {before}
            if elsewhere.measured():
                both.{change}
                one.{change}
            else:
                both.{change}
            return both, one
        """
    known = eval(before)
    eval(f"known.{change}")
    both, one = evaluated(tmp_path, body)
    assert both == known
    (unknown,) = one.values() if isinstance(one, dict) else one
    assert isinstance(unknown, Thing)
    assert unknown.is_unknown
    assert str(unknown.place) == "job.py:5"


def test_a_way_that_returns_early_skips_what_follows_only_for_itself(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        import elsewhere
        def dispatch(cfg, backend):
            if elsewhere.experts() == 0:
                return
            cfg.backend = backend
            cfg.sure = True
        def recipe():
            cfg = elsewhere.Config(backend="deepep", sure=True)
            dispatch(cfg, "hybridep")
            return cfg
        """,
    )
    assert isinstance(found.fields["backend"], Thing)
    assert found.fields["sure"] is True


def test_a_way_that_raises_is_not_the_one_that_was_taken(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        import elsewhere
        def recipe():
            cfg = elsewhere.Config(a=1)
            if elsewhere.version() > 3:
                cfg.a = 2
            else:
                cfg.a = 5
                raise ValueError("too old")
            return cfg.a
        """,
    )
    assert found == 2


def test_attributes_set_of_an_unknown_object_are_known(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        """
        import elsewhere
        def recipe():
            model = elsewhere.load("model")
            model.tp = 4
            return model
        """,
    )
    assert found.is_unknown
    assert found.fields == {"tp": 4}


@pytest.mark.parametrize(
    ("default", "change", "value", "found"),
    [
        ("field(default_factory=list)", "{}.append(7)", "{}", ([7], [])),
        ("field(default_factory=dict)", "{}['tp'] = 7", "{}", ({"tp": 7}, {})),
        ("field(default_factory=Inner)", "{}.tp = 7", "{}.tp", (7, 1)),
        ("3", "{} += 4", "{}", (7, 3)),
    ],
)
def test_a_default_of_a_dataclass_is_changed_in_one_object_alone(
    tmp_path: Path, default: str, change: str, value: str, found: tuple[Any, Any]
) -> None:
    body = f"""
        from dataclasses import dataclass, field
        @dataclass
        class Inner:
            tp: int = 1
        @dataclass
        class Config:
            parts: object = {default}
        def recipe():
            one, other = Config(), Config()
            {change.format("one.parts")}
            return {value.format("one.parts")}, {value.format("other.parts")}
        """
    assert evaluated(tmp_path, body) == found


def test_an_attribute_that_was_only_read_may_be_missing(tmp_path: Path) -> None:
    given, read, around = evaluated(
        tmp_path,
        """
        import elsewhere
        def recipe():
            model = elsewhere.load()
            model.tp = 4
            seen = model.pp
            model.inner.ep = 2
            return [hasattr(model, name) for name in ("tp", "pp", "inner")]
        """,
    )
    assert (given, around) == (True, True)
    assert isinstance(read, Thing)
    assert read.is_unknown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 < 2 < 3", True),
        ("1 < 5 < 3", False),
        ("3 > 2 > 1 > 2", False),
        ("1 in [1] == [1]", True),
        ("elsewhere.count() < 5 < 3", False),
    ],
)
def test_a_chain_compares_neighbours(tmp_path: Path, text: str, *, found: bool) -> None:
    body = f"import elsewhere\ndef recipe():\n    return {text}\n"
    assert evaluated(tmp_path, body) is found


def test_the_main_part_of_a_script_is_not_followed(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path,
        "SEEN = []\ndef recipe():\n    return SEEN\n"
        "if __name__ == '__main__':\n    SEEN.append(1)\n",
    )
    assert found == []


def test_what_a_recipe_refuses_is_said_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, check=names("no such size", "job.py:3")):
        evaluated(
            tmp_path,
            "def recipe(size='9b'):\n  if size != '8b':\n    raise ValueError('no such size')\n",
        )


ENDLESS = {
    "loop": "def recipe():\n    x = 0\n    while True:\n        x = [i for i in range(9000)]\n",
    "ways": "import m\ndef recipe():\n"
    + "    if m.f():\n        if m.g():\n            return 1\n" * 30,
}


@pytest.mark.parametrize(
    "body",
    [
        "def recipe():\n    return recipe()\n",
        "def recipe():\n    return [0] * 10**9\n",
        "def recipe():\n    return 9 ** 60 * 9 ** 60\n",
        "def recipe():\n    x = 'a' * 9999\n    return x + x\n",
        "def recipe():\n    return " + "[" * 60 + "]" * 60 + "\nX = " + "-" * 900 + "1\n",
        *(pytest.param(body, marks=pytest.mark.slow) for body in ENDLESS.values()),
    ],
    ids=["recursion", "list", "number", "text", "nesting", *ENDLESS],
)
def test_work_is_bounded(tmp_path: Path, body: str) -> None:
    with pytest.raises(RecipeError):
        evaluated(tmp_path, body)


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_recipe_ends_after_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Both kinds take as many steps as they may, of which there are fewer here."""
    assert evaluator.MOST_STEPS <= 10**6
    monkeypatch.setattr(evaluator, "MOST_STEPS", 10_000)
    with pytest.raises(RecipeError, check=names("10,000 steps")):
        evaluated(tmp_path, ENDLESS[kind])


def test_a_link_out_of_the_checkout_is_no_module_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("TP = 8\n")
    inside = tmp_path / "checkout"
    inside.mkdir()
    (inside / "plans.py").symlink_to(outside)
    assert Checkout(inside, ("",)).find("plans") is None
    assert Checkout(inside, ("",)).find("..outside") is None


def test_nothing_of_a_recipe_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evaluated(
        tmp_path,
        f"import os\nopen({str(mark)!r}, 'w').write('x')\nos.mkdir({str(mark)!r})\n"
        "def recipe():\n    return 1\n",
    )
    assert not mark.exists()
