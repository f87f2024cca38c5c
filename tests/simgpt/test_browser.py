"""The report in a browser: it says nothing on the console, asks no network, zooms and hovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simgpt.browser import browser, console, open_page, requests_abroad, require_browser
from tests.simgpt.face import simgpt

PLAN = "tp=2,z=2,dp=2,mbs=2"
WIDTHS = (1280, 800)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_browser()
    folder = tmp_path_factory.mktemp("report")
    words = ("predict", "tiny-1m", "-m", "frontier", "--plan", PLAN, "--batch", "16", "--json")
    assert simgpt(*words, "-o", str(folder / "a.json")).status == 0
    assert simgpt("report", str(folder / "a.json"), "-o", str(folder / "r.html")).status == 0
    return folder / "r.html"


@pytest.fixture(scope="module")
def driver(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def opened(page: Path, driver: Any) -> Any:
    driver.set_window_size(1280, 900)
    open_page(driver, page.as_uri())
    return driver


def shown_ns(driver: Any) -> tuple[float, float]:
    script = "const d = document.getElementById('player').dataset; return [+d.begin, +d.end];"
    begin, end = driver.execute_script(script)
    return begin, end


def canvas_of(driver: Any) -> Any:
    found = driver.find_element("css selector", "#player canvas")
    script = "arguments[0].parentElement.scrollIntoView({block: 'center'});"
    driver.execute_script(script, found)
    return found


def stage_of(driver: Any) -> Any:
    """The part of the canvas that is seen; a canvas of many ranks scrolls in it."""
    canvas_of(driver)
    return driver.find_element("css selector", "#player .stage")


def press(driver: Any, action: str) -> None:
    driver.find_element("css selector", f"#player button[data-action='{action}']").click()


def hover(driver: Any, right: int, down: int) -> str:
    """Move over the canvas, so many pixels from its upper left corner; what the tip says."""
    from selenium.webdriver.common.action_chains import ActionChains

    stage = stage_of(driver)
    ActionChains(driver, duration=20).move_to_element_with_offset(
        stage, right - stage.size["width"] // 2, down - stage.size["height"] // 2
    ).perform()
    return str(driver.execute_script(
        "const t = document.querySelector('#player .tip'); return t.hidden ? '' : t.innerText;"
    ))  # fmt: skip


def test_the_page_says_nothing_on_the_console_and_asks_no_network(opened: Any) -> None:
    for action in ("in", "right", "next", "previous", "out", "whole"):
        press(opened, action)
    assert console(opened) == []
    assert requests_abroad(opened) == []


def test_a_request_abroad_would_be_seen_and_is_refused_by_the_page(opened: Any) -> None:
    """So that silence above means something: a picture from elsewhere is blocked, and told of."""
    script = "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);"
    opened.execute_script(script)
    assert any("Content Security Policy" in line for line in console(opened))


def test_buttons_zoom_and_move(opened: Any) -> None:
    _, whole = shown_ns(opened)
    press(opened, "in")
    begin, end = shown_ns(opened)
    assert end - begin == pytest.approx(whole / 2)
    press(opened, "right")
    assert shown_ns(opened)[0] == pytest.approx(begin + (end - begin) / 4)
    press(opened, "whole")
    assert shown_ns(opened) == (0, whole)


def test_the_wheel_zooms_where_the_pointer_is_with_ctrl_and_scrolls_without(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.keys import Keys

    canvas = canvas_of(opened)
    _, whole = shown_ns(opened)
    origin = ScrollOrigin.from_element(canvas, canvas.size["width"] // 4, 0)
    ActionChains(opened).scroll_from_origin(origin, 0, -120).perform()
    assert shown_ns(opened) == (0, whole)
    keys = ActionChains(opened).key_down(Keys.CONTROL).scroll_from_origin(origin, 0, -120)
    keys.key_up(Keys.CONTROL).perform()
    begin, end = shown_ns(opened)
    assert end - begin == pytest.approx(0.8 * whole, rel=1e-6)
    assert begin > whole - end  # more is cut off on the far side


def test_dragging_zooms_to_what_was_dragged_over(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = canvas_of(opened)
    _, whole = shown_ns(opened)
    chain = ActionChains(opened, duration=20).move_to_element(canvas).click_and_hold()
    chain.move_by_offset(100, 0).release().perform()
    begin, end = shown_ns(opened)
    assert 0.05 * whole < end - begin < 0.2 * whole
    assert begin > 0.4 * whole


def test_w_a_s_and_d_zoom_and_move_under_the_pointer(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = canvas_of(opened)
    _, whole = shown_ns(opened)
    ActionChains(opened, duration=20).move_to_element(canvas).send_keys("w").perform()
    begin, end = shown_ns(opened)
    assert end - begin == pytest.approx(whole / 2)
    ActionChains(opened).send_keys("d").perform()
    assert shown_ns(opened)[0] == pytest.approx(begin + whole / 8)
    ActionChains(opened).send_keys("a").perform()
    assert shown_ns(opened)[0] == pytest.approx(begin)
    ActionChains(opened).send_keys("s").perform()
    assert shown_ns(opened) == (0, whole)


def test_hovering_names_an_op_its_bytes_and_its_links(opened: Any) -> None:
    height = stage_of(opened).size["height"]
    rows = [hover(opened, 420, middle) for middle in range(22 + 20 + 11, height - 6, 22)]
    said = "\n".join(rows)
    assert "m0." in said
    assert " from " in said
    assert "B\n" in said
    assert " z: " in said


def test_keys_walk_from_op_to_op_and_tell_of_each(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    canvas = canvas_of(opened)
    told = []
    for key in (".", ".", ",", Keys.ARROW_DOWN):
        canvas.send_keys(key)
        told.append(opened.find_element("css selector", "#player .told").text)
    assert told[0].startswith("rank 0, compute: ")
    assert told[1] != told[0] == told[2]
    assert not told[3].startswith("rank 0, compute: ")
    canvas.send_keys("+")
    begin, end = shown_ns(opened)
    canvas.send_keys(Keys.HOME)
    assert shown_ns(opened)[1] > end - begin


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(width: int, opened: Any) -> None:
    opened.set_window_size(width, 900)
    script = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"
    needed, given = opened.execute_script(script)
    assert needed <= given
    narrow = (
        "const all = [...document.querySelectorAll('figure:not(.still) svg')];"
        "return Math.min(...all.map(s => s.clientWidth));"
    )
    assert opened.execute_script(narrow) > 400
