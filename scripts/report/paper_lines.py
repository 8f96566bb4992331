"""Lines of points that a sentence of the paper is about, and the length from which a line tells of the algorithm.

Example: dilated attention at 8K ... 1M tokens on 2 ranks, branches {2048/1, N/2, N} at rates sqrt(w / 2048): the branch
that the ranks share does 33 % of the FLOPs, so the line tests the paper's constant latency. At rates w / 2048 it does 0.2 %
of them at 1M tokens: such a line is shown, and decides nothing. A what-if, another collective than the library's own, fewer
tokens per rank than the first segment: no line of the paper's figure 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from .evidence import Unjudged, by_batch, lines, machine_text, span_text
from .fits import PowerLaw, fit_power_law
from .model import Point
from .rows import Context
from .series import group_by
from .units import number, percent_label, plural, token_label

MIN_LENGTHS = 3  # different lengths of one line
MIN_SPAN = 4.0  # longest over shortest
COMPLEXITY = {"dense": 2.0, "sparse": 1.5, "dilated": 1.0}  # exponent of N in the paper's table 1
FLOOR_SHARE = 0.5  # share of that exponent, from one length to the next: a line that begins with less begins with latency
GROWN_SHARE = 0.8  # ... and tells of the algorithm from where it grows by this much of it
SHARED_WORK = 0.10  # share of the FLOPs in branches that ranks share: below, a line is attention to neighbours
PAPER_SEGMENT = 2048  # the shortest of section 3.2 and of section 4.1
LATENCY_RULES = "latency rules at too many of its lengths"
BRANCH = ("segment_length", "dilation_rate", "summary_tokens")
PUBLISHED = {"collective": "native", "offset": "paper", "mix": "lse"}  # the paper's algorithm; absent in older results

RULES = {  # that several claims share
    "rates": "The paper lets segments and rates grow geometrically (section 2.2), both with one ratio (section 2.4); it states the segments of "
    "figure 5 (up to three: 2,048, tokens per device, N), not their rates; its language models have rates 1, 2, 4, 6 and 12 for 2,048 to "
    "32,768 tokens (section 4.2). Three segments with rates that grow as they do leave the long branches little work: "
    "then constant communication and complexity are judged. Constant latency is judged where long branches carry work: three segments at "
    f"slower rates, whose gathers grow with N, or a segment at every power of the ratio. Our threshold for that work ({percent_label(SHARED_WORK)} "
    "of the FLOPs) decides which lines count for what.",
    "lines": "As in figure 5, a line has no simulated change of the machine, the library's own collective and at least the first segment's "
    "tokens on each rank; segments may be more.",
    "lengths": f"A line needs {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}.",
    "intervals": "A line decides if the whole interval of its value lies on one side of the threshold: what the intervals of its medians allow. "
    "Simulated times have no scatter; measured ones of fewer than five samples have no interval and decide nothing.",
    "short lengths": f"A line whose time grows by less than {FLOOR_SHARE:g} of its exponent in table 1 at first (N², N√N, N) counts from where it "
    f"grows by {GROWN_SHARE:g} of it: shorter sequences show the latency of machine and network, not attention's. One that never does is listed, "
    "not judged. Times of more ranks than cores decide nothing.",
}


def interval_of(point: Point, value: float | None) -> tuple[float, ...]:
    """The interval of a value in proportion to the median, where samples give one: bands of simulations are no scatter."""
    ends = point.interval_s if point.source != "simulated" and value else None
    return tuple(end * value / (point.median_s or 1.0) for end in ends or ())


def long_fit(points: Iterable[Point], value: Callable[[Point], float | None], span: float = MIN_SPAN, sampled: bool = True) -> PowerLaw | None:
    """The power law of a value against tokens, if the line is long enough to test anything; `sampled`: the value is a time."""
    listed = list(points)
    fit = fit_power_law((p.seq_len, value(p), *(interval_of(p, value(p)) if sampled else ())) for p in listed)
    enough = fit is not None and len({p.seq_len for p in listed}) >= MIN_LENGTHS and fit.x_span >= span
    return fit if enough else None


def time_per_token(point: Point) -> float | None:
    return point.median_s / (point.batch * point.seq_len) if point.median_s and point.seq_len else None


def tokens_per_rank(point: Point) -> float:
    return (point.seq_len or 0) / point.group_ranks


def widths_and_rates(point: Point) -> list[tuple[float, float]]:
    """(segment length, dilation rate) of each branch, the shortest first; segments end with the sequence."""
    known = [(number(b.get("segment_length")), number(b.get("dilation_rate"))) for b in point.branches]
    return sorted((min(w, point.seq_len or w), r) for w, r in known if w and r)


def shares_branches(point: Point) -> bool:
    """Ranks hold parts of one sequence, each with a time of its own: a branch longer than a rank's tokens is shared."""
    return point.group_ranks > 1 and not point.in_turn


def shared_work(point: Point) -> float:
    """The share of the FLOPs in branches that ranks share; on one rank, and of a walk, whose time is the sum over ranks, in
    those beyond the shortest segment: ceil(w / r)^2 / w pairs a token of each."""
    pairs = [(w, math.ceil(w / r) ** 2 / w) for w, r in widths_and_rates(point)]
    total = sum(each for _, each in pairs)
    own = max(tokens_per_rank(point) if shares_branches(point) else 0, pairs[0][0]) if pairs else 0
    return sum(each for w, each in pairs if w > own) / total if total else 0.0


def has_paper_segments(point: Point) -> bool:
    """Its first segment has 2,048 tokens, undilated, as in all of the paper's experiments."""
    pairs = widths_and_rates(point)
    return bool(pairs) and pairs[0][0] >= min(PAPER_SEGMENT, point.seq_len or 0) and pairs[0][1] == 1


def shorter_text(line: list[Point]) -> str:
    """ "; segments from 256 tokens (the paper: 2,048)"; empty where the first segment is the paper's."""
    shorter = [p for p in line if p.pattern == "dilated" and widths_and_rates(p) and not has_paper_segments(p)]
    first = min((widths_and_rates(p)[0] for p in shorter), default=None)
    dilated = f" at rate {first[1]:,.0f}" if first and first[1] != 1 else ""
    return f"; segments from {first[0]:,.0f} tokens{dilated} (the paper: {PAPER_SEGMENT:,})" if first else ""


def which_branches(line: list[Point]) -> str:
    shared = set(map(shares_branches, line))
    if len(shared) > 1:
        return "branches that ranks share (on one rank: beyond the first segment)"
    return "branches that ranks share" if True in shared else "branches beyond the first segment"


def shared_work_text(line: list[Point]) -> str:
    shares = sorted(shared_work(p) for p in line)
    low, high = (percent_label(s) for s in (shares[0], shares[-1]))
    return f"{which_branches(line)} do {low if low == high else f'{low} to {high}'} of the FLOPs"


def branches_text(line: list[Point]) -> str:
    """ "segments 2,048, 131,072 and 262,144 at rates 1, 8 and 16 at 256K tokens"."""
    longest = max(line, key=lambda p: p.seq_len or 0)
    pairs = widths_and_rates(longest)
    widths, rates = (and_text([f"{x:,.0f}" for x in values]) for values in zip(*pairs)) if pairs else ("", "")
    equal = any(a[0] < b[0] and a[1] == b[1] for p in line for a, b in itertools.pairwise(widths_and_rates(p)))
    note = " (at some lengths two rates are equal; in section 2.2 each exceeds the last)" if equal else ""
    return f"segments {widths} at rates {rates} at {token_label(longest.seq_len)} tokens{note}" if pairs else ""


def and_text(items: list[str]) -> str:
    return " and ".join([*([", ".join(items[:-1])] if items[1:] else []), *items[-1:]])


def ranks_of(ctx: Context, line: list[Point]) -> str:
    """ "2 ranks"; "64 ranks, a sequence on 1 to 64 of them": replicas share no sequence."""
    groups = sorted({p.group_ranks for p in line})
    each = "" if len(groups) == 1 else f", a sequence on {groups[0]} to {groups[-1]} of them"
    return ctx.index.rank_label(line[0].ranks) + each


def on_machine(ctx: Context, line: list[Point]) -> str:
    """ "ranks are MPI processes, one host, 2 cores"; empty of one rank, and where no rank had a machine of its own."""
    first = line[0]
    real = first.source == "measured" and first.ranks > 1 and not first.in_turn
    return f"ranks are {machine_text(ctx, line)}" if real else ""


def as_published(point: Point) -> bool:
    metrics = point.get("metrics")
    changed = isinstance(metrics, dict) and any(k.startswith("what_if_") for k in metrics)
    return not changed and all(point.text(f"params.{k}") in ("", v) for k, v in PUBLISHED.items())


def on_figure5(point: Point) -> bool:
    """As published, with at least the first segment on each rank (the paper: 2,048, tokens per device, N)."""
    branches = widths_and_rates(point)
    return as_published(point) and (point.pattern != "dilated" or not branches or tokens_per_rank(point) >= branches[0][0])


def figure5_lines(
    ctx: Context, source: str, pattern: str, axis: Callable[[Point], object], needs_time: bool = True
) -> list[list[Point]]:
    return lines(replace(ctx, points=[p for p in ctx.points if on_figure5(p)]), source, pattern, axis, needs_time)


@dataclass(frozen=True)
class TimedLine:
    whole: list[Point]
    kept: list[Point]  # without the lengths at which latency rules

    @property
    def note(self) -> str:
        gone = {p.seq_len or 0 for p in self.whole} - {p.seq_len or 0 for p in self.kept}
        return f"; without {plural(len(gone), 'length')} up to {token_label(max(gone))}, where latency rules" if gone else ""

    def fit(self, law: Callable[[list[Point]], PowerLaw | None], where: str, unjudged: list[Unjudged]) -> PowerLaw | None:
        """The law of what is kept; a line that is long enough only as a whole is added to those not judged."""
        fit, whole = law(self.kept), law(self.whole)
        if fit is None and whole:
            unjudged.append(Unjudged(LATENCY_RULES, f"{where} ({span_text(whole)})", tuple(self.whole)))
        return fit

    def keeps(self, fit: PowerLaw, *limits: Callable[[float, float], bool]) -> bool | None:
        """Whether (exponent, rise) keep all one-sided limits at both ends of their intervals; False where they break one at both;
        None in between, and where measured times have no intervals."""
        if not fit.exponent_interval and self.whole[0].source != "simulated":
            return None
        kept = [{limit(*end) for end in fit.ends} for limit in limits]
        return False if {False} in kept else None if {True, False} in kept else True


def timed_lines(ctx: Context, source: str, pattern: str, axis: Callable[[Point], object]) -> list[TimedLine]:
    """Lines of figure 5. Whether latency rules is seen along N at fixed ranks, whatever axis the line then has."""
    at_ranks = figure5_lines(ctx, source, pattern, lambda p: p.ranks)
    above = {id(p) for line in at_ranks for p in past_the_floor(line)}
    return [TimedLine(line, [p for p in line if id(p) in above]) for line in figure5_lines(ctx, source, pattern, axis)]


def cut_to(branches: list[dict[str, Any]], seq_len: int) -> list[tuple[float, ...]]:
    """Branches of a sequence of that length: segments end with it."""
    return [tuple(min(b.get(k) or 0, seq_len) if k == "segment_length" else b.get(k) or 0 for k in BRANCH) for b in branches]


def walked_lines(ctx: Context, source: str) -> list[TimedLine]:
    """Points that one run walked with the same branches, whatever the number of ranks in whose place the machine stood:
    its time is the sum over ranks. A shorter sequence cuts the branches off. No line mixes batches."""
    walked = [p for group in figure5_lines(ctx, source, "dilated", lambda p: p.ranks) for p in group if p.in_turn and p.seq_len]
    found: list[TimedLine] = []
    shape = ("heads", "kv_heads", "head_dim", "dtype", "causal", "kernel", "threads", "mix", "offset")
    alike = group_by(walked, lambda p: p.run, lambda p: tuple(p.text(f"params.{k}") for k in shape))
    for group in (batch for run in alike.values() for batch in by_batch(run)):
        longest = max(group, key=lambda p: p.seq_len or 0)
        line = [p for p in group if cut_to(longest.branches, p.seq_len or 0) == cut_to(p.branches, p.seq_len or 0)]
        if len({p.ranks for p in line}) > 1:  # else it is one of figure5_lines()
            found.append(TimedLine(line, past_the_floor(line)))
    return found


def past_the_floor(points: Iterable[Point]) -> list[Point]:
    """A line without the short lengths at which latency rules; nothing of one that never grows.

    Example: dilated in 1, 1.1, 1.3, 2, 3.7, 7.2 s at 1K ... 32K tokens grows by 0.14, 0.24, 0.62, 0.89, 0.96: three
    lengths go.
    """
    timed = sorted((p for p in points if p.seq_len and time_per_token(p)), key=lambda p: p.seq_len or 0)
    by_length = [(n, [p for p in timed if p.seq_len == n]) for n in sorted({p.seq_len or 0 for p in timed})]
    times = [(n, sum((time_per_token(p) or 0) * n for p in some) / len(some)) for n, some in by_length]
    growth = [math.log(t1 / t0) / math.log(n1 / n0) for (n0, t0), (n1, t1) in itertools.pairwise(times)]
    expected = COMPLEXITY.get(timed[0].pattern, 1.0) if timed else 1.0
    if not growth or growth[0] >= FLOOR_SHARE * expected:
        return timed
    grown = next((times[i][0] for i, g in enumerate(growth) if g >= GROWN_SHARE * expected), math.inf)
    return [p for p in timed if (p.seq_len or 0) >= grown]
