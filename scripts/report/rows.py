"""Shared pieces of the row builders: what every mark carries, and how many lines a figure can bear.

A row builder is a function from a Context to the drawings of one figure; each drawing is a table that
its Vega-Lite spec reads under the name `rows`. An empty list means that the data are not there.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .model import FORWARD, PASSES, STEP, Point, Run
from .series import DEFAULTS, SeriesIndex, collective_name, group_by, sources_of
from .training import Training
from .units import MISSING, duration_label, percent_label, plural, token_label

Row = dict[str, Any]


@dataclass
class Drawing:
    """One picture: its rows, the points behind them, and what the caption must add."""

    rows: list[Row]
    points: list[Point]
    suffix: str = ""  # appended to the file name and the anchor, when a figure has several pictures
    title: str = ""  # appended to the figure's title
    note: str = ""  # appended to the caption
    finding: str = ""  # the finding in words, where the ends of its lines do not say it
    remark: str = ""  # a reader of the finding must know it, beside its sources
    decides: bool | None = None  # whether some of the times that it joins may decide a claim
    params: dict[str, Any] = field(default_factory=dict)  # values of the spec's parameters
    panels: list[str] = field(default_factory=list)  # names of the panels that its rows are in
    counted: str = ""  # source of its numbers, where that is not its points: "1,000 steps"


@dataclass
class Context:
    points: list[Point]
    runs: list[Run]
    index: SeriesIndex
    validation: dict[str, Any] | None = None  # the file that `lnbench validate --json` wrote
    every: list[Point] = field(default_factory=list)  # also of models; `points`: attention, whatever its pass
    notes: list[str] = field(default_factory=list)  # lines at the page's top, besides the runs' own notes

    def __post_init__(self) -> None:
        if not self.every:
            self.every = self.points
            self.points = [p for p in self.every if not p.of_model]

    def of_passes(self, *names: str) -> Context:
        """The same without attention's other passes."""
        return replace(self, points=[p for p in self.points if p.compute_pass in names])

    @cached_property
    def passes(self) -> set[str]:
        """Passes of attention."""
        return {p.compute_pass for p in self.points}

    @property
    def trainings(self) -> list[Training]:
        """The runs, where they are those of `lnbench train`."""
        return [run for run in self.runs if isinstance(run, Training)]

    @cached_property
    def models(self) -> list[Point]:
        """Points of training steps, of whatever status."""
        return [p for p in self.every if p.of_model and p.seq_len]

    @cached_property
    def kinds(self) -> set[str]:
        """Kinds of figures of which the report says what they need where it has no data for them."""
        if self.trainings:
            return {"training"}
        attention = bool(self.runs) and (len(self.models) < len(self.every) or not self.models)
        return {name for name, there in (("attention", attention), ("models", self.models), ("validation", self.validation)) if there}

    @cached_property
    def one_batch(self) -> set[tuple[Any, ...]]:
        """Lines whose batch follows from the length, as with constant tokens: elsewhere each batch is a line."""
        lines = group_by(self.every, lambda p: line_key(self, p))
        return {key for (key,), some in lines.items() if all(len({p.batch for p in g}) == 1 for g in group_by(some, lambda p: p.seq_len).values())}


Builder = Callable[[Context], list[Drawing]]


def interval_text(point: Point, scale: float = 1.0) -> str:
    low, high, level = (point.num(f"timing.{k}") for k in ("ci_low_s", "ci_high_s", "ci_level"))
    if low is None or high is None:
        return "none"
    confidence = f" ({percent_label(level)})" if level else ""
    return f"{duration_label(low * scale, 5)} … {duration_label(high * scale, 5)}{confidence}"


def sample_count(point: Point) -> int:
    """Recorded samples, or the count that a record without samples states."""
    return len(point.samples) or int(point.num("timing.n") or point.num("timing.count") or 0)


def batch_text(point: Point) -> str:
    """ "64", or "64 in 16 replicas" where groups of ranks share the batch."""
    return f"{point.batch} in {point.replicas} replicas" if point.replicas > 1 else str(point.batch)


def base_row(ctx: Context, point: Point) -> Row:
    count = sample_count(point)
    batch = "" if line_key(ctx, point) in ctx.one_batch else f" {point.batch}"
    return {
        "id": point.text("id"),
        "run": point.run,
        "source": point.source,
        "status": "ok" if point.ok else point.status,
        "series": ctx.index.label(point),
        "seq_len": point.seq_len,
        "tokens": f"{token_label(point.seq_len)} ({point.seq_len:,})" if point.seq_len else MISSING,
        "length_label": token_label(point.seq_len),
        "ranks": point.ranks,
        "ranks_label": ctx.index.rank_label(point.ranks),
        "pass": point.pass_order,
        "group_ranks": point.group_ranks,
        "line": f"{point.source} {point.run} {point.ranks}{batch}",
        "rank_line": f"{point.source} {point.run} {point.seq_len}{batch}",
        "batch_text": batch_text(point),
        "batch_tokens": point.batch * (point.seq_len or 0),
        "median": duration_label(point.median_s, 6),
        "interval": interval_text(point),
        "samples": str(count) if count else "none",
    }


def timed_row(ctx: Context, point: Point, scale: float = 1.0) -> Row:
    """Value and interval of the median, both times `scale`."""
    row = base_row(ctx, point)
    low, high, median = point.num("timing.ci_low_s"), point.num("timing.ci_high_s"), point.median_s
    row["value"] = None if median is None else median * scale
    if point.beyond_kernel_table:
        row["guess"] = "beyond the kernel table"
    if low and high and low > 0 and high > 0:
        row |= {"low": low * scale, "high": high * scale}
        if point.source == "simulated":  # a colour, not a scale: legends would fill their hollow marks
            row["band_colour"] = ctx.index.styles[ctx.index.label(point)].colour
    return row


def mark_groups(rows: list[Row], width: int) -> None:
    """Sets `group_text`, the ranks that share a sequence, on both sides of a change of their number along a line, from its longest
    sequence down wherever the label before leaves room in so many pixels. Of lines of as many ranks, which change alike, the
    longest and lowest one has it."""
    timed = [row for row in rows if row.get("value") is not None and "line" in row]
    lengths = [row["seq_len"] for row in timed]
    doubling = width / math.log2(max(2, max(lengths, default=1) / min(lengths, default=1)))
    for alike in group_by(timed, lambda r: (r.get("panel"), r["line"], r["pass"])).values():
        lines = group_by(alike, lambda r: r["series"]).values()
        ordered = sorted(max(lines, key=lambda line: (len(line), -line[0]["value"])), key=lambda row: row["seq_len"])
        changes = [pair for pair in itertools.pairwise(ordered) if pair[0]["group_ranks"] != pair[1]["group_ranks"]]
        left = math.inf  # end of the last label, in doublings of the length
        for row in (row for before, after in reversed(changes) for row in (after, before)):
            if math.log2(row["seq_len"]) <= left and "group_text" not in row:
                row["group_text"] = f"{row['group_ranks']:,}"
                left = math.log2(row["seq_len"]) - GROUP_PX * (1 + len(row["group_text"])) / doubling


def asked(ctx: Context) -> dict[str, int]:
    """Number of values that the points of one run and source have, by the name of an axis: what the runs swept."""
    most: dict[str, int] = {"more": 0}  # no run sweeps it: a figure that asks for it stands behind "more"
    for points in group_by([p for p in ctx.points if p.ok], lambda p: p.run, lambda p: p.source).values() or [[]]:
        timed = [p for p in points if p.median_s and p.seq_len]
        constant = group_by(timed, lambda p: line_key(ctx, p), lambda p: p.batch * (p.seq_len or 0))
        found: dict[str, list[Any]] = {
            "seq_len": [p.seq_len for p in points],
            "ranks": [p.ranks for p in points],
            "several_ranks": [p.group_ranks for p in points if p.group_ranks > 1],
            "pattern": [p.pattern for p in points],
            "exact": [(p.algorithm, p.text("params.layout")) for p in points if p.pattern == "dense" and p.group_ranks > 1],
            "collective": [collective_of(p) for p in points],
            "causal_ranks": [p.ranks for p in points if p.get("params.causal") is True and p.value("work.balance")],
            "depth": [p.seq_len for p in points if p.num("metrics.dependency_depth_layers") is not None],
            "peak": [True for p in points if p.value("work.share_of_peak")],
            "phases": [True for p in points if p.value("phases.compute_s") is not None],
            "ablations": [True for p in points if p.value("ablations.full_s")],
            "constant_tokens": max(([p.seq_len for p in g] for g in constant.values()), key=lambda g: len(set(g)), default=[]),
        }
        most |= {name: max(most.get(name, 0), len(set(values))) for name, values in found.items()}
    most["passes"] = len({p.compute_pass for p in ctx.points if p.ok})
    most["models"] = sum(p.ok for p in ctx.models)
    most["memory_bound"] = sum(p.status == "skipped_memory" for p in ctx.models)
    most["published"] = len(((ctx.validation or {}).get("published") or {}).get("cases", []))
    return most


def heads_text(point: Point) -> str:
    heads = int(point.num("params.heads") or 0)
    return "one head" if heads == 1 else plural(heads, "head")


def timed_points(ctx: Context) -> list[Point]:
    return [p for p in ctx.points if p.ok and p.median_s is not None and p.seq_len]


def params_without(ctx: Context, point: Point, *left_out: str) -> tuple[tuple[str, str], ...]:
    """The parameters that name its series, but for those left out."""
    return tuple(sorted((k, str(v)) for k, v in ctx.index.params(point).items() if k not in left_out))


def problem_of(ctx: Context, point: Point) -> tuple[Any, ...]:
    """Values that the passes of one problem have in common: not keep_gathered, which no forward has."""
    named = params_without(ctx, point, "keep_gathered")
    return (named, point.pattern, point.run, point.source, point.seq_len, point.ranks, point.replicas, point.batch)


def whatever_pass(ctx: Context, points: list[Point]) -> list[Point]:
    """One point of each problem, whose passes share its pattern and the balance of its work."""
    return [passes[0] for passes in group_by(points, lambda p: problem_of(ctx, p)).values()]


def collective_of(point: Point) -> str:
    return collective_name(point.get("params"))


def without_collective(ctx: Context, point: Point) -> tuple[Any, ...]:
    return (point.run, point.compute_pass, params_without(ctx, point, "collective", "node_size"))


def main_points(ctx: Context) -> Context:
    """Without the points that repeat a native one with another collective: those have a figure of their own."""

    def case(point: Point) -> tuple[Any, ...]:
        return (without_collective(ctx, point), point.source, point.seq_len, point.ranks, point.replicas, point.batch)

    native = {case(p) for p in ctx.points if collective_of(p) == DEFAULTS["collective"]}
    kept = [p for p in ctx.points if collective_of(p) == DEFAULTS["collective"] or case(p) not in native]
    return Context(kept, ctx.runs, ctx.index, ctx.validation, ctx.every)


def line_key(ctx: Context, point: Point) -> tuple[Any, ...]:
    """Points of one line against tokens: never two sources, rank counts or passes."""
    return (ctx.index.key(point), point.source, point.ranks)


def spread(values: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` of the values, evenly spread, first and last kept."""
    ordered = sorted(set(values))
    if len(ordered) <= limit:
        return ordered
    return sorted({ordered[round(i * (len(ordered) - 1) / (limit - 1))] for i in range(limit)})


def best_per_key(points: list[Point], key: Callable[[Point], Any]) -> list[Point]:
    """The fastest point of each key."""
    best: dict[Any, Point] = {}
    for point in points:
        held = best.get(key(point))
        if held is None or (point.median_s or 0) < (held.median_s or 0):
            best[key(point)] = point
    return list(best.values())


GROUP_PX = 7  # a character of group_text
MAX_POINTS = 14  # points whose parts are drawn, a bar or more each
LABEL_CHARACTERS = 32  # longest line of a point's name
SIDE_PX = 9  # between marks that would hide each other
EDGE_PX = 14  # beside the outermost mark
GAP_PX = 18  # at least, between the marks of two neighbours on the axis
MOST_SIDE_PX = 106  # most room of marks on one side of their place
PLOT_PX = 720  # width of the pictures that set marks side by side


def side_limits(places: list[float]) -> dict[float, float]:
    """Largest shift of marks to either side of each place (> 0) of a log axis that does not reach the next place's."""
    ordered = sorted(set(places))
    if len(ordered) < 2:
        return dict.fromkeys(ordered, MOST_SIDE_PX)
    per_unit = (PLOT_PX - 2 * (EDGE_PX + MOST_SIDE_PX)) / math.log(ordered[-1] / ordered[0])
    gaps = [per_unit * math.log(b / a) for a, b in itertools.pairwise(ordered)]
    nearest = [min(pair) for pair in zip([gaps[0], *gaps], [*gaps, gaps[-1]])]
    return {place: min(MOST_SIDE_PX, max(0.0, (gap - GAP_PX) / 2)) for place, gap in zip(ordered, nearest)}


def side_by_side(rows: list[Row], *keys: str, close: Callable[[float, float], bool]) -> dict[str, float]:
    """Moves marks of the same keys whose values are close apart along x: `shift`, in pixels, capped so that they
    never reach the marks of the next place of the first key's (log) axis. The space that this takes beside the first
    and last mark is the parameter `side_space` of the picture."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "series" in row and row.get("value") is not None:
            groups.setdefault(tuple(row.get(k) for k in keys), []).append(row)
    limits = side_limits([place for place, *_ in groups])
    for (place, *_), members in groups.items():
        members.sort(key=lambda r: r["value"])
        starts = [i for i, r in enumerate(members) if i == 0 or not close(members[i - 1]["value"], r["value"])]
        for begin, end in zip(starts, [*starts[1:], len(members)]):
            beside = sorted(members[begin:end], key=lambda r: (r["series"], r["source"]))
            middle = (len(beside) - 1) / 2
            step = min(SIDE_PX, limits[place] / middle) if middle else 0.0
            for position, row in enumerate(beside):
                row["shift"] = step * (position - middle)
    return {"side_space": EDGE_PX + max((abs(row.get("shift", 0.0)) for row in rows), default=0.0)}


def range_of(values: Sequence[float], label: Callable[[float], str]) -> str:
    """ "2 % to 80 %", or one of them where both read alike."""
    return " to ".join(dict.fromkeys((label(min(values)), label(max(values))))) if values else ""


def per_source(points: list[Point], text: Callable[[list[Point]], str]) -> str:
    """The text for the points of each source and pass, apart: "2 % to 80 % (measured); 40 % (simulated)."."""
    groups = group_by(points, lambda p: p.source, lambda p: p.pass_name).items()
    names = {name for (_, name), _ in groups}
    named = len(names) > 1 or not names <= {FORWARD, STEP}
    said = [f"{words} ({source}{f', {name}' * named})" for (source, name), some in groups if (words := text(some))]
    return "; ".join(said) + "." if said else ""


def point_name(ctx: Context, point: Point) -> str:
    """Tells points of one series apart; a forward is named beside other passes."""
    batch = f" · batch {batch_text(point)}" if point.batch > 1 else ""
    passed = f" · {FORWARD}" if point.compute_pass == FORWARD and len(ctx.passes) > 1 else point.other_pass
    mark = "" if point.source == "measured" else f" · {point.source}"
    return f"{token_label(point.seq_len)} · P = {point.ranks}{batch}{passed}{mark}"


def named_pass(order: int) -> str:
    """ " (backward)"; of a forward nothing."""
    return f" ({PASSES[order].replace('_', ' and ')})" if 0 < order < len(PASSES) else ""


def few_named(ctx: Context, points: list[Point], limit: int = 4) -> str:
    """ "ring at 4K on 2 ranks, ulysses at 1K on 2 ranks (backward), …": points as a sentence names them."""
    names = list(dict.fromkeys(f"{p.algorithm} at {token_label(p.seq_len)} on {ctx.index.rank_label(p.ranks)}{named_pass(p.pass_order)}" for p in points))
    return ", ".join(names[:limit]) + (", …" if names[limit:] else "")


def point_label(ctx: Context, point: Point, without: str = "") -> str:
    """Lines of text: the point's name, then its series without that part of it."""
    return "\n".join([*folded(point_name(ctx, point)), *folded(ctx.index.label(point).replace(without, ""))])


def folded(name: str) -> list[str]:
    """Lines of at most LABEL_CHARACTERS that end between parts."""
    lines: list[str] = []
    for part in name.split(" · "):
        if lines and len(f"{lines[-1]} · {part}") <= LABEL_CHARACTERS:
            lines[-1] += f" · {part}"
        else:
            lines += textwrap.wrap(part, LABEL_CHARACTERS, break_long_words=False)
    return lines


def point_order(ctx: Context, point: Point) -> tuple[Any, ...]:
    return (
        sources_of(ctx.every).index(point.source),
        ctx.index.label(point),
        point.ranks,
        point.seq_len or 0,
        point.batch,
        point.pass_order,
    )


def fairly(points: list[Point], limit: int, kind: Callable[[Point], Any] = lambda p: p.source) -> list[Point]:
    """The first `limit` of the points, each source, or other kind, with its share of them: none crowds the others out."""
    queues = list(group_by(points, kind).values())
    turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
    return [p for p in turns if p is not None][:limit]


def beside_opponents(ctx: Context, able: list[Point]) -> tuple[list[Point], str]:
    """At most MAX_POINTS of the points, and a note on those left out: of each source and algorithm in turn, dilated first, the longest
    on the most ranks that have cores each, before those of lengths that no other algorithm has."""
    shared = {key for key, some in group_by(able, lambda p: p.source, lambda p: p.seq_len).items() if len({p.algorithm for p in some}) > 1}
    ordered = sorted(able, key=lambda p: (p.ranks > 1, not p.shares_cores, (p.source, p.seq_len) in shared, p.pattern == "dilated", p.seq_len or 0, p.ranks), reverse=True)
    taken = fairly(fairly(ordered, len(ordered), lambda p: p.algorithm), MAX_POINTS)
    shown = sorted(taken, key=lambda p: (point_order(ctx, p)[0], p.pattern != "dilated", point_order(ctx, p)))
    rule = "of each source and algorithm in turn the longest that another algorithm has too, on the most ranks with cores of their own"
    return shown, f"Shown are {len(shown)} of {len(able)} points: {rule}." if len(shown) < len(able) else ""


def single(rows: list[Row], points: list[Point], **extra: Any) -> list[Drawing]:
    return [Drawing(rows, points, **extra)] if rows else []
