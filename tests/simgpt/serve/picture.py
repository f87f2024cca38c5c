"""Draw the page's picture in the documentation.

python -m tests.simgpt.serve.picture FILE.png
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from simgpt.commands.serve.server import PageServer
from tests.simgpt.browser import browser, open_page

WIDTH = 1280
LONGEST_S = 60.0
HEIGHT = "return document.querySelector('main').getBoundingClientRect().height"
FOUND = "return document.getElementById('found').textContent"


def draw(page: Any, path: str) -> None:
    """Ask for the neighbours, and draw the whole page."""
    end = time.monotonic() + LONGEST_S
    while not page.execute_script("return last !== null") and time.monotonic() < end:
        time.sleep(0.05)
    page.find_element("id", "best").click()
    while "neighbours" not in page.execute_script(FOUND) and time.monotonic() < end:
        time.sleep(0.05)
    metrics = {"width": WIDTH, "height": int(page.execute_script(HEIGHT))}
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**metrics, "deviceScaleFactor": 1, "mobile": False}
    )
    page.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    page.save_screenshot(path)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as profile,
        PageServer() as server,
        browser(Path(profile), WIDTH) as driver,
    ):
        threading.Thread(target=server.serve, daemon=True).start()
        open_page(driver, server.address)
        draw(driver, sys.argv[1])
