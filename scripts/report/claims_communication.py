"""Claims about bytes: what a rank sends is constant, and a backward pass sums gradients by a reduce-scatter.

Example: a rank that sends as many bytes at 8K as at 64K tokens, on 2 ranks: constant. On 2, 4 and 8 ranks it sends 1/2, 3/4
and 7/8 of what is gathered, a rise of 1.75 that (P - 1) / P alone explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .claims_pattern import rates_follow_segments
from .evidence import (
    COMPUTED,
    NOT_SUPPORTED,
    NOT_TESTED,
    SEEN,
    SUPPORTED,
    Evidence,
    Unjudged,
    Verdict,
    decide,
    rise_text,
    series_name,
    span_text,
    whole_label,
)
from .model import BACKWARD, BOTH, FORWARD, Point
from .paper_lines import (
    MIN_LENGTHS,
    MIN_SPAN,
    figure5_lines,
    long_fit,
    on_machine,
    shared_work_text,
    shorter_text,
    tokens_per_rank,
)
from .rows import Context, problem_of
from .units import bytes_label, plural, significant, token_label

BYTES_RATIO = 1.10  # rise of the bytes at a fixed number of ranks
BYTES_RATIO_RANKS = 2.05  # the same when ranks vary: the factor (P-1)/P alone reaches 2
BY_FORMULA = " by the formula"


def bytes_per_sequence(point: Point) -> float | None:
    """Counted bytes, with those that a library's collectives must have moved; of a modelled point without a count, the
    predicted ones. A count that differs from the prediction is a fault of the suite, and evidence of nothing."""
    counted, predicted = point.sent("bytes") if point.ok else None, point.value("comm.predicted_bytes_per_rank")
    if counted and predicted and counted != predicted:
        return None
    if not counted and point.source != "measured":
        counted = predicted
    return counted / point.group_batch if counted else None


def by_formula(line: list[Point]) -> str:
    """Says so where nobody counted a line's bytes: a simulated one's are the predicted ones."""
    if line[0].source == "measured" and not all(p.value("comm.counted_bytes_per_rank") for p in line if p.group_ranks > 1):
        return f"{BY_FORMULA} (what MPI's own collectives move is not counted)"
    return BY_FORMULA if line[0].source == "simulated" else ""


def explained_by_ranks(points: list[Point]) -> str:
    """A rank receives (P - 1) / P of what is gathered: from 2 to 8 ranks that alone is a rise of 1.75×."""
    few, many = min(p.group_ranks for p in points), max(p.group_ranks for p in points)
    factor = (1 - 1 / many) / (1 - 1 / few)
    return "" if few == many else f", of which (P−1)/P alone explains {significant(factor)}×"


def bytes_verdicts(
    ctx: Context,
    source: str,
    axis: Callable[[Point], object],
    limit: float,
    what: Callable[[Point], str],
    value: Callable[[Point], float | None] = bytes_per_sequence,
) -> list[tuple[bool, Verdict]]:
    """Each line with whether its rates follow its segments, without which the paper's statement is not meant."""
    verdicts: list[tuple[bool, Verdict]] = []
    for group in figure5_lines(ctx, source, "dilated", axis, needs_time=False):
        able = [p for p in group if p.group_ranks >= 2 and value(p)]
        fit = long_fit(able, value, sampled=False)
        if fit:
            most = bytes_label(max(value(p) or 0 for p in able))
            head = f"{series_name(ctx, able[0])} {what(able[0])}: at most {most} per rank and sequence{by_formula(able)}"
            text = f"{head}, {rise_text(fit)}{explained_by_ranks(able)} ({span_text(fit)}){shorter_text(able)}"
            more = "; ".join(filter(None, (whole_label(ctx, able[0]), shared_work_text(able), on_machine(ctx, able))))
            verdicts.append((all(map(rates_follow_segments, able)), Verdict(fit.y_rise <= limit, fit.y_rise, text, tuple(able), more)))
    return verdicts


def communication_constant(ctx: Context, source: str) -> Evidence:
    found = bytes_verdicts(
        ctx, source, lambda p: p.group_ranks, BYTES_RATIO, lambda p: f"on {ctx.index.rank_label(p.group_ranks)}"
    )
    found += bytes_verdicts(
        ctx,
        source,
        lambda p: tokens_per_rank(p) if p.group_ranks > 1 else None,
        BYTES_RATIO_RANKS,
        lambda p: f"at {token_label(tokens_per_rank(p))} tokens per rank",
    )
    return bytes_evidence(source, found, "dilated line")


def bytes_evidence(source: str, found: list[tuple[bool, Verdict]], what: str, unclear: Sequence[Unjudged] = ()) -> Evidence:
    missing = f"no {what} on two or more ranks with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}"
    slower = "rates grow more slowly than segments, so that gathers grow with N"
    others = [Unjudged(slower, v.whole, v.points) for follows, v in found if not follows] + [*unclear]
    judged = [v for follows, v in found if follows]
    seen = decide(source, judged, missing, unjudged=others)
    uncounted = judged and all(BY_FORMULA in v.text for v in judged)
    return replace(seen, source=COMPUTED) if uncounted else seen


def bytes_of_backward(ctx: Context) -> Callable[[Point], float | None]:
    """Bytes that a rank sends in a backward, per sequence; of a point of both passes, those left without the forward of the same
    problem; None where that is not known."""
    forward = {problem_of(ctx, p): bytes_per_sequence(p) for p in ctx.points if p.compute_pass == FORWARD}

    def sent(point: Point) -> float | None:
        every, ahead = bytes_per_sequence(point), forward.get(problem_of(ctx, point)) if point.compute_pass == BOTH else 0
        return None if every is None or ahead is None else every - ahead

    return sent


def backward_bytes_evidence(ctx: Context, source: str) -> Evidence:
    """Lines of backward passes, and of both where the forward's bytes are not known apart: these support, or are not judged."""
    alone = bytes_of_backward(ctx)

    def verdicts(points: list[Point], value: Callable[[Point], float | None], said: str) -> list[tuple[bool, Verdict]]:
        some = replace(ctx, points=points)
        return bytes_verdicts(some, source, lambda p: p.group_ranks, BYTES_RATIO, lambda p: f"on {ctx.index.rank_label(p.group_ranks)}{said}", value)

    both = [p for p in ctx.points if p.compute_pass == BOTH]
    found = verdicts([p for p in ctx.points if p.compute_pass == BACKWARD], alone, "")
    found += verdicts([p for p in both if alone(p)], alone, ", both passes less the forward")
    together = verdicts([p for p in both if not alone(p)], bytes_per_sequence, ", both passes together")
    found += [one for one in together if one[1].good]
    unclear = [Unjudged("both passes together rise, whose forward is not known apart", v.whole, v.points) for _, v in together if not v.good]
    return bytes_evidence(source, found, "backward pass of a dilated line", unclear)


def backward_reduce_scatters(ctx: Context, source: str) -> Evidence:
    """Bytes of backward passes, which reduce and scatter gradients, and gather keys again unless the forward pass kept them."""
    seen = backward_bytes_evidence(ctx, source)
    dilated = [p for p in ctx.points if p.source == source and p.compute_pass != FORWARD and p.pattern == "dilated" and p.group_ranks > 1]
    if wrong := [p for p in dilated if p.status == "check_failed"]:
        why = wrong[0].text("reason") or "its check failed"
        text = f"{len(wrong)} of {plural(len(dilated), 'backward point')} wrong; first {wrong[0].text('id')}: {why}"
        return replace(seen, source=source, status=NOT_SUPPORTED, text=text, judged=(tuple(wrong),))
    able = [p for p in dilated if p.ok and bytes_per_sequence(p)]
    if seen.status == NOT_TESTED:
        return replace(seen, source=source)
    if source != "simulated" and not all("reduce_scatter" in p.text("comm.collectives_used") for p in able):
        return replace(seen, source=source, status=NOT_TESTED, text="programs without a reduce-scatter")
    text = f"{seen.text.removesuffix('.')}; gradients summed by reduce-scatter."
    if seen.status == SUPPORTED and source == "simulated":
        return replace(seen, source=source, status=SEEN, text=f"{text} No gradient was computed or checked.")
    errors = [p.num(f"check.gradients.{name}_rel_l2_error") for p in able for name in ("dq", "dk", "dv")]
    known = [e for e in errors if e is not None]
    if seen.status == SUPPORTED and len(known) < len(errors):
        return replace(seen, source=source, status=NOT_TESTED, text=f"{text} Gradients were not checked on every point.")
    right = f" dQ, dK and dV of sampled rows off by at most {max(known):.2g}." if known else ""
    return replace(seen, text=text + right)
