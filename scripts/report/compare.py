"""Two runs side by side, with the verdicts of `lnbench compare`: which points got faster or slower, and by how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .markup import escape
from .model import Point
from .reading import load_json
from .rows import Context
from .shape import check_with, compiled
from .tables import Column, filled_table
from .units import MISSING, duration_label, number, plural, significant, token_label

PRINTED = 24  # rows on paper, those that differ first
ORDER = ("slower", "faster", "ambiguous", "undecided", "disturbed", "missing", "skipped", "same")
TEXT, NUMBER = {"type": "string"}, {"type": ["number", "null"]}
SHAPE = {  # as src/io/compare.cpp writes it
    "type": "object",
    "required": ["threshold", "summary", "environment", "points"],
    "properties": {
        "threshold": {"type": "number"},
        "summary": TEXT,
        "environment": {"type": "array", "items": {"type": "object", "required": ["what"], "properties": {"what": TEXT}}},
        "points": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "verdict"],
                "properties": {"id": TEXT, "verdict": TEXT, "note": TEXT, "base_s": NUMBER, "new_s": NUMBER, "ratio": NUMBER},
            },
        },
    },
}


def load_comparison(path: Path) -> dict[str, Any]:
    data = load_json(path, "comparison", "lnbench report --compare A B")
    check_with(compiled(SHAPE), data, path)
    return data


@dataclass(frozen=True)
class Compared:
    verdict: dict[str, Any]
    series: str
    point: Point | None

    def num(self, key: str) -> float | int | None:
        return number(self.verdict.get(key))


COLUMNS = (
    Column("verdict", "verdict", "", lambda c: c.verdict["verdict"], css="compared"),
    Column("series", "series", "", lambda c: c.series),
    Column("seq_len", "tokens", "", lambda c: c.point and c.point.seq_len, lambda c: token_label(c.point.seq_len) if c.point else MISSING),
    Column("ranks", "ranks", "", lambda c: c.point and c.point.ranks),
    Column("base_s", "run 1", "", lambda c: c.num("base_s"), lambda c: duration_label(c.num("base_s"), 4)),
    Column("new_s", "run 2", "", lambda c: c.num("new_s"), lambda c: duration_label(c.num("new_s"), 4)),
    Column("ratio", "run 2 ÷ run 1", "", lambda c: c.num("ratio"), lambda c: MISSING if c.num("ratio") is None else f"{significant(c.num('ratio'))}×"),
    Column("note", "note", "", lambda c: str(c.verdict.get("note") or ""), css="long"),
)


def compared_points(ctx: Context, comparison: dict[str, Any]) -> list[Compared]:
    """Those that differ first."""
    named = {p.text("id"): p for p in reversed(ctx.every)}
    points = sorted(comparison["points"], key=lambda p: ORDER.index(p["verdict"]) if p["verdict"] in ORDER else len(ORDER))

    def series_of(verdict: dict[str, Any]) -> str:
        point = named.get(str(verdict["id"]))
        return ctx.index.label(point).replace(f" · run {point.run + 1}", "") + point.other_pass if point else str(verdict["id"])

    return [Compared(verdict, series_of(verdict), named.get(str(verdict["id"]))) for verdict in points]


def compare_section(ctx: Context, comparison: dict[str, Any]) -> str:
    points = compared_points(ctx, comparison)
    counts = Counter(c.verdict["verdict"] for c in points)
    said = ", ".join(f"<strong>{counts[word]}</strong> {word}" for word in ORDER if counts[word]) or "no point in both"
    threshold = significant(100 * (number(comparison["threshold"]) or 0))
    differs = "".join(
        f"<li>{escape(d.get('what'))}: {escape(d.get('base'))} → {escape(d.get('now'))}</li>" for d in comparison["environment"]
    )
    names = " to ".join(ctx.index.run_names)
    table = filled_table("compared", f"Compared: {plural(len(points), 'point')}", f"medians, from {names}", points, COLUMNS, PRINTED)
    return (
        f'<section id="answer"><div class="said"><p>From {escape(names)}, of {plural(len(points), "point")}: {said}. Verdict: <strong>{escape(comparison["summary"])}</strong>.</p></div>'
        f"<p>Slower or faster is a ratio of medians beyond {threshold} % that the Mann-Whitney test with Holm's correction confirms; "
        f"simulated points have no noise and go by the ratio; disturbed ones decide nothing. As <code>lnbench compare</code> says it.</p>"
        f"{f'<p>The machines differ:</p><ul>{differs}</ul>' if differs else '<p>The environments are alike.</p>'}{table}</section>"
    )
