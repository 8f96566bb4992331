"""Claims that only two or more ranks can show: dilated attention is right across ranks, and exact attention is distributed too.

Example: ring on 8 ranks holds 32 % of the memory per rank that one rank needs for the same 4,096 tokens, moves real
messages and agrees with the reference: that speaks against the paper's sentence.
"""

from __future__ import annotations

from .evidence import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, Evidence
from .model import Point
from .rows import Context
from .series import group_by
from .units import integer_label, number, percent_label, plural, significant, token_label

MEMORY_SHARE = 0.5  # of the memory per rank on fewer ranks, at most
NO_NUMBERS = Evidence("simulated", NOT_TESTED, "a simulation computes times, no attention")


def distributed(point: Point) -> bool:
    """Ranks that share a sequence, and messages that the transport, or a library's collectives, moved between them."""
    return point.group_ranks >= 2 and not point.in_turn and (point.sent("messages") or 0) > 0


CARRIERS = {"threads": "threads of one process", "mpi": "MPI processes"}


def ranks_text(points: list[Point]) -> str:
    ranks = sorted({p.group_ranks for p in points})
    return f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"


def machine_text(ctx: Context, points: list[Point]) -> str:
    """What the ranks were: "threads of one process, one host, 2 cores"."""
    carriers = sorted({CARRIERS.get(p.text("params.transport"), f"GPUs over {p.text('params.transport') or 'an unnamed transport'}") for p in points})
    runs = [ctx.runs[i] for i in sorted({p.run for p in points})]
    listed = [r for run in runs if isinstance(found := run.get("ranks"), list) for r in found if isinstance(r, dict)]
    hosts = len({str(r.get("hostname")) for r in listed}) or 1
    cores = sorted({int(n) for run in runs if (n := number(run.get("environment.cpu.cores")))})
    each = " each" if hosts > 1 else ""
    known = [" and ".join(carriers), "one host" if hosts == 1 else f"{hosts} hosts", *(f"{plural(n, 'core')}{each}" for n in cores[:1])]
    return ", ".join(known)


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
    passed = [p for p in able if p.text("check.status") == "pass"]
    failed = [p for p in able if p.text("check.status") == "fail" or (p.status == "check_failed" and p not in passed)]
    if failed:
        point = failed[0]
        detail = (
            point.text("reason")
            or f"relative L2 error {point.text('check.rel_l2_error')}, tolerance {point.text('check.tolerance')}"
        )
        checked = plural(len(failed) + len(passed), "checked point")
        return Evidence(source, NOT_SUPPORTED, f"{len(failed)} of {checked} differ; first {point.text('id')}: {detail}.")
    alone = sum(1 for p in dilated if not distributed(p) and p.text("check.status") == "pass")
    if not passed:
        others = f"; right on one rank, or without messages: {plural(alone, 'point')}" if alone else ""
        return Evidence(source, NOT_TESTED, f"no dilated point moved messages between ranks and was checked{others}")
    over = f"{ranks_text(passed)} ({machine_text(ctx, passed)})"
    every, agree = ("all ", "agree") if len(passed) > 1 else ("", "agrees")
    text = f"{every}{plural(len(passed), 'checked point')} on {over}, with messages between them, {agree} with the reference"
    left_out = sum(int(p.num("check.strata_left_out") or 0) for p in passed)
    beyond = f" {integer_label(left_out)} strata (branch, head, rank) beyond the budget have no checked row." if left_out else ""
    return Evidence(source, SUPPORTED, f"{text}{tolerances_text(passed)}.{beyond}")


PROBLEM = ("heads", "kv_heads", "head_dim", "dtype", "causal", "mode", "transport", "kernel")


def memory_shares(point: Point, exact: list[Point]) -> tuple[float, float] | None:
    """Peak memory ÷ the least that an exact algorithm took for the same problem on the fewest ranks: per rank, over all ranks."""

    def problem(p: Point) -> tuple[object, ...]:
        return (p.run, p.seq_len, p.group_batch, *(p.text(f"params.{k}") for k in PROBLEM))

    fewer = [p for p in exact if problem(p) == problem(point) and p.group_ranks < point.group_ranks]
    least = min((p.group_ranks for p in fewer), default=0)
    peaks = [p.num("memory.measured_peak_bytes") for p in fewer if p.group_ranks == least]
    own, base = point.num("memory.measured_peak_bytes"), min((b for b in peaks if b), default=None)
    return (own / base, own * point.group_ranks / (base * least)) if own and base else None


def why_not_shown(able: list[Point], checked: list[Point], shares: list[float]) -> str:
    if not checked:
        return f"{'exact algorithms' if able else 'no exact algorithm'} ran on several ranks{', but none was checked' if able else ''}"
    ran = f"{', '.join(sorted({p.algorithm for p in checked}))} ran on several ranks and agreed with the reference"
    if not shares:
        return f"{ran}, but no exact algorithm took the same tokens on fewer ranks: their memory is not compared"
    return (
        f"{ran}, in {percent_label(min(shares))} or more of the memory per rank that the same tokens take on fewer ranks; "
        f"{percent_label(MEMORY_SHARE)} would speak against the sentence"
    )


def exact_distributed(ctx: Context, source: str) -> Evidence:
    """The paper's negative claim: one exact algorithm whose ranks hold half of what fewer ranks hold refutes it."""
    if source == "simulated":
        return NO_NUMBERS
    exact = [p for p in ctx.points if p.pattern == "dense" and p.source == source and p.ok]
    able = [p for p in exact if distributed(p)]
    checked = [p for p in able if p.text("check.status") == "pass"]
    shares = [(*found, p) for p in checked if (found := memory_shares(p, exact))]
    halved = [(share, total, p) for share, total, p in shares if share <= MEMORY_SHARE]
    if not halved:
        return Evidence(source, NOT_TESTED, why_not_shown(able, checked, [share for share, _, _ in shares]))
    series = group_by(halved, lambda found: ctx.index.key(found[2])).values()
    largest = [max(group, key=lambda found: (found[2].ranks, found[2].seq_len or 0)) for group in series]
    listed = sorted(largest, key=lambda found: (found[0], ctx.index.label(found[2])))
    names = ", ".join(dict.fromkeys(p.algorithm for _, _, p in listed))
    known = {p.algorithm for _, _, p in listed}
    longest = max(p.seq_len or 0 for _, _, p in listed)
    totals = sorted(total for _, total, _ in listed)
    head = (
        f"{plural(len(known), 'exact algorithm')} ran on several ranks, up to {token_label(longest)} tokens, agreed with the reference and "
        f"held at most {percent_label(MEMORY_SHARE)} of the memory per rank that the same tokens take on fewer ranks: {names}. Over all ranks "
        f"they hold {significant(totals[0])} to {significant(totals[-1])} times as much. Shown on {ranks_text([p for _, _, p in halved])} ({machine_text(ctx, [p for _, _, p in halved])}), at lengths that "
        "fewer ranks hold as well, not at one too long for one device: longer ones are inferred from these peaks. The work stays quadratic: each rank computes N²/P pairs."
    )
    unchecked = ", ".join(sorted({p.algorithm for p in able} - {p.algorithm for p in checked}))
    return Evidence(
        source,
        NOT_SUPPORTED,
        f"{head} Ran unchecked: {unchecked}." if unchecked else head,
        tuple(
            f"{ctx.index.label(p)}: {token_label(p.seq_len)} tokens on {ctx.index.rank_label(p.ranks)}, {percent_label(share)} of the "
            "memory per rank on the fewest ranks"
            for share, _, p in listed
        ),
    )
