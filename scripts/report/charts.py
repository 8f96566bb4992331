"""Figures: a spec of plots/ + the rows of a builder -> a Vega-Lite spec, an SVG and a PNG.

A spec is Vega-Lite with shared parts by name (plots/parts.json): `{"use": "tokens"}` in an encoding, "points" in a list of
layers, a field's name in a list of tooltips; `where` says which rows are a layer's. Scales of series, ranks and lengths
are filled in here, so that a series keeps its colour and marker in every figure; so are the ticks of quantities and
the strip above them that holds points without a result. Where `usermeta.figure.split` names an axis and one picture would
hold too many lines, each value of that axis gets a panel.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import rows_cost, rows_opponents, rows_time
from .model import Point
from .rows import Builder, Context, Drawing, Row, asked, main_points, sample_count, spread
from .series import DASHES, STYLES, colour_of, group_by, sources_of
from .units import bytes_label, duration_label, listed, percent_label, plural, ratio_label, token_label

PLOTS = Path(__file__).resolve().parents[2] / "plots"
VEGA_LITE = "6.4"
ROW_MODULES = (rows_time, rows_cost, rows_opponents)  # hold the row builders by name
MAX_FIGURES = 12  # before "more"
MAX_LINES = 12  # of one picture that can be split
MAX_PANELS = 4
WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 720, 330, 230  # of pictures; a page is as wide as its window
PAD_PX = 12  # between the outermost values and the ends of a log axis
# What a row and its point must agree on to stand in the same panel, and the name of that panel.
SPLITS: dict[str, tuple[Callable[[Point], Any], Callable[[int], str]]] = {
    "ranks": (lambda p: p.ranks, lambda value: plural(value, "rank")),
    "seq_len": (lambda p: p.seq_len, lambda value: f"{token_label(value)} tokens"),
    "per_rank": (lambda p: (p.seq_len or 0) // p.ranks, lambda value: f"{token_label(value)} tokens per rank"),
    "run": (lambda p: p.run, lambda value: f"run {value + 1}"),
}
MARK_TEXT = {
    "measured": "filled marks: measured",
    "simulated": "hollow marks: simulated",
    "replayed": "marks with a dot: replayed",
    "extrapolated": "marks with a plus: extrapolated",
}


def error_label(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class Kind:
    """A quantity on a logarithmic axis: how it is written, where its ticks are, how many times the lowest value its
    highest must be, so that a spread of 3 % does not look like a mountain."""

    label: Callable[[float], str]
    binary: bool
    least_span: float


KINDS = {
    "seconds": Kind(duration_label, False, 10),
    "bytes": Kind(bytes_label, True, 16),
    "factor": Kind(ratio_label, True, 8),
    "error": Kind(error_label, False, 10),
    "coverage": Kind(percent_label, False, 10),
}


@dataclass
class Figure:
    name: str  # of the spec and the files
    title: str
    finding: str = ""  # what the picture shows, in its own numbers
    source_text: str = ""  # points, samples and intervals of each source
    caption: str = ""  # how to read it
    absent: str = ""  # why there is no picture
    sources: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    count: int = 0  # points behind the picture
    more: bool = False  # not what the run asked for


def load_json(name: str, folder: Path = PLOTS) -> dict[str, Any]:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def load_specs(folder: Path = PLOTS) -> list[tuple[str, dict[str, Any]]]:
    specs = [(p.name.removesuffix(".vl.json"), load_json(p.name, folder)) for p in folder.glob("*.vl.json")]
    return sorted(specs, key=lambda item: (item[1]["usermeta"]["figure"]["order"], item[0]))


def is_of(row: Row, where: dict[str, Any]) -> bool:
    """True: the row has the field; False: it has not; "text": it has that value; "!text": another one."""

    def holds(value: Any, test: Any) -> bool:
        if isinstance(test, bool):
            return (value is not None) == test
        return value != test[1:] if test.startswith("!") else value == test

    return all(holds(row.get(name), test) for name, test in where.items())


def filter_of(where: dict[str, Any]) -> dict[str, str]:
    def term(name: str, test: Any) -> str:
        if isinstance(test, bool):
            return f"{'' if test else '!'}isValid(datum.{name})"
        return f"datum.{name} !== '{test[1:]}'" if test.startswith("!") else f"datum.{name} === '{test}'"

    return {"filter": " && ".join(term(*item) for item in where.items())}


def expand(node: Any, parts: dict[str, Any], rows: list[Row]) -> Any:
    """The spec with its shared parts written out, without the layers that have no row: Vega warns of these."""
    if isinstance(node, list):
        return [expand(item, parts, rows) for item in node]
    if not isinstance(node, dict):
        return node
    full = {key: value for key, value in node.items() if key not in ("use", "where")}
    if "use" in node:
        full = copy.deepcopy(parts["axes"][node["use"]]) | full
    if "where" in node:
        full["transform"] = [filter_of(node["where"])]
    if isinstance(full.get("tooltip"), list):
        named = [t if isinstance(t, list) else (t, parts["titles"][t]) for t in full["tooltip"]]
        full["tooltip"] = [{"field": name, "type": "nominal", "title": title} for name, title in named]
    if "layer" in full:
        full["layer"] = [layer for layer in named_layers(full["layer"], parts) if has_rows(layer, rows)]
    return {key: expand(value, parts, rows) for key, value in full.items()}


def has_rows(layer: dict[str, Any], rows: list[Row]) -> bool:
    return any(is_of(row, layer["where"]) for row in rows) if "where" in layer else True


def named_layers(layers: list[Any], parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in layers:
        part = parts["layers"][layer] if isinstance(layer, str) else layer
        if isinstance(part, list):
            yield from named_layers(part, parts)
        else:
            yield part if part is layer else {"name": layer} | part


def encodings(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All (channel, definition) of a spec."""
    if isinstance(node, list):
        for item in node:
            yield from encodings(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "encoding":
                yield from ((c, d) for c, d in value.items() if isinstance(d, dict))
            elif key in ("layer", "spec"):
                yield from encodings(value)


def tint(colour: str) -> str:
    """Half-way to white."""
    return "#" + "".join(f"{(int(colour[i : i + 2], 16) + 255) // 2:02X}" for i in (1, 3, 5))


def algorithm_scale(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The algorithm's colour; another order of its tokens ("ring zigzag") takes a tint of it."""
    listed_names = sorted(set(names))
    colours: list[str] = []
    for name in listed_names:
        colour = colour_of(name.split()[0])
        while colour in colours:
            colour = tint(colour)
        colours.append(colour)
    return listed_names, colours


def fill_scales(spec: dict[str, Any], ctx: Context, drawing: Drawing) -> None:
    rows = drawing.rows
    present = {row["series"] for row in rows if "series" in row}
    styles = {label: style for label, style in ctx.index.styles.items() if label in present}
    ranks = sorted({row["ranks"] for row in rows if "ranks_label" in row})
    shapes = [shape for _, shape in STYLES.values()]
    scales = {
        ("color", "series"): (list(styles), [s.colour for s in styles.values()]),
        ("shape", "series"): (list(styles), [s.shape for s in styles.values()]),
        ("strokeDash", "ranks_label"): (
            [ctx.index.rank_label(r) for r in ranks],
            [list(DASHES[i % len(DASHES)]) for i in map(ctx.index.rank_counts.index, ranks)],
        ),
        **{("color", name): algorithm_scale(row[name] for row in rows if name in row) for name in ("winner", "algorithm")},
    }
    for name in ("branch", "collective"):
        found = sorted({row[name] for row in rows if name in row}, key=lambda value: (value != "native", value))
        scales["shape", name] = (found, [shapes[i % len(shapes)] for i in range(len(found))])
    order = {row[name]: row["order"] for row in rows if "order" in row for name in ("label", "lane") if name in row}
    for channel, definition in encodings(spec):
        name = definition.get("field", "")
        if scale := scales.get((channel, name)):
            definition["scale"] = {"domain": scale[0], "range": scale[1]}
        if channel == "x" and name in ("seq_len", "ranks") and definition.get("type") == "quantitative":
            found = [row.get(name) for row in rows]
            values = doublings(found) if name == "seq_len" else rank_ticks(found)
            set_ticks(definition, values, token_label if name == "seq_len" else str)
        if channel == "y" and name in ("label", "lane"):
            definition["sort"] = sorted(order, key=lambda lane: order[lane])


def set_ticks(definition: dict[str, Any], values: list[Any], label: Callable[[Any], str]) -> None:
    texts = json.dumps([label(value) for value in values], ensure_ascii=False)
    expression = f"{texts}[indexof({json.dumps(values)}, datum.value)]"
    definition["axis"] = definition.get("axis", {}) | {"values": values, "labelExpr": expression, "labelOverlap": True, "labelSeparation": 5}


def fill_log_axis(spec: dict[str, Any], kind: Kind, drawing: Drawing) -> None:
    """Domain and ticks of y: all values, room for the strip of points without a result above them, and the least span."""
    fields = {d["field"] for c, d in encodings(spec) if c in ("y", "y2") and "field" in d} - {"slot", "never_px"}
    values = [row[name] for row in drawing.rows for name in fields if isinstance(row.get(name), (int, float)) and row[name] > 0]
    if not values:
        return
    low, high = min(values), max(values)
    widen = math.sqrt(max(1.0, kind.least_span / (high / low)))
    low, high = low / widen, high * widen
    strip = drawing.params.get("strip_px", 0)
    per_pixel = math.log(high / low) / (spec["height"] - strip - 2 * PAD_PX)
    definition = spec["encoding"]["y"]
    definition["scale"] |= {
        "nice": False,
        "domain": [low * math.exp(-PAD_PX * per_pixel), high * math.exp((strip + PAD_PX) * per_pixel)],
    }
    set_ticks(definition, log_ticks(low, high, kind.binary), kind.label)


def log_ticks(low: float, high: float, binary: bool) -> list[float]:
    """At most nine: powers of two, or 1, 2, 5 of each decade, or decades."""
    base = 2 if binary else 10
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    mantissas = (1, 2, 5) if not binary and last - first <= 3 else (1,)
    found = [m * float(base) ** e for e in range(first, last + 1) for m in mantissas]
    inside = [v for v in found if low / 1.000001 <= v <= high * 1.000001]
    return inside[:: 1 + (len(inside) - 1) // 9]


def doublings(values: Iterable[Any]) -> list[int]:
    """Powers of two from the smallest to the largest value: ticks that name the ends of the sweep."""
    known = [v for v in values if isinstance(v, int) and v > 0]
    if not known:
        return []
    low, high = min(known).bit_length() - 1, (max(known) - 1).bit_length()
    return [1 << e for e in range(low, high + 1)]


def rank_ticks(values: Iterable[Any]) -> list[int]:
    """The numbers of ranks themselves where they are few, else powers of two."""
    known = sorted({v for v in values if isinstance(v, int) and v > 0})
    return known if len(known) <= 10 else doublings(known)


def key_of_marks(spec: dict[str, Any], drawing: Drawing) -> str:
    """Says in the picture itself which source it shows, and how."""
    sources = sources_of(drawing.points)
    parts = [MARK_TEXT.get(s, s) for s in sources] if "points" in spec["layer"] else ["source: " + ", ".join(sources)]
    if stated := spec["usermeta"]["figure"].get("key"):
        parts.append(stated)
    if any("slot" in row for row in drawing.rows):
        parts.append("×: not run or wrong")
    elif any("refused" in row for row in drawing.rows):
        parts.append("×: refused, at its predicted peak")
    if any("uncounted" in row for row in drawing.rows):
        parts.append("dash: by formula, not counted")
    return " · ".join(parts)


SAMPLE_TEXT = {  # timing.reduction: what a sample is, of several ranks
    "span": "from the first rank's begin to the last one's end",
    "max": "the maximum over ranks",
    "sum": "the sum over ranks",
}


def statistics_of(source: str, points: list[Point], banded: bool) -> str:
    """ "measured, 24 points, n = 5 to 8 samples each, median with its exact binomial interval (at least 93.8 %)"."""
    parts = [source, plural(len(points), "point")]
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
        parts.append("a band from no latency but the wire's to that of NCCL's Simple protocol")
    return ", ".join(parts)


def source_text(meta: dict[str, Any], drawing: Drawing) -> str:
    banded = any("band_colour" in row for row in drawing.rows)
    texts = [
        statistics_of(source, points, banded) if meta.get("statistics") else f"{source}, {plural(len(points), 'point')}"
        for (source,), points in group_by(drawing.points, lambda p: p.source).items()
    ]
    return f"Source: {'; '.join(texts)}."


def finding_of(kind: Kind | None, axis: str | None, drawing: Drawing) -> str:
    """The ends of up to three lines of different algorithms: what a reader who cannot see the picture must know."""
    if drawing.finding or kind is None:
        return drawing.finding[:1].upper() + drawing.finding[1:]
    x = "ranks" if axis == "ranks" else "seq_len"
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in drawing.rows:
        if row.get("value") and row.get(x) and "series" in row:
            lines.setdefault((row["series"], row["source"], row["ranks"] if x != "ranks" else row.get("seq_len")), []).append(row)
    longest = sorted(lines.values(), key=lambda line: (-len({r[x] for r in line}), -max(r[x] for r in line)))
    first_of: dict[str, list[Row]] = {}
    for line in longest:
        first_of.setdefault(line[0]["series"].split()[0], line)
    texts = []
    for line in list(first_of.values())[:3]:
        ends = [min(line, key=lambda r: r[x]), max(line, key=lambda r: r[x])]
        where = [r["length_label"] if x == "seq_len" else r["ranks_label"] for r in ends]
        values = [f"{kind.label(r['value'])} at {place}" for r, place in zip(ends, where)]
        held = ends[0]["ranks_label"] if x == "seq_len" else f"{ends[0]['length_label']} tokens"
        reach = " to ".join(dict.fromkeys(values))
        texts.append(f"{ends[0]['series']}: {reach} ({ends[0]['source']}, {held})")
    text = "; ".join(texts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def legend_columns(rows: list[Row]) -> int:
    """As many as fit below the picture at the length of the longest label."""
    longest = max((len(row.get("winner", row.get("series", ""))) for row in rows), default=0)
    return next(columns for columns, limit in ((5, 18), (4, 24), (3, 36), (2, longest)) if longest <= limit)


def complete(spec: dict[str, Any], parts: dict[str, Any], ctx: Context, drawing: Drawing) -> dict[str, Any]:
    meta = spec["usermeta"]["figure"]
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
    fill_scales(full, ctx, drawing)
    if drawing.panels:
        unit = {key: full.pop(key) for key in ("height", "encoding", "layer")}
        if meta["split"] == "ranks":
            for _, definition in encodings(unit):
                definition.get("legend") and definition.update(legend=None)
        facet = {"field": "panel", "type": "nominal", "title": None, "sort": drawing.panels}
        columns = 3 if len(drawing.panels) == 3 else 2
        full |= {"facet": facet, "columns": columns, "spec": unit | {"width": 2 * PANEL_WIDTH // columns}}
    else:
        full["width"] = WIDTH
    full["config"] = {"legend": {"columns": legend_columns(drawing.rows)}}
    full["params"] = [{"name": name, "value": value} for name, value in values.items()]
    full["datasets"] = {"rows": drawing.rows}
    return full


def in_panels(meta: dict[str, Any], drawing: Drawing, several_runs: bool) -> Drawing:
    """Its rows with the panel that each belongs to, where one picture would hold too many lines, or two runs are compared."""
    axis = "run" if several_runs else meta.get("split")
    if not axis or "split" not in meta:
        return drawing
    values = sorted({row[axis] for row in drawing.rows if "series" in row and row.get(axis) is not None})
    lines = {(row["series"], row["source"], row["run"], row.get(axis)) for row in drawing.rows if "series" in row}
    apart = several_runs or axis != "ranks"  # a line over ranks has no dash that could tell its length
    if len(values) < 2 or (len(lines) <= MAX_LINES and not apart):
        return drawing
    of_point, name = SPLITS[axis]
    kept = spread(values, MAX_PANELS)
    left = "" if kept == values else f"Panels: {', '.join(map(name, kept))}; the others are in the table."
    rows = [
        row | {"panel": name(value)}
        for value in kept
        for row in drawing.rows
        if row.get(axis, value) == value or "series" not in row
    ]
    points = [p for p in drawing.points if of_point(p) in kept]
    note = f"{drawing.note} {left}".strip()
    return Drawing(rows, points, drawing.suffix, drawing.title, note, drawing.finding, drawing.params, [name(v) for v in kept])


def builder_of(name: str) -> Builder:
    return next(getattr(module, name) for module in ROW_MODULES if hasattr(module, name))


def build_figures(ctx: Context, folder: Path = PLOTS, compared: bool = False) -> list[Figure]:
    """Those that the run asked for first, at most MAX_FIGURES of them; then the others, then those without data."""
    parts = load_json("parts.json", folder)
    figures: list[Figure] = []
    main = main_points(ctx)
    swept = asked(ctx)
    for name, spec in load_specs(folder):
        meta = spec["usermeta"]["figure"]
        drawings = builder_of(meta["rows"])(ctx if meta.get("collectives") == "all" else main)
        if not drawings:
            figures.append(Figure(name, meta["title"], absent=meta["absent"]))
        wanted = all(swept.get(axis, 0) >= least for axis, least in meta["asks"].items())
        for whole in drawings:
            drawing = in_panels(meta, whole, compared)
            title = f"{meta['title']}: {drawing.title}" if drawing.title else meta["title"]
            full = complete(spec, parts, ctx, drawing)
            full["title"] = {"text": title, "subtitle": key_of_marks(spec, drawing)}
            encoded = spec["encoding"]
            figures.append(
                Figure(
                    f"{name}-{drawing.suffix}" if drawing.suffix else name,
                    title,
                    finding_of(KINDS.get(encoded["y"].get("use")), encoded.get("x", {}).get("use"), drawing),
                    source_text(meta, drawing),
                    f"{meta['caption']} {drawing.note}".strip(),
                    sources=sources_of(drawing.points),
                    spec=full,
                    count=len(drawing.points),
                    more=not wanted,
                )
            )
    drawn = [f for f in figures if not f.absent]
    first = [f for f in drawn if not f.more][:MAX_FIGURES] or drawn[:1]
    for figure in drawn:
        figure.more = all(figure is not f for f in first)
    return sorted(figures, key=lambda f: (bool(f.absent), f.more))


def themed(spec: dict[str, Any], theme: str = "light", folder: Path = PLOTS) -> dict[str, Any]:
    """The spec with the fonts and colours of plots/style.json; "@ink" and its like are names of a theme's colours."""
    style = load_json("style.json", folder)
    config = {k: v | spec["config"].get(k, {}) if isinstance(v, dict) else v for k, v in style["config"].items()}
    colours = style["themes"][theme]
    text = re.sub(r"@\w+|#[0-9A-Fa-f]{6}", lambda m: colours.get(m[0], m[0]), json.dumps(spec | {"config": config}))
    return json.loads(text)


def write_pictures(figures: list[Figure], folder: Path) -> list[Path]:
    """SVG and PNG of every drawn figure; pictures of figures that are gone are removed."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    names = {name for name, _ in load_specs()}
    for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
        if old.stem in names or old.stem.split("-")[0] in names:
            old.unlink()
    written = []
    for figure in figures:
        if figure.absent:
            continue
        svg = vl_convert.vegalite_to_svg(themed(figure.spec), vl_version=VEGA_LITE, allowed_base_urls=[])
        png = vl_convert.svg_to_png(svg, scale=2.0)
        for suffix, content in ((".svg", svg.encode()), (".png", png)):
            path = folder / f"{figure.name}{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written
