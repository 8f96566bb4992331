"""Evidence for a claim of the paper: the lines of one source, their verdicts, the status.

A claim whose data are too few is "untested"; one whose data are there, but are not what its sentence is about, is
"undecided". It takes the status of the strongest source that tested it: measured, then replayed, extrapolated, simulated.
One line that fails is enough for "contradicted". A line that is long enough and yet not judged is listed, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .fits import PowerLaw
from .model import SOURCES, Point
from .rows import Context
from .series import group_by
from .units import number, plural, token_label

SUPPORTED, NOT_SUPPORTED, NOT_TESTED = "supported", "contradicted", "untested"  # one word each
SEEN = "undecided"
COMPUTED = "computed"  # from patterns and programs: nothing was timed or counted
MEANING = {
    SUPPORTED: "the points that test the sentence agree with it, within the stated thresholds",
    NOT_SUPPORTED: "some of the points that test the sentence speak against it",
    SEEN: "something was run, but not under the conditions of the sentence, or too little of it",
    NOT_TESTED: "there are no such points, too few of them, or their times decide nothing",
}
ASSUMED_LAW = " Undecided, since N² follows from the simulator’s cost model, which charges every pair of query and key, and not from a measurement."

@dataclass(frozen=True)
class Evidence:
    source: str
    status: str
    text: str
    details: tuple[str, ...] = ()  # every line, worst first
    points: tuple[Point, ...] = ()  # those of the lines


@dataclass
class Claim:
    title: str
    quote: str  # the paper's words
    test: str  # how it is tested, with the thresholds
    figures: tuple[str, ...]
    about: str = ""  # COMPUTED, of a claim that takes the points of all sources together
    rules: tuple[str, ...] = ()  # names of RULES (paper_lines.py), which several claims share
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def deciding(self) -> Evidence | None:
        seen = [e for e in self.evidence if e.status != NOT_TESTED]
        tested = [e for e in seen if e.status != SEEN] or seen
        order = {name: i for i, name in enumerate((SOURCES[0], COMPUTED, *SOURCES[1:]))}
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
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Unjudged:
    """A line that is long enough, and yet decides nothing."""

    why: str  # the same words for all lines of one reason
    text: str
    points: tuple[Point, ...] = ()


def left_out_text(unjudged: Sequence[Unjudged], noun: str = "line") -> str:
    """ " 2 lines not judged, times follow no power law: see below." """
    text = ""
    for why in dict.fromkeys(u.why for u in unjudged):
        same = [u for u in unjudged if u.why == why]
        text += f" {plural(len(same), noun)} not judged, {why}: {same[0].text if len(same) == 1 else 'see below'}."
    return text


def decide(
    source: str,
    verdicts: list[Verdict],
    nothing: str,
    noun: str = "line",
    *,
    unjudged: Sequence[Unjudged] = (),
    within: str = "the threshold",
) -> Evidence:
    """One line that fails decides; the text shows the worst line, and how many are not judged."""
    left_out = left_out_text(unjudged, noun)
    listed = tuple(f"not judged, {u.why}: {u.text}" for u in unjudged)
    points = tuple(p for line in (*verdicts, *unjudged) for p in line.points)
    if not verdicts:
        return Evidence(source, NOT_TESTED, f"{nothing}.{left_out}" if left_out else nothing, listed, points)
    ordered = sorted(verdicts, key=lambda v: (v.good, -v.badness))
    passed = sum(1 for v in verdicts if v.good)
    status = SUPPORTED if passed == len(verdicts) else NOT_SUPPORTED
    head = f"{passed} of {plural(len(verdicts), noun)} within {within}; the worst: " if len(verdicts) > 1 else ""
    return Evidence(source, status, f"{head}{ordered[0].text}.{left_out}", (*(v.text for v in ordered), *listed), points)


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


CARRIERS = {"threads": "threads of one process", "mpi": "MPI processes"}


def ranks_text(points: list[Point]) -> str:
    ranks = sorted({p.group_ranks for p in points})
    return f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"


def machine_text(ctx: Context, points: list[Point]) -> str:
    """Describes the ranks: "threads of one process, one host, 2 cores"."""
    carriers = sorted({CARRIERS.get(p.text("params.transport"), f"GPUs over {p.text('params.transport') or 'an unnamed transport'}") for p in points})
    runs = [ctx.runs[i] for i in sorted({p.run for p in points})]
    listed = [r for run in runs if isinstance(found := run.get("ranks"), list) for r in found if isinstance(r, dict)]
    hosts = len({str(r.get("hostname")) for r in listed}) or 1
    cores = sorted({int(n) for run in runs if (n := number(run.get("environment.cpu.cores")))})
    each = " each" if hosts > 1 else ""
    known = [" and ".join(carriers), "one host" if hosts == 1 else f"{hosts} hosts", *(f"{plural(n, 'core')}{each}" for n in cores[:1])]
    return ", ".join(known)


def power(exponent: float) -> str:
    return f"N^{round(exponent, 2) + 0.0:.2f}"  # + 0.0 turns -0.00 into 0.00


def span_text(fit: PowerLaw) -> str:
    return f"{token_label(fit.x_min)} … {token_label(fit.x_max)}, n = {fit.count}"
