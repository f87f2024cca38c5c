"""The pipeline of a measured step as it is predicted, with both times on it:
`python -m tools.pipeline_picture ANCHOR.toml FILE.png`.

The first file is one that `--anchor` takes: a question with its measured step.
"""

from __future__ import annotations

from pathlib import Path

import click

from simgpt.anchors import read_anchor
from simgpt.step import Sources, step_of
from simulator.attribution.pipeline_slots import pipeline_slots
from topologies.errors import SimgptError
from topologies.files.writing import figure_bytes, write_whole
from validation.report.figures.pipeline_chart import pipeline_chart
from validation.report.figures.style import drawing


def draw(anchor: Path, picture: Path) -> None:
    """Predict the question of an anchor, and draw it."""
    file = read_anchor(anchor)
    step = step_of(file.question, Sources(tells=False))
    prediction, plan = step.predicted(), step.plan
    if plan.pp == 1:
        raise SimgptError(f"{file.name}: its plan has no pipeline")
    stages = pipeline_slots(prediction, plan, step.machine, step.placement)
    predicted, measured = f"{prediction.step_s:.3g} s", f"{file.step_s:.4g} s"
    title = (
        f"{prediction.gpt.name}, {plan.grid.ranks} {prediction.device.upper()}, "
        f"tp={plan.tp}, pp={plan.pp}: predicted {predicted}, measured {measured} (dashed)"
    )
    with drawing():
        figure = pipeline_chart(stages, prediction.step_s, title=title, measured_s=file.step_s)
        write_whole(picture, figure_bytes(figure, picture.suffix.lstrip("."), dpi=120))


@click.command()
@click.argument("anchor", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def main(anchor: Path, picture: Path) -> None:
    """Draw the pipeline of the question in ANCHOR into PICTURE."""
    try:
        draw(anchor, picture)
    except SimgptError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
