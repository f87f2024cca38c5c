"""The picture of README's first screen: the pipeline of a measured step."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from simgpt.anchors import read_anchor
from tests.messages import names
from tools.pipeline_picture import draw, main
from topologies.errors import SimgptError

SAMPLE = Path("docs/samples/dgxc-llama3-70b.toml")
QUESTION = 'model = "tiny-1m"\nmachine = "frontier"\ndevices = 8\nbatch = 16\n'


def anchor(folder: Path, plan: str, more: str = "") -> Path:
    path = folder / "anchor.toml"
    path.write_text(f'{QUESTION}plan = "{plan}"\n{more}[measured]\nstep = "1 s"\n', "utf-8")
    return path


def test_the_pages_tell_the_measured_step_of_the_sample() -> None:
    measured = f"measured {read_anchor(SAMPLE).step_s:.4g} s]"
    for page in ("README.md", "docs/index.md"):
        assert measured in Path(page).read_text(encoding="utf-8")


def test_a_pipeline_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    words = [str(anchor(tmp_path, "pp=2,dp=4,mbs=1")), str(picture)]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 0, ended.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("plan", "more", "named"),
    [
        ("dp=8", "", ["pipeline"]),
        ("pp=2,dp=4,mbs=1", 'placement = "scattered"\n', ["placement"]),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, plan: str, more: str, named: list[str]
) -> None:
    with pytest.raises(SimgptError, check=names(*named)):
        draw(anchor(tmp_path, plan, more), tmp_path / "a.png")
