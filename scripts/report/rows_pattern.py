"""Rows of the figures about patterns: coverage and dependency depth."""

from __future__ import annotations

import math
from typing import Any

from .evidence import COMPUTED
from .model import Point
from .rows import Context, Drawing, Row, base_row, side_by_side, single, whatever_pass
from .units import MISSING, integer_label, listed, number, percent_label, plural, significant

NEVER_PX = 7  # the first cross, below the top edge


def coverage(ctx: Context) -> list[Drawing]:
    rows: list[Row] = []
    shown: list[Point] = []
    for point in whatever_pass(ctx, ctx.points):
        values = point.get("work.coverage")
        if not point.ok or point.pattern != "dilated" or not point.seq_len or not isinstance(values, list):
            continue
        shown.append(point)
        for place, entry in enumerate(values[: len(point.branches) or None]):
            value = number(entry.get("coverage")) if isinstance(entry, dict) else number(entry)
            branch = point.branches[place] if place < len(point.branches) else {}
            if value:
                rows.append(
                    base_row(ctx, point)
                    | {
                        "value": value,
                        "value_text": percent_label(value),
                        "branch": f"branch {place + 1}",
                        "source": COMPUTED,
                        "line": f"{point.run} {point.ranks} {place}",
                        "width": integer_label(number(branch.get("segment_length"))),
                        "rate": integer_label(number(branch.get("dilation_rate"))),
                    }
                )
    if not rows:
        return []
    longest = sorted({row["id"]: row for row in rows}.values(), key=lambda row: row["seq_len"])  # the last branch of each point
    ends = " to ".join(dict.fromkeys(f"{row['value_text']} at {row['length_label']}" for row in (longest[0], longest[-1])))
    return single(rows, shown, finding=f"The last branch updates {ends}.")


def layers_label(layers: float | None) -> str:
    if layers is None:
        return "not computed"
    return "never" if layers < 0 else integer_label(layers)


def dependency_depth(ctx: Context) -> list[Drawing]:
    """A property of the pattern, whatever the source of its point: also points that did not run have it; -1 is never, absent
    is not computed."""
    rows: list[Row] = []
    lanes: dict[str, int] = {}  # lanes of crosses: one per series
    unknown = 0
    shown: dict[tuple[Any, ...], Point] = {}
    for point in whatever_pass(ctx, ctx.points):
        layers = point.num("metrics.dependency_depth_layers")
        if layers is not None and point.seq_len and point.pattern != "dense":
            shown.setdefault((ctx.index.label(point), point.run, point.ranks, point.seq_len), point)
        elif point.pattern != "dense" and point.num("metrics.dependency_depth_bound_layers") is not None:
            unknown += 1
    for point in shown.values():
        layers, reachable, bound = (
            point.num(f"metrics.dependency_depth_{key}layers") for key in ("", "reachable_", "bound_")
        )
        row = base_row(ctx, point) | {
            "source": COMPUTED,
            "line": f"{point.run} {point.ranks}",
            "layers": layers_label(layers),
            "reachable": layers_label(reachable),
            "bound_text": MISSING if bound is None else significant(bound),
            "branches": ", ".join(
                f"{integer_label(number(b.get('segment_length')))}/{integer_label(number(b.get('dilation_rate')))}"
                for b in point.branches
            ),
        }
        if layers is not None and layers >= 0:
            row["value"] = layers
        else:
            row["never_px"] = NEVER_PX * (1 + 2 * lanes.setdefault(row["series"], len(lanes)))
        if bound is not None:
            row["bound"] = bound
        rows.append(row)
    marks: dict[tuple[Any, ...], Row] = {}  # one for all ranks with the same depth
    for row in rows:
        first = marks.setdefault(tuple(row.get(k) for k in ("series", "run", "seq_len", "value")), row)
        first["marked_ranks"] = ", ".join(dict.fromkeys([*filter(None, [first.get("marked_ranks")]), row["ranks_label"]]))
    params = side_by_side(
        [r for r in marks.values() if r.get("value") is not None], "seq_len", close=lambda a, b: a == b
    )
    highest = max((row.get(key, 0) for row in rows for key in ("value", "bound")), default=0)
    note = f"Not computed, because the segments cut each other too irregularly: {plural(unknown, 'point')}." if unknown else ""
    counted = [row["value"] for row in rows if "value" in row]
    never = sum("never_px" in row for row in rows)
    finding = f"{listed(counted, integer_label) or 'No'} layers until every token has heard from every other"
    finding += f"; never for {plural(never, 'point')}." if never else "."
    top = params | {"top": max(4, 1 + math.ceil(highest))}
    return single(rows, list(shown.values()), note=note, finding=finding, params=top)
