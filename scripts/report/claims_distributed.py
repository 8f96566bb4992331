"""Claims that only two or more ranks can show: dilated attention is right across ranks, and exact attention is distributed too.

Example: ring on 8 GPUs runs and agrees with the reference at 4M tokens, which one GPU refuses for memory: the paper's
sentence is no longer so. At a length that one rank takes as well it is undecided, whatever share of the memory a rank needs.
"""

from __future__ import annotations

from .claims_billion import memory_text, model_text, on_several_ranks
from .evidence import NOT_SUPPORTED, NOT_TESTED, OUTDATED, SEEN, SUPPORTED, Evidence, machine_text, ranks_text
from .model import Point
from .rows import Context, range_of
from .series import group_by
from .units import integer_label, percent_label, plural, span_label, token_label

QUADRATIC = "the work stays quadratic: each rank computes N²/P pairs"
BEFORE_THE_PAPER = (
    "When the paper appeared, in July 2023, there were Ring Self-Attention (arXiv 2105.13120, May 2021), which splits a sequence of exact attention over ranks to "
    "“break input sequence length limitation” and stores a rank’s scores against all keys, N²/P of them, and Megatron’s sequence parallelism (2205.05198, May 2022), "
    "which splits attention by heads alone. Section 3 calls sequence parallelism insufficient for LongNet. Neither is built here."
)
AFTER_THE_PAPER = (
    "The exact algorithms built here follow later papers: Ulysses (2309.14509, September 2023), Ring Attention (2310.01889, October 2023), and of 2024 "
    "query_ring (2403.09347), usp (2405.07719), double_ring (2406.18485), all_gather (2407.21783), query_gather (2408.04093); bidirectional_ring is a ring that this suite runs both ways around."
)
SINCE = "later than the paper"
NO_NUMBERS = Evidence("simulated", NOT_TESTED, "a simulation computes times, no attention")


def distributed(point: Point) -> bool:
    """Ranks that share a sequence, and messages that the transport, or a library's collectives, moved between them."""
    return on_several_ranks(point) and (point.sent("messages") or 0) > 0


def tolerances_text(points: list[Point]) -> str:
    """The worst error by tolerance: kernels that round to 16 bits are allowed more."""
    worst: dict[float, float] = {}
    for point in points:
        found, allowed = point.num("check.rel_l2_error"), point.num("check.tolerance")
        if found is not None:
            worst[allowed or 0] = max(found, worst.get(allowed or 0, 0))
    errors = ", ".join(f"{e:.2g}" + (f" (tolerance {t:.2g})" if t else "") for t, e in sorted(worst.items()))
    return f", largest relative L2 error {errors}" if worst else ""


def equals_reference(ctx: Context, source: str) -> Evidence:
    if source == "simulated":
        return NO_NUMBERS
    dilated = [p for p in ctx.points if p.pattern == "dilated" and p.source == source]
    able = [p for p in dilated if distributed(p)]
    passed = [p for p in able if p.ok and p.text("check.status") == "pass"]
    failed = [p for p in dilated if on_several_ranks(p) and (p.text("check.status") == "fail" or p.status == "check_failed")]
    if failed:
        point = failed[0]
        detail = (
            point.text("reason")
            or f"relative L2 error {point.text('check.rel_l2_error')}, tolerance {point.text('check.tolerance')}"
        )
        checked = plural(len(failed) + len(passed), "checked point")
        return Evidence(source, NOT_SUPPORTED, f"{len(failed)} of {checked} differ; first {point.text('id')}: {detail}.", judged=(tuple(failed),))
    alone = sum(1 for p in dilated if not distributed(p) and p.ok and p.text("check.status") == "pass")
    if not passed:
        others = f"; right on one rank, or without messages: {plural(alone, 'point')}" if alone else ""
        return Evidence(source, NOT_TESTED, f"no dilated point moved messages between ranks and was checked{others}")
    every, agree = ("all ", "agree") if len(passed) > 1 else ("", "agrees")
    each = span_label([p.num("check.queries") or 0 for p in passed])
    text = f"{every}{plural(len(passed), 'checked point')} on {ranks_text(passed)} {agree} in {each} sampled rows each{tolerances_text(passed)}."
    details = [f"ranks are {machine_text(ctx, passed)}, with messages between them"]
    if left_out := sum(int(p.num("check.strata_left_out") or 0) for p in passed):
        details.append(f"{integer_label(left_out)} strata (branch, head, rank) beyond the budget have no checked row")
    return Evidence(source, SUPPORTED, text, tuple(details), judged=(tuple(passed),))


PROBLEM = ("heads", "kv_heads", "head_dim", "dtype", "causal", "mode", "transport", "kernel")


def problem(p: Point) -> tuple[object, ...]:
    return (p.run, p.compute_pass, p.seq_len, p.group_batch, *(p.text(f"params.{k}") for k in PROBLEM))


def memory_shares(point: Point, exact: list[Point]) -> tuple[float, float] | None:
    """Peak memory ÷ the least that an exact algorithm took for the same problem on the fewest ranks: per rank, over all ranks."""

    fewer = [p for p in exact if problem(p) == problem(point) and p.group_ranks < point.group_ranks]
    least = min((p.group_ranks for p in fewer), default=0)
    peaks = [p.num("memory.measured_peak_bytes") for p in fewer if p.group_ranks == least]
    own, base = point.num("memory.measured_peak_bytes"), min((b for b in peaks if b), default=None)
    return (own / base, own * point.group_ranks / (base * least)) if own and base else None


def refused_by_fewer(point: Point, ctx: Context) -> str:
    """How an exact algorithm had no memory for the same problem on fewer ranks of the same run: oom, skipped_memory (predicted), ""."""
    fewer = [p for p in ctx.points if p.pattern == "dense" and problem(p) == problem(point) and p.group_ranks < point.group_ranks]
    return next((status for status in ("oom", "skipped_memory") if any(p.status == status for p in fewer)), "")


def simulated_exact(exact: list[Point], ctx: Context) -> Evidence:
    able = [p for p in exact if p.group_ranks >= 2]
    if not able:
        return NO_NUMBERS
    point = max(able, key=lambda p: (p.seq_len or 0, -p.ranks))
    where = f"{point.algorithm} at {token_label(point.seq_len)} tokens on {ctx.index.rank_label(point.ranks)}"
    return Evidence("simulated", SEEN, f"{where}: nothing was computed or checked.", (f"{model_text(point)}{memory_text(ctx, point)}",), judged=((point,),))


def exact_distributed(ctx: Context, source: str) -> Evidence:
    """The paper's negative claim: one exact algorithm at a length that fewer ranks refuse outdates it, for all that are built
    here came later."""
    exact = [p for p in ctx.points if p.pattern == "dense" and p.source == source and p.ok]
    if source == "simulated":
        return simulated_exact(exact, ctx)
    able = [p for p in exact if distributed(p)]
    checked = [p for p in able if p.text("check.status") == "pass"]
    beyond = [p for p in checked if refused_by_fewer(p, ctx)]
    if beyond:
        seen = any(refused_by_fewer(p, ctx) == "oom" for p in beyond)
        status, memory = (OUTDATED, "fewer ranks had no memory") if seen else (SEEN, "fewer ranks are predicted to have no memory")
        listed = [f"{ctx.index.label(p)}: {token_label(p.seq_len)} tokens on {ctx.index.rank_label(p.ranks)}, refused for memory on fewer" for p in beyond]
        names = ", ".join(sorted({p.algorithm for p in beyond}))
        text = f"{names}, {SINCE}, ran on {ranks_text(beyond)} and agreed with the reference at lengths for which {memory}; {QUADRATIC}."
        listed.append(f"ranks are {machine_text(ctx, beyond)}")
        return Evidence(source, status, text, tuple(listed), judged=(tuple(beyond),))
    if not checked:
        ran = "exact algorithms ran on several ranks, but none was checked" if able else "no exact algorithm ran on several ranks"
        return Evidence(source, NOT_TESTED, ran)
    return within_memory(ctx, source, checked, exact)


def within_memory(ctx: Context, source: str, checked: list[Point], exact: list[Point]) -> Evidence:
    """Exact algorithms at lengths of which nothing shows that fewer ranks have no memory for them; of each series the longest
    sequence on the most ranks is listed."""
    names = sorted({p.algorithm for p in checked})
    ran = f"{', '.join(names)}, {SINCE}, ran on {ranks_text(checked)} and agreed with the reference"
    shares = [(*found, p) for p in checked if (found := memory_shares(p, exact))]
    if not shares:
        why = "whether fewer ranks have no memory for these lengths is not known"
        return Evidence(source, SEEN, f"{ran}. Undecided: {why}.", judged=(tuple(checked),))
    series = group_by(shares, lambda found: ctx.index.key(found[2])).values()
    largest = [max(group, key=lambda found: (found[2].ranks, found[2].seq_len or 0)) for group in series]
    listed = sorted(largest, key=lambda found: (found[0], ctx.index.label(found[2])))
    points = [p for _, _, p in listed]
    text = (
        f"{ran}, in {range_of([share for share, _, _ in listed], percent_label)} of the memory per rank that the same tokens take on fewer ranks. "
        f"Undecided: fewer ranks hold these lengths, up to {token_label(max(p.seq_len or 0 for p in points))} tokens, as well."
    )
    details = [
        f"{ctx.index.label(p)}: {token_label(p.seq_len)} tokens on {ctx.index.rank_label(p.ranks)}, {percent_label(share)} of the "
        "memory per rank on the fewest ranks"
        for share, _, p in listed
    ]
    details.append(
        f"over all ranks the memory is {span_label([total for _, total, _ in listed])} times that of the fewest; {QUADRATIC}; ranks are {machine_text(ctx, points)}"
    )
    return Evidence(source, SEEN, text, tuple(details), judged=(tuple(p for _, _, p in shares),))
