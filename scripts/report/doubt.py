"""Times that decide no claim, in the figures that join times to lines.

Example: dilated at 8K, 16K and 32K tokens, of which something disturbed 16K: the line goes from 8K to 32K, and a "?" stands at
16K. A line of such points alone is drawn as any other, and the caption names it. Over ranks a point is a line of
its own. Elsewhere nothing changes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .noise import key_of, why_undecided
from .paper_lines import and_text
from .rows import Context, Drawing, Row, named_pass
from .series import group_by

NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


def joins_times(spec: dict) -> bool:
    """Over lengths, or over ranks."""
    return bool(spec["usermeta"]["figure"].get("statistics")) and ("line" in spec["layer"] or "rank_line" in spec["layer"])


def with_doubts(ctx: Context, drawing: Drawing) -> Drawing:
    """The drawing with `doubt` in the rows of single points that decide nothing, and `undecided` in those of lines of such
    points alone, which its remark names."""
    reasons = {key_of(p): why for p in drawing.points if (why := why_undecided(ctx, p))}
    timed = [row for row in drawing.rows if row.get("value") is not None and "line" in row]
    doubtful: dict[str, list[tuple[str, str, str]]] = {}  # kind of reason -> lines' ranks, names and reasons
    for line in group_by(timed, lambda r: (r["series"], r["line"], r["pass"])).values():
        found = [(row, why) for row in line if (why := reason_of(row, reasons))]
        if len(found) < len(line):
            for row, why in found:
                row["doubt"] = why
        else:
            for row in line:
                row["undecided"] = True
            for why in dict.fromkeys(why for _, why in found):
                doubtful.setdefault(kind_of(why), []).append((line[0]["ranks_label"] + named_pass(line[0]["pass"]), line[0]["series"].split(" · ")[0], why))
    remark = f"{drawing.remark} {lines_text(doubtful)}".strip()
    return replace(drawing, remark=remark, decides=any(key_of(p) not in reasons for p in drawing.points))


def reason_of(row: Row, reasons: dict) -> str:
    return reasons.get((row["run"], row["id"], row["source"]), "")


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
