"""Series of points that belong to one line: key, label, colour, marker and dash.

A series is an algorithm with everything that is not an axis: mode, transport, kernel, layout, shape. Ranks,
their replicas, tokens and batch are axes. Passes are series apart with one label and style: figures have a panel for each. The label has the layout, options and collective that are not the default, and
of the rest only what differs between the points of a report: "ring", "ring zigzag · via bruck", or
"dilated · bf16" when types vary. Colour means algorithm, whatever its options; these have markers of their own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model import PATTERNS, SOURCES, Point, Run, run_names
from .units import plural

AXES = {"seq_len", "ranks", "replicas", "batch", "pattern", "branches", "threads", "phase_parts", "seed", "id"}


def schema(name: str) -> dict[str, Any]:
    folder = Path(__file__).resolve().parents[2] / "configs" / "schema"
    return json.loads((folder / f"{name}.schema.json").read_text(encoding="utf-8"))


CONFIG = schema("config")["properties"]
PARAMS = schema("result")["$defs"]["point"]["properties"]["params"]  # a point's


def defaults_in(section: str) -> dict[str, Any]:
    """Parameters of a section of configs that name a series, and their defaults."""
    return {name: axis["default"] for name, axis in CONFIG[section]["properties"].items() if "default" in axis and name not in AXES}


DEFAULTS = defaults_in("sweep")  # options of algorithms: what a label leaves out
SWITCHES = {name: axis["label"] for name, axis in PARAMS["properties"].items() if "label" in axis}  # options without a value
LABELLED_APART = {"layout", "collective", "node_size", "pass", "scope"}  # the last two by panels and figures; every other option shows in a label
TOLD_APART = {"heads", "mode", "pass", "scope"}  # by the sentences of the first screen
STAR = "M0,-1L0.23,-0.31L0.95,-0.31L0.36,0.12L0.59,0.81L0,0.38L-0.59,0.81L-0.36,0.12L-0.95,-0.31L-0.23,-0.31Z"
HOURGLASS = "M-0.9,-0.9L0.9,-0.9L-0.9,0.9L0.9,0.9Z"
# Okabe and Ito (2008); the yellow is left out, too pale on white, and Tol's wine stands in for it, and his olive follows.
STYLES = {
    "dilated": ("#0072B2", "circle"),
    "ring": ("#D55E00", "square"),
    "all_gather": ("#009E73", "triangle-up"),
    "ulysses": ("#CC79A7", "diamond"),
    "usp": ("#E69F00", "triangle-down"),
    "double_ring": ("#56B4E9", "triangle-right"),
    "local": ("#000000", "triangle-left"),
    "sparse": ("#7F7F7F", "cross"),
    "query_gather": ("#882255", HOURGLASS),
    "bidirectional_ring": ("#999933", STAR),
    "query_ring": ("#6A3D9A", "triangle-up"),
}
UNKNOWN = ("#332288", "cross")  # an algorithm without a row above: a colour that no other has
SHAPES = [shape for _, shape in STYLES.values()]
DASHES = (  # as many as a picture has lines
    *([1, 0], [6, 3], [2, 2], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2]),
    *([1, 4], [14, 3, 3, 3], [3, 7], [9, 3, 2, 3, 2, 3], [18, 6], [1, 2, 1, 7]),
)


@dataclass(frozen=True)
class Style:
    colour: str
    shape: str


def colour_of(algorithm: str) -> str:
    return STYLES.get(algorithm, UNKNOWN)[0]


def scalar_params(point: Point) -> dict[str, Any]:
    """Parameters that name a series, defaults left out. `phase_parts` counts ranks: only whether it is 1 counts."""
    params = point.get("params")
    if not isinstance(params, dict):
        return {}
    named = {k: v for k, v in params.items() if k not in AXES and isinstance(v, (str, int, float, bool))}
    named = {k: v for k, v in named.items() if v != DEFAULTS.get(k, ...) and k != "pass"}
    if params.get("phase_parts", 1) != 1:
        named["phase"] = "shard phase"
    if "cluster" in named:  # says it all: kernel "modelled", mode "simulated"
        named.pop("kernel", None)
        named.pop("mode", None)
    return named


def constants_text(run: Run) -> str:
    """ "rows kept, dtype bf16": what the config asks for at one value that is not the default, and some point took. No label
    need show it: all points may have it, or all but those whose ranks leave it no meaning."""
    config = run.get("run.config")
    sections = {name: part for name, part in config.items() if isinstance(part, dict)} if isinstance(config, dict) else {}
    swept = sections.get("sweep", {})
    said = []
    for section in ("sweep", "model", "dilated", "run"):
        for name, default in defaults_in(section).items():
            asked = swept.get(name, sections.get(section, {}).get(name))
            value = asked[0] if isinstance(asked, list) and len(asked) == 1 else asked
            if name in TOLD_APART or value == default or not isinstance(value, (str, int, float)):
                continue
            if any(p.get(f"params.{name}") == value for p in run.points):
                said.append(SWITCHES.get(name, words(name)) if value is True else f"{words(name)} {value}")
    return ", ".join(said)


def words(name: str) -> str:
    return name.replace("_", " ")


def collective_name(params: Any) -> str:
    """ "native", "bruck", or "hierarchical, nodes of 8"."""
    nodes = params.get("node_size") if isinstance(params, dict) else None
    name = str((params.get("collective") if isinstance(params, dict) else None) or DEFAULTS["collective"])
    return f"{name}, nodes of {nodes}" if nodes else name


class SeriesIndex:
    """Names and styles of all series of a report."""

    def __init__(self, points: Iterable[Point], runs: list[Run]):
        self.points = list(points)
        self.runs = runs
        self.run_names = run_names(runs)
        self.threads_named = self._threads_vary()
        self.follow_ranks = self._options_that_follow()
        self.varying = self._varying()
        self.keys = {id(p): self._key(p) for p in self.points}
        self.labels = {self.key(p): self._label(p) for p in self.points}
        self.styles = self._styles()
        self.rank_counts = sorted({p.ranks for p in self.points})

    def params(self, point: Point) -> dict[str, Any]:
        named = {k: v for k, v in scalar_params(point).items() if (point.algorithm, k) not in self.follow_ranks}
        return named | {"threads": point.get("params.threads")} if self.threads_named else named

    def key(self, point: Point) -> tuple[Any, ...]:
        return self.keys.get(id(point)) or self._key(point)

    def _key(self, point: Point) -> tuple[Any, ...]:
        return (point.run, point.pattern, point.compute_pass, tuple(sorted((k, str(v)) for k, v in self.params(point).items())))

    def _threads_vary(self) -> bool:
        """Threads follow from the ranks of a machine; they name a series only if one problem ran with several."""
        found: dict[Any, set[str]] = defaultdict(set)
        for p in self.points:
            problem = (p.run, p.source, p.seq_len, p.ranks, p.replicas, p.batch, str(sorted(scalar_params(p).items())))
            found[problem].add(p.text("params.threads"))
        return any(len(counts) > 1 for counts in found.values())

    def _options_that_follow(self) -> set[tuple[str, str]]:
        """Options, by algorithm, that the ranks decide: they name no series, or each P would have its own."""
        at_ranks: dict[Any, set[str]] = defaultdict(set)
        overall: dict[tuple[str, str], set[str]] = defaultdict(set)
        for p in self.points:
            named = scalar_params(p)
            for option in DEFAULTS.keys() - LABELLED_APART:
                value = str(named.get(option, DEFAULTS[option]))
                ranks = p.ranks if option == "head_groups" else p.group_ranks  # which head groups themselves make fewer
                at_ranks[p.algorithm, option, p.run, p.source, ranks].add(value)
                overall[p.algorithm, option].add(value)
        several = {key[:2] for key, found in at_ranks.items() if len(found) > 1}
        return {key for key, found in overall.items() if len(found) > 1 and key not in several}

    def label(self, point: Point) -> str:
        return self.labels[self.key(point)]

    def _varying(self) -> list[str]:
        """Parameters with two or more values among points of one algorithm, algorithm aside."""
        values: dict[tuple[str, str], set[str]] = defaultdict(set)
        for point in self.points:
            params = self.params(point)
            for name, value in params.items():
                values[(point.algorithm, name)].add(str(value))
            values[("", "cluster")].add(str(params.get("cluster", "")))  # simulated points beside others have a place
        return sorted({n for (_, n), found in values.items() if n not in ("algorithm", *DEFAULTS) and len(found) > 1})

    def _label(self, point: Point) -> str:
        parts = [point.algorithm]
        if point.algorithm == "local":
            parts[0] = f"local ({point.pattern})"
        params = self.params(point)
        if "layout" in params:
            parts[0] += f" {params['layout']}"
        shown = [name for name in DEFAULTS if name in params and name not in LABELLED_APART]
        parts += [SWITCHES.get(name) or f"{words(name)} {params[name]}" for name in shown]
        if "collective" in params:
            parts.append(f"via {collective_name(params)}")
        if point.in_turn:
            parts.append("one device")
        if point.of_layer:
            parts.append("one layer")
        for name in self.varying:
            value = params.get(name)
            if value is None or value is False or (name == "mode" and (value == "real" or point.in_turn)):
                continue
            if value is True:
                parts.append(SWITCHES.get(name, name))
            else:
                parts.append(value if isinstance(value, str) else f"{name} {value}")
        if len(self.runs) > 1:
            parts.append(f"run {point.run + 1}")
        return " · ".join(parts)

    def _styles(self) -> dict[str, Style]:
        """The algorithm's colour; its first series has the algorithm's marker, the others take the next ones."""
        order = {pattern: place for place, pattern in enumerate(PATTERNS)}
        ordered = sorted(self.points, key=lambda p: (order.get(p.pattern, len(order)), self.label(p)))
        styles: dict[str, Style] = {}
        variants: dict[str, int] = defaultdict(int)
        for label, algorithm in {self.label(p): p.algorithm for p in ordered}.items():
            first = SHAPES.index(STYLES.get(algorithm, UNKNOWN)[1])
            styles[label] = Style(colour_of(algorithm), SHAPES[(first + variants[algorithm]) % len(SHAPES)])
            variants[algorithm] += 1
        return styles

    def rank_label(self, ranks: int) -> str:
        return plural(ranks, "rank")

    def dash(self, ranks: int) -> list[int]:
        return list(DASHES[self.rank_counts.index(ranks) % len(DASHES)])


def group_by(points: Iterable[Point], *keys: Any) -> dict[tuple[Any, ...], list[Point]]:
    """Groups by the given functions of a point, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(key(point) for key in keys)].append(point)
    return dict(groups)


def sources_of(points: Iterable[Point]) -> list[str]:
    present = {p.source for p in points}
    return [s for s in SOURCES if s in present] + sorted(present - set(SOURCES))
