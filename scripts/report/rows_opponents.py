"""Rows of the figures that set algorithms against each other: balance, ablations, error, collectives."""

from __future__ import annotations

from typing import Any

from .model import FORWARD, Point
from .rows import (
    Context,
    Drawing,
    Row,
    base_row,
    beside_opponents,
    collective_of,
    interval_text,
    per_source,
    point_label,
    point_order,
    range_of,
    sample_count,
    side_by_side,
    single,
    timed_points,
    whatever_pass,
    without_collective,
)
from .series import DEFAULTS, group_by, scalar_params
from .units import MISSING, duration_label, listed, percent_label, plural, ratio_label, significant, token_label

CURVE_STEPS = 24  # steps of the closed form's curve
MAX_CHOICES = 24  # lines of the collective choice
ABLATIONS = (
    ("full", "full_s"),
    ("compute only", "compute_only_s"),
    ("communication only", "communication_only_s"),
    ("serialised", "serialised_s"),
)


def one_length(ctx: Context, points: list[Point]) -> tuple[list[Point], str]:
    """The points of one length for each series and source: with the most rank counts, then the commonest, longest."""
    common: dict[int | None, int] = {}
    for point in points:
        common[point.seq_len] = common.get(point.seq_len, 0) + 1
    kept: list[Point] = []
    for members in group_by(points, ctx.index.key, lambda p: p.source).values():
        lengths = group_by(members, lambda p: p.seq_len)
        best = max(
            lengths.values(), key=lambda g: (len({p.ranks for p in g}), common[g[0].seq_len], g[0].seq_len or 0)
        )
        kept += {p.ranks: p for p in reversed(best)}.values()
    chosen = [p.seq_len for p in kept if p.seq_len]
    each = ", each line at one of them" if len(set(chosen)) > 1 else ""
    return kept, f"Tokens: {listed(chosen, token_label)}{each}."


def ring_balance(ranks: float) -> float:
    """Total causal work over P x the last rank's, contiguous shards: (N²/2) ÷ (P · N/P · (N − N/2P))."""
    return ranks / (2 * ranks - 1)


def causal_balance(ctx: Context) -> list[Drawing]:
    able = [
        p
        for p in ctx.points
        if p.ok
        and p.seq_len
        and p.ranks >= 2
        and p.replicas == 1  # the curve is of ranks that share a sequence
        and p.get("params.causal") is True
        and p.value("work.balance")
        and collective_of(p) == DEFAULTS["collective"]  # the others do the same work
    ]
    shown, note = one_length(ctx, whatever_pass(ctx, able))
    rows: list[Row] = []
    for point in sorted(shown, key=lambda p: point_order(ctx, p)):
        balance = point.value("work.balance")
        row = base_row(ctx, point) | {"value": balance, "value_text": percent_label(balance)}
        rows.append(row | {"closed_form": percent_label(ring_balance(point.ranks))})
    params = side_by_side(rows, "ranks", close=lambda a, b: b - a <= 0.015)
    if not rows:
        return []
    counts = [p.ranks for p in shown]
    for step in range(CURVE_STEPS + 1):
        ranks = min(counts) * (max(counts) / min(counts)) ** (step / CURVE_STEPS)
        rows.append({"status": "ideal", "ranks": ranks, "value": 1.0})
        rows.append({"status": "closed form", "ranks": ranks, "value": ring_balance(ranks)})
    plain = [p for p in shown if p.pattern == "dense" and not DEFAULTS.keys() & scalar_params(p).keys()]
    if plain:
        worst = max(min(abs((p.value("work.balance") or 0) / form - 1) for form in (ring_balance(p.ranks), 1)) for p in plain)
        note += f" Contiguous shards are within {percent_label(worst)} of P/(2P − 1), or of 1 where heads are split."
    finding = per_source(shown, lambda some: f"balance {range_of([p.value('work.balance') or 0 for p in some], percent_label)}")
    return single(rows, shown, note=note, finding=finding, params=params)


def ablations(ctx: Context) -> list[Drawing]:
    """Four bars per point, as shares of its full time."""
    able = [p for p in ctx.points if p.ok and p.seq_len and (p.value("ablations.full_s") or 0) > 0]
    shown, note = beside_opponents(ctx, able)
    rows = [row for order, point in enumerate(shown) for row in ablation_rows(ctx, point, order)]

    def exposed(some: list[Point]) -> str:
        shares = [p.exposed_s / p.full_s for p in some if p.exposed_s is not None and p.full_s and p.ranks > 1]
        if shares:
            return f"exposed messages take {range_of(shares, percent_label)} of the full time on several ranks"
        parts = [(p.value("ablations.single_attend_s"), p.value("ablations.compute_only_s")) for p in some]
        attends = [attend / compute for attend, compute in parts if attend and compute]
        return f"one big attend takes {range_of(attends, percent_label)} of compute only" if attends else ""

    return single(rows, shown, note=note, finding=per_source(shown, exposed))


def ablation_rows(ctx: Context, point: Point, order: int) -> list[Row]:
    full, compute, communication, _ = (point.value(f"ablations.{key}") for _, key in ABLATIONS)
    exposed = None if compute is None else point.exposed_s
    attend = point.value("ablations.single_attend_s")
    whole = full or 1.0
    hidden = None if exposed is None or not communication else communication - exposed
    texts = {
        "exposed": MISSING if exposed is None else f"{duration_label(exposed, 4)} ({percent_label(exposed / whole)})",
        "overlap": MISSING
        if hidden is None or not communication
        else f"{duration_label(hidden, 4)} ({percent_label(hidden / communication)} of communication only)",
        "attend": duration_label(attend, 5),
        "fragmentation": f"{significant(compute / attend)}×" if compute and attend else MISSING,
    }
    rows: list[Row] = []
    for part, key in ABLATIONS:
        seconds = point.value(f"ablations.{key}")
        row: Row = {"label": point_label(ctx, point), "order": order, "source": point.source, "part": part}
        if seconds is None:
            rows.append(row | {"untimed": "no messages" if point.ranks == 1 else "not timed"})
            continue
        row |= {
            "value": seconds / whole,
            "share_text": percent_label(seconds / whole),
            "time": duration_label(seconds, 5),
        }
        if part == "compute only" and attend:
            row["single_share"] = attend / whole
        rows.append(row | texts)
    return rows


def error_text(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"


def spread_error(point: Point) -> float | None:
    """Over queries that do not depend on the ranks; of results without it, and of gradients, over all sampled rows."""
    spread = point.num("check.spread_rel_l2_error") if point.compute_pass == FORWARD else None
    return point.num("check.rel_l2_error") if spread is None else spread


def error_ranks(ctx: Context) -> list[Drawing]:
    """Points whose result was compared with the reference, right or wrong: over the same rows at every P."""
    able = [
        p
        for p in ctx.points
        if p.seq_len and p.status in ("ok", "check_failed") and (spread_error(p) or 0) > 0
    ]
    shown, note = one_length(ctx, able)
    rows: list[Row] = []
    for point in sorted(shown, key=lambda p: point_order(ctx, p)):
        names = ("rel_l2_error", "max_rel_error", "tolerance")
        texts = {name: error_text(point.num(f"check.{name}")) for name in names}
        rows.append(base_row(ctx, point) | texts | {"value": spread_error(point)})
    params = side_by_side(rows, "ranks", close=lambda a, b: b <= 1.2 * a)
    errors = [row["value"] for row in rows]
    if errors:  # a factor of 4 at least, so that rounding does not look like growth
        params |= {"low": min(errors) / 2, "high": max(errors) * 2}
    tolerances = sorted({t for t in (p.num("check.tolerance") for p in shown) if t})
    if not ctx.passes <= {FORWARD}:
        note += " Of a backward it is the largest error of the output, dQ, dK and dV, over all rows that were sampled."
    if tolerances:
        note += f" Tolerance: {', '.join(map(error_text, tolerances))}."
    return single(rows, shown, note=note, params=params)


def collectives(ctx: Context) -> list[Drawing]:
    """The same problem with two or more collectives: times relative to the native one, else to the fastest."""
    groups = [
        g
        for g in group_by(
            timed_points(ctx),
            lambda p: without_collective(ctx, p),
            lambda p: p.source,
            lambda p: (p.seq_len, p.ranks, p.batch),
        ).values()
        if len({collective_of(p) for p in g}) >= 2
    ]
    groups.sort(key=lambda g: (g[0].seq_len or 0, g[0].ranks), reverse=True)
    chosen = sorted(groups[:MAX_CHOICES], key=lambda g: choice_order(ctx, g[0]))
    rows: list[Row] = []
    for order, group in enumerate(chosen):
        native = [p for p in group if collective_of(p) == DEFAULTS["collective"]]
        base = min(native or group, key=lambda p: p.median_s or 0.0)
        rows += [choice_row(ctx, p, base, order) for p in group]
    note = f"Shown are {len(chosen)} of {len(groups)} cases: the longest." if len(chosen) < len(groups) else ""
    if any(r["baseline"] != DEFAULTS["collective"] for r in rows):
        note = f"{note} Without a native run the fastest collective is 1.".strip()
    ends = [row[key] for row in rows for key in ("low", "value", "high") if key in row]
    params = {"low": min([0.9, *(e - 0.05 for e in ends)]), "high": max([1.1, *(e + 0.05 for e in ends)])}
    finding = per_source(
        [p for g in chosen for p in g],
        lambda some: f"{range_of([r['value'] for r in rows if (r['source'], r['pass']) == (some[0].source, some[0].pass_order)], ratio_label)} the time of native",
    )
    return single(rows, [p for g in chosen for p in g], note=note, finding=finding, params=params)


def choice_order(ctx: Context, point: Point) -> tuple[Any, ...]:
    source, label, *rest = point_order(ctx, point)
    return (source, label.replace(f" · via {collective_of(point)}", ""), *rest)


def choice_row(ctx: Context, point: Point, base: Point, order: int) -> Row:
    scale = 1.0 / (base.median_s or 1.0)
    low, high = point.num("timing.ci_low_s"), point.num("timing.ci_high_s")
    row: Row = {
        "label": point_label(ctx, point, without=f" · via {collective_of(point)}"),
        "order": order,
        "source": point.source,
        "pass": point.pass_order,
        "algorithm": point.algorithm,
        "collective": collective_of(point),
        "baseline": collective_of(base),
        "value": (point.median_s or 0.0) * scale,
        "value_text": f"{significant((point.median_s or 0.0) * scale)}×",
        "median": duration_label(point.median_s, 6),
        "interval": interval_text(point),
        "samples": plural(sample_count(point), "sample"),
    }
    return row | ({"low": low * scale, "high": high * scale} if low and high else {})
