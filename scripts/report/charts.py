"""Figures: a Vega-Lite spec of plots/ + the rows of a builder -> a full spec, an SVG and a PNG.

`usermeta.figure` of a spec names its row builder, its place in the report, its caption and what it
needs; a new figure over existing rows is one new spec. Scales of series, ranks and lengths are filled
in here, so that a series keeps its colour and marker in every figure. Where `usermeta.figure.split` names
an axis and one picture would hold too many lines, each value of that axis gets a picture of its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import rows_cost, rows_opponents, rows_time
from .model import Point
from .rows import Builder, Context, Drawing, Row, main_points, sample_count, spread
from .series import COLOUR_OF, DASHES, PALETTE, SHAPES, sources_of
from .units import MISSING, percent_label, plural, token_label

PLOTS = Path(__file__).resolve().parents[2] / "plots"
VEGA_LITE = "5.21"
ROW_MODULES = (rows_time, rows_cost, rows_opponents)  # hold the row builders by name
COLLECTIVES = (
    *("native", "ring", "recursive_doubling", "bruck", "hierarchical", "pairwise", "linear"),
    *("nccl_ring", "nccl_pat", "multi_channel_ring"),
)
MAX_LINES = 12  # of one picture that can be split
MAX_PARTS = 4  # pictures that it is split into
# What a row and its point must agree on to stand in the same picture, and the name of that picture.
SPLITS: dict[str, tuple[Callable[[Point], Any], Callable[[int], str]]] = {
    "ranks": (lambda p: p.ranks, lambda value: plural(value, "rank")),
    "seq_len": (lambda p: p.seq_len, lambda value: f"{token_label(value)} tokens"),
    "per_rank": (lambda p: (p.seq_len or 0) // p.ranks, lambda value: f"{token_label(value)} tokens per rank"),
}
MARK_TEXT = {
    "measured": "filled marks: measured",
    "simulated": "hollow marks: simulated",
    "replayed": "marks with a dot: replayed",
    "extrapolated": "marks with a plus: extrapolated",
}


def some(test: Callable[[Row], bool]) -> Callable[[list[Row]], bool]:
    return lambda rows: any(map(test, rows))


def is_ok(row: Row) -> bool:
    return row.get("status") == "ok"


# Layers that are left out when no row is theirs; Vega warns of an empty one.
LAYER_NEEDS: dict[str, Callable[[list[Row]], bool]] = {
    "measured": some(lambda r: is_ok(r) and r["source"] == "measured"),
    "modelled": some(lambda r: is_ok(r) and r["source"] != "measured"),
    "replayed": some(lambda r: is_ok(r) and r["source"] == "replayed"),
    "extrapolated": some(lambda r: is_ok(r) and r["source"] == "extrapolated"),
    "interval": some(lambda r: "low" in r),
    "band": some(lambda r: "band_colour" in r),
    "skipped": some(lambda r: "slot" in r),
    "refused": some(lambda r: r.get("status") in ("skipped_memory", "oom")),
    "limit": some(lambda r: r.get("status") == "limit"),
    "limit_text": some(lambda r: r.get("status") == "limit"),
    "bound": some(lambda r: "bound" in r),
    "never": some(lambda r: "never_px" in r),
    "communication": some(lambda r: r.get("phase") == "all communication"),
    "closed_form": some(lambda r: r.get("status") == "closed form"),
    "single_attend": some(lambda r: "single_share" in r),
    "flip": some(lambda r: bool(r.get("flips_here"))),
    "wrong": some(lambda r: r.get("status") == "check_failed"),
}


@dataclass
class Figure:
    name: str  # of the spec and the files
    title: str
    caption: str = ""
    absent: str = ""  # why there is no picture
    sources: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    count: int = 0  # points behind the picture


def load_specs(folder: Path = PLOTS) -> list[tuple[str, dict[str, Any]]]:
    specs = [
        (p.name.removesuffix(".vl.json"), json.loads(p.read_text(encoding="utf-8"))) for p in folder.glob("*.vl.json")
    ]
    return sorted(specs, key=lambda item: (item[1]["usermeta"]["figure"]["order"], item[0]))


def encodings(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All (channel, definition) of a spec."""
    if isinstance(node, list):
        for item in node:
            yield from encodings(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "encoding":
                yield from ((c, d) for c, d in value.items() if isinstance(d, dict))
            elif key in ("layer", "hconcat", "vconcat", "spec"):
                yield from encodings(value)


def fill_scales(spec: dict[str, Any], ctx: Context, drawing: Drawing) -> None:
    present = {row["series"] for row in drawing.rows if "series" in row}
    styles = {label: style for label, style in ctx.index.styles.items() if label in present}
    ranks = {row["ranks"] for row in drawing.rows if "ranks_label" in row}
    order = {
        row["length_label"]: row.get("per_rank", 0)
        if spec["usermeta"]["figure"]["rows"] == "weak_scaling"
        else row["seq_len"]
        for row in drawing.rows
        if row.get("length_label", MISSING) != MISSING
    }
    lengths = sorted(order, key=lambda label: order[label] or 0)
    branches = sorted({row["branch"] for row in drawing.rows if "branch" in row})
    found = {row["collective"] for row in drawing.rows if "collective" in row}
    collectives = [c for c in COLLECTIVES if c in found] + sorted(found - set(COLLECTIVES))
    places = [COLLECTIVES.index(c) if c in COLLECTIVES else i for i, c in enumerate(collectives, len(COLLECTIVES))]
    scales = {
        ("color", "series"): (list(styles), [s.colour for s in styles.values()]),
        ("shape", "series"): (list(styles), [s.shape for s in styles.values()]),
        ("color", "branch"): (branches, [PALETTE[i % len(PALETTE)] for i in range(len(branches))]),
        ("shape", "branch"): (branches, [SHAPES[i % len(SHAPES)] for i in range(len(branches))]),
        ("color", "collective"): (collectives, [PALETTE[i % len(PALETTE)] for i in places]),
        ("shape", "collective"): (collectives, [SHAPES[i % len(SHAPES)] for i in places]),
        ("color", "winner"): winner_scale(drawing),
        ("strokeDash", "ranks_label"): (
            [ctx.index.rank_label(r) for r in sorted(ranks)],
            [ctx.index.dash(r) for r in sorted(ranks)],
        ),
        ("strokeDash", "length_label"): (lengths, [DASHES[i % len(DASHES)] for i in range(len(lengths))]),
    }
    lanes = {
        row[name]: row["order"] for row in drawing.rows if "order" in row for name in ("label", "lane") if name in row
    }
    powers = {
        "seq_len": doublings(row.get("seq_len") for row in drawing.rows),
        "ranks": rank_ticks(row.get("ranks") for row in drawing.rows),
    }
    for channel, definition in encodings(spec):
        name = definition.get("field", "")
        scale = scales.get((channel, name))
        if scale:
            definition["scale"] = {"domain": scale[0], "range": scale[1]}
        if channel == "x" and definition.get("type") == "quantitative" and powers.get(name):
            definition.setdefault("axis", {})["values"] = powers[name]
        if channel == "y" and (definition.get("scale") or {}).get("base") == 2:
            # Over a narrow range Vega falls back to linear ticks, which are no round sizes.
            sizes = [row.get(key) for row in drawing.rows for key in ("value", "predicted_value")]
            ticks = doublings(round(size) for size in sizes if isinstance(size, (int, float)))
            definition.setdefault("axis", {})["values"] = ticks[:: 1 + len(ticks) // 13]
            definition["scale"]["nice"] = len(ticks) < 4
        if channel == "y" and name in ("label", "lane"):
            definition["sort"] = sorted(lanes, key=lambda lane: lanes[lane])


def winner_scale(drawing: Drawing) -> tuple[list[str], list[str]]:
    """An algorithm's usual colour; other orders of its tokens take the free ones."""
    names = sorted({row["winner"] for row in drawing.rows if "winner" in row})
    usual = {name: COLOUR_OF[name] for name in names if name in COLOUR_OF}
    free = [i for i in range(len(PALETTE)) if i not in usual.values()]
    places = [usual[n] if n in usual else free[i % len(free)] for i, n in enumerate(names)]
    return names, [PALETTE[i] for i in places]


def doublings(values: Iterable[Any]) -> list[int]:
    """Powers of two from the smallest to the largest value: ticks that name the ends of the sweep."""
    known = [v for v in values if isinstance(v, int) and v > 0]
    if not known:
        return []
    low, high = min(known).bit_length() - 1, (max(known) - 1).bit_length()
    step = 1 if high - low <= 19 else 2
    return [1 << e for e in range(low, high + 1, step)]


def rank_ticks(values: Iterable[Any]) -> list[int]:
    """The numbers of ranks themselves where they are few, else powers of two."""
    known = sorted({v for v in values if isinstance(v, int) and v > 0})
    return known if len(known) <= 10 else doublings(known)


def key_of_marks(spec: dict[str, Any], drawing: Drawing) -> str:
    """Says in the picture itself which source it shows, and how."""
    sources = sources_of(drawing.points)
    layered = any(layer.get("name") == "modelled" for layer in spec.get("layer", []))
    parts = [MARK_TEXT.get(s, s) for s in sources] if layered else ["source: " + ", ".join(sources)]
    stated = spec["usermeta"]["figure"].get("key")
    if stated:
        parts.append(stated)
    if any("slot" in row for row in drawing.rows):
        parts.append("×: not run or wrong")
    elif any("reason" in row for row in drawing.rows):
        parts.append("×: refused, at its predicted peak")
    return " · ".join(parts)


SAMPLE_TEXT = {  # timing.reduction: what a sample is, of several ranks
    "span": "from the first rank's begin to the last one's end",
    "max": "the maximum over ranks",
    "sum": "the sum over ranks",
}


def sample_text(points: list[Point]) -> str:
    found = {p.text("timing.reduction") for p in points if sample_count(p)}
    return " or ".join(text for name, text in SAMPLE_TEXT.items() if name in found) or "not described"


def caption_of(meta: dict[str, Any], drawing: Drawing) -> str:
    parts = [meta["caption"], drawing.note]
    count = plural(len(drawing.points), "point")
    if meta.get("statistics"):
        samples = sorted(n for n in map(sample_count, drawing.points) if n)
        levels = [v for v in (p.num("timing.ci_level") for p in drawing.points) if v is not None]
        each = (
            f"n = {samples[0]}" + (f" to {samples[-1]}" if samples[-1] != samples[0] else "") + " samples each"
            if samples
            else "without recorded samples"
        )
        none = len(drawing.points) - len(samples)
        per_point = each + (f" ({none} modelled or without samples)" if samples and none else "")
        interval = (
            f"exact binomial interval of the median at {percent_label(min(levels))} or more"
            if levels
            else "no interval recorded"
        )
        if any("band_colour" in row for row in drawing.rows):
            interval += "; of simulated points a band, from no latency but the wire's to that of NCCL's Simple protocol"
        each = f"each sample is {sample_text(drawing.points)}"
        parts.append(f"{count[0].upper()}{count[1:]}, {per_point}; {interval}; {each}.")
    else:
        parts.append(f"{count}, one value each, no interval.")
    return " ".join(p for p in parts if p)


def legend_columns(drawing: Drawing) -> int:
    """As many as fit below the picture at the length of the longest label."""
    longest = max((len(row["series"]) for row in drawing.rows if "series" in row), default=0)
    return next(columns for columns, limit in ((5, 18), (4, 24), (3, longest)) if longest <= limit)


def complete(spec: dict[str, Any], ctx: Context, drawing: Drawing, style: dict[str, Any]) -> dict[str, Any]:
    full = copy.deepcopy(spec)
    full["config"] = copy.deepcopy(style)
    full["config"]["legend"]["columns"] = legend_columns(drawing)
    full["datasets"] = {"rows": drawing.rows}
    for param in full.get("params", []):
        if param["name"] in drawing.params:
            param["value"] = drawing.params[param["name"]]
    if "layer" in full:
        full["layer"] = [
            layer for layer in full["layer"] if LAYER_NEEDS.get(layer.get("name", ""), lambda _: True)(drawing.rows)
        ]
    fill_scales(full, ctx, drawing)
    return full


def split_crowded(meta: dict[str, Any], drawing: Drawing) -> list[Drawing]:
    """One drawing per value of the axis that the spec names, when one drawing would hold too many lines."""
    axis = meta.get("split")
    if not axis:
        return [drawing]
    values = sorted({row[axis] for row in drawing.rows if "series" in row and row.get(axis) is not None})
    lines = {(row["series"], row["source"], row["run"], row.get(axis)) for row in drawing.rows if "series" in row}
    if len(values) < 2 or len(lines) <= MAX_LINES:
        return [drawing]
    of_point, name = SPLITS[axis]
    parts = []
    kept = spread(values, MAX_PARTS)
    left = "" if kept == values else f"Shown are {', '.join(map(name, kept))}; the others are in the table."
    for value in kept:
        rows = [row for row in drawing.rows if row.get(axis, value) == value or "series" not in row]
        points = [p for p in drawing.points if of_point(p) == value]
        if points:
            suffix = f"{drawing.suffix}-{value}" if drawing.suffix else str(value)
            note = f"{drawing.note} {left}".strip()
            parts.append(Drawing(rows, points, suffix, name(value), note, drawing.params))
    return parts


def builder_of(name: str) -> Builder:
    return next(getattr(module, name) for module in ROW_MODULES if hasattr(module, name))


def build_figures(ctx: Context, folder: Path = PLOTS) -> list[Figure]:
    style = json.loads((folder / "style.json").read_text(encoding="utf-8"))
    figures: list[Figure] = []
    main = main_points(ctx)
    for name, spec in load_specs(folder):
        meta = spec["usermeta"]["figure"]
        points = ctx if meta.get("collectives") == "all" else main
        drawings = [part for whole in builder_of(meta["rows"])(points) for part in split_crowded(meta, whole)]
        if not drawings:
            figures.append(Figure(name, meta["title"], absent=meta["absent"]))
        for drawing in drawings:
            title = f"{meta['title']}: {drawing.title}" if drawing.title else meta["title"]
            full = complete(spec, ctx, drawing, style)
            full["title"] = {"text": title, "subtitle": key_of_marks(spec, drawing)}
            file_name = f"{name}-{drawing.suffix}" if drawing.suffix else name
            figures.append(
                Figure(
                    file_name,
                    title,
                    caption_of(meta, drawing),
                    sources=sources_of(drawing.points),
                    spec=full,
                    count=len(drawing.points),
                )
            )
    return figures


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
        svg = vl_convert.vegalite_to_svg(figure.spec, vl_version=VEGA_LITE, allowed_base_urls=[])
        png = vl_convert.svg_to_png(svg, scale=2.0)
        for suffix, content in ((".svg", svg.encode()), (".png", png)):
            path = folder / f"{figure.name}{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written
