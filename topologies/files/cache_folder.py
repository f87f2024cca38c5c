"""Where results are kept from one run to the next, unless the user wants none kept.

`SIMGPT_CACHE` is a folder, or `off`; without it, `simgpt` in `$XDG_CACHE_HOME` or in `~/.cache`.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE, OFF = "SIMGPT_CACHE", "off"


def cache_folder() -> Path | None:
    """The folder of what is kept, which need not exist; None where nothing is to be kept."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return None if given == OFF else Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "simgpt" if os.path.isabs(home) else None
