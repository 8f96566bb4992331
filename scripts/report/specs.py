"""A specification of plots/ made whole: shared parts written out, scales, ticks and domains from the rows.

`{"use": "tokens"}` in an encoding, "points" in a list of layers and a field's name in a list of tooltips stand for parts of
plots/parts.json; `where` says which rows are a layer's. Example: `"where": {"source": "measured", "low": true}` keeps the
measured rows that have an interval.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .rows import Context, Drawing, Row
from .series import DASHES, STYLES, colour_of
from .units import bytes_label, duration_label, percent_label, ratio_label, spoken_duration, token_label

PLOTS = Path(__file__).resolve().parents[2] / "plots"
PAD_PX = 12  # between the outermost values and the ends of a log axis
# One colour each in every figure, and none of an algorithm (Tol's light scheme).
PHASE_COLOURS = {
    **{"full": "@soft", "GEMM": "#44BB99"},
    **dict.fromkeys(("compute", "compute only", "attention"), "#77AADD"),
    **{"row-wise": "#FFAABB", "cross-entropy": "#AAAA00", "update": "#99DDFF"},
    **dict.fromkeys(("exposed messages", "messages", "communication only"), "#EE8866"),
    **{"merge": "#BBCC33", "waiting": "#B8BEC6", "other": "#B8BEC6", "serialised": "#EEDD88"},
}


def error_label(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class Kind:
    """A quantity on a logarithmic axis: how it is written, where its ticks are, how many times the lowest value its
    highest must be, so that a spread of 3 % does not look like a mountain, and how a sentence says it."""

    label: Callable[[float], str]
    binary: bool
    least_span: float
    spoken: Callable[[float], str]


KINDS = {
    "seconds": Kind(duration_label, False, 10, spoken_duration),
    "bytes": Kind(bytes_label, True, 16, bytes_label),
    "factor": Kind(ratio_label, True, 8, ratio_label),
    "error": Kind(error_label, False, 10, error_label),
    "coverage": Kind(percent_label, False, 10, percent_label),
    "length": Kind(token_label, True, 8, token_label),
}


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
    full = {key: value for key, value in node.items() if key not in ("use", "where", "key")}
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
    for name in ("phase", "part"):
        found = {row.get(name) for row in rows}
        scales["color", name] = ([p for p in PHASE_COLOURS if p in found], [c for p, c in PHASE_COLOURS.items() if p in found])
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
    upright = [d for c, d in encodings(spec) if c in ("y", "y2")]
    fields = {d["field"] for d in upright if "field" in d} - {"slot", "never_px"}
    values = [row[name] for row in drawing.rows for name in fields if isinstance(row.get(name), (int, float)) and row[name] > 0]
    if not values:
        return
    values += [d["datum"] for d in upright if "datum" in d]
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
