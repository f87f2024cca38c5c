"""A headless Chromium that tells what its console said and what it asked of any network."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
LOCAL = ("file:", "data:", "about:", "chrome:", "chrome-untrusted:", "devtools:")


def require_browser() -> None:
    """Skip where there is no Chromium, no driver of it, or no selenium."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium", reason="needs selenium: pip install -e '.[test]'")


@contextmanager
def browser(profile: Path, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A Chromium with a profile of its own, which is gone with it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for switch in (*SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        driver = webdriver.Chrome(options=options, service=Service(executable_path=str(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()


def open_page(driver: Any, address: str) -> None:
    """Open a page and wait until its scripts have run.

    The driver may return while scripts still meet the page before it, or one that is half read.
    """
    from selenium.webdriver.support.wait import WebDriverWait

    driver.get("about:blank")
    driver.get(address)
    script = "return document.readyState === 'complete' && location.href.startsWith(arguments[0]);"
    WebDriverWait(driver, 60, 0.02).until(lambda page: page.execute_script(script, address))


def console(driver: Any) -> list[str]:
    """What the console said since last asked."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests_abroad(driver: Any) -> list[str]:
    """Addresses that were asked for since last asked, but for files and data of the page's own, and
    for the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    asked += [m["params"]["url"] for m in messages if m["method"] == "Network.webSocketCreated"]
    return [address for address in asked if not address.startswith(LOCAL)]
