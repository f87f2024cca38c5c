"""Quantities with units: text on the way in, SI inside, text again for people."""

from __future__ import annotations

import math
import re
from decimal import Decimal, DecimalException
from typing import Literal, get_args

from topologies.errors import UnitError

Unit = Literal["bytes", "bytes/s", "FLOP/s", "s", "W"]
UNITS: tuple[Unit, ...] = get_args(Unit)

_SYMBOLS: dict[Unit, str] = {"bytes": "B", "bytes/s": "B/s", "FLOP/s": "FLOP/s", "s": "s", "W": "W"}
_EXAMPLES: dict[Unit, str] = {
    "bytes": "64 GiB",
    "bytes/s": "25 GB/s",
    "FLOP/s": "191.5 TFLOP/s",
    "s": "10 us",
    "W": "2.7 kW",
}
_LARGE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{prefix}i": 2.0 ** (10 * power) for power, prefix in enumerate("KMGTPE", start=1)}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9}
J_PER_MWH = 3.6e9
_PREFIXES: dict[Unit, dict[str, float]] = {
    "bytes": _LARGE | _BINARY,
    "bytes/s": _LARGE | _BINARY,
    "FLOP/s": _LARGE,
    "s": {"": 1.0} | _SMALL,
    "W": _LARGE | {"m": 1e-3},
}
_BITS = {f"{prefix}{symbol}": _LARGE[prefix] for prefix in _LARGE for symbol in ("bit/s", "bps")}
_EITHER = re.compile("([kKMGT]?)b/s")  # bits to some, a misspelt byte to others
_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def quantity(text: object, unit: Unit) -> float:
    """Reads a quantity with its unit, and gives it in SI.

    Byte units take decimal and binary prefixes, seconds the small ones down to `ns`. Rates of bytes
    may be given in bits too, as `Gbit/s` or `Gbps` (10^9 bits). A number without a unit is refused,
    since nobody can tell whether 25 meant GB/s or Gbit/s, and so is `Gb/s`.

    >>> quantity("25 GB/s", "bytes/s"), quantity("200 Gbit/s", "bytes/s")
    (25000000000.0, 25000000000.0)
    >>> quantity("64 GiB", "bytes") / 2**30
    64.0
    """
    example = f'write it like "{_EXAMPLES[unit]}"'
    if not isinstance(text, str):
        raise UnitError(f"{text!r} has no unit; {example}")
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UnitError(f'"{text}" is not a number with a unit; {example}')
    number, given = match.groups()
    if not given:
        raise UnitError(f'"{text}" has no unit; {example}')
    if unit == "bytes/s" and (either := _EITHER.fullmatch(given)):
        bits, octets = f"{number} {either[1]}bit/s", f"{number} {either[1]}B/s"
        raise UnitError(f'"{text}" may mean bits or bytes; write "{bits}" or "{octets}"')
    in_bits = unit == "bytes/s" and given in _BITS
    symbol = _SYMBOLS[unit]
    prefix = given.removesuffix(symbol)
    if not in_bits and (not given.endswith(symbol) or prefix not in _PREFIXES[unit]):
        raise UnitError(f'"{text}" is not in {unit}; {example}')
    value = _scaled(number, _BITS[given] / 8 if in_bits else _PREFIXES[unit][prefix])
    if not math.isfinite(value):
        raise UnitError(f'"{text}" is not a finite quantity; {example}')
    return value


def multiple_of(text: object) -> float | None:
    """How many times as much a text asks for, as `0.5x` does; none where it asks for a value.

    >>> multiple_of("0.5x"), multiple_of("25 GB/s")
    (0.5, None)
    """
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in ("x", "×"):
        return None
    return _scaled(found[1], 1.0)


def times(factor: float, text: object, unit: Unit) -> str:
    """A quantity's text, so many times as much, in the unit without a prefix.

    >>> times(0.5, "25 GB/s", "bytes/s")
    '12500000000.0 B/s'
    """
    return f"{factor * quantity(text, unit)!r} {_SYMBOLS[unit]}"


def _scaled(number: str, factor: float) -> float:
    """Rounds once: "350 ns" is the same float as 3.5e-7. What no decimal holds is not finite."""
    exact = Decimal(int(factor)) if factor >= 1 else Decimal(str(factor))
    try:
        return float(Decimal(number) * exact)
    except DecimalException:
        return math.inf


def format_quantity(value: float, unit: Unit, *, digits: int = 3, binary: bool = False) -> str:
    """Shows an SI value with the prefix that fits: `25 GB/s`, `13.2 us`; `binary` for GiB.

    >>> format_quantity(1.32e-5, "s"), format_quantity(2**36, "bytes", binary=True)
    ('13.2 us', '64 GiB')
    """
    steps = _steps(unit, binary)
    shown = abs(value)
    # A value that rounds up to the next prefix takes it: 999.9 us reads 1 ms.
    fitting = [step for step in steps if float(f"{shown / step[1]:.{digits}g}") >= 1]
    prefix, factor = fitting[-1] if fitting else (steps[0] if shown else ("", 1.0))
    return f"{_plain(value / factor, digits)} {prefix}{_SYMBOLS[unit]}"


def format_energy(joules: float) -> str:
    """An energy with the prefix that fits and three digits that count.

    >>> format_energy(950.0), format_energy(1.5e5), format_energy(7.2e10)
    ('950 J', '150 kJ', '72.0 GJ')
    """
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if joules >= 0.9995 * size or not prefix:
            value = joules / size
            shown = f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
            return f"{shown} {prefix}J"
    raise AssertionError("unreachable")


def _steps(unit: Unit, binary: bool) -> list[tuple[str, float]]:
    skipped = {"K", "µ", "μ"} | (set() if unit == "s" else {"m"})
    table = {"": 1.0} | _BINARY if binary else _PREFIXES[unit]
    kept = [
        (prefix, factor)
        for prefix, factor in table.items()
        if prefix not in skipped and (binary or prefix not in _BINARY)
    ]
    return sorted(kept, key=lambda step: step[1])


def _plain(number: float, digits: int) -> str:
    if abs(number) >= 10**digits:
        return f"{number:.0f}"
    return f"{number:.{digits}g}"
