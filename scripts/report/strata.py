"""Errors of predictions by strata, with their sign, and the domain in which they were found. Standard library only, because
scripts/validate_real.py shares it.

Example: errors +10 %, +8 % at head_dim 48 and -2 %, +2 % at 64: the medians +9 % and 0 % show a bias that the median 5 %
of all absolute errors hides.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

Case = dict[str, Any]
HEADS = ("stratum", "value", "points", "signed median", "median error", "95th percentile", "largest")


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def hosts_of(case: Case) -> str:
    """ "two hosts" of "two hosts, 400 Mbit/s"."""
    return str(case["where"]).split(",")[0]


def program_of(case: Case) -> str:
    """ "ring", or "ring backward" of another pass than the forward, "ring step, recompute full" of a model."""
    name = case.get("pass", "forward")
    program = str(case["algorithm"]) + ("" if name == "forward" else " " + str(name).replace("_", " and "))
    return program + (f", recompute {case['recompute']}" if "recompute" in case else "")


def rate_of(case: Case) -> str | None:
    found = re.search(r"[\d.]+ [kMG]?bit/s", str(case["where"]))
    return found[0] if found else None


STRATA: tuple[tuple[str, Callable[[Case], object]], ...] = (
    ("hosts", hosts_of),
    ("rate of the link", rate_of),
    ("head_dim", lambda c: c["head_dim"]),
    ("algorithm", lambda c: c["algorithm"]),
    ("pass", lambda c: c.get("pass")),
    ("dtype", lambda c: c["dtype"]),
    ("mask", lambda c: "causal" if c["causal"] else "none"),
    ("ranks", lambda c: c["ranks"]),
)


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def stratum_rows(cases: list[Case]) -> list[tuple[str, ...]]:
    """One row for each value of each stratum: see HEADS."""
    rows = []
    for name, value_of in STRATA:
        groups: dict[str, list[float]] = {}
        for case in cases:
            if (value := value_of(case)) is not None:
                groups.setdefault(str(value), []).append(case["error"])
        for value, errors in groups.items():
            sizes = [abs(e) for e in errors]
            figures = (statistics.median(sizes), percentile(sizes, 0.95), max(sizes))
            rows.append((name, value, str(len(errors)), signed(statistics.median(errors)), *(f"{100 * f:.2g} %" for f in figures)))
    return rows


def samples_text(cases: list[Case]) -> str:
    """ "10 to 15 samples a point."; empty of older results, which do not say."""
    known = sorted({c["samples"] for c in cases if "samples" in c})
    span = " to ".join(str(n) for n in dict.fromkeys((known[0], known[-1]))) if known else ""
    return f"{span} samples a point." if known else ""


def domain_text(cases: list[Case]) -> str:
    """Span of the compared points: beyond it nothing is known of the error."""

    def span(key: str) -> str:
        values = sorted({c[key] for c in cases})
        return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"

    def named(values: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(str(v) for v in values if v is not None))

    rates = named(map(rate_of, cases))
    places = named(map(hosts_of, cases)) + (f" ({rates})" if rates else "")
    return (
        f"Domain: {places}; ranks {span('ranks')}; {span('seq_len')} tokens; heads {span('heads')}; "
        f"head_dim {named(sorted({c['head_dim'] for c in cases}))}; {named(c['dtype'] for c in cases)}; "
        f"{named(c['algorithm'] for c in cases)}. Nothing is known of the error beyond it: of more ranks, longer sequences or GPUs."
    )
