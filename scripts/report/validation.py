"""The section on how right the simulator is: errors against equations, SimGrid, real runs, with a figure of predicted
against measured seconds, and published measurements. Present when the report is given a validation
(`lnbench validate --json`, scripts/validate_real.sh).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .markup import attribute, escape, scroll_table, section, table_row
from .reading import load_json
from .rows_published import Case, inside_text, interval_of, is_predicted, marks_of, predicted_cases
from .series import colour_of
from .shape import check
from .strata import HEADS, domain_text, program_of, samples_text, signed, stratum_rows
from .units import duration_label, plural

SHAPES = ("circle", "square", "triangle", "diamond", "cross")  # shapes of places; colour means algorithm, as everywhere
PRINTED = 15  # rows of a table on paper
SIDE, LEFT, RIGHT, TOP, BOTTOM, LINE = 360, 70, 24, 12, 66, 20  # the plot's, beside, above and below it, a line's of the legend


def load_validation(path: Path) -> dict[str, Any]:
    data = load_json(path, "validation", "lnbench validate --json FILE")
    check(data, path, "validation")
    return data


def percent(value: float | None) -> str:
    return "not compared" if value is None else f"{100 * value:.2g} %"


def tiny(value: float | None) -> str:
    return "not compared" if value is None else f"{value:.1e}"


def marker(shape: str, x: float, y: float, colour: str) -> str:
    r = 4.5
    outlines = {
        "square": f"M{x - r:.1f},{y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "triangle": f"M{x:.1f},{y - r:.1f}l{r},{2 * r}h{-2 * r}z",
        "diamond": f"M{x:.1f},{y - 1.3 * r:.1f}l{r},{1.3 * r:.2f}l{-r},{1.3 * r:.2f}l{-r},{-1.3 * r:.2f}z",
        "cross": f"M{x - r:.1f},{y - r:.1f}l{2 * r},{2 * r}m0,{-2 * r}l{-2 * r},{2 * r}",
    }
    style = f'fill="{colour}" fill-opacity="0.35" stroke="{colour}" stroke-width="1.5"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {style}/>'
    return f'<path d="{outlines[shape]}" {style}/>'


def scatter(cases: list[dict[str, Any]], goal: float, said: str) -> str:
    """Both axes are logarithms of seconds, over the same decades; the band is the goal."""
    seconds = [c[k] for c in cases for k in ("measured_s", "predicted_s")]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    high = max(high, low + 1)
    bottom = TOP + SIDE

    def along(value: float) -> float:
        return SIDE * (math.log10(value) - low) / (high - low)

    def x_of(value: float) -> float:
        return LEFT + along(value)

    def y_of(value: float) -> float:
        return bottom - along(value)

    first, last = 10.0**low, 10.0**high
    parts = []
    for decade in range(low, high + 1):
        value = 10.0**decade
        label = escape(duration_label(value, 3))
        parts.append(f'<path d="M{x_of(value):.1f},{TOP}V{bottom}M{LEFT},{y_of(value):.1f}h{SIDE}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(f'<text x="{x_of(value):.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{label}</text>')
    shift = along(first * (1 + goal)), along(first * (1 - goal))
    parts.append(
        f'<path d="M{x_of(first):.1f},{y_of(first) - shift[0]:.1f}L{x_of(last):.1f},{y_of(last) - shift[0]:.1f}V{y_of(last) - shift[1]:.1f}'
        f'L{x_of(first):.1f},{y_of(first) - shift[1]:.1f}z" fill="currentColor" fill-opacity="0.08"/>'
        f'<path d="M{x_of(first):.1f},{y_of(first):.1f}L{x_of(last):.1f},{y_of(last):.1f}" stroke="currentColor" stroke-dasharray="4 3"/>'
    )
    places = list(dict.fromkeys(c["where"] for c in cases))
    colours = {c["algorithm"]: colour_of(c["algorithm"]).replace("#000000", "currentColor") for c in cases}  # dark pages have no black
    shape_of = {place: SHAPES[i % len(SHAPES)] for i, place in enumerate(places)}
    for c in cases:
        name = f"{program_of(c)}, {c['ranks']} ranks, {c['seq_len']} tokens, {c['dtype']}: {100 * c['error']:+.1f} %"
        drawn = marker(shape_of[c["where"]], x_of(c["measured_s"]), y_of(c["predicted_s"]), colours[c["algorithm"]])
        parts.append(f"<g><title>{escape(name)}</title>{drawn}</g>")
    key = [(place, marker(shape, 0, 0, "currentColor")) for place, shape in shape_of.items()]
    key += [(name, f'<rect x="-6" y="-4" width="12" height="8" fill="{colour}"/>') for name, colour in colours.items()]
    for i, (name, mark) in enumerate(key):
        at_y = bottom + BOTTOM + LINE * i
        parts.append(f'<g transform="translate({LEFT + 6},{at_y - 4})">{mark}</g><text x="{LEFT + 18}" y="{at_y}">{escape(name)}</text>')
    parts.append(f'<text x="{LEFT + SIDE / 2:.0f}" y="{bottom + 40}" text-anchor="middle">measured time</text>')
    parts.append(f'<text transform="translate(14,{TOP + SIDE / 2:.0f}) rotate(-90)" text-anchor="middle">predicted time</text>')
    width, height = LEFT + SIDE + RIGHT, bottom + BOTTOM + LINE * len(key)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="Predicted against measured time. {attribute(said)}" '
        f'font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )


def real_part(real: dict[str, Any]) -> str:
    if real["points"] is None:
        return f"<p>Real runs: {escape(real['reason'])}.</p>"
    goal = real.get("goal_p95_rel_error", 0.15)
    said = f"Median error {percent(real['median_rel_error'])}, 95th percentile {percent(real['p95_rel_error'])}."
    heads = ("where", "algorithm", "ranks", "tokens", "head_dim", "dtype", "causal", "measured", "predicted", "error")
    rows = [
        table_row(
            (
                c["where"],
                program_of(c),
                *(c[key] for key in ("ranks", "seq_len", "head_dim", "dtype")),
                "yes" if c["causal"] else "no",
                duration_label(c["measured_s"], 4),
                duration_label(c["predicted_s"], 4),
                f"{100 * c['error']:+.1f} %",
            )
        )
        for c in real["cases"]
    ]
    left_out = "".join(f"<li>{escape(c['where'])}, {escape(program_of(c))}: {escape(c['reason'])}</li>" for c in real["left_out"])
    return (
        f"<figure><h3>Predicted against measured</h3><div class=\"card\">{scatter(real['cases'], goal, said)}</div><figcaption>"
        f"<strong>{escape(said)}</strong> {plural(real['points'], 'point')} that no calibration has seen; each mark is the median of its samples against the simulated "
        f"time. Colour is the algorithm, shape the place. Dashed: equal; grey: within {percent(goal)}.</figcaption></figure>"
        f"<p>{escape(domain_text(real['cases']))} {escape(samples_text(real['cases']))} Signed errors: predicted ÷ measured − 1, positive where the simulator is too slow.</p>"
        f"{scroll_table('errors by strata', HEADS, map(table_row, stratum_rows(real['cases'])), PRINTED)}"
        f"{scroll_table('predicted against measured', heads, rows, PRINTED)}{f'<ul>{left_out}</ul>' if left_out else ''}"
    )


def case_row(case: Case) -> str:
    known = (signed(case["error"]), marks_of(case)) if is_predicted(case) else ("", case["reason"] or "")
    return table_row(
        (
            case["id"],
            case["source"],
            duration_label(case["published_s"], 4),
            percent(case["tolerance"]),
            duration_label(case["predicted_s"], 4),
            interval_of(case),
            *known,
        )
    )


def published_part(found: dict[str, Any] | None) -> str:
    """Goals, groups and cases of published measurements."""
    if not found:
        return ""
    goals = [
        table_row((g["name"], f"at {'least' if g['least'] else 'most'} {percent(g['bound'])}", percent(g["found"]), "reached" if g["reached"] else "missed"))
        for g in found.get("goals", [])
    ]
    groups = [
        table_row((g["name"], f"{g['cases']:,}", percent(g["median_rel_error"]), percent(g["p95_rel_error"]), signed(g["bias"]), f"{g['inside']:,}"))
        for g in found["groups"]
    ]
    heads = ("case", "published by", "published", "tolerance of the source", "predicted", "interval", "error", "marks")
    return (
        f"<h3>Published measurements</h3><p>{escape(inside_text(list(filter(is_predicted, found['cases']))))} "
        f"{found['pairs_in_order']} of {found['pairs']} pairs of algorithms are in the right order. Blind cases were found after the model was made.</p>"
        f"{scroll_table('goals, of the cases that are not blind', ('goal', 'bound', 'found', ''), goals)}"
        f"{scroll_table('errors by groups of published measurements', ('group', 'cases', 'median error', '95th percentile', 'bias', 'inside the interval'), groups, PRINTED)}"
        f"{scroll_table('published measurements and their predictions', heads, map(case_row, found['cases']), PRINTED)}"
    )


def validation_answer(data: dict[str, Any], figures: str) -> str:
    """The first screen of a report that holds no run; `figures` are HTML."""
    cases = predicted_cases(data)
    said = f"{plural(len(cases), 'published measurement')}. {inside_text(cases)}" if cases else "Nothing published was predicted: lnbench validate --published does it."
    return f'<section id="answer"><div class="said"><p>{escape(said)}</p></div>{figures}</section>'


def validation_section(data: dict[str, Any]) -> str:
    closed, simgrid, real = data["closed_form"], data["simgrid"], data["real"]
    goal, goal_p95 = real.get("goal_median_rel_error", 0.05), real.get("goal_p95_rel_error", 0.15)
    met = real["points"] is not None and real["median_rel_error"] <= goal and real["p95_rel_error"] <= goal_p95
    verdict = "not compared" if real["points"] is None else "goals met" if met else "goals missed"
    rows = map(
        table_row,
        (
            ("equations", tiny(closed["max_rel_error"]), "largest error, allowed 1e-9"),
            ("SimGrid, uncontended", tiny(simgrid["uncontended_max_rel_error"]), "largest error, allowed 1e-6"),
            ("SimGrid, contended", tiny(simgrid["contended_max_rel_error"]), "largest error, allowed 2 %"),
            ("real runs", percent(real["median_rel_error"]), f"median error, goal {percent(goal)}"),
            ("real runs", percent(real["p95_rel_error"]), f"95th percentile of the errors, goal {percent(goal_p95)}: {verdict}"),
        ),
    )
    table = scroll_table("errors of the simulator", ("against", "error", "of which"), rows)
    return section("validation", "How right the simulator is", f"{table}{real_part(real)}{published_part(data.get('published'))}")
