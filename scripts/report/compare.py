"""Two runs side by side, with the verdicts of `lnbench compare`: which points got faster or slower, and by how much."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from .markup import escape, scroll_table
from .model import Point, load_json
from .rows import Context
from .shape import check_with, compiled
from .units import MISSING, duration_label, number, plural, significant, token_label

PRINTED = 24  # rows on paper, those that differ first
ORDER = ("slower", "faster", "ambiguous", "undecided", "missing", "same")
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


def compare_row(ctx: Context, compared: dict[str, Any], named: dict[str, Point]) -> str:
    point = named.get(str(compared["id"]))
    base, now, ratio = (number(compared.get(key)) for key in ("base_s", "new_s", "ratio"))
    cells = (
        ctx.index.label(point).replace(f" · run {point.run + 1}", "") if point else str(compared["id"]),
        token_label(point.seq_len) if point else MISSING,
        str(point.ranks) if point else MISSING,
        duration_label(base, 4),
        duration_label(now, 4),
        MISSING if ratio is None else f"{significant(ratio)}×",
        str(compared.get("note") or ""),
    )
    verdict = str(compared["verdict"])
    css = {"slower": "contradicted", "faster": "supported"}.get(verdict, "")
    return (
        f'<tr data-verdict="{escape(verdict)}"><td><span class="badge {css}">{escape(verdict)}</span></td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


def compare_section(ctx: Context, comparison: dict[str, Any]) -> str:
    points = sorted(comparison["points"], key=lambda p: ORDER.index(p["verdict"]) if p["verdict"] in ORDER else len(ORDER))
    counts = Counter(p["verdict"] for p in points)
    named = {p.text("id"): p for p in reversed(ctx.every)}
    said = ", ".join(f"<strong>{counts[word]}</strong> {word}" for word in ORDER if counts[word]) or "no point in both"
    threshold = significant(100 * (number(comparison["threshold"]) or 0))
    differs = "".join(
        f"<li>{escape(d.get('what'))}: {escape(d.get('base'))} → {escape(d.get('now'))}</li>" for d in comparison["environment"]
    )
    heads = ("verdict", "series", "tokens", "ranks", "run 1", "run 2", "run 2 ÷ run 1", "note")
    table = scroll_table("medians of both runs", heads, [compare_row(ctx, p, named) for p in points], PRINTED)
    return (
        f'<section id="answer"><div class="said"><p>From run 1 to run 2, of {plural(len(points), "point")}: {said}. Verdict: <strong>{escape(comparison["summary"])}</strong>.</p></div>'
        f"<p>Slower or faster is a ratio of medians beyond {threshold} % that the Mann-Whitney test with Holm's correction confirms; "
        f"simulated points have no noise and go by the ratio. As <code>lnbench compare</code> says it.</p>"
        f"{f'<p>The machines differ:</p><ul>{differs}</ul>' if differs else '<p>The environments are alike.</p>'}{table}</section>"
    )
