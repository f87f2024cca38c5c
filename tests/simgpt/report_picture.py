"""Draw a report's picture in the documentation.

python -m tests.simgpt.report_picture FILE.png
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import simgpt
from tests.simgpt.browser import browser, open_page

WIDTH = 1040
PLAN = "tp=8,y=2,z=64,dp=32,recompute=full"
ZOOMS, SETTLED_S = 8, 0.5
ACROSS, DOWN = 84, -45  # from the middle of the timeline to an op of its first row, in pixels


def draw(page: Any, path: str) -> None:
    """Zoom into the timeline, point at an op, and draw the section."""
    from selenium.webdriver.common.action_chains import ActionChains

    zoom = page.find_element("xpath", "//*[@id='player']//button[text()='Zoom in']")
    for _ in range(ZOOMS):
        zoom.click()
    canvas = page.find_element("css selector", "#player canvas")
    ActionChains(page).move_to_element_with_offset(canvas, ACROSS, DOWN).perform()
    time.sleep(SETTLED_S)
    page.find_element("id", "timeline").screenshot(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        asked = simgpt.predict("gpt-640b", "frontier", PLAN, devices=32_768, batch=8192)
        simgpt.report(asked, output=report)
        with browser(Path(folder) / "profile", WIDTH) as driver:
            open_page(driver, report.as_uri())
            draw(driver, sys.argv[1])
