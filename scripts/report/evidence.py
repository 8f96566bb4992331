"""Evidence for a claim of the paper: the lines of one source, their verdicts, the status.

A claim whose data are too few is "not tested". It takes the status of the strongest source that tested
it: measured, then replayed, extrapolated, simulated. One line that fails is enough for "not supported".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .fits import PowerLaw
from .model import SOURCES, Point
from .rows import Context
from .series import group_by
from .units import plural, token_label

SUPPORTED, NOT_SUPPORTED, NOT_TESTED = "supported", "not supported", "not tested"

@dataclass(frozen=True)
class Evidence:
    source: str
    status: str
    text: str
    details: tuple[str, ...] = ()  # every line, worst first


@dataclass
class Claim:
    title: str
    quote: str  # what the paper says
    test: str  # how it is tested, with the thresholds
    figures: tuple[str, ...]
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def deciding(self) -> Evidence | None:
        tested = [e for e in self.evidence if e.status != NOT_TESTED]
        order = {name: i for i, name in enumerate(SOURCES)}
        return min(tested, key=lambda e: order.get(e.source, len(order))) if tested else None

    @property
    def status(self) -> str:
        return self.deciding.status if self.deciding else NOT_TESTED

    @property
    def source(self) -> str:
        return self.deciding.source if self.deciding else ""


@dataclass(frozen=True)
class Verdict:
    """One line of one source: within the threshold or not, and how near it came."""

    good: bool
    badness: float  # orders the lines: the worst is shown
    text: str


def decide(source: str, verdicts: list[Verdict], nothing: str, noun: str = "line") -> Evidence:
    """One line that fails decides; the text shows the worst line."""
    if not verdicts:
        return Evidence(source, NOT_TESTED, nothing)
    ordered = sorted(verdicts, key=lambda v: (v.good, -v.badness))
    passed = sum(1 for v in verdicts if v.good)
    status = SUPPORTED if passed == len(verdicts) else NOT_SUPPORTED
    head = f"{passed} of {plural(len(verdicts), noun)} within the threshold; the worst: " if len(verdicts) > 1 else ""
    return Evidence(source, status, f"{head}{ordered[0].text}.", tuple(v.text for v in ordered))


def lines(
    ctx: Context, source: str, pattern: str, axis: Callable[[Point], object], needs_time: bool = True
) -> list[list[Point]]:
    """Right points of one pattern and source, grouped by series, batch and what the line holds constant."""
    able = [
        p
        for p in ctx.points
        if p.ok
        and p.source == source
        and p.pattern == pattern
        and p.seq_len
        and (p.time_decides or not needs_time)
    ]
    return [line for group in group_by(able, ctx.index.key, axis).values() for line in by_batch(group)]


def by_batch(points: list[Point]) -> list[list[Point]]:
    """Points of one batch, or of batches that hold one number of tokens (figure 5), whichever makes fewer lines."""
    batches = group_by(points, lambda p: p.batch)
    tokens = group_by(points, lambda p: p.batch * (p.seq_len or 0))
    return list((tokens if len(tokens) < len(batches) else batches).values())


def power(exponent: float) -> str:
    return f"N^{round(exponent, 2) + 0.0:.2f}"  # + 0.0 turns -0.00 into 0.00


def span_text(fit: PowerLaw) -> str:
    return f"{token_label(fit.x_min)} … {token_label(fit.x_max)}, n = {fit.count}"
