"""A report of several plans in a browser: its tables sort and filter, its points tell of steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simgpt.browser import browser, console, open_page, requests_abroad, require_browser
from tests.simgpt.face import simgpt

PLANS = ("z=4,dp=rest", "dp=rest", "z=16", "dp=rest,zero=3", "tp=2,z=2,dp=rest,zero=1")
BACK = "return getComputedStyle(document.querySelector('header')).backgroundColor;"
SHOWN = (
    "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length;"
)
STILLS = "figure.still"
PLAYERS = ".player canvas, .scatter svg, .filter"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_browser()
    folder = tmp_path_factory.mktemp("report")
    files = [str(folder / f"{number}.json") for number in range(len(PLANS))]
    for file, plan in zip(files, PLANS, strict=True):
        words = ("tiny-1m", "-m", "frontier", "-n", "16", "--plan", plan, "--batch", "16")
        assert simgpt("predict", *words, "--json", "-o", file).status == 0
    assert simgpt("report", *files, "-o", str(folder / "r.html")).status == 0
    return folder / "r.html"


@pytest.fixture(scope="module")
def driver(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def opened(page: Path, driver: Any) -> Iterator[Any]:
    open_page(driver, page.as_uri())
    yield driver
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert console(driver) == []
    assert requests_abroad(driver) == []


def column(driver: Any, name: str) -> list[str]:
    """The cells of a column, in the rows that are seen."""
    script = (
        "const t = document.querySelector('table.sortable');"
        "const n = [...t.tHead.rows[0].cells].findIndex(c => c.textContent === arguments[0]);"
        "return [...t.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[n].textContent);"
    )
    return [str(cell) for cell in driver.execute_script(script, name)]


def sort(driver: Any, name: str) -> None:
    buttons = driver.find_elements("css selector", "table.sortable th button")
    next(each for each in buttons if each.text == name).click()


def mebibytes(cell: str) -> float:
    number, unit = cell.split()
    return float(number.replace(",", "")) * {"MiB": 1, "GiB": 1024}[unit]


def test_a_click_on_a_head_sorts_and_another_turns_it_round(opened: Any) -> None:
    sort(opened, "peak memory")
    up = [mebibytes(cell) for cell in column(opened, "peak memory")]
    assert up == sorted(up)
    sort(opened, "peak memory")
    assert [mebibytes(cell) for cell in column(opened, "peak memory")] == up[::-1]
    assert len({*up}) > 2


def test_words_filter_rows_and_points_and_a_key_is_matched_with_its_whole_value(
    opened: Any,
) -> None:
    field = opened.find_element("css selector", ".filter input[type=search]")
    assert opened.execute_script(SHOWN, ".scatter circle") == len(PLANS)
    field.send_keys("dp=16")
    plans = column(opened, "plan")
    assert len(plans) == 2  # and not the one of z=16
    assert all("dp=16" in plan for plan in plans)
    assert opened.execute_script(SHOWN, ".scatter circle") == 2
    field.send_keys(" zero=3")
    assert ["zero=3" in plan for plan in column(opened, "plan")] == [True]
    assert opened.find_element("css selector", ".filter [role=status]").text == f"1 of {len(PLANS)}"


def test_a_point_tells_of_its_plan_and_its_range(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    found = opened.find_elements("css selector", ".scatter circle")[0]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'});", found)
    ActionChains(opened, duration=20).move_to_element(found).perform()
    # In one go: another movement of the mouse may replace the element meanwhile.
    told = opened.execute_script("return document.querySelector('.scatter .tip').innerText")
    assert "=" in told
    assert "80 % range: " in told
    assert "MiB" in told
    assert opened.execute_script(SHOWN, "tr.lit") == 1


def test_two_plans_share_one_axis_of_time_as_long_as_the_longer_step(opened: Any) -> None:
    script = (
        "const s = JSON.parse(document.getElementById('timeline-data').textContent);"
        "return [s.map(d => d.step_ns), +document.getElementById('beside').dataset.end,"
        " +document.getElementById('player').dataset.end];"
    )
    steps, beside, alone = opened.execute_script(script)
    assert len(steps) == 2
    assert (beside, alone) == (max(steps), steps[0])
    opened.find_element("css selector", "#beside button[data-action=in]").click()
    assert opened.execute_script(script)[2] == steps[0]


def test_what_is_interactive_is_on_the_screen_and_its_copies_are_in_print(opened: Any) -> None:
    assert opened.execute_script(SHOWN, STILLS) == 0
    assert opened.execute_script(SHOWN, PLAYERS) == 4
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert opened.execute_script(SHOWN, STILLS) == 3
    assert opened.execute_script(SHOWN, PLAYERS) == 0


def test_the_page_is_dark_where_the_reader_prefers_that_and_never_in_print(opened: Any) -> None:
    light = opened.execute_script(BACK)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert (light, opened.execute_script(BACK)) == ("rgb(255, 255, 255)", "rgb(29, 33, 38)")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", **dark})
    assert opened.execute_script(BACK) == light


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_wider_than_the_window(width: int, opened: Any) -> None:
    opened.set_window_size(width, 900)
    script = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"
    needed, given = opened.execute_script(script)
    assert needed <= given
