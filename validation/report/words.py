"""Numbers as the page tells them."""

from __future__ import annotations


def percent(share: float, *, sign: bool = False) -> str:
    """A share of one as a percentage."""
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def several(number: int, what: str) -> str:
    """A number of things: `1 step`, `1,024 steps`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def gib(nbytes: float) -> str:
    """Bytes in GiB, or MiB below a tenth of one."""
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 / 10 else f"{nbytes / 2**20:,.2f} MiB"


def hours(seconds: float) -> str:
    """Seconds as hours, with three digits that count."""
    value = seconds / 3600
    return f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
