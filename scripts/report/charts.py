"""Figures: a spec of plots/ + the rows of a builder -> a Vega-Lite spec, an SVG and a PNG (specs.py makes the spec whole).

Where `usermeta.figure.split` names an axis and one picture would hold too many lines, each value of that axis gets a panel.
Those figures that the run asked for come first, the others stand behind "more".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import (
    rows_cost,
    rows_model,
    rows_opponents,
    rows_pattern,
    rows_published,
    rows_scaling,
    rows_time,
    rows_training,
)
from .doubt import joins_times, merge_doubts, with_doubts
from .evidence import COMPUTED
from .model import FORWARD, PASSES, STEP, Point
from .noise import disturbed, key_of
from .rows import (
    PLOT_PX,
    Builder,
    Context,
    Drawing,
    Row,
    asked,
    few_named,
    main_points,
    mark_groups,
    sample_count,
    spread,
)
from .series import group_by, sources_of
from .specs import KINDS, PLOTS, Kind, encodings, expand, fill_log_axis, fill_scales, has_rows, load_json, load_specs
from .units import percent_label, plural, token_label

# They hold the row builders by name.
ROW_MODULES = (rows_time, rows_scaling, rows_cost, rows_pattern, rows_opponents, rows_published, rows_model, rows_training)
MAX_FIGURES = 12  # before "more"
MAX_LINES = 12  # most lines of one picture that can be split
MAX_PANELS = 4
MAX_PANELS_OF_TWO = 6  # panels of two axes
APART = ("pass", "batch_tokens")  # axes whose values never share a panel
PANEL_WIDTH, PANEL_HEIGHT = 330, 230  # pictures' size; a page is as wide as its window
# Value that a row and its point share in one panel, and the name of that panel.
SPLITS: dict[str, tuple[Callable[[Point], Any], Callable[[int], str]]] = {
    "ranks": (lambda p: p.ranks, lambda value: plural(value, "rank")),
    "seq_len": (lambda p: p.seq_len, lambda value: f"{token_label(value)} tokens"),
    "per_rank": (lambda p: (p.seq_len or 0) // p.ranks, lambda value: f"{token_label(value)} tokens per rank"),
    "batch_tokens": (lambda p: p.batch * (p.seq_len or 0), lambda value: f"batches of {token_label(value)} tokens"),
    "pass": (lambda p: p.pass_order, lambda value: (*PASSES, "unknown pass")[value].replace("_", " and ")),
    "run": (lambda p: p.run, str),  # run_names() of the index
}
PASS = "{pass}"  # in a specification's title of an axis: the pass that is drawn, or "pass" of several
MARK_TEXT = {
    "measured": "filled marks: measured",
    "simulated": "hollow marks: simulated",
    "replayed": "marks with a dot: replayed",
    "extrapolated": "marks with a plus: extrapolated",
}


@dataclass
class Figure:
    name: str  # name of the spec and the files
    title: str
    finding: str = ""  # says in numbers what the picture shows
    source_text: str = ""  # points, samples and intervals of each source
    caption: str = ""  # how to read it
    absent: str = ""  # why there is no picture
    sources: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    count: int = 0  # points behind the picture
    more: bool = False  # not what the run asked for
    decides: bool | None = None  # whether some of the times that it joins may decide a claim


def sources_in(meta: dict[str, Any], drawing: Drawing) -> list[str]:
    return [COMPUTED] if meta.get("computed") else sources_of(drawing.points)


def key_of_marks(spec: dict[str, Any], drawing: Drawing) -> str:
    """Says in the picture itself which source it shows, and how."""
    sources = sources_in(spec["usermeta"]["figure"], drawing)
    marks = "points" in spec["layer"] or not sources
    parts = [MARK_TEXT.get(s, s) for s in sources] if marks else ["source: " + ", ".join(sources)]
    drawn = [layer for layer in spec["layer"] if isinstance(layer, dict) and has_rows(layer, drawing.rows)]
    parts += [some["key"] for some in (spec["usermeta"]["figure"], *drawn) if "key" in some]
    if stopped := [row["status"] for row in drawing.rows if "slot" in row]:
        left_out = sum(status.startswith("skipped") for status in stopped)
        counts = ((left_out, "left out"), (len(stopped) - left_out, "wrong or failed"))
        parts.append(f"×: {', '.join(f'{n:,} {what}' for n, what in counts if n)}")
    elif any("refused" in row for row in drawing.rows):
        parts.append("×: refused, at its predicted peak")
    if any("doubt" in row for row in drawing.rows):
        parts.append("?: decides no claim")
    if any("guess" in row for row in drawing.rows):
        parts.append("*: a guess, beyond the kernel table")
    if any("group_text" in row for row in drawing.rows):
        parts.append("number: ranks that share a sequence, where it changes")
    if any("uncounted" in row for row in drawing.rows):
        parts.append("dash: by formula, not counted")
    return " · ".join(parts)


SAMPLE_TEXT = {  # timing.reduction: what a sample is, of several ranks
    "span": "from the first rank's begin to the last one's end",
    "max": "the maximum over ranks",
    "sum": "the sum over ranks",
}


def statistics_of(ctx: Context, source: str, points: list[Point], banded: bool) -> str:
    """ "measured, 24 points, n = 5 to 8 samples each, median with its exact binomial interval (at least 93.8 %)"."""
    parts = [source, *filter(None, (plural(len(points), "point"), disturbed_text(ctx, points)))]
    samples = sorted(n for n in map(sample_count, points) if n)
    if samples:
        fewest, most = samples[0], samples[-1]
        parts.append(f"n = {fewest} to {most} samples each" if fewest != most else plural(fewest, "sample") + " each")
        levels = [v for v in (p.num("timing.ci_level") for p in points) if v]
        if levels:
            parts.append(f"median with its exact binomial interval (at least {percent_label(min(levels))})")
        found = {p.text("timing.reduction") for p in points if sample_count(p)}
        texts = [text for name, text in SAMPLE_TEXT.items() if name in found]
        if texts:
            parts.append("a sample is " + " or ".join(texts))
    elif banded:
        parts.append("a band from no latency but the wire's to that of NCCL's Simple protocol, and the error of predictions")
    return ", ".join(parts)


def disturbed_text(ctx: Context, points: list[Point]) -> str:
    """ "1 of them disturbed (ring at 4K on 2 ranks)": a reader who takes a range from the picture must know."""
    found = {key for place, run in enumerate(ctx.runs) for key in disturbed(run, [p for p in points if p.run == place])}
    hit = [p for p in points if key_of(p) in found]
    return f"{len(hit)} of them disturbed ({few_named(ctx, hit)})" if hit else ""


def source_text(ctx: Context, meta: dict[str, Any], drawing: Drawing) -> str:
    if meta.get("computed"):
        return f"Source: {COMPUTED} from the patterns of {plural(len(drawing.points), 'point')}; nothing was timed or counted."
    if drawing.counted:
        return f"Source: {', '.join(sources_of(drawing.points))}, {drawing.counted}."
    banded = any("band_colour" in row for row in drawing.rows)
    several = len({p.run for p in drawing.points}) > 1
    texts = [
        (f"{ctx.index.run_names[run]}: " if several else "")
        + (statistics_of(ctx, source, points, banded) if meta.get("statistics") else f"{source}, {plural(len(points), 'point')}")
        for (run, source), points in group_by(drawing.points, lambda p: p.run, lambda p: p.source).items()
    ]
    return f"Source: {'; '.join(texts) or 'simulated and published, ' + plural(len(drawing.rows), 'case')}."


def finding_of(kind: Kind | None, axis: str | None, drawing: Drawing) -> str:
    """The ends of a line of up to three algorithms, of each run; of several passes, of each pass of two algorithms; over ranks those
    of the shortest and of the longest sequence. What a reader who cannot see the picture must know."""
    if drawing.finding or kind is None:
        return drawing.finding[:1].upper() + drawing.finding[1:]
    x, held = ("ranks", "rank_line") if axis == "ranks" else ("seq_len", "ranks")
    rows = [r for r in drawing.rows if r.get("value") and r.get(x) and "series" in r and "passed_by" not in r]
    decided = [r for r in rows if "undecided" not in r] or rows
    lines = group_by(decided, lambda r: (r["series"], r["source"], r[held], r.get("panel"))).values()
    longest = sorted(lines, key=lambda line: (-len({r[x] for r in line}), -max(r[x] for r in line)))
    of_algorithm: dict[str, dict[Any, list[list[Row]]]] = {}  # and of run and pass
    for line in longest:
        of_algorithm.setdefault(line[0]["series"].split()[0], {}).setdefault((line[0]["run"], line[0]["pass"]), []).append(line)
    most = 3 if len({line[0]["pass"] for line in lines}) == 1 else 2
    shown = [line for of_runs in list(of_algorithm.values())[:most] for some in of_runs.values() for line in outermost(some, x)]
    text = "; ".join(line_text(kind, x, line) for line in shown)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def outermost(lines: list[list[Row]], x: str) -> list[list[Row]]:
    """The first line; over ranks those of its series of the shortest and the longest sequence, with as many numbers of ranks."""
    if x != "ranks":
        return lines[:1]
    first, most = lines[0][0]["series"], len({r[x] for r in lines[0]})
    alike = [line for line in lines if line[0]["series"] == first and len({r[x] for r in line}) == most]
    ordered = sorted(alike, key=lambda line: min(r["seq_len"] for r in line))
    return ordered if len(ordered) == 1 else [ordered[0], ordered[-1]]


def line_text(kind: Kind, x: str, line: list[Row]) -> str:
    """ "dilated: 16 s at 16K to 32 s at 32K (measured, 2 ranks)"."""
    ends = [min(line, key=lambda r: r[x]), max(line, key=lambda r: r[x])]
    where = [r["length_label"] if x == "seq_len" else r["ranks_label"] for r in ends]
    guesses = [" (a guess)" if "guess" in r else "" for r in ends]
    values = [f"{r.get('value_text') or kind.spoken(r['value'])} at {place}{guess}" for r, place, guess in zip(ends, where, guesses)]
    panel = ends[0].get("panel", "")
    held = ends[0]["ranks_label"] if x == "seq_len" else panel or f"{ends[0]['length_label']} tokens"
    known = dict.fromkeys((ends[0]["source"], *([held] if held not in panel.split(" · ") else []), *([panel] if panel and panel not in ends[0]["series"] else [])))
    return f"{ends[0]['series']}: {' to '.join(dict.fromkeys(values))} ({', '.join(known)})"


def columns_of(drawing: Drawing) -> int:
    """Panels side by side: at most two rows, which fit a screen."""
    return 3 if len(drawing.panels) in (3, 5, 6) else 2


def width_of(drawing: Drawing) -> int:
    """Pixels of the picture, or of one of its panels."""
    return 2 * PANEL_WIDTH // columns_of(drawing) if drawing.panels else PLOT_PX


def legend_columns(rows: list[Row]) -> int:
    """As many as fit below the picture at the length of the longest label."""
    longest = max((len(row.get("winner", row.get("series", ""))) for row in rows), default=0)
    return next(columns for columns, limit in ((5, 18), (4, 24), (3, 36), (2, longest)) if longest <= limit)


def complete(spec: dict[str, Any], parts: dict[str, Any], ctx: Context, drawing: Drawing) -> dict[str, Any]:
    kind = KINDS.get(spec["encoding"]["y"].get("use"))
    full = expand({k: v for k, v in spec.items() if k not in ("usermeta", "params")}, parts, drawing.rows)
    values = {p["name"]: p["value"] for p in [*parts["params"], *spec.get("params", [])]} | drawing.params
    if isinstance(full["height"], dict):  # a step for each label, which may have several lines, or row of cells
        found = {str(row.get("label", row.get("lane", row.get("ranks")))) for row in drawing.rows}
        lines = max(name.count("\n") for name in found)
        full["height"] = len(found) * max(full["height"]["step"], 14 * lines + 20)
        full["encoding"]["y"].setdefault("axis", {})["labelOffset"] = -6.5 * lines
    if drawing.panels:
        full["height"] = PANEL_HEIGHT
        values["side_scale"] = 0.45
    if kind:
        fill_log_axis(full, kind, drawing)
    merge_doubts(full, drawing.rows)
    fill_scales(full, ctx, drawing)
    if drawing.panels:
        unit = {key: full.pop(key) for key in ("height", "encoding", "layer")}
        if drawing.panels[0].endswith(("rank", "ranks")):  # the panel says what the dash would
            for _, definition in encodings(unit):
                definition.get("legend") and definition.update(legend=None)
        facet = {"field": "panel", "type": "nominal", "title": None, "sort": drawing.panels}
        full |= {"facet": facet, "columns": columns_of(drawing), "spec": unit | {"width": width_of(drawing)}}
    else:
        full["width"] = width_of(drawing)
    full["config"] = {"legend": {"columns": legend_columns(drawing.rows)}}
    full["params"] = [{"name": name, "value": value} for name, value in values.items()]
    full["datasets"] = {"rows": drawing.rows}
    return full


def only_pass(drawing: Drawing) -> str:
    """The pass of all its points and marks, "pass" where they have several."""
    names = {p.pass_name for p in drawing.points}
    marks = {row["pass"] for row in drawing.rows if "pass" in row}
    return names.pop() if len(names) == 1 and len(marks) <= 1 else "pass"


def naming_its_pass(ctx: Context, meta: dict[str, Any], drawing: Drawing) -> Drawing:
    """A figure of one pass alone has no panel that would name it: its title does, unless the whole report is of forwards."""
    name = only_pass(drawing)
    of_passes = meta.get("of", "attention") == "attention" and not meta.get("computed") and not ctx.passes <= {FORWARD}
    if not of_passes or name in ("pass", STEP) or name in drawing.title:
        return drawing
    return replace(drawing, title=", ".join(filter(None, (drawing.title, name))))


def panel_axes(split: list[str], series: list[Row], several_runs: bool) -> list[str]:
    """Axes of which each value gets a panel: always those of APART, and runs that are compared; ranks where one picture would
    hold too many lines (a line over ranks has no dash that could tell its length: the other axes always split)."""
    others = [a for a in split if a not in APART]
    axes = [a for a in split if a in APART] + ([a for a in others if a == "ranks"] + ["run"] if several_runs else others)
    axes = [a for a in axes if len({row[a] for row in series if row.get(a) is not None}) > 1]
    panels = group_by(series, lambda row: tuple(row.get(a) for a in axes if a != "ranks")).values()
    crowded = any(len({(r["series"], r["source"], r["run"], r["ranks"]) for r in panel if r.get("value") is not None}) > MAX_LINES for panel in panels)
    return [a for a in axes if a != "ranks" or crowded]


def in_panels(meta: dict[str, Any], drawing: Drawing, compared: list[str]) -> Drawing:
    """Its rows with the panel that each belongs to, where they need more than one; `compared`: names of runs side by side."""
    if "split" not in meta:
        return drawing
    series = [row for row in drawing.rows if "series" in row]
    axes = panel_axes(meta["split"], series, bool(compared))
    if not axes:
        return drawing

    def name(values: tuple[int, ...]) -> str:
        return " · ".join(compared[value] if a == "run" else SPLITS[a][1](value) for a, value in zip(axes, values))

    places = every = sorted({tuple(row[a] for a in axes) for row in series if all(row.get(a) is not None for a in axes)})
    limit = MAX_PANELS if len(axes) == 1 else MAX_PANELS_OF_TWO
    decide = {tuple(row.get(a) for a in axes) for row in series if row.get("value") is not None and "undecided" not in row}
    if len(places) > limit and decide:  # panels are few: those of points that decide something
        places = [place for place in places if place in decide]
    runs = len({place[-1] for place in places}) if axes[-1] == "run" else 1
    held = spread([place[: -1 if runs > 1 else None] for place in places], max(1, limit // runs))  # each of them of every run
    kept = [place for place in every if place[: -1 if runs > 1 else None] in held]
    if len({place[0] for place in kept}) == 3:  # side by side
        kept.sort(key=lambda place: place[1:])
    left = "" if kept == every else f"Panels: {', '.join(map(name, kept))}; the others are in the table."
    rows = [
        row | {"panel": name(values)}
        for values in kept
        for row in drawing.rows
        if all(row.get(a, value) == value for a, value in zip(axes, values))
    ]
    points = [p for p in drawing.points if tuple(SPLITS[a][0](p) for a in axes) in kept]
    note = f"{drawing.note} {left}".strip()
    return replace(drawing, rows=rows, points=points, note=note, panels=[name(values) for values in kept])


def builder_of(name: str) -> Builder:
    found = [getattr(module, name) for module in ROW_MODULES if hasattr(module, name)]
    if not found:
        raise ValueError(f'no row builder "{name}" in {", ".join(m.__name__ for m in ROW_MODULES)}')
    return found[0]


def check_figure(name: str, meta: dict[str, Any], axes: Iterable[str]) -> None:
    """Raises ValueError where a specification says what the report cannot hold, with what it can."""
    if "-" in name:
        raise ValueError(f'plots/{name}.vl.json: "-" stands between a figure\'s name and its pictures\' suffix: write "_"')
    if unknown := sorted(set(meta["asks"]) - set(axes)):
        raise ValueError(f"plots/{name}.vl.json asks for {', '.join(unknown)}: known are {', '.join(sorted(axes))}")


def build_figures(ctx: Context, folder: Path = PLOTS, compared: bool = False) -> list[Figure]:
    """Figures: those that the run asked for first, at most MAX_FIGURES of them; then the others, then those without data."""
    parts = load_json("parts.json", folder)
    figures: list[Figure] = []
    main = main_points(ctx)
    swept = asked(ctx)
    for name, spec in load_specs(folder):
        meta = spec["usermeta"]["figure"]
        check_figure(name, meta, swept)
        drawings = builder_of(meta["rows"])(ctx if meta.get("collectives") == "all" else main)
        if not drawings and meta.get("of", "attention") in ctx.kinds:
            figures.append(Figure(name, meta["title"], absent=meta["absent"]))
        wanted = bool(ctx.trainings) or all(swept[axis] >= least for axis, least in meta["asks"].items())
        for whole in drawings:
            marked = with_doubts(ctx, whole) if joins_times(spec) else whole
            drawing = in_panels(meta, naming_its_pass(ctx, meta, marked), ctx.index.run_names if compared else [])
            if joins_times(spec) and "line" in spec["layer"]:
                mark_groups(drawing.rows, width_of(drawing))
            title = f"{meta['title']}: {drawing.title}" if drawing.title else meta["title"]
            full = complete(json.loads(json.dumps(spec).replace(PASS, only_pass(drawing))), parts, ctx, drawing)
            full["title"] = {"text": title, "subtitle": key_of_marks(spec, drawing)}
            encoded = spec["encoding"]
            figures.append(
                Figure(
                    f"{name}-{drawing.suffix}" if drawing.suffix else name,
                    title,
                    finding_of(KINDS.get(encoded["y"].get("use")), encoded.get("x", {}).get("use"), drawing),
                    f"{source_text(ctx, meta, drawing)} {drawing.remark}".strip(),
                    f"{meta['caption']} {drawing.note}".strip(),
                    sources=sources_in(meta, drawing),
                    spec=full,
                    count=len(drawing.points),
                    more=not wanted,
                    decides=drawing.decides,
                )
            )
    drawn = [f for f in figures if not f.absent]
    first = [f for f in drawn if not f.more][:MAX_FIGURES] or drawn[:1]
    for figure in drawn:
        figure.more = all(figure is not f for f in first)
    if first and first[0].decides is False:  # the page's answer, of times that decide, if there are any
        first.sort(key=lambda f: not f.decides)
    return sorted(figures, key=lambda f: (bool(f.absent), f.more, not first or f is not first[0]))
