"""Rows of the figures about time: latency, runtime per batch, per token, ratios, samples."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from .evidence import counts_text
from .model import FORWARD, Point
from .noise import why_undecided
from .paper_lines import SHARED_WORK, shared_work
from .rows import (
    Context,
    Drawing,
    Row,
    base_row,
    best_per_key,
    interval_text,
    line_key,
    point_label,
    point_order,
    sample_count,
    single,
    timed_points,
    timed_row,
)
from .series import group_by, sources_of
from .units import bracket, duration_label, listed, percent_label, plural, ratio_label, significant, token_label

SLOT_PX = 11  # height of one row of × in the strip above a plot
STRIP_PX = 120  # at most, of all rows
MAX_STRIPS = 30

TIE = 1.05  # about the median error of predictions on a calibrated machine, and of repeated measurements


def stopped_rows(ctx: Context, missing: list[Point]) -> tuple[list[Row], dict[str, int]]:
    """Rows of × in a strip of their own above the values, a line of them for each series, and the strip's height."""
    if not missing:
        return [], {}
    lanes = sorted({ctx.index.label(p) for p in missing})
    step = min(SLOT_PX, STRIP_PX / len(lanes))
    rows = [
        base_row(ctx, point)
        | {"slot": 7 + step * lanes.index(ctx.index.label(point)), "reason": point.text("reason") or "no reason given"}
        for point in missing
    ]
    return [*rows, {"strip": True}], {"strip_px": round(14 + step * (len(lanes) - 1))}


def latency(ctx: Context) -> list[Drawing]:
    """All points with a length: times as marks, the others as × in one row per series and ranks."""
    shown = timed_points(ctx)
    if len({p.seq_len for p in shown}) == 1 and len({p.ranks for p in shown}) > 1 and len(ctx.passes) == 1:
        return []  # one column of marks that differ in ranks alone
    rows = [timed_row(ctx, p, 1.0 / p.group_batch) for p in shown]
    if not rows:
        return []
    stopped, params = stopped_rows(ctx, [p for p in ctx.points if not p.ok and p.seq_len])
    rows += stopped
    note = "" if ctx.passes <= {FORWARD} else "A backward begins with an output that is there; a forward and backward is one after the other."
    return single(rows, shown, note=note, params=params)


def constant_token_lines(ctx: Context) -> list[list[Point]]:
    """Groups of one line whose batches hold the same number of tokens, over two or more lengths."""
    groups = group_by(timed_points(ctx), lambda p: line_key(ctx, p), lambda p: p.batch * (p.seq_len or 0))
    return [g for g in groups.values() if len({p.seq_len for p in g}) >= 2]


def batch_runtime(ctx: Context) -> list[Drawing]:
    lines = constant_token_lines(ctx)
    shown = [p for line in lines for p in line]
    totals = sorted({p.batch * (p.seq_len or 0) for p in shown})
    note = f"Tokens per batch: {listed(totals, token_label)}."
    # Points without a time belong here when their run holds as many tokens per batch.
    held = {(p.run, p.batch * (p.seq_len or 0)) for p in shown}
    missing = [p for p in ctx.points if not p.ok and p.seq_len and (p.run, p.batch * p.seq_len) in held]
    stopped, params = stopped_rows(ctx, missing)
    rows = [timed_row(ctx, p) for p in shown]
    for row in rows:
        row["line"] = f"{row['source']} {row['run']} {row['ranks']} {row['batch_tokens']}"
    return single(rows + stopped, shown, note=note, params=params, remark=little_shared_text(ctx, lines))


def little_shared_text(ctx: Context, lines: list[list[Point]]) -> str:
    """Flat lines that the claim about constant latency does not count, since attention to neighbours does the work."""
    few = [line for line in lines if line[0].pattern == "dilated" and min(map(shared_work, line)) < SHARED_WORK]
    if not few:
        return ""
    ranks = counts_text(sorted({line[0].ranks for line in few}), "rank")
    least = percent_label(min(shared_work(p) for line in few for p in line))
    return f"Not counted for a constant latency: dilated on {ranks}, whose long branches do as little as {least} of the FLOPs."


def time_per_token(ctx: Context) -> list[Drawing]:
    constant = {id(p) for line in constant_token_lines(ctx) for p in line}
    lines = group_by([p for p in timed_points(ctx) if id(p) not in constant], lambda p: line_key(ctx, p))
    shown = [p for line in lines.values() if len({p.seq_len for p in line}) >= 2 for p in line]
    rows = [timed_row(ctx, p, 1.0 / (p.batch * (p.seq_len or 1))) for p in shown]
    for row in rows:
        row["value_text"] = duration_label(row["value"], 4)
    return single(rows, shown)


SAME_PROBLEM = ("heads", "kv_heads", "head_dim", "dtype", "causal", "kernel", "mode", "transport", "cluster")


def problem_shape(point: Point) -> tuple[Any, ...]:
    return (point.run, point.source, point.compute_pass, point.batch, *(point.text(f"params.{name}") for name in SAME_PROBLEM))


def problem_key(point: Point) -> tuple[Any, ...]:
    """Values that must agree before the times of two algorithms are compared."""
    return (*problem_shape(point), point.seq_len, point.ranks, point.replicas)


def matched(ctx: Context) -> list[tuple[Point, Point]]:
    """Pairs (exact, fastest dilated) of the same problem, ranks and source."""
    timed = timed_points(ctx)
    dilated = {problem_key(p): p for p in best_per_key([p for p in timed if p.pattern == "dilated"], problem_key)}
    exact = [p for p in timed if p.pattern == "dense"]
    return [(p, dilated[problem_key(p)]) for p in exact if problem_key(p) in dilated]


def times_text(over: Point, under: Point) -> str:
    """ "27.3× [26.8×, 27.9×]", by the intervals of both times; a guess has none."""
    ratio, interval = over.times(under)
    if over.beyond_kernel_table or under.beyond_kernel_table:
        return f"about {ratio_label(ratio)} (a guess)"
    return f"{ratio_label(ratio)}{bracket(interval, ratio_label)}"


def pairs_text(exact: Point, dilated: Point) -> str:
    """ " for 32× the pairs": two functions, of which one has fewer pairs of query and key."""
    every, some = exact.value("work.flops"), dilated.value("work.flops")
    return f" for {ratio_label(every / some)} the pairs" if every and some else ""


def cost_text(exact: Point, dilated: Point) -> str:
    """ "27.3× [26.8×, 27.9×] the time for 32× the pairs"."""
    return f"{times_text(exact, dilated)} the time{pairs_text(exact, dilated)}"


def ratio_row(ctx: Context, exact: Point, dilated: Point) -> Row:
    ratio, _ = exact.times(dilated)
    return base_row(ctx, exact) | {
        "value": ratio,
        "value_text": ratio_label(ratio),
        "cost": cost_text(exact, dilated),
        "other": duration_label(dilated.median_s, 6),
        "samples": f"{sample_count(exact) or 'none'} and {sample_count(dilated) or 'none'}",
    }


def speedup(ctx: Context) -> list[Drawing]:
    pairs = matched(ctx)
    return single([ratio_row(ctx, e, d) for e, d in pairs], [p for pair in pairs for p in pair], finding=speedup_finding(ctx, pairs))


def speedup_finding(ctx: Context, pairs: list[tuple[Point, Point]]) -> str:
    """Says what the fastest exact algorithm costs at the shortest and at the longest sequence, of each run and source, on the most
    ranks that both have."""
    decided = [pair for pair in pairs if not any(why_undecided(ctx, p) for p in pair)] or pairs
    said = []
    for some in group_by(decided, lambda pair: pair[0].run, lambda pair: pair[0].source, lambda pair: pair[0].compute_pass).values():
        lengths = group_by(some, lambda pair: pair[0].seq_len)
        ends = [max(lengths[n], key=lambda pair: (pair[0].ranks, -(pair[0].median_s or 0.0))) for n in (min(lengths), max(lengths))]
        at = [f"{cost_text(e, d)} at {token_label(e.seq_len)} ({e.algorithm}, {ctx.index.rank_label(e.ranks)})" for e, d in ends]
        run = f", run {ends[0][0].run + 1}" if len(ctx.runs) > 1 else ""
        name = f", {ends[0][0].pass_name}" if len(ctx.passes) > 1 else ""
        said.append(f"{' and '.join(dict.fromkeys(at))} ({ends[0][0].source}{run}{name})")
    return f"Exact attention takes {'; '.join(said)}." if said else ""


def largest_batches(members: list[Point]) -> list[Point]:
    """One batch per (N, P): the largest stands for the cell."""
    largest: dict[tuple[Any, int], int] = {}
    for p in members:
        largest[(p.seq_len, p.ranks)] = max(p.batch, largest.get((p.seq_len, p.ranks), 0))
    return [p for p in members if p.batch == largest[(p.seq_len, p.ranks)]]


def map_title(ctx: Context, run: int, source: str, cluster: str) -> str:
    place = f"{source} on {cluster}" if cluster else source if len(sources_of(ctx.points)) > 1 else ""
    return ", ".join(filter(None, [place, ctx.index.run_names[run] if len(ctx.runs) > 1 else ""]))


def map_suffix(source: str, run: int, number: int) -> str:
    return f"{source}-{run + 1}" if number == 0 else f"{source}-{run + 1}-{number + 1}"


def crossover(ctx: Context) -> list[Drawing]:
    """One map per source, run, cluster and pass, so that no cell mixes them; the fastest exact algorithm counts."""
    drawings: list[Drawing] = []
    pairs = {id(e): d for e, d in matched(ctx)}
    exact = [p for p in timed_points(ctx) if id(p) in pairs]
    numbers: dict[tuple[int, str], int] = {}
    for (run, source, cluster, _), members in group_by(
        exact, lambda p: p.run, lambda p: p.source, lambda p: p.text("params.cluster"), lambda p: p.compute_pass
    ).items():
        best = best_per_key(largest_batches(members), lambda p: (p.seq_len, p.ranks))
        if len(best) < 2:
            continue
        rows = [
            ratio_row(ctx, p, pairs[id(p)]) | {"tokens": token_label(p.seq_len), "exact_series": ctx.index.label(p)}
            for p in best
        ]
        for row in rows:
            row["log2_ratio"] = math.log2(row["value"]) if row["value"] > 0 else None
        number = numbers.setdefault((run, source), 0)
        numbers[(run, source)] += 1
        points = [*best, *(pairs[id(p)] for p in best)]
        title = map_title(ctx, run, source, cluster)
        faster = sum(row["value"] > 1 for row in rows)
        best_row = max(rows, key=lambda row: row["value"])
        finding = f"Dilated attention is faster than the fastest exact algorithm in {faster} of {plural(len(rows), 'cell')}"
        finding += f"; at most, at {best_row['length_label']} on {best_row['ranks_label']}, exact attention takes {best_row['cost']} ({source})."
        drawings.append(Drawing(rows, points, map_suffix(source, run, number), title, finding=finding, params=cell_text(rows)))
    return drawings


def cell_text(rows: list[Row]) -> dict[str, Any]:
    """Characters of the longest text of a cell: a map has all of them, upright where its cells are narrow, or none."""
    return {"cell_text": max(len(row["value_text"]) for row in rows)}


def short_name(point: Point) -> str:
    """Algorithm and order of tokens: what wins, whatever its options."""
    layout = point.text("params.layout")
    return point.algorithm if layout in ("", "contiguous") else f"{point.algorithm} {layout}"


def winners(ctx: Context) -> list[Drawing]:
    """Per source, run, cluster, pass and problem: the fastest exact algorithm of each (N, P), how far the next one is,
    and where the same problem on another cluster of the run has another winner."""
    exact = [p for p in timed_points(ctx) if p.pattern == "dense" and p.group_ranks > 1]
    shape = ("heads", "kv_heads", "head_dim", "dtype", "causal")
    problems = group_by(
        exact, lambda p: p.run, lambda p: p.source, lambda p: (*(p.text(f"params.{k}") for k in shape), p.compute_pass)
    )
    drawings: list[Drawing] = []
    numbers: dict[tuple[int, str], int] = {}
    varied = [place for place, name in enumerate(shape) if len({key[2][place] for key in problems}) > 1 and name != "causal"]
    for (run, source, problem), members in problems.items():
        maps = {}
        for (cluster,), on_it in group_by(members, lambda p: p.text("params.cluster")).items():
            cells = group_by(largest_batches(on_it), lambda p: p.seq_len, lambda p: p.ranks)
            ranked = {cell: best_per_key(some, short_name) for cell, some in cells.items()}
            maps[cluster] = {cell: sorted(r, key=lambda p: p.median_s or 0) for cell, r in ranked.items() if len(r) > 1}
        for cluster, ranked in maps.items():
            if len(ranked) < 2:
                continue
            rows = [winner_row(ctx, cell, maps, cluster) for cell in ranked]
            number = numbers.setdefault((run, source), 0)
            numbers[(run, source)] += 1
            points = [p for places in ranked.values() for p in places[:2]]
            title = map_title(ctx, run, source, cluster)
            title = ", ".join(filter(None, [title, *(f"{shape[place].replace('_', ' ')} {problem[place]}" for place in varied)]))
            if ranked[next(iter(ranked))][0].get("params.causal"):
                title = ", ".join(filter(None, [title, "causal"]))
            wins = Counter(row["winner"] for row in rows).most_common()
            finding = f"Of {plural(len(rows), 'cell')}: " + ", ".join(f"{name} is fastest in {n}" for name, n in wins)
            drawings.append(Drawing(rows, points, map_suffix(source, run, number), title, finding=f"{finding} ({source}).", params=cell_text(rows)))
    return drawings


def is_tie(first: Point, second: Point) -> bool:
    """Intervals that overlap, or times that are nearer than predictions are sure of."""
    low, high = second.num("timing.ci_low_s"), first.num("timing.ci_high_s")
    overlap = first.source == "measured" and low is not None and high is not None and low <= high
    error = first.num("metrics.error")  # the cluster's predictions have it, where its file says so
    return overlap or (second.median_s or 0.0) <= (1 + error if error else TIE) * (first.median_s or 0.0)


def winner_row(ctx: Context, cell: tuple[Any, ...], maps: dict[str, Any], cluster: str) -> Row:
    first, second = maps[cluster][cell][:2]
    factor = (second.median_s or 0.0) / (first.median_s or 1.0)
    elsewhere = [
        f"{other}: {short_name(ranked[cell][0])}"
        for other, ranked in maps.items()
        if cell in ranked and short_name(ranked[cell][0]) != short_name(first)
    ]
    return base_row(ctx, first) | {
        "tokens": token_label(first.seq_len),
        "winner": short_name(first),
        "winner_series": ctx.index.label(first),
        "second": short_name(second),
        "second_time": duration_label(second.median_s, 6),
        "value": factor,
        "value_text": f"≈ {ratio_label(factor)}" if is_tie(first, second) else ratio_label(factor),
        "flips": "; ".join(elsewhere) or "the same",
    } | ({"flips_here": True} if elsewhere else {})


def samples(ctx: Context) -> list[Drawing]:
    """Strips relative to the median; of very many points, those with the widest spread."""
    able = [p for p in timed_points(ctx) if len(p.samples) >= 2]
    widest = sorted(able, key=lambda p: max(p.samples) / min(p.samples), reverse=True)[:MAX_STRIPS]
    shown = sorted(widest, key=lambda p: point_order(ctx, p))
    rows: list[Row] = []
    for order, point in enumerate(shown):
        for number, sample in enumerate(point.samples, 1):
            rows.append(
                {
                    "label": point_label(ctx, point),
                    "order": order,
                    "series": ctx.index.label(point),
                    "source": point.source,
                    "ratio": sample / (point.median_s or 1.0),
                    "sample": duration_label(sample, 6),
                    "index": number,
                    "median": duration_label(point.median_s, 6),
                    "interval": interval_text(point),
                }
            )
    if not rows:
        return []
    ends = [row["ratio"] for row in rows]
    note = f"Shown are the {len(shown)} of {len(able)} points with the widest spread." if len(shown) < len(able) else ""
    finding = f"The samples furthest from the median of their point are {significant(min(ends))} and {significant(max(ends))} times it."
    params = {"low": min(0.8, *ends), "high": max(1.25, *ends)}  # a small spread looks small
    return single(rows, shown, note=note, finding=finding, params=params)
