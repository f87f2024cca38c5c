"""Parameters of families beside published ones, and the page that shows them."""

from __future__ import annotations

import pytest

from tools.model_families import PAGE, Compared, compared, files_of, page
from workload.descriptions.configs import families

ROWS = compared()
BY_CLASS = [each for each in ROWS if not each.model]
PUBLISHED = [each for each in ROWS if each.model]
ROUNDED = 0.03  # "1 T" of Kimi K2.5, and vision models that are counted in
OF_ACTIVE = 0.17  # sources that leave the embedding's table out


@pytest.mark.parametrize("row", BY_CLASS, ids=lambda row: row.family)
def test_a_family_has_the_parameters_that_transformers_counts(row: Compared) -> None:
    """To the parameter, with what a note says is not modelled."""
    assert row.predicted == int(row.total)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.model)
def test_a_released_model_has_the_published_parameters(row: Compared) -> None:
    assert abs(row.off) < ROUNDED
    assert abs(row.active_off) < OF_ACTIVE


def test_most_families_are_compared() -> None:
    rows = families.tables()["families"]
    assert len(rows) >= 70
    assert len({each.family for each in BY_CLASS}) >= 60
    assert {each.family for each in ROWS} <= rows.keys()


def test_what_a_model_lacks_is_below_a_thousandth_of_it() -> None:
    for each in ROWS:
        gpt = each.described.gpt
        if gpt.parameters > 10**9:
            assert abs(each.described.missing) < gpt.parameters / 1000, each.family


def test_a_family_is_a_row_of_one_file() -> None:
    rows = families.tables()["families"]
    others = {name for name in rows if files_of(name) != ["families.toml"]}
    assert all(set(files_of(name)) == {"families.toml", "hugging_face.toml"} for name in others)


def test_the_page_shows_the_tables_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
