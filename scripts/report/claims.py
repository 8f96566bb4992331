"""The paper's claims, each decided from the data of one source at a time.

Example: ring at 8K, 16K, 32K, 64K with times 1, 4, 16, 64 s has time per token growing as N^1.00; the
threshold is 0.5, so "vanilla attention grows with N" is supported by that source. A claim whose data
are too few is "not tested". The row takes the status of the strongest source that tested it: measured,
then replayed, extrapolated, simulated. One line that fails is enough for "not supported". Claims about
times take no run of a busy machine (noise.py).
Source of the claims: LongNet, arXiv 2307.02486, sections 2.4, 3.1 and 3.2, table 1 and figure 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from .claims_billion import BILLION, billion_computed, billion_fits
from .claims_pattern import (
    DEPTH_EXTRA,
    EXPONENT_LENGTHS,
    EXPONENT_R_SQUARED,
    EXPONENT_SPAN,
    EXPONENT_WITHIN,
    complexity_table,
    depth_logarithmic,
)
from .evidence import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    Claim,
    Evidence,
    Verdict,
    decide,
    lines,
    power,
    span_text,
)
from .fits import PowerLaw, fit_power_law
from .model import Point
from .noise import quiet_only
from .rows import Context
from .series import group_by, sources_of
from .units import bytes_label, integer_label, plural, significant, token_label

BRANCH = ("segment_length", "dilation_rate", "summary_tokens")
MIN_LENGTHS = 3  # different lengths of one line
MIN_SPAN = 4.0  # longest over shortest
CONSTANT_EXPONENT = 0.10  # |b| of time per token ~ N^b: at most 7 % per doubling
CONSTANT_WITHIN = 1.25  # slowest over fastest time per token that is constant whatever the exponent (short lines)
CONSTANT_RATIO = 2.0  # slowest over fastest time per token on the line
FLOOR_EXPONENT = 0.5  # of the time of a sequence from one length to the next: a line that begins with less begins with latency
GROWN_EXPONENT = 0.8  # ... and tells of growth from where it has this much (three quarters of the time grow with N)
GROWING_EXPONENT = 0.50  # b of time per token; quadratic attention has 1
BYTES_RATIO = 1.10  # most over fewest bytes at a fixed number of ranks
BYTES_RATIO_RANKS = 2.05  # the same when ranks vary: the factor (P-1)/P alone reaches 2


def long_fit(points: Iterable[Point], value: Callable[[Point], float | None]) -> PowerLaw | None:
    """The power law of a value against tokens, if the line is long enough to test anything."""
    listed = list(points)
    fit = fit_power_law((p.seq_len, value(p)) for p in listed)
    enough = fit is not None and len({p.seq_len for p in listed}) >= MIN_LENGTHS and fit.x_span >= MIN_SPAN
    return fit if enough else None


def time_per_token(point: Point) -> float | None:
    return point.median_s / (point.batch * point.seq_len) if point.median_s and point.seq_len else None


def time_per_sequence(point: Point) -> float | None:
    """Of one sequence on the ranks that share it."""
    return point.median_s / point.group_batch if point.median_s else None


def past_the_floor(points: Iterable[Point]) -> tuple[list[Point], str]:
    """A line without the short lengths at which latency rules, and a note of how many these are.

    Example: 1, 1.1, 1.3, 2, 3.7, 7.2 s at 1K ... 32K tokens grow by 0.14, 0.24, 0.62, 0.89, 0.96: three lengths go.
    """
    timed = sorted((p for p in points if p.seq_len and time_per_token(p)), key=lambda p: p.seq_len or 0)
    by_length = [(n, [p for p in timed if p.seq_len == n]) for n in sorted({p.seq_len or 0 for p in timed})]
    times = [(n, sum((time_per_token(p) or 0) * n for p in some) / len(some)) for n, some in by_length]
    growth = [math.log(t1 / t0) / math.log(n1 / n0) for (n0, t0), (n1, t1) in itertools.pairwise(times)]
    if not growth or growth[0] >= FLOOR_EXPONENT:
        return timed, ""
    left_out = next((i for i, g in enumerate(growth) if g >= GROWN_EXPONENT), len(growth))
    shortest = times[left_out][0]
    return (
        [p for p in timed if (p.seq_len or 0) >= shortest],
        f"; without {plural(left_out, 'length')} below {token_label(shortest)}, where latency rules",
    )


def bytes_per_sequence(point: Point) -> float | None:
    """Counted bytes; of a modelled point without a count, the predicted ones."""
    counted = point.value("comm.counted_bytes_per_rank")
    if not counted and point.source != "measured":
        counted = point.value("comm.predicted_bytes_per_rank")
    return counted / point.group_batch if counted else None


def tokens_per_rank(point: Point) -> float:
    return (point.seq_len or 0) / point.group_ranks


def flat(fit: PowerLaw, what: str, where: str, note: str = "") -> Verdict:
    gentle = abs(fit.exponent) <= CONSTANT_EXPONENT and fit.y_ratio <= CONSTANT_RATIO
    good = gentle or fit.y_ratio <= CONSTANT_WITHIN
    spread = f"slowest ÷ fastest {significant(fit.y_ratio)}"
    trend = "" if good else " rises" if fit.exponent > 0 else " falls"
    return Verdict(
        good, abs(fit.exponent), f"{where}: {what}{trend} ~ {power(fit.exponent)}, {spread} ({span_text(fit)}{note})"
    )


def cut_to(branches: list[dict[str, Any]], seq_len: int) -> list[tuple[float, ...]]:
    """Branches of a sequence of that length: segments end with it."""
    return [tuple(min(b.get(k) or 0, seq_len) if k == "segment_length" else b.get(k) or 0 for k in BRANCH) for b in branches]


def walked_lines(ctx: Context, source: str) -> list[list[Point]]:
    """Points that one machine walked with the same branches, whatever the run and the number of ranks in whose place it
    stood: its time is the sum over ranks. A shorter sequence cuts the branches off."""
    walked = [p for group in lines(ctx, source, "dilated", lambda p: p.ranks) for p in group if p.in_turn and p.seq_len]
    found: list[list[Point]] = []
    shape = ("heads", "kv_heads", "head_dim", "dtype", "causal", "kernel", "threads", "mix", "offset")
    machine = ("environment.hostname", "environment.cpu.model")
    alike = group_by(
        walked,
        lambda p: tuple(p.text(f"params.{k}") for k in shape),
        lambda p: tuple(str(ctx.runs[p.run].get(k)) for k in machine),
    )
    for group in alike.values():
        longest = max(group, key=lambda p: p.seq_len or 0)
        line = [p for p in group if cut_to(longest.branches, p.seq_len or 0) == cut_to(p.branches, p.seq_len or 0)]
        if len({(p.run, p.ranks) for p in line}) > 1:  # else it is one of lines()
            found.append(line)
    return found


def latency_constant(ctx: Context, source: str) -> Evidence:
    verdicts: list[Verdict] = []
    for group in walked_lines(ctx, source):
        fit = long_fit(group, time_per_token)
        if fit:
            verdicts.append(flat(fit, "time per token", "dilated with the same branches, one device in the place of all ranks"))
    for group in lines(ctx, source, "dilated", lambda p: p.ranks):
        grown, note = past_the_floor(group)
        fit = long_fit(grown, time_per_token)
        if fit:
            where = f"{ctx.index.label(group[0])} on {ctx.index.rank_label(group[0].ranks)}"
            verdicts.append(flat(fit, "time per token", where, note))
    for group in lines(ctx, source, "dilated", lambda p: (tokens_per_rank(p), p.in_turn)):
        if group[0].in_turn:  # the time of all ranks, not of one
            continue
        fit = long_fit(group, time_per_sequence) if len({p.group_ranks for p in group}) >= MIN_LENGTHS else None
        if fit:
            where = f"{ctx.index.label(group[0])} at {token_label(tokens_per_rank(group[0]))} tokens per rank"
            verdicts.append(flat(fit, "time", where))
    return decide(source, verdicts, f"no dilated line with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}")


def vanilla_grows(ctx: Context, source: str) -> Evidence:
    verdicts: list[Verdict] = []
    for group in lines(ctx, source, "dense", lambda p: p.ranks):
        grown, note = past_the_floor(group)
        fit = long_fit(grown, time_per_token)
        if fit:
            where = f"{ctx.index.label(group[0])} on {ctx.index.rank_label(group[0].ranks)}"
            laws = f"time per token ~ {power(fit.exponent)}, so time of one sequence ~ {power(fit.exponent + 1)}"
            text = f"{where}: {laws} ({span_text(fit)}{note})"
            verdicts.append(Verdict(fit.exponent >= GROWING_EXPONENT, -fit.exponent, text))
    return decide(source, verdicts, f"no exact algorithm with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}")


def bytes_verdicts(
    ctx: Context, source: str, axis: Callable[[Point], object], limit: float, what: Callable[[Point], str]
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for group in lines(ctx, source, "dilated", axis, needs_time=False):
        able = [p for p in group if p.group_ranks >= 2 and bytes_per_sequence(p)]
        fit = long_fit(able, bytes_per_sequence)
        if fit:
            most = bytes_label(max(bytes_per_sequence(p) or 0 for p in able))
            head = f"{ctx.index.label(able[0])} {what(able[0])}: at most {most} per sequence"
            text = f"{head}, most ÷ fewest {significant(fit.y_ratio)} ({span_text(fit)})"
            verdicts.append(Verdict(fit.y_ratio <= limit, fit.y_ratio, text))
    return verdicts


def communication_constant(ctx: Context, source: str) -> Evidence:
    verdicts: list[Verdict] = []
    for point in ctx.points:
        counted, predicted = (point.num(f"comm.{k}_bytes_per_rank") for k in ("counted", "predicted"))
        known = point.pattern == "dilated" and point.source == source and counted is not None and predicted is not None
        if known and counted != predicted:
            text = f"point {point.text('id')}: {counted:,} bytes counted, {predicted:,} predicted"
            verdicts.append(Verdict(False, float("inf"), text))
    verdicts += bytes_verdicts(
        ctx, source, lambda p: p.group_ranks, BYTES_RATIO, lambda p: f"on {ctx.index.rank_label(p.group_ranks)}"
    )
    verdicts += bytes_verdicts(
        ctx,
        source,
        lambda p: tokens_per_rank(p) if p.group_ranks > 1 else None,
        BYTES_RATIO_RANKS,
        lambda p: f"at {token_label(tokens_per_rank(p))} tokens per rank",
    )
    missing = f"no dilated line on two or more ranks with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}"
    return decide(source, verdicts, missing)


NO_NUMBERS = Evidence("simulated", NOT_TESTED, "a simulation computes times, no attention")


def equals_reference(ctx: Context, source: str) -> Evidence:
    if source == "simulated":
        return NO_NUMBERS
    able = [p for p in ctx.points if p.pattern == "dilated" and p.source == source]
    passed = [p for p in able if p.text("check.status") == "pass"]
    failed = [
        p
        for p in able
        if p.text("check.status") == "fail" or (p.status == "check_failed" and p.text("check.status") != "pass")
    ]
    if failed:
        point = failed[0]
        detail = (
            point.text("reason")
            or f"relative L2 error {point.text('check.rel_l2_error')}, tolerance {point.text('check.tolerance')}"
        )
        return Evidence(
            source,
            NOT_SUPPORTED,
            f"{len(failed)} of {plural(len(failed) + len(passed), 'checked point')} differ; first {point.text('id')}: {detail}.",
        )
    if not passed:
        return Evidence(source, NOT_TESTED, "no dilated point was checked")
    worst: dict[float, float] = {}  # by tolerance: kernels that round to 16 bits are allowed more
    for point in passed:
        found, allowed = point.num("check.rel_l2_error"), point.num("check.tolerance")
        if found is not None:
            worst[allowed or 0] = max(found, worst.get(allowed or 0, 0))
    left_out = sum(int(p.num("check.strata_left_out") or 0) for p in passed)
    beyond = f" {integer_label(left_out)} strata (branch, head, rank) beyond the budget have no checked row." if left_out else ""
    error = ", largest relative L2 error " if worst else ""
    error += ", ".join(f"{e:.2g}" + (f" (tolerance {t:.2g})" if t else "") for t, e in sorted(worst.items()))
    return Evidence(
        source,
        SUPPORTED,
        f"{'all ' if len(passed) > 1 else ''}{plural(len(passed), 'checked point')} {'agree' if len(passed) > 1 else 'agrees'} with the reference{error}.{beyond}",
    )


def exact_distributed(ctx: Context, source: str) -> Evidence:
    """The paper's negative claim: one right run of an exact algorithm on several ranks refutes it."""
    if source == "simulated":
        return NO_NUMBERS
    able = [p for p in ctx.points if p.pattern == "dense" and p.source == source and p.ok and p.ranks >= 2]
    checked = [p for p in able if p.text("check.status") == "pass"]
    if not checked:
        text = (
            "exact algorithms ran on several ranks, but none was checked"
            if able
            else "no exact algorithm ran on several ranks"
        )
        return Evidence(source, NOT_TESTED, text)
    largest = [max(g, key=lambda p: (p.ranks, p.seq_len or 0)) for g in group_by(checked, ctx.index.key).values()]
    largest.sort(key=lambda p: (-p.ranks, -(p.seq_len or 0), ctx.index.label(p)))
    known = {p.algorithm for p in largest}
    names = ", ".join(dict.fromkeys(p.algorithm for p in largest))
    head = f"{plural(len(known), 'exact algorithm')} ran on several ranks and agreed with the reference: {names}."
    unchecked = ", ".join(sorted({p.algorithm for p in able} - known))
    return Evidence(
        source,
        NOT_SUPPORTED,
        f"{head} Ran unchecked: {unchecked}." if unchecked else head,
        tuple(
            f"{ctx.index.label(p)}: {token_label(p.seq_len)} tokens on {ctx.index.rank_label(p.ranks)}" for p in largest
        ),
    )


FIT_RULE = f"A line needs {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}."
FLOOR_RULE = (
    f"A line whose time grows by less than N^{FLOOR_EXPONENT:g} at first counts from where it grows by N^{GROWN_EXPONENT:g}: "
    "shorter sequences show the machine's latency, not the algorithm's."
)
CATALOGUE: tuple[tuple[Claim, Callable[[Context, str], Evidence]], ...] = (
    (
        Claim(
            "Latency of dilated attention is nearly constant",
            "“almost constant latency” at a constant number of tokens per batch (figure 5)",
            f"Time per token against N at fixed ranks, and time against N at fixed tokens per rank: |exponent| ≤ {CONSTANT_EXPONENT:.2f} "
            f"(7 % per doubling) and slowest ÷ fastest ≤ {CONSTANT_RATIO:g}, or slowest ÷ fastest ≤ {CONSTANT_WITHIN:g}, "
            f"on every line. {FIT_RULE} {FLOOR_RULE}",
            ("batch_runtime", "time_per_token", "weak_scaling", "latency"),
        ),
        quiet_only(latency_constant),
    ),
    (
        Claim(
            "Latency of vanilla attention grows with N",
            "“vanilla attention suffers from the quadratic dependency”",
            f"Exponent of time per token against N at fixed ranks, for exact algorithms: at least {GROWING_EXPONENT:.2f} on every line "
            f"(quadratic attention: 1; linear: 0). {FIT_RULE} {FLOOR_RULE}",
            ("batch_runtime", "time_per_token", "latency"),
        ),
        quiet_only(vanilla_grows),
    ),
    (
        Claim(
            "Communication per rank is constant",
            "“making the communication cost constant”",
            f"Bytes per rank and sequence (counted; of modelled points predicted), two or more ranks: most ÷ fewest ≤ {BYTES_RATIO:.2f} as N grows at fixed ranks, "
            f"≤ {BYTES_RATIO_RANKS:.2f} at fixed tokens per rank (the factor (P−1)/P alone reaches 2), and counted = predicted. {FIT_RULE}",
            ("communication_ranks", "communication_tokens"),
        ),
        communication_constant,
    ),
    (
        Claim(
            "One billion tokens fit",
            "“scale the sequence length to 1 billion tokens”",
            f"A dilated point with at least {BILLION:,} tokens that ran; refused for memory on every rank count tried: not supported.",
            ("memory", "latency"),
        ),
        billion_fits,
    ),
    (
        Claim(
            "One billion tokens are computed",
            "“scale the sequence length to 1 billion tokens”",
            f"A measured dilated point with at least {BILLION:,} tokens: every query and every key of every branch, no row "
            "approximated, no value of the output left unwritten, and its sampled rows agree with the reference in double precision. "
            "Replayed, extrapolated and simulated points do not count.",
            ("latency", "table"),
        ),
        billion_computed,
    ),
    (
        Claim(
            "Distributed dilated attention equals the reference",
            "the distributed algorithm computes dilated attention as defined",
            "Every dilated point that was checked agrees with the double-precision reference within its tolerance.",
            ("table",),
        ),
        equals_reference,
    ),
    (
        Claim(
            "No distributed algorithm exists for vanilla attention",
            "“there is no distributed algorithm for vanilla attention”",
            "One exact algorithm on two or more ranks whose result was checked refutes the sentence; all that did are listed.",
            ("latency", "error_ranks", "communication_ranks", "table"),
        ),
        exact_distributed,
    ),
    (
        Claim(
            "Complexity: vanilla N², sparse N√N, dilated N",
            "table 1: vanilla O(N²d), sparse O(N√N d), dilated O(N d)",
            f"Exponent of the time of a sequence against N at fixed ranks, for vanilla (every exact algorithm), sparse (segments and keys per query ~ √N) and dilated "
            f"attention (rates ~ segments): within {EXPONENT_WITHIN:.2f} of 2, 1.5 and 1 and R² ≥ {EXPONENT_R_SQUARED:g} on every line of "
            f"{EXPONENT_LENGTHS} or more lengths over a factor of {EXPONENT_SPAN:g} or more; supported only if all three were tested.",
            ("latency", "time_per_token", "table"),
        ),
        quiet_only(complexity_table),
    ),
    (
        Claim(
            "Token dependency is logarithmic",
            "“the token dependency is approximate to O(log N)” (section 2.4)",
            f"Layers until every token has heard from every other, counted on each pattern, against the paper's estimate log_α(N(α−1)/w₀): at most "
            f"{DEPTH_EXTRA} more than the estimate rounded up (a local hop at either end), and no pair that never meets.",
            ("dependency_depth",),
        ),
        depth_logarithmic,
    ),
)


def judge(ctx: Context) -> list[Claim]:
    sources = sources_of(ctx.points)
    return [
        Claim(c.title, c.quote, c.test, c.figures, [test(ctx, source) for source in sources]) for c, test in CATALOGUE
    ]
