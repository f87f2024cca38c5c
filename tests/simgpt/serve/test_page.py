"""The page in a browser: what it shows is what `simgpt predict` answers, and nothing goes wrong."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from simgpt.commands.serve import answers, connections
from simgpt.commands.serve.answers import predicted
from simgpt.commands.serve.connections import Place
from simgpt.commands.serve.server import PageServer
from tests.messages import assert_names
from tests.simgpt.browser import browser, console, open_page, requests_abroad, require_browser
from tests.simgpt.face import simgpt
from tests.simgpt.serve.test_answers import LLAMA_2

IDLE = "return document.getElementById('answer').getAttribute('aria-busy') === 'false'"
WIDTHS = (1280, 800)


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    require_browser()
    with PageServer() as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        made.stop()
        thread.join()


@pytest.fixture(scope="module")
def driver(server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(server: PageServer, driver: Any) -> Iterator[Any]:
    driver.set_window_size(1280, 900)
    open_page(driver, server.address)
    settle(driver)
    yield driver
    assert console(driver) == []
    assert [at for at in requests_abroad(driver) if not at.startswith(server.address)] == []


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def settle(page: Any) -> None:
    until(lambda: bool(page.execute_script(IDLE)))


def text(page: Any, name: str) -> str:
    return str(page.find_element("id", name).text)


def put(page: Any, name: str, value: str) -> None:
    """Set a field as a person does, who has moved a slider or typed, and wait for the answer."""
    page.execute_script(
        "const f = document.getElementById(arguments[0]); f.value = arguments[1];"
        "f.dispatchEvent(new Event('input', {bubbles: true}));", name, value
    )  # fmt: skip
    settle(page)


def value(page: Any, name: str) -> str:
    return str(page.find_element("id", name).get_property("value"))


def step_s(page: Any) -> float:
    return float(page.find_element("id", "step").get_attribute("data-seconds"))


def on_the_command_line(page: Any) -> dict[str, Any]:
    """What the command shown answers."""
    words = shlex.split(text(page, "command"))
    assert words[0] == "simgpt"
    record: dict[str, Any] = json.loads(simgpt(*words[1:], "--json").out)
    return record


def test_a_slider_changes_the_step_to_that_of_the_command_line(page: Any) -> None:
    first = step_s(page)
    assert first == on_the_command_line(page)["step_s"]
    put(page, "tp-slider", "3")
    assert value(page, "tp") == "8"
    assert "tp=8" in text(page, "command")
    assert step_s(page) != first
    record = on_the_command_line(page)
    assert step_s(page) == record["step_s"]
    assert text(page, "dp") == str(record["plan"]["dp"])
    assert text(page, "mfu") == f"{100 * record['logged']['share']:.1f} %"


def test_a_typed_size_moves_the_slider(page: Any) -> None:
    put(page, "pp", "8")
    assert value(page, "pp-slider") == "3"
    assert on_the_command_line(page)["plan"]["pp"] == 8


def test_what_changes_while_a_question_is_under_way_is_asked_next(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def waiting(question: Any) -> dict[str, Any]:
        assert goes_on.wait(60)
        return predicted(question)

    monkeypatch.setattr(answers, "ANSWERS", {**answers.ANSWERS, "predict": waiting})
    move = (
        "const f = document.getElementById('tp-slider'); f.value = arguments[0];"
        "f.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    page.execute_script(move, "1")
    until(lambda: bool(page.execute_script("return underWay")))
    page.execute_script(move, "3")
    until(lambda: bool(page.execute_script("return isDue")))
    goes_on.set()
    settle(page)
    record = on_the_command_line(page)
    assert (record["plan"]["tp"], record["step_s"]) == (8, step_s(page))


def test_a_busy_server_is_asked_again(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, refused = step_s(page), "return document.getElementById('answer').dataset.seen || ''"
    monkeypatch.setitem(connections.MOST, Place.ASKED, 0)
    page.execute_script(
        "const was = window.fetch; window.fetch = async (...a) => { const r = await was(...a);"
        "document.getElementById('answer').dataset.seen = r.status; return r; };"
        "const f = document.getElementById('tp-slider'); f.value = 1;"
        "f.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    until(lambda: page.execute_script(refused) == "503")
    monkeypatch.undo()
    settle(page)
    assert text(page, "error") == ""
    assert step_s(page) != before
    console(page)  # the browser names each 503


def test_a_server_that_stays_busy_is_said_to_be(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.MOST, Place.ASKED, 0)
    page.execute_script("window.setTimeout = (f, ms) => f();")
    put(page, "pp", "2")
    assert "busy" in text(page, "error")
    console(page)


def test_bars_have_the_shares_of_their_parts(page: Any) -> None:
    record = on_the_command_line(page)
    for name, parts in (
        ("time", record["breakdown_s"]),
        ("memory", record["memory"]["parts"]),
    ):
        widths = page.execute_script(
            "return [...document.querySelectorAll(`#${arguments[0]} .bar span:not(.limit)`)]"
            ".map(s => s.getBoundingClientRect().width)", name
        )  # fmt: skip
        shares = sorted((part for part in parts.values() if part > 0), reverse=True)
        assert len(widths) == len(shares)
        assert widths[1] / widths[0] == pytest.approx(shares[1] / shares[0], abs=0.01)
    limit, peak = page.execute_script(
        "const bar = document.querySelector('#memory .bar'), left = e => e.getBoundingClientRect();"
        "const last = [...bar.querySelectorAll('span:not(.limit)')].pop();"
        "return [left(bar.querySelector('.limit')).left, left(last).right]"
        ".map(x => x - left(bar).left);"
    )
    memory = record["memory"]
    fraction = memory["capacity_bytes"] / memory["peak_bytes"]
    assert limit / peak == pytest.approx(fraction, abs=0.01)


def test_the_waterfall_goes_down_to_the_mfu(page: Any) -> None:
    """Each bar begins where the last one ended, to a pixel."""
    drawn = "return document.getElementById('losses').getAttribute('aria-busy') === 'false'"
    until(lambda: bool(page.execute_script(drawn)))
    rows = page.find_elements("css selector", "#losses tbody tr")
    assert rows[-1].find_elements("tag name", "td")[3].text == text(page, "mfu")
    ends = page.execute_script(
        "return [...document.querySelectorAll('#losses tbody i')]"
        ".map(i => i.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    for (left, _), (_, right) in pairwise(ends[:-1]):
        assert right == pytest.approx(left, abs=1) or left == pytest.approx(ends[0][0])


def test_what_does_not_fit_is_made_to_fit(page: Any) -> None:
    put(page, "sp", "false")
    assert text(page, "fits") == "no"
    assert_names(text(page, "remarks"), "GiB")
    page.find_element("id", "fit").click()
    until(lambda: "=" in text(page, "found"))
    assert text(page, "fits") == "yes"
    assert on_the_command_line(page)["memory"]["verdict"] == "fits"
    assert not page.find_element("id", "fit").is_enabled()


@pytest.mark.slow
def test_a_neighbour_is_taken_with_a_click(page: Any) -> None:
    put(page, "other", "mbs=2")
    put(page, "mbs", "")
    page.find_element("id", "best").click()
    until(lambda: "neighbours" in text(page, "found"))
    rows = page.find_elements("css selector", "#choices tbody tr")
    assert 1 <= len(rows) <= 5
    texts = [row.text for row in rows]
    chosen = next(row for row in rows if "mbs=1 " in row.text)
    shown = texts[rows.index(chosen)].partition(") ")[2]
    chosen.find_element("tag name", "button").click()
    until(lambda: "mbs=1" in text(page, "command"))
    settle(page)
    assert value(page, "other") == ""
    assert shown.startswith(text(page, "step"))
    assert step_s(page) == on_the_command_line(page)["step_s"]


def test_an_error_stands_at_its_field_and_goes_with_it(page: Any) -> None:
    put(page, "machine", "nowhere")
    words = shlex.split(text(page, "command"))[1:]
    words[words.index("-m") + 1] = "nowhere"
    assert simgpt(*words).sentence == f"simgpt: {text(page, 'error')}"
    wrong = page.find_elements("css selector", "label.wrong")
    assert [label.get_attribute("data-field") for label in wrong] == ["machine"]
    put(page, "machine", "64x8xH100,8xNDR")
    assert text(page, "error") == ""
    assert page.find_elements("css selector", ".wrong") == []
    assert step_s(page) == on_the_command_line(page)["step_s"]


def test_a_batch_in_tokens_is_the_same_batch(page: Any) -> None:
    first = step_s(page)
    page.execute_script("document.getElementById('unit').focus()")
    put(page, "unit", "batch_tokens")
    assert value(page, "batch") == str(512 * 8192)
    assert "--batch-tokens 4194304" in text(page, "command")
    assert step_s(page) == first


def test_a_pasted_config_is_the_model(page: Any) -> None:
    page.execute_script("document.querySelector('details').open = true")
    page.execute_script(
        "document.getElementById('config').value = arguments[0]", json.dumps(LLAMA_2)
    )
    page.find_element("id", "read").click()
    until(lambda: "name=llama" in text(page, "command"))
    settle(page)
    assert step_s(page) == on_the_command_line(page)["step_s"]
    assert "max_position_embeddings" in text(page, "remarks")


def test_the_command_is_copied_or_at_least_selected(page: Any) -> None:
    page.find_element("id", "copy").click()
    until(lambda: text(page, "copy") in ("Copied", "Selected"))
    if text(page, "copy") == "Selected":
        chosen = page.execute_script("return getSelection().toString()")
        assert chosen == text(page, "command")


def test_a_server_that_has_ended_is_told(page: Any) -> None:
    page.execute_script("fetch = () => Promise.reject(new TypeError('gone'))")
    put(page, "tp-slider", "1")
    assert_names(text(page, "error"), "simgpt serve")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_as_wide_as_the_window_in_either_scheme(
    page: Any, width: int, scheme: str
) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.set_window_size(width, 900)
    wide, shown = page.execute_script(
        "return [document.documentElement.scrollWidth, innerWidth]"
    )  # fmt: skip
    assert wide <= shown
    paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(paper.partition("(")[2].partition(",")[0])
    assert (red < 128) == (scheme == "dark")
