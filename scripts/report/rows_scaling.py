"""Rows of the figures about more ranks: strong and weak scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .model import Point
from .rows import Context, Drawing, Row, base_row, best_per_key, single, spread, timed_points
from .rows_time import problem_shape
from .series import group_by
from .units import bracket, duration_label, percent_label, plural, ratio_label, token_label

MAX_LENGTHS = 4  # lines per series in the scaling figures


def baseline_of(first: Point, dense: dict[Any, list[Point]], length: Callable[[Point], Any]) -> Point:
    """The baseline of a series. All exact algorithms compute the same, so they share one: the fastest on the
    fewest ranks that any of them ran on (one rank: usually local). Else the slowest to start would look best."""
    if first.pattern != "dense":
        return first
    return min(dense[problem_shape(first), length(first)], key=lambda p: (p.ranks, p.median_s))


def scaling_rows(
    ctx: Context, groups: list[list[Point]], value: str, candidates: list[Point], length: Callable[[Point], Any]
) -> tuple[list[Row], list[Point], set[int]]:
    rows, shown, baselines = [], [], set()
    dense = group_by([p for p in candidates if p.pattern == "dense"], problem_shape, length)
    for group in groups:
        ordered = sorted(best_per_key(group, lambda p: p.ranks), key=lambda p: p.ranks)
        first = baseline_of(ordered[0], dense, length)
        baselines.add(first.ranks)
        for point in ordered:
            scale, label = (first.ranks, ratio_label) if value == "speedup" else (1, percent_label)
            ratio, interval = first.times(point)
            text = f"{label(scale * ratio)}{bracket(interval and (scale * interval[0], scale * interval[1]), label)}"
            rows.append(
                base_row(ctx, point)
                | {
                    "value": scale * ratio,
                    "value_text": text,
                    "per_rank": (point.seq_len or 0) // point.ranks,
                    "rank_line": f"{point.source} {point.run} {point.batch} {length(point)}",
                    "baseline": f"{duration_label(first.median_s, 6)} of {ctx.index.label(first)} on {plural(first.ranks, 'rank')}",
                }
            )
            shown.append(point)
    return rows, shown, baselines


def most_complete(ctx: Context, groups: list[list[Point]]) -> list[list[Point]]:
    """The groups of each series and source that ran on the most rank counts, if that is two or more."""

    def width(group: list[Point]) -> int:
        return len({p.ranks for p in group})

    widest: dict[Any, int] = {}
    for group in groups:
        key = (ctx.index.key(group[0]), group[0].source)
        widest[key] = max(widest.get(key, 2), width(group))
    return [g for g in groups if width(g) == widest[(ctx.index.key(g[0]), g[0].source)]]


def ideal_rows(points: list[Point], value: str) -> list[Row]:
    counts = sorted({p.ranks for p in points})
    return [{"status": "ideal", "ranks": r, "value": r if value == "speedup" else 1} for r in counts]


def lengths_shown(ctx: Context, most: int) -> int:
    """Lengths of a figure over ranks, each in a panel of its own: fewer where passes have panels, too."""
    return most if len(ctx.passes) < 2 else 2


def shortened(values: list[Any], kept: list[Any], what: str) -> str:
    if len(set(values)) <= len(kept):
        return ""
    return f"Shown are {', '.join(map(token_label, kept))} {what}; the others are in the table."


def side_by_side_points(ctx: Context) -> list[Point]:
    """Timed points whose ranks ran at the same time: a device that walks all ranks in turn does not scale with them."""
    return [p for p in timed_points(ctx) if not p.in_turn]


def strong_scaling(ctx: Context) -> list[Drawing]:
    groups = most_complete(
        ctx,
        list(
            group_by(
                side_by_side_points(ctx), lambda p: (ctx.index.key(p), p.source), lambda p: p.seq_len, lambda p: p.batch
            ).values()
        ),
    )
    lengths = [g[0].seq_len for g in groups]
    kept = spread(lengths, lengths_shown(ctx, MAX_LENGTHS))
    chosen = [g for g in groups if g[0].seq_len in kept]
    rows, shown, baselines = scaling_rows(ctx, chosen, "speedup", side_by_side_points(ctx), lambda p: p.seq_len)
    if not rows:
        return []
    note = shortened(lengths, kept, "tokens")
    return single(
        rows + ideal_rows(shown, "speedup"),
        shown,
        note=f"Fewest ranks: {', '.join(map(str, sorted(baselines)))}. {note}".strip(),
    )


def weak_scaling(ctx: Context) -> list[Drawing]:
    even = [p for p in side_by_side_points(ctx) if (p.seq_len or 0) % p.ranks == 0]
    groups = most_complete(
        ctx,
        list(
            group_by(
                even, lambda p: (ctx.index.key(p), p.source), lambda p: (p.seq_len or 0) // p.ranks, lambda p: p.batch
            ).values()
        ),
    )
    widths = [(g[0].seq_len or 0) // g[0].ranks for g in groups]
    kept = spread(widths, lengths_shown(ctx, 3))
    chosen = [g for g in groups if (g[0].seq_len or 0) // g[0].ranks in kept]
    rows, shown, _ = scaling_rows(ctx, chosen, "efficiency", even, lambda p: (p.seq_len or 0) // p.ranks)
    for row in rows:
        row["length_label"] = token_label(row["per_rank"])
    if not rows:
        return []
    return single(rows + ideal_rows(shown, "efficiency"), shown, note=shortened(widths, kept, "tokens per rank"))
