"""Pictures of figures, and the program of the page's charts, made by vl-convert in a process of its own.

Its engine, V8, reserves over 60 GB of addresses and ends its process where it gets none, as below `ulimit -v`. What was made
before then stays.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .charts import Figure
from .markup import script_safe
from .specs import PLOTS, encodings, load_json, load_specs

VEGA_LITE = "6.4"
KEPT_LIBRARY = Path(sys.prefix) / f"charts-{VEGA_LITE}.js"  # the environment's: scripts/python_env.sh has it made
NARROW, WIDE = " .,:;'|!()[]/·ijltfr", "mwMW%@"
WIDER, BOLD = 1.35, 1.1
MARGIN_PX = 4
LEGEND_PX, SYMBOL_PX = 800, 20  # widths of legends and of their symbols
LEGEND_ROOM = 0.25  # behind a legend's label, of its width


class EngineError(Exception):
    """The engine failed; the text says how, and what to do."""


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a process of its own, whose messages are kept from the terminal."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as said:
        child = context.Process(target=answer_of, args=(sender, said.fileno(), work, arguments))
        child.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            child.join()
            said.seek(0)
            raise EngineError(failure_text(child.exitcode or 0, said.read().decode(errors="replace"))) from None
        finally:
            child.join()
            receiver.close()


def answer_of(sender: Connection, messages: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(messages, 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sender.send(work(*arguments))


def failure_text(code: int, said: str) -> str:
    """ "vl-convert ended with SIGTRAP (Fatal process out of memory: …)", with a hint."""
    lines = [line.strip("# ") for line in said.splitlines() if line.strip("# ")]
    reason = next((line for line in lines if line.startswith("Fatal")), lines[-1] if lines else "no message")
    ended = f"ended with {signal.Signals(-code).name}" if code < 0 else "failed"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = f"it reserves over 60 GB of addresses, and `ulimit -v` allows {limit >> 10:,} KiB: raise that limit"
    hint = "give it more memory" if limit == resource.RLIM_INFINITY else limited
    return f"vl-convert {ended} ({reason})\n  hint: {hint}, or make the report on another machine: it needs the result's folder alone"


def bundle() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=VEGA_LITE)


@functools.cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs nothing from outside."""
    return script_safe(KEPT_LIBRARY.read_text(encoding="utf-8") if KEPT_LIBRARY.is_file() else apart(bundle))


def keep_library() -> None:
    """With the environment of this Python: to make the script takes longer than the rest of a page."""
    partial = KEPT_LIBRARY.with_suffix(".partial")
    partial.write_text(apart(bundle), encoding="utf-8")
    partial.replace(KEPT_LIBRARY)


def themed(spec: dict[str, Any], theme: str = "light", folder: Path = PLOTS) -> dict[str, Any]:
    """The spec with the fonts and colours of plots/style.json; "@ink" and its like are names of a theme's colours."""
    style = load_json("style.json", folder)
    config = {k: v | spec["config"].get(k, {}) if isinstance(v, dict) else v for k, v in style["config"].items()}
    colours = style["themes"][theme]
    text = re.sub(r"@\w+|#[0-9A-Fa-f]{6}", lambda m: colours.get(m[0], m[0]), json.dumps(spec | {"config": config}))
    return json.loads(text)


def width_of(text: str) -> float:
    """Approximate width of a text in Arial or Liberation Sans, in its font sizes."""
    return sum(0.28 if c in NARROW else 0.86 if c in WIDE else 0.7 if c.isupper() or not c.isascii() else 0.56 for c in text)


def texts_of(node: ElementTree.Element, x: float = 0.0) -> Iterator[tuple[float, float]]:
    """Left and right end of each upright text, with letters WIDER times as wide as Arial's."""
    found = re.match(r"translate\(([-\d.e]+)[^)]*\)(.*)", node.get("transform", ""))
    x += float(found[1]) if found else 0.0
    if node.tag.endswith("}text"):
        if not (found and found[2]) and node.get("opacity") != "0":
            lines = [node.text or "", *(line.text or "" for line in node)]
            wide = WIDER * max(map(width_of, lines)) * float(node.get("font-size", "12px").removesuffix("px"))
            wide *= BOLD if node.get("font-weight") in ("bold", "600") else 1
            left = x - wide * {"end": 1.0, "middle": 0.5}.get(node.get("text-anchor", ""), 0.0)
            yield left, left + wide
        return
    for child in node:
        yield from texts_of(child, x)


def with_legend_room(spec: dict[str, Any]) -> dict[str, Any]:
    """The themed spec with gaps between the columns of its legends in which the longest label has room in a wider font, and
    with as few columns as then fit."""
    legend = spec["config"]["legend"]
    scales = [d["scale"] for channel, d in encodings(spec) if channel in ("color", "shape", "strokeDash") and isinstance(d.get("scale"), dict)]
    longest = legend["labelFontSize"] * max((width_of(str(label)) for scale in scales for label in scale.get("domain", [])), default=0.0)
    gap = legend["columnPadding"] + LEGEND_ROOM * longest
    columns = int((LEGEND_PX + gap) // (SYMBOL_PX + longest + gap))
    return spec | {"config": spec["config"] | {"legend": legend | {"columnPadding": round(gap), "columns": max(1, min(legend["columns"], columns))}}}


def with_room(svg: str) -> str:
    """The picture, which the engine lays out with its own font, with room at both sides for a browser's wider one."""
    head = re.match(r'<svg [^>]*(width="([\d.]+)" height="([\d.]+)" viewBox="0 0 \2 \3"><rect width="\2" height="\3")', svg)
    if not head:
        raise ValueError(f"no picture of vl-convert: {svg[:200]}")
    width, height = float(head[2]), head[3]
    ends = list(texts_of(ElementTree.fromstring(svg)))
    left = min(0, *(math.floor(a - MARGIN_PX) for a, _ in ends))
    wide = max(width, *(math.ceil(b + MARGIN_PX) for _, b in ends)) - left
    return svg.replace(head[1], f'width="{wide:g}" height="{height}" viewBox="{left} 0 {wide:g} {height}"><rect x="{left}" width="{wide:g}" height="{height}"', 1)


def draw(figures: list[Figure], folder: Path) -> None:
    import vl_convert

    for figure in figures:
        spec = with_legend_room(themed(figure.spec))
        svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
        (folder / f"{figure.name}.svg").write_text(with_room(svg), encoding="utf-8")
        (folder / f"{figure.name}.png").write_bytes(vl_convert.svg_to_png(svg, scale=2.0))


def write_pictures(figures: list[Figure], folder: Path) -> int:
    """SVG and PNG of every drawn figure, and their number; pictures of figures that are gone are removed."""
    drawn = [f for f in figures if not f.absent]
    folder.mkdir(parents=True, exist_ok=True)
    names = {name for name, _ in load_specs()}
    for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
        if old.stem in names or old.stem.split("-")[0] in names:
            old.unlink()
    files = [folder / f"{figure.name}{suffix}" for figure in drawn for suffix in (".svg", ".png")]
    try:
        apart(draw, drawn, folder)
    except EngineError as error:
        raise EngineError(f"{folder}: {sum(file.is_file() for file in files)} of {len(files)} pictures are written: {error}") from None
    return len(files)
