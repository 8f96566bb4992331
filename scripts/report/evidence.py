"""Evidence for a claim of the paper: the lines of one source, their verdicts, the status.

A claim whose data are too few is "untested"; one whose data are there, but are not what its sentence is about, is
"undecided". It takes the status of the strongest source that tested it: measured, then replayed, extrapolated, simulated.
One line that fails is enough for "contradicted"; where none fails, one whose
interval does not lie on one side of the threshold leaves it "undecided". A line that is long enough and yet not judged is listed, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .fits import PowerLaw
from .model import FORWARD, SOURCES, Point
from .rows import Context
from .series import group_by
from .units import bracket, number, plural, significant, token_label

SUPPORTED, NOT_SUPPORTED, NOT_TESTED = "supported", "contradicted", "untested"  # one word each
SEEN = "undecided"
OUTDATED = "outdated"
PAPER_NAMES = {"dense": "vanilla", "sparse": "sparse", "dilated": "dilated"}
COMPUTED = "computed"  # from patterns and programs: nothing was timed or counted
MEANING = {
    SUPPORTED: "the points that test the sentence agree with it, within the stated thresholds",
    NOT_SUPPORTED: "some of the points that test the sentence speak against it",
    OUTDATED: "no longer so: algorithms that came after the paper do what its sentence says that none does",
    SEEN: "something was run, but not under the conditions of the sentence, too little of it, or too uncertainly",
    NOT_TESTED: "there are no such points, too few of them, or their times decide nothing",
}
ASSUMED_LAW = " Undecided, since N² follows from the simulator’s cost model, which charges every pair of query and key, and not from a measurement."

@dataclass(frozen=True)
class Evidence:
    source: str
    status: str
    text: str
    details: tuple[str, ...] = ()  # every line, worst first, and what the sentence leaves out
    points: tuple[Point, ...] = ()  # those of the lines
    judged: tuple[tuple[Point, ...], ...] = ()  # the lines that decided; points that decided alone are one

    @property
    def whole(self) -> str:
        return " ".join((self.text, *self.details))


@dataclass
class Claim:
    title: str
    quote: str  # the paper's words
    test: str  # how it is tested, in a few sentences
    figures: tuple[str, ...]
    about: str = ""  # COMPUTED, of a claim that takes the points of all sources together
    rules: tuple[str, ...] = ()  # names of RULES (paper_lines.py), which several claims share
    more: str = ""  # thresholds and exceptions of the test
    command: str = ""  # a run that decides it
    passes: tuple[str, ...] = (FORWARD,)  # it takes points of these
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

    @property
    def scale(self) -> str:
        return scale_text(self.deciding) if self.deciding else ""


@dataclass(frozen=True)
class Verdict:
    """One line of one source: on which side of the threshold it lies, and how near it came."""

    good: bool | None  # None: its interval reaches across the threshold, or it has none
    badness: float  # orders the lines: the worst is shown
    text: str
    points: tuple[Point, ...] = ()
    more: str = ""  # follows the line's text, in the list of all lines alone

    @property
    def whole(self) -> str:
        return "; ".join(filter(None, (self.text, self.more)))


@dataclass(frozen=True)
class Unjudged:
    """A line that is long enough, and yet decides nothing."""

    why: str  # the same words for all lines of one reason
    text: str
    points: tuple[Point, ...] = ()


def left_out_text(unjudged: Sequence[Unjudged], noun: str = "line") -> str:
    """ " 2 lines not judged: times follow no power law." """
    counts = Counter(u.why for u in unjudged)
    return "".join(f" {plural(n, noun)} not judged: {why}." for why, n in counts.items())


def decide(
    source: str,
    verdicts: list[Verdict],
    nothing: str,
    noun: str = "line",
    *,
    unjudged: Sequence[Unjudged] = (),
    within: str = "the threshold",
    said: str = "",
) -> Evidence:
    """One line that fails decides; the text shows the worst line, and how many are undecided or not judged."""
    left_out = left_out_text(unjudged, noun)
    listed = tuple(f"not judged, {u.why}: {u.text}" for u in unjudged)
    points = tuple(p for line in (*verdicts, *unjudged) for p in line.points)
    if not verdicts:
        return Evidence(source, NOT_TESTED, f"{nothing}.{left_out}" if left_out else nothing, listed, points)
    ordered = sorted(verdicts, key=lambda v: ((False, None, True).index(v.good), -v.badness))
    counts = Counter(v.good for v in verdicts)
    status = NOT_SUPPORTED if counts[False] else SEEN if counts[None] else SUPPORTED
    head = f"{counts[True]} of {plural(len(verdicts), noun)} within {within}; the worst: " if len(verdicts) > 1 else ""
    across = f" {plural(counts[None], noun)} undecided: no interval that lies on one side of the threshold." if counts[None] else ""
    every = (*(v.whole for v in ordered), *listed)
    return Evidence(source, status, f"{head}{ordered[0].text}.{across}{said}{left_out}", every, points, tuple(v.points for v in ordered))


def scale_text(evidence: Evidence) -> str:
    """How far the evidence reaches: "to 1M tokens on 1 rank, 256K on 2 ranks, measured"; each pattern by itself where they
    reach differently far: "vanilla to 64K, dilated to 1M tokens, measured"."""
    points = [p for line in evidence.judged for p in line] or list(evidence.points)
    if not any(p.seq_len for p in points):
        return evidence.source
    far = {name: max(p.seq_len or 0 for p in points if p.pattern == pattern) for pattern, name in PAPER_NAMES.items() if any(p.pattern == pattern for p in points)}
    if len(set(far.values())) > 1:
        alike = group_by(far, lambda name: far[name]).items()
        reach = [f"{' and '.join(names)} to {token_label(length)}" for (length,), names in alike]
        return f"{', '.join(reach)} tokens, {evidence.source}"
    longest, widest = (max(points, key=key) for key in (lambda p: (p.seq_len or 0, p.ranks), lambda p: (p.ranks, p.seq_len or 0)))
    ends = [f"{token_label(p.seq_len)}{'' if i else ' tokens'}{reach_text(evidence, p)}" for i, p in enumerate((longest, widest))]
    return ", ".join([f"to {ends[0]}", *(ends[1:] if longest.ranks != widest.ranks and evidence.source != COMPUTED else []), evidence.source])


def reach_text(evidence: Evidence, point: Point) -> str:
    if evidence.source == COMPUTED:
        return ""
    return f" on {'one device for ' if point.in_turn else ''}{plural(point.ranks, 'rank')}"


def counts_text(counts: Sequence[int], noun: str) -> str:
    """ "2 ranks", "1 and 2 ranks", "1 to 8 ranks"."""
    between = " and " if len(counts) == 2 else " to "
    return plural(counts[0], noun) if len(counts) == 1 else f"{counts[0]}{between}{counts[-1]} {noun}s"


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


def carrier(point: Point) -> str:
    """ "MPI processes", "GPUs over nccl"; of a transport that has no words here "joined by NAME"."""
    name = point.text("params.transport") or "an unnamed transport"
    return CARRIERS.get(name) or f"{'GPUs over' if point.num('metrics.devices') else 'joined by'} {name}"


def ranks_text(points: list[Point]) -> str:
    ranks = sorted({p.group_ranks for p in points})
    return f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"


def series_name(ctx: Context, point: Point) -> str:
    """ "dilated", or "dilated (run 3)": the whole label stands in the list of lines."""
    run = f" (run {point.run + 1})" if len(ctx.runs) > 1 else ""
    return ctx.index.label(point).split(" · ")[0] + run


def whole_label(ctx: Context, point: Point) -> str:
    label = ctx.index.label(point)
    return "" if label == series_name(ctx, point) else f"series {label}"


def machine_text(ctx: Context, points: list[Point]) -> str:
    """Describes the ranks: "threads of one process, one host, 2 cores"."""
    carriers = sorted({carrier(p) for p in points})
    runs = [ctx.runs[i] for i in sorted({p.run for p in points})]
    listed = [r for run in runs if isinstance(found := run.get("ranks"), list) for r in found if isinstance(r, dict)]
    hosts = len({str(r.get("hostname")) for r in listed}) or 1
    cores = sorted({int(n) for run in runs if (n := number(run.get("environment.cpu.cores")))})
    each = " each" if hosts > 1 else ""
    known = [" and ".join(carriers), "one host" if hosts == 1 else f"{hosts} hosts", *(f"{plural(n, 'core')}{each}" for n in cores[:1])]
    return ", ".join(known)


def two_decimals(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # + 0.0 turns -0.00 into 0.00


def power(fit: PowerLaw) -> str:
    """ "N^1.98 [1.97, 1.99]"."""
    return f"N^{two_decimals(fit.exponent)}{bracket(fit.exponent_interval, two_decimals)}"


def rise_text(fit: PowerLaw) -> str:
    return f"largest rise {significant(fit.y_rise)}×{bracket(fit.rise_interval, significant)}"


def span_text(fit: PowerLaw) -> str:
    return f"{token_label(fit.x_min)} to {token_label(fit.x_max)} tokens, {plural(fit.count, 'point')}"
