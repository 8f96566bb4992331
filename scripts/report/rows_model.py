"""Rows of the figures about training steps of models and layers of them (points of scope model and layer): where a step's time goes, what memory holds."""

from __future__ import annotations

import statistics

from .model import Point
from .rows import (
    Context,
    Drawing,
    Row,
    base_row,
    collective_of,
    fairly,
    few_named,
    per_source,
    point_label,
    point_order,
    single,
)
from .series import group_by
from .units import bytes_label, duration_label, listed, percent_label, plural, spoken_duration, token_label

MAX_BARS = 16
SHORT_STEP_S = 10.0
ANY_STEP, SHORT_STEP = "whatever a step takes", f"steps of {SHORT_STEP_S:.0f} s at most"


def timed_models(ctx: Context) -> list[Point]:
    return [p for p in ctx.models if p.ok and p.median_s]


def shared_collective(ctx: Context) -> str:
    """The part of a series' name that all models have, where they have one collective."""
    found = {collective_of(p) for p in ctx.models}
    return f" · via {found.pop()}" if len(found) == 1 else ""


NO_PARTS = "without parts in the record"
OVERLAPPING = "with parts that take longer than the step, so that they overlap"


def recorded_parts(point: Point) -> dict[str, float] | None:
    """Seconds of the rank that computes most, as they follow from the record; None where it has no parts."""
    full, compute, merge = (point.num(path) for path in ("timing.median_s", "phases.compute_s", "phases.merge_s"))
    gemm, row_wise, update = (point.num(f"metrics.{name}_s") for name in ("gemm", "row_wise", "update"))
    if None in (full, compute, gemm, row_wise):
        return None
    attention = compute - gemm - row_wise - (update or 0.0) + (merge or 0.0)
    parts = {"GEMM": gemm, "attention": attention, "row-wise": row_wise, "update": update or 0.0}
    return parts | {"exposed messages": full - sum(parts.values())}


def why_without_bar(point: Point) -> str:
    parts = recorded_parts(point)
    overlap = parts is not None and min(parts.values()) < -0.01 * (point.median_s or 0.0)
    return NO_PARTS if parts is None else OVERLAPPING if overlap else ""


def step_parts(point: Point) -> dict[str, float]:
    """Seconds that add up to the step's."""
    return {name: max(0.0, seconds) for name, seconds in (recorded_parts(point) or {}).items()}


def left_out_text(ctx: Context, able: list[Point], shown: list[Point]) -> str:
    """Which points have no bar, and why."""
    timed = timed_models(ctx)
    texts = []
    for why in (NO_PARTS, OVERLAPPING):
        if some := [p for p in timed if why_without_bar(p) == why]:
            texts.append(f"{why}, {plural(len(some), 'point')} ({few_named(ctx, some)})")
    if crowded := [p for p in able if p not in shown]:
        places = [
            f"{algorithm} at {listed([p.seq_len or 0 for p in some], token_label)} on {ctx.index.rank_label(ranks)}"
            for (algorithm, ranks), some in group_by(crowded, lambda p: p.algorithm, lambda p: p.ranks).items()
        ]
        texts.append(f"for lack of room, {plural(len(crowded), 'point')} of shorter sequences ({', '.join(places)})")
    return f"{len(shown)} of {plural(len(timed), 'point')} have a bar. Left out: {'; '.join(texts)}." if texts else ""


def model_parts(ctx: Context) -> list[Drawing]:
    """A bar for each point: shares of the step, with its time in its name."""
    able = [p for p in timed_models(ctx) if not why_without_bar(p)]
    lengths = {ranks: sorted({p.seq_len or 0 for p in some}, reverse=True) for (ranks,), some in group_by(able, lambda p: p.ranks).items()}
    longest = sorted(able, key=lambda p: (lengths[p.ranks].index(p.seq_len or 0), -p.ranks))
    shown = sorted(fairly(longest, MAX_BARS), key=lambda p: (p.ranks, p.seq_len or 0, *point_order(ctx, p)))
    rows: list[Row] = []
    for order, point in enumerate(shown):
        full = point.median_s or 1.0
        for part_order, (name, seconds) in enumerate(step_parts(point).items()):
            rows.append(
                {
                    "label": f"{point_label(ctx, point, shared_collective(ctx))}: {spoken_duration(full)}",
                    "order": order,
                    "source": point.source,
                    "phase": name,
                    "phase_order": part_order,
                    "share": seconds / full,
                    "time": duration_label(seconds, 4),
                    "share_text": percent_label(seconds / full),
                    "full": spoken_duration(full),
                }
            )

    def typical(some: list[Point]) -> str:
        texts = []
        for (algorithm,), points in group_by(some, lambda p: p.algorithm).items():
            shares = [step_parts(p)["attention"] / (p.median_s or 1.0) for p in points]
            texts.append(f"{algorithm}: attention is {percent_label(round(statistics.median(shares), 3))} of the median step")
        return ", ".join(texts)

    return single(rows, shown, note=left_out_text(ctx, able, shown), finding=per_source(shown, typical))


def longest_of(points: list[Point], limit_s: float) -> dict[int, tuple[Point, bool]]:
    """By ranks: the longest point whose step ends within the limit, and whether a longer one was refused or takes longer."""
    found = {}
    for (ranks,), on_ranks in group_by(points, lambda p: p.ranks).items():
        held = [p for p in on_ranks if p.ok and (p.median_s or limit_s + 1) <= limit_s]
        if not held:
            continue
        longest = max(held, key=lambda p: p.seq_len or 0)
        beyond = [p for p in on_ranks if (p.seq_len or 0) > (longest.seq_len or 0)]
        found[ranks] = longest, any(p.status == "skipped_memory" or (p.ok and (p.median_s or 0) > limit_s) for p in beyond)
    return found


def longest_sequence(ctx: Context) -> list[Drawing]:
    """The longest sequence of each series on each number of ranks: by memory alone, and with steps that end soon."""
    if not any(p.status == "skipped_memory" for p in ctx.models):
        return []
    lines = group_by(ctx.models, ctx.index.key, lambda p: p.source)
    rows: list[Row] = []
    shown: list[Point] = []
    for panel, limit_s in ((ANY_STEP, float("inf")), (SHORT_STEP, SHORT_STEP_S)):
        for points in lines.values():
            for point, known in longest_of(points, limit_s).values():
                peak = point.num("memory.predicted_peak_bytes")
                row = base_row(ctx, point) | {"panel": panel, "value": point.seq_len, "memory": bytes_label(peak, 3)}
                row |= {"rank_line": f"{point.source} {point.run}", "step_time": spoken_duration(point.median_s)}
                rows.append(row | ({"bound": "a longer one is refused, or slower"} if known else {"bound": "longer ones were not tried", "open": True}))
                shown.append(point)
    if not rows:
        return []
    note = f"Lengths are those that the sweep tried ({plural(len({p.seq_len for p in ctx.models}), 'length')}): the limit lies between a mark and the next length."
    return [Drawing(rows, shown, note=note, finding=longest_finding(rows).replace(shared_collective(ctx), ""), panels=[ANY_STEP, SHORT_STEP])]


def longest_finding(rows: list[Row]) -> str:
    """The longest sequences on the most ranks that all series reach, by memory and by time."""
    ranks_of: dict[str, set[int]] = {}
    for row in rows:
        ranks_of.setdefault(row["series"], set()).add(row["ranks"])
    common = set.intersection(*ranks_of.values())
    if not common:
        return ""
    ranks = max(common)
    texts = []
    for panel in (ANY_STEP, SHORT_STEP):
        found = [r for r in rows if r["panel"] == panel and r["ranks"] == ranks]
        lengths = ", ".join(f"{r['series']} {r['length_label']} ({r['step_time']} a step)" for r in found)
        texts.append(f"with {panel} {lengths or 'none'}" if panel == SHORT_STEP else f"memory holds {lengths}")
    return f"On {ranks:,} ranks {'; '.join(texts)} ({rows[0]['source']})."
