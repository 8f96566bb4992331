"""Numbers as people read them.

Example: token_label(8192) = "8K", duration_label(0.01234) = "12.3 ms", bytes_label(6291456) = "6 MiB".
Everything returns an en dash for a missing value, so that callers never test for None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

MISSING = "–"
TOKEN_UNITS = ((1 << 30, "B"), (1 << 20, "M"), (1 << 10, "K"))


def number(value: object) -> float | int | None:
    """A finite JSON number, or None; booleans and strings are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def significant(value: float, digits: int = 3) -> str:
    """Shortest decimal text with so many significant digits, never in exponent form below 1e15."""
    if abs(value) < 1e-300:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{round(value, decimals):.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio_label(ratio: float) -> str:
    """A factor short enough for a cell of a map: 1.5×, 2800×, 14.2k×, 1.2M× (decimal units)."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if ratio >= 10_000 and ratio >= unit:
            return f"{significant(ratio / unit)}{suffix}×"
    return f"{significant(ratio)}×"


def bracket(interval: tuple[float, float] | None, label: Callable[[float], str]) -> str:
    """ " [1.98, 2.01]", behind what lies in that interval; empty without one."""
    return f" [{label(interval[0])}, {label(interval[1])}]" if interval else ""


def token_label(tokens: float | int | None) -> str:
    """Token counts in binary units: 8192 = 8K, 2^20 = 1M, 2^30 = 1B; others exactly."""
    if tokens is None:
        return MISSING
    for unit, suffix in TOKEN_UNITS:
        if tokens >= unit and tokens % unit == 0:
            return f"{int(tokens // unit)}{suffix}"
    return f"{int(tokens):,}"


def duration_label(seconds: float | None, digits: int = 3) -> str:
    if seconds is None:
        return MISSING
    for unit, suffix in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= unit:
            return f"{significant(seconds / unit, digits)} {suffix}"
    return f"{significant(seconds * 1e9, digits)} ns"


def span_label(values: list[float]) -> str:
    """ "2 to 9", or "3" where all are."""
    low, high = significant(min(values)), significant(max(values))
    return low if low == high else f"{low} to {high}"


def spoken_duration(seconds: float | None) -> str:
    """As in a sentence: minutes, hours, days and years where seconds say little."""
    for unit, suffix in ((365.25 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds is not None and seconds >= 2 * unit:
            return f"{significant(seconds / unit)} {suffix}"
    return duration_label(seconds)


def bytes_label(count: float | None, digits: int = 4) -> str:
    if count is None:
        return MISSING
    for shift, suffix in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(count) >= 1 << shift:
            return f"{significant(count / (1 << shift), digits)} {suffix}"
    return f"{significant(count, digits)} B"


def rate_label(per_second: float | None) -> str:
    """FLOP/s with a decimal prefix."""
    if per_second is None:
        return MISSING
    for unit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(per_second) >= unit:
            return f"{significant(per_second / unit)} {prefix}FLOP/s"
    return f"{significant(per_second)} FLOP/s"


def percent_label(share: float | None) -> str:
    """Tiny shares in exponent form: 4.7e-08 %."""
    if share is None:
        return MISSING
    return f"{100 * share:.2g} %" if 1e-12 < abs(share) < 1e-5 else f"{significant(100 * round(share, 12))} %"


def number_label(value: float) -> str:
    """A figure of a file: integers in full, others with a decimal exponent of a multiple of three: 989.4e12."""
    if (isinstance(value, int) and abs(value) < 1e9) or (abs(value) < 1e6 and abs(value) >= 1e-3) or value == 0:
        return f"{value:,}" if isinstance(value, int) else significant(value, 6)
    exponent = 3 * (math.floor(math.log10(abs(value))) // 3)
    return f"{significant(value / 10.0**exponent, 6)}e{exponent}"


def listed(values: list[Any], label: Callable[[Any], str]) -> str:
    """ "8K, 16K", or "8K to 1M" of more than three."""
    ordered = sorted(set(values))
    return ", ".join(map(label, ordered)) if len(ordered) <= 3 else f"{label(ordered[0])} to {label(ordered[-1])}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def integer_label(value: float | None) -> str:
    return MISSING if value is None else f"{int(value):,}"
