"""What published runs took over what is predicted, by which predictions get their range.

`python -m tools.residuals` prints the table that `simulator/uncertainty` keeps, with
`--experts` that of models with experts, whose rows `simgpt validate moe` compares, and with
`--coverage` how many measured steps fall into the ranges, each source predicted from all
others. The rows that are held out are in neither the table nor the widening.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import click

from simulator.uncertainty.step_range import SHARE, PublishedResiduals, Run
from topologies.session import in_session
from validation.moe.comparison import validate_moe
from validation.published.comparison import validate_published
from validation.published.coverage import coverage, residual_of, run_of
from validation.published.outcome import Outcome
from validation.published.plan_ranking import plan_of, question_of
from workload.recipes.table import NO_RECIPE

COLUMNS = ("source", *Run._fields, "residual", "question", "plan", "predicted_s", "recipe", "apart")
DIGITS = 4


def table(outcomes: Sequence[Outcome]) -> str:
    """The residuals of scored rows that are not held out, as CSV.

    Runs with the same number under `question` differ in their plans and batches alone, those with
    the same under `plan` in neither, but in the release for instance; `predicted_s` is the
    predicted time of one sequence, empty where the batch is not known; `recipe` is the plan's, and
    `apart` the distance to the nearest run of another source.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    questions: dict[tuple[str, ...], int] = {}
    plans: dict[tuple[int, str], int] = {}
    kept = [each for each in outcomes if each.scored and not each.held_out]
    if not kept:
        return text.getvalue()
    runs = [run_of(each) for each in kept]
    known = PublishedResiduals(runs, [each.run.source for each in kept], [0.0] * len(kept))
    for each, run in zip(kept, runs, strict=True):
        batch = each.run.whole("global_batch_seqs")
        apart = f"{known.apart(run, without=each.run.source):.{DIGITS}g}"
        words = [*run[:5], *("yes" if flag else "no" for flag in run[5:])]
        question = questions.setdefault(question_of(each), len(questions))
        plan = plans.setdefault((question, plan_of(each)), len(plans))
        assert each.predicted_s is not None
        sequence_s = f"{each.predicted_s / batch:.{DIGITS}g}" if batch else ""
        residual = f"{residual_of(each):.{DIGITS}f}"
        row = [each.run.source, *words, residual, question, plan, sequence_s]
        writer.writerow([*row, recipe_of(each), apart])
    return text.getvalue()


def recipe_of(outcome: Outcome) -> str:
    """The recipe of narrow formats in a row's plan.

    >>> from validation.published.runs import PublishedRun
    >>> recipe_of(Outcome(PublishedRun({}), "predicted", plan="tp=1,recipe=nvfp4,pp=2"))
    'nvfp4'
    """
    keys = dict(pair.split("=", 1) for pair in outcome.plan.split(",") if "=" in pair)
    return keys.get("recipe", NO_RECIPE)


@click.command()
@click.option("--experts", is_flag=True, help="The table of models with experts.")
@click.option("--coverage", "covers", is_flag=True, help="How many steps the ranges hold.")
@in_session
def main(experts: bool, covers: bool) -> None:
    """Print the table, or the coverage."""
    if experts:
        rows = validate_moe().outcomes
        print(table([each for each in rows if each.run.text("experts")]), end="")
        return
    outcomes = validate_published().outcomes
    if not covers:
        print(table(outcomes), end="")
        return
    for title, held_out in (("rows of the table", False), ("rows held out", True)):
        found = coverage([each for each in outcomes if each.held_out == held_out])
        print(
            f"{title}: {found.share:.1%} covered, mean over {found.sources} sources, "
            f"median half-width {found.half_width:.1%}; a widening of {found.widening:.2f} would "
            f"cover {SHARE:.0%}; {found.nested:.1%} where the widening does not know the source"
        )


if __name__ == "__main__":
    main()
