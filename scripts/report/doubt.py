"""Times that decide no claim, in the figures that join times to lines.

Example: dilated at 8K, 16K and 32K tokens, of which something disturbed 16K: the line goes from 8K to 32K, and a "?" stands at
16K. A line of such points alone is drawn whole, and the caption names it. A "?" stands at those of its points that something
disturbed, and at none of a line that by its setup decides nothing, such as one of more ranks than cores. Over ranks a point is a
line of its own. Elsewhere nothing changes.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from .noise import Key, disturbed, key_of, why_undecided
from .paper_lines import and_text
from .rows import Context, Drawing, Row, named_pass
from .series import group_by

DOUBT_PX = 24  # height of a "?" in a picture that a page shrinks by a third
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


def joins_times(spec: dict) -> bool:
    """Over lengths, or over ranks."""
    return bool(spec["usermeta"]["figure"].get("statistics")) and ("line" in spec["layer"] or "rank_line" in spec["layer"])


def with_doubts(ctx: Context, drawing: Drawing) -> Drawing:
    """The drawing with `undecided` in the rows of points that decide nothing, `doubt` in those that a "?" marks, and `passed_by` in
    those that their lines leave out. Its remark names the lines of such points alone."""
    reasons = {key_of(p): why for p in drawing.points if (why := why_undecided(ctx, p))}
    hit = {key for p in drawing.points for key in ([key_of(p)] if p.throttled else disturbed(ctx.runs[p.run], [p]))}
    timed = [row for row in drawing.rows if row.get("value") is not None and "line" in row]
    doubtful: dict[str, list[tuple[str, str, str]]] = {}  # kind of reason -> lines' ranks, names and reasons
    for line in group_by(timed, lambda r: (r["series"], r["line"], r["pass"])).values():
        found = [(row, why) for row in line if (why := reasons.get(row_key(row)))]
        whole = len(found) == len(line)
        for row, why in found:
            row["undecided"] = True
            if not whole:
                row["passed_by"] = True
            if not whole or row_key(row) in hit:
                row |= {"doubt": why, "doubt_text": "?"}
        if whole:
            for why in dict.fromkeys(why for _, why in found):
                doubtful.setdefault(kind_of(why), []).append((line[0]["ranks_label"] + named_pass(line[0]["pass"]), line[0]["series"].split(" · ")[0], why))
    remark = f"{drawing.remark} {lines_text(doubtful)}".strip()
    return replace(drawing, remark=remark, decides=any(key_of(p) not in reasons for p in drawing.points))


def merge_doubts(spec: dict, rows: list[Row]) -> None:
    """Leaves of each `doubt_text` that would cover another those above the highest mark, as "???" of three."""
    doubtful = [row for row in rows if "doubt" in row]
    if not doubtful:
        return
    x, scale = spec["encoding"]["x"]["field"], spec["encoding"]["y"].get("scale", {})
    place = math.log if scale.get("type") == "log" else float
    low, high = scale.get("domain") or (0.0, max(row["value"] for row in doubtful))
    least = DOUBT_PX * (place(high) - place(low)) / spec["height"]
    for beside in group_by(doubtful, lambda r: (r.get("panel"), r[x])).values():
        beside.sort(key=lambda r: -r["value"])
        begins = [i for i, r in enumerate(beside) if i == 0 or place(beside[i - 1]["value"]) - place(r["value"]) >= least]
        for begin, end in zip(begins, [*begins[1:], len(beside)]):
            top, *others = beside[begin:end]
            if others:
                top["doubt"] = "; ".join(f"{r['series']}: {r['doubt']}" for r in beside[begin:end])
            for row in others:
                top["doubt_text"] += row.pop("doubt_text")


def row_key(row: Row) -> Key:
    return (row["run"], row["id"], row["source"])


def lines_text(doubtful: dict[str, list[tuple[str, str, str]]]) -> str:
    """ "Lines that decide no claim: ring, usp on 4 ranks and 8 ranks; dilated on 8 ranks (4 to 8 threads of its ranks shared 2 cores)." """
    texts = []
    for lines in doubtful.values():
        names: dict[str, list[str]] = {}  # by their numbers of ranks
        for (name,), some in group_by(lines, lambda line: line[1]).items():
            names.setdefault(and_text(list(dict.fromkeys(ranks for ranks, _, _ in some))), []).append(name)
        where = "; ".join(f"{', '.join(some)} on {ranks}" for ranks, some in names.items())
        texts.append(f"{where} ({ranged([why for _, _, why in lines])})")
    return f"Lines that decide no claim: {'; '.join(texts)}." if texts else ""


def kind_of(reason: str) -> str:
    return NUMBER.sub("#", reason)


def ranged(reasons: list[str]) -> str:
    """Reasons that differ in numbers alone as one: "samples are 1.6 to 2.1 times apart"."""
    ends = [sorted(set(numbers), key=lambda text: float(text.replace(",", ""))) for numbers in zip(*map(NUMBER.findall, reasons))]
    spans = iter(some[0] if len(some) == 1 else f"{some[0]} to {some[-1]}" for some in ends)
    return NUMBER.sub(lambda _: next(spans), reasons[0])
