"""Scripts of developers start: each is imported and says what it does, or which file it misses."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.test_house import ROOT

MODULES = sorted(path.stem for path in (ROOT / "tools").glob("*.py") if path.stem != "__init__")
LIBRARIES = {"launches", "repositories"}  # what others import
NEEDS = {"mutate": ["cosmic_ray"]}  # of an extra that is not for tests


@pytest.mark.parametrize("module", MODULES)
def test_a_script_answers_help(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in NEEDS.get(module, ()):
        pytest.importorskip(library)
    script = import_module(f"tools.{module}")
    assert hasattr(script, "main") == (module not in LIBRARIES)
    if module in LIBRARIES:
        return
    if isinstance(script.main, click.Command):
        ended = CliRunner().invoke(script.main, ["--help"])
        assert ended.exit_code == 0
        said = ended.output
    else:
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as caught:
            script.main()
        assert caught.value.code == 0
        said = capsys.readouterr().out
    assert "usage" in said.lower()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("fit_mi300x_attention", ["{missing}"]),
        ("megatron_import", ["{missing}"]),
        ("recipes", ["{missing}", "0.2=v0.2.0"]),
        ("hub_models", ["litgpt={missing}"]),
    ],
)
def test_what_a_script_needs_and_is_not_shipped_is_named(
    module: str, words: list[str], tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    main = import_module(f"tools.{module}").main
    ended = CliRunner().invoke(main, [word.replace("{missing}", missing) for word in words])
    assert ended.exit_code == 2
    assert missing in ended.output.replace("\n", "")
