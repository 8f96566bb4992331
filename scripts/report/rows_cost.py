"""Rows of the figures about bytes, memory, FLOPs, phases and the timeline of a step."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from .model import FORWARD, Point, Run
from .rows import (
    Context,
    Drawing,
    Row,
    base_row,
    beside_opponents,
    per_source,
    point_label,
    point_name,
    range_of,
    side_by_side,
    single,
    spread,
    timed_points,
)
from .rows_scaling import lengths_shown, shortened
from .series import group_by
from .units import (
    MISSING,
    bytes_label,
    duration_label,
    integer_label,
    number,
    percent_label,
    plural,
    rate_label,
)

MAX_LANE_RANKS = 4
PHASES = ("compute", "exposed messages", "merge", "waiting")
OVERLAP = 0.01  # share of the full time: parts that pass it by more overlap
NEAR_LIMIT = 4.0  # largest limit over the peak of a number of ranks that is drawn


def exact_bytes(count: float | None) -> str:
    return "none" if count is None else f"{int(count):,} B ({bytes_label(count)})"


RESIDENT_NOTED = 0.1  # share of a process's buffers: beyond, its resident memory is said to differ


def sent_text(point: Point, what: str, label: Callable[[float | None], str]) -> str:
    modelled = point.num(f"comm.modelled_{what}_per_rank")
    counted = label(point.num(f"comm.counted_{what}_per_rank"))
    return f"{counted} and {label(modelled)} modelled, by a library's collectives" if modelled else counted


def communication_rows(ctx: Context, points: list[Point]) -> list[Row]:
    rows = []
    for point in points:
        sent, predicted = point.sent("bytes") if point.ok else None, point.value("comm.predicted_bytes_per_rank")
        row = base_row(ctx, point) | {
            "counted": sent_text(point, "bytes", exact_bytes),
            "predicted": exact_bytes(predicted),
            "messages": sent_text(point, "messages", integer_label),
        }
        shown = sent or (None if point.source == "measured" else predicted)  # a model counts by its formula
        if shown and not point.num("comm.modelled_bytes_per_rank"):
            row["value"] = shown / point.group_batch
        if predicted or sent:
            row["predicted_value"] = (predicted or sent or 0) / point.group_batch
        if "value" not in row:
            row["uncounted"] = True
        rows.append(row)
    return rows


def communicating(points: list[Point]) -> list[Point]:
    """Points on several ranks with a positive count or prediction; a log axis holds no zero."""
    return [
        p
        for p in points
        if p.ok
        and p.seq_len
        and p.group_ranks >= 2
        and (p.sent("bytes") or p.num("comm.predicted_bytes_per_rank"))
    ]


def communication_ranks(ctx: Context) -> list[Drawing]:
    """At lengths where a line has several numbers of ranks."""
    points = communicating(ctx.points)
    lines = group_by(points, lambda p: (ctx.index.key(p), p.source), lambda p: p.seq_len).values()
    lengths = {line[0].seq_len for line in lines if len({p.ranks for p in line}) > 1}
    points = [p for p in points if p.seq_len in lengths]
    kept = sorted(
        {
            n
            for members in group_by(points, lambda p: p.source).values()
            for n in spread([p.seq_len for p in members], lengths_shown(ctx, 3))
        }
    )
    shown = [p for p in points if p.seq_len in kept]
    rows = communication_rows(ctx, shown)
    params = side_by_side(rows, "ranks", "seq_len", close=lambda a, b: b <= 1.03 * a)
    note = shortened([p.seq_len for p in points], kept, "tokens")
    return single(rows, shown, note=note, params=params) if rows else []


def communication_tokens(ctx: Context) -> list[Drawing]:
    points = communicating(ctx.points)
    if len({p.seq_len for p in points}) < 2:
        return []
    other = "Forward exchanges keys and values; backward sums their gradients over the ranks, and may exchange keys and values again."
    return single(communication_rows(ctx, points), points, note="" if ctx.passes <= {FORWARD} else other)


def peak_memory(point: Point) -> float | int | None:
    """Measured where the point was measured; the modelled peak elsewhere."""
    measured = point.value("memory.measured_peak_bytes")
    return measured or (None if point.source == "measured" else point.value("memory.predicted_peak_bytes"))


def host_memory(run: Run) -> float | None:
    """Memory that the processes of the host may use: the limit of the container where it is lower."""
    sizes = (number(run.get(f"environment.memory.{key}")) for key in ("total_bytes", "limit_bytes"))
    known = [size for size in sizes if size]
    return min(known) if known else number(run.get("environment.memory_bytes"))


def limit_rows(ctx: Context, points: list[Point], rows: list[Row]) -> list[Row]:
    """Memory that a rank may use, for each number of ranks of which some row comes near it: the run's share of what the points
    state, or of the modelled device's, else of the host's memory divided among its ranks."""
    limits: dict[tuple[int, float], str] = {}
    for point in points:
        run = ctx.runs[point.run]
        share = number(run.get("run.config.memory.limit_fraction")) or 1.0
        if stated := point.num("memory.device_bytes"):
            limits[point.ranks, share * stated] = "GPU"
        elif modelled := number(run.get("run.cluster.device.memory_bytes.value")):
            limits[point.ranks, share * modelled] = "device"
        elif point.source == "measured" and not point.num("metrics.device_peak_flops") and (host := host_memory(run)):
            on_host = 1 if point.in_turn else point.ranks  # a walk holds one rank at a time
            limits[point.ranks, share * host / on_host] = "host" + (f" ÷ {on_host} ranks" if on_host > 1 else "")
    peaks = {ranks: max(max(r.get("value") or 0, r.get("predicted_value") or 0) for r in some) for (ranks,), some in group_by(rows, lambda r: r["ranks"]).items()}
    return [
        {"status": "limit", "ranks": ranks, "value": value, "label": f"limit of the {of}: {bytes_label(value, 3)}", "text": exact_bytes(value)}
        for (ranks, value), of in limits.items()
        if value <= NEAR_LIMIT * peaks[ranks]
    ]


def resident_note(points: list[Point]) -> str:
    """A note on resident memory by the system beside the buffers, of processes whose buffers are large enough to tell."""
    told = [abs(d) for p in points if (d := p.num("memory.resident_difference")) is not None]
    if not told:
        return ""
    beyond = sum(1 for d in told if d > RESIDENT_NOTED)
    judged = f"WARNING: of {beyond} by more than {percent_label(RESIDENT_NOTED)}, " if beyond else ""
    return f"Resident memory of the processes of {plural(len(told), 'point')} differs from their buffers: {judged}{percent_label(max(told))} at most."


def memory(ctx: Context) -> list[Drawing]:
    shown = [p for p in ctx.points if p.ok and p.seq_len and (peak_memory(p) or p.value("memory.predicted_peak_bytes"))]
    rows: list[Row] = []
    for point in shown:
        measured, predicted = point.value("memory.measured_peak_bytes"), point.value("memory.predicted_peak_bytes")
        row = base_row(ctx, point) | {"measured": exact_bytes(measured), "predicted": exact_bytes(predicted)}
        if peak_memory(point):
            row["value"] = peak_memory(point)
        if predicted:
            row["predicted_value"] = predicted
        if "value" not in row:
            row["uncounted"] = True
        rows.append(row)
    if not rows:
        return []
    for point in ctx.points:
        predicted = point.num("memory.predicted_peak_bytes")
        if point.status in ("skipped_memory", "oom") and point.seq_len and predicted:
            row = base_row(ctx, point) | {"value": predicted, "predicted": exact_bytes(predicted), "refused": True}
            rows.append(row | {"reason": point.text("reason") or "no reason given"})
    return single(rows + limit_rows(ctx, shown, rows), shown, note=resident_note(shown))


def share_of_peak(ctx: Context) -> list[Drawing]:
    shown = [p for p in timed_points(ctx) if 0 < (p.value("work.share_of_peak") or 0) <= 1]
    rows = []
    for point in shown:
        share = point.value("work.share_of_peak")
        rows.append(
            base_row(ctx, point)
            | {"value": share, "value_text": percent_label(share), "rate": rate_label(point.value("work.flops_per_s"))}
        )
    finding = per_source(shown, lambda some: f"{range_of([p.num('work.share_of_peak') or 0 for p in some], percent_label)} of the peak")
    return single(rows, shown, finding=finding)


def disjoint_parts(point: Point) -> dict[str, float] | None:
    """Seconds that add up to the full time; None where the record's parts overlap and cannot be stacked.
    Exposed communication is signed: below zero it is noise, and the others exceed the full time by as much. One device in the place
    of all ranks moves no messages and waits for no rank: it has compute and merge alone."""
    full = point.full_s or 0.0
    compute, merge = (point.num(f"phases.{key}") or 0.0 for key in ("compute_s", "merge_s"))
    exposed = point.exposed_s or 0.0
    rest = full - compute - exposed - merge
    if rest < -OVERLAP * full:
        return None
    parts = dict(zip(PHASES, (compute, exposed, merge, rest)))
    return {name: parts[name] for name in ("compute", "merge")} if point.mode == "virtual" else parts


def phases(ctx: Context) -> list[Drawing]:
    split = [p for p in timed_points(ctx) if p.value("phases.compute_s") is not None]
    able = [p for p in split if disjoint_parts(p)]
    shown, note = beside_opponents(ctx, able)
    rows: list[Row] = []
    for order, point in enumerate(shown):
        full = point.full_s or 1.0
        times = disjoint_parts(point) or {}
        everything = point.value("phases.communication_s")
        if everything:
            times["all messages"] = everything
        for phase_order, (phase, seconds) in enumerate(times.items()):
            rows.append(
                {
                    "label": point_label(ctx, point),
                    "order": order,
                    "source": point.source,
                    "phase": phase,
                    "phase_order": phase_order,
                    "share": seconds / full,
                    "time": duration_label(seconds, 5),
                    "share_text": percent_label(seconds / full),
                    "full": duration_label(full, 6),
                }
            )
    if len(able) < len(split):
        note += f" Left out: {plural(len(split) - len(able), 'point')} whose parts overlap, by their records."
    if any(p.mode == "virtual" for p in shown):
        note += " One device in the place of all ranks moves no messages and waits for no rank: its points have neither part."

    def typical(some: list[Point]) -> str:
        parts = [(disjoint_parts(p) or {}, p.full_s or 1.0) for p in some]
        found = {phase: [times[phase] / full for times, full in parts if phase in times] for phase in PHASES}
        shares = {phase: statistics.median(values) for phase, values in found.items() if values}
        return "at the median " + ", ".join(f"{phase} {percent_label(share)}" for phase, share in shares.items())

    return single(rows, shown, note=note.strip(), finding=per_source(shown, typical))


def timeline(ctx: Context) -> list[Drawing]:
    """One picture per algorithm and source: the longest point that carries a timeline."""
    able = [p for p in [*ctx.points, *ctx.models] if p.ok and isinstance(p.get("timeline"), list) and p.get("timeline")]
    drawings: list[Drawing] = []
    for members in group_by(able, ctx.index.key, lambda p: p.source).values():
        point = max(members, key=lambda p: (p.ranks, p.seq_len or 0))
        rows = timeline_rows(point)
        if rows:
            hidden = point.group_ranks - MAX_LANE_RANKS
            note = f"The first {MAX_LANE_RANKS} of {point.group_ranks} ranks." if hidden > 0 else ""
            title = f"{point_name(ctx, point)} · {ctx.index.label(point)}"
            last = max(row["end_s"] for row in rows)
            own = [row for row in rows if row["order"] < 100 and row["phase"] not in ("messages", "waiting", "merge")]
            busy = sum(row["end_s"] - row["begin_s"] for row in own)
            finding = f"The step ends after {duration_label(last)}; rank 0 computes for {percent_label(busy / (last or 1.0))} of it ({point.source})."
            drawings.append(Drawing(rows, [point], str(len(drawings) + 1), title, note, finding))
    return drawings


def lane_order(lane: str) -> int:
    """Compute first, then copies, then what is sent and received; "send 2" after "send"."""
    name, _, number_text = lane.partition(" ")
    kinds = ("compute", "copy", "communication", "gather", "send", "receive")
    kind = kinds.index(name) if name in kinds else len(kinds)
    return kind * 10 + min(9, int(number_text) if number_text.isdigit() else 0)


ATTENTION_OPS = ("attend", "attend_backward", "delta", "pack", "reset")
MESSAGES = ("send", "recv", "collective", "all_gather", "all_to_all", "reduce_scatter")
NAMED_PHASES = {"merge": "merge", "wait": "waiting", "gemm": "GEMM", "cross_entropy": "cross-entropy", "update": "update"}


def phase_of(op: str, of_model: bool) -> str:
    """One of the report's colours, by operation; whatever has no row above is a row-wise function of a model."""
    if op in ATTENTION_OPS:
        return "attention" if of_model else "compute"
    return "messages" if op in MESSAGES else NAMED_PHASES.get(op, "row-wise")


def timeline_rows(point: Point) -> list[Row]:
    rows = []
    for op in point.get("timeline"):
        if not isinstance(op, dict):
            continue
        rank, begin, end = (number(op.get(k)) for k in ("rank", "begin_s", "end_s"))
        if rank is None or begin is None or end is None or rank >= MAX_LANE_RANKS or end < begin:
            continue
        lane = str(op.get("lane") or "step")
        rows.append(
            {
                "lane": f"rank {int(rank)} · {lane}",
                "order": int(rank) * 100 + lane_order(lane),
                "op": str(op.get("op") or "op"),
                "phase": phase_of(str(op.get("op")), point.of_model),
                "detail": str(op.get("detail") or MISSING),
                "begin_s": begin,
                "end_s": end,
                "begin": duration_label(begin, 5),
                "end": duration_label(end, 5),
                "length": duration_label(end - begin, 5),
                "source": point.source,
            }
        )
    return rows
