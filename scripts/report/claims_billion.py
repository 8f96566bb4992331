"""The claim about 2^30 tokens on a distributed system.

Example: one device computed the shards of 128 ranks in turn, every query and key of 2^30 tokens; 1,024 sampled rows
agree with the reference in double precision. The paper speaks of a distributed system: seen and not judged.
"""

from __future__ import annotations

from .claims_pattern import depth_text
from .evidence import NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED, Evidence
from .model import Point
from .rows import Context, heads_text
from .units import bytes_label, duration_label, integer_label, number, spoken_duration, token_label

BILLION = 1 << 30
PAPER_HEADS = 12  # heads of the paper's base model


def place(ctx: Context, point: Point) -> str:
    ranks = ctx.index.rank_label(point.ranks)
    return f"one device in the place of {ranks}" if point.in_turn else ranks


def memory_text(ctx: Context, point: Point) -> str:
    """ ", predicted peak memory 10 GiB per rank (12 heads: about 121 GiB; the device has 74.5 GiB, and more ranks hold less each)"."""
    peak = point.num("memory.measured_peak_bytes") or point.num("memory.predicted_peak_bytes")
    if not peak:
        return ""
    kind = "peak memory" if point.source == "measured" else "predicted peak memory"
    of = ", of one rank's shard at a time (whose output is checked, then dropped)" if point.in_turn else " per rank"
    heads = point.num("params.heads") or PAPER_HEADS
    has = number(ctx.runs[point.run].get("run.cluster.device.memory_bytes.value"))
    device = f"; the device has {bytes_label(has)}, and more ranks hold less each" if has else ""
    all_heads = "" if heads >= PAPER_HEADS else f" ({PAPER_HEADS} heads: about {bytes_label(peak * PAPER_HEADS / heads)}{device})"
    return f", {kind} {bytes_label(peak)}{of}{all_heads}"


def model_text(point: Point) -> str:
    """ "attention's forward pass alone, one head of 64 (the paper's base model has 12), bf16 inputs"."""
    return f"attention's {point.pass_name} pass alone, {heads_beside_paper(point)}, {point.text('params.dtype')} inputs"


def heads_beside_paper(point: Point) -> str:
    paper = "" if point.num("params.heads") == PAPER_HEADS else f" (the paper's base model has {PAPER_HEADS})"
    return f"{heads_text(point)} of {point.text('params.head_dim')}{paper}"


def wall_text(point: Point) -> str:
    """ ", 1532 s with making inputs and checking rows"."""
    wall = point.num("metrics.walk_wall_s")
    return f", {duration_label(wall, 4)} with making inputs and checking rows" if wall else ""


def on_several_ranks(point: Point) -> bool:
    return point.group_ranks >= 2 and not point.in_turn


def joins_all(point: Point) -> bool:
    """Whether every token hears from every other at some depth, as far as the record knows."""
    return (point.num("metrics.dependency_depth_layers") or 0) >= 0


def checked(point: Point) -> bool:
    """Computed, every value written, sampled rows as the definition has them."""
    return point.source == "measured" and point.text("check.status") == "pass" and point.num("content.nan_values") == 0


def why_no_system(point: Point) -> str:
    """Says what the sentence of the paper has and the point lacks; empty where it lacks nothing."""
    if point.source != "measured":
        return f"{point.source} points compute no output"
    if point.in_turn:
        return "one device in the place of all ranks is no distributed system"
    if point.group_ranks < 2:
        return "one rank is no distributed system"
    if not joins_all(point):
        return "section 2.4 has no pattern that leaves tokens apart"
    return "" if checked(point) else "its output was not checked"


def billion_tokens(ctx: Context, source: str) -> Evidence:
    able = [p for p in ctx.points if p.pattern == "dilated" and p.source == source and p.seq_len]
    long = [p for p in able if (p.seq_len or 0) >= BILLION]
    wrong = [p for p in long if p.text("check.status") == "fail" or p.status == "check_failed"]
    if source == "measured" and wrong:
        reason = wrong[0].text("reason") or "its check failed"
        return Evidence(source, NOT_SUPPORTED, f"{token_label(wrong[0].seq_len)} tokens: {reason}.", judged=(tuple(wrong),))
    ran = [p for p in long if p.ok]
    if ran:
        return billion_ran(ctx, min(ran, key=lambda p: (bool(why_no_system(p)), not checked(p), p.median_s or 0.0)))
    refused = [p for p in long if p.status in ("skipped_memory", "oom") and on_several_ranks(p)]
    if refused:  # a larger machine may hold them
        why = refused[0].text("reason") or "no reason given"
        most = ctx.index.rank_label(max(p.ranks for p in refused))
        return Evidence(source, NOT_TESTED, f"{token_label(refused[0].seq_len)} tokens do not fit here, on up to {most}: {why}")
    longest = max((p.seq_len or 0 for p in able if p.ok), default=0)
    text = f"the longest dilated sequence that ran has {token_label(longest)} tokens" if longest else "no dilated point ran"
    return Evidence(source, NOT_TESTED, text)


def billion_ran(ctx: Context, point: Point) -> Evidence:
    lacks = why_no_system(point)
    done = "were computed and checked" if checked(point) else "ran"
    where, time = place(ctx, point), spoken_duration(point.median_s)
    took = f"{done} on {where} in {time}" if point.source == "measured" else f"take {time} on {where} ({point.source})"
    text = (
        f"{token_label(point.seq_len)} tokens {took}: attention's {point.pass_name} pass with "
        f"{heads_beside_paper(point)}; {depth_text(point)}.{f' Undecided: {lacks}.' if lacks else ''}"
    )
    details = [f"{point.seq_len:,} tokens, {model_text(point)}{memory_text(ctx, point)}"]
    if checked(point):
        details += [
            f"{duration_label(point.median_s, 4)}{wall_text(point)}",
            f"every query and key of every branch; no value of {integer_label(point.num('content.rows'))} rows left unwritten",
            f"{integer_label(point.num('check.queries'))} sampled rows agree with the reference, together off by "
            f"{point.num('check.rel_l2_error') or 0.0:.2g} (tolerance {point.num('check.tolerance') or 0.0:.2g} for all together), the worst row alone by "
            f"{point.num('check.max_rel_error') or 0.0:.3g}",
        ]
    return Evidence(point.source, SEEN if lacks else SUPPORTED, text, tuple(details), judged=((point,),))
