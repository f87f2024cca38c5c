"""What is said on stderr, and lost without harm where nobody can hear it: it is no answer."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click


def tell(text: str) -> None:
    """Print lines to stderr, which may be closed, or a file on a full disk."""
    try:
        click.echo(text, err=True)
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # for the flush at exit
