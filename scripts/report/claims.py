"""The paper's claims, each decided from the data of one source at a time.

Example: ring at 8K, 16K, 32K, 64K with times 1, 4, 16, 64 s has time per token growing as N^1.00; the
threshold is 0.5, so "vanilla attention grows with N" is supported by that source. A claim whose data
are too few is "untested". The row takes the status of the strongest source that tested it: measured,
then replayed, extrapolated, simulated. One line that fails is enough for "contradicted". Only growth counts against
"constant". Claims about times take no run of a busy machine and no disturbed point (noise.py).
Source of the claims: LongNet, arXiv 2307.02486: abstract, sections 2.4, 3.1 and 3.2, table 1 and figure 5. Quotes are
whole sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .claims_billion import BILLION, billion_computed, billion_fits
from .claims_communication import (
    BYTES_RATIO,
    BYTES_RATIO_RANKS,
    backward_reduce_scatters,
    by_program,
    bytes_per_sequence,
    communication_constant,
)
from .claims_distributed import equals_reference, exact_distributed
from .claims_model import LOSS_WITHIN, orthogonal
from .claims_pattern import (
    DEPTH_EXTRA,
    DEPTH_SPREAD,
    EXPONENT_LENGTHS,
    EXPONENT_R_SQUARED,
    EXPONENT_SPAN,
    EXPONENT_WITHIN,
    complexity_table,
    depth_logarithmic,
    depth_text,
    rates_follow_segments,
)
from .evidence import (
    ASSUMED_LAW,
    COMPUTED,
    SEEN,
    Claim,
    Evidence,
    Unjudged,
    Verdict,
    decide,
    left_out_text,
    power,
    span_text,
)
from .fits import PowerLaw
from .model import Point
from .noise import busy, quiet_only
from .paper_lines import (
    MIN_LENGTHS,
    MIN_SPAN,
    SHARED_WORK,
    TimedLine,
    and_text,
    branches_text,
    long_fit,
    ranks_of,
    shared_work,
    shared_work_text,
    time_per_token,
    timed_lines,
    tokens_per_rank,
    walked_lines,
)
from .rows import Context
from .series import sources_of
from .units import bytes_label, percent_label, significant, token_label

CONSTANT_SPAN = 16.0  # longest over shortest: a line of 1K to 4K tokens shows no constancy
CONSTANT_EXPONENT = 0.10  # b of time per token ~ N^b, at most: 7 % per doubling
CONSTANT_WITHIN = 1.25  # rise of the time per token that is constant whatever the exponent (short lines)
CONSTANT_RATIO = 2.0  # rise of the time per token on the line, at most
GROWING_EXPONENT = 1 - EXPONENT_WITHIN  # b of time per token; quadratic attention has 1
LITTLE_SHARED = f"long branches do less than {percent_label(SHARED_WORK)} of the FLOPs at some length"


def time_per_sequence(point: Point) -> float | None:
    """Seconds of one sequence on the ranks that share it."""
    return point.median_s / point.group_batch if point.median_s else None


def flat(fit: PowerLaw, what: str, where: str, line: TimedLine) -> Verdict:
    """Only growth counts: what falls with N is better than constant."""
    gentle = fit.exponent <= CONSTANT_EXPONENT and fit.y_rise <= CONSTANT_RATIO
    good = gentle or fit.y_rise <= CONSTANT_WITHIN
    steep = "rises" if fit.exponent > CONSTANT_EXPONENT else "jumps,"
    trend = f" {steep}" if not good else " falls" if fit.exponent < -CONSTANT_EXPONENT else ""
    text = f"{where}: {what}{trend} ~ {power(fit.exponent)}, largest rise {significant(fit.y_rise)}× ({span_text(fit)}{line.note})"
    return Verdict(good, fit.exponent, text, tuple(line.whole))


def latency_lines(ctx: Context, source: str, unjudged: list[Unjudged]) -> list[tuple[list[Point], Verdict]]:
    """Lines of dilated attention that are long enough, and whether each is constant."""
    found: list[tuple[list[Point], Verdict]] = []

    def add(line: TimedLine, law: Callable[[list[Point]], PowerLaw | None], what: str, where: str) -> None:
        fit = line.fit(law, where, unjudged)
        if fit:
            found.append((line.kept, flat(fit, what, where, line)))

    def over_tokens(points: list[Point]) -> PowerLaw | None:
        return long_fit(points, time_per_token, CONSTANT_SPAN)

    def over_ranks(points: list[Point]) -> PowerLaw | None:
        enough = len({p.group_ranks for p in points}) >= MIN_LENGTHS
        return long_fit(points, time_per_sequence, CONSTANT_SPAN) if enough else None

    for line in walked_lines(ctx, source):
        where = f"dilated with the same branches, one device in the place of all ranks{began_busy(ctx, line.kept)}"
        add(line, over_tokens, "time per token", where)
    for line in timed_lines(ctx, source, "dilated", lambda p: p.ranks):
        add(line, over_tokens, "time per token", f"{ctx.index.label(line.whole[0])} on {ranks_of(ctx, line.whole)}")
    for line in timed_lines(ctx, source, "dilated", lambda p: (tokens_per_rank(p), p.in_turn)):
        first = line.whole[0]
        if not first.in_turn:  # the time of all ranks is not that of one
            add(line, over_ranks, "time", f"{ctx.index.label(first)} at {token_label(tokens_per_rank(first))} tokens per rank")
    return found


def began_busy(ctx: Context, line: list[Point]) -> str:
    """ " (the run began beside other programs)": its points count, since each knows what ran beside it."""
    return " (the run began beside other programs)" if line and busy(ctx.runs[line[0].run]) else ""


def latency_constant(ctx: Context, source: str) -> Evidence:
    """Decided on lines whose shared branches carry work; the others show how attention to neighbours scales."""
    judged: list[Verdict] = []
    local: list[tuple[list[Point], Verdict]] = []
    floor: list[Unjudged] = []
    for line, verdict in latency_lines(ctx, source, floor):
        if min(map(shared_work, line)) >= SHARED_WORK:
            text = f"{verdict.text}; {branches_text(line)}; {shared_work_text(line)}{gathers_text(line)}; {depth_of(line)}"
            judged.append(replace(verdict, text=text))
        else:
            local.append((line, verdict))
    local.sort(key=lambda found: (found[1].good, -found[1].badness))
    aside = [
        Unjudged(
            f"{LITTLE_SHARED} ({'within' if v.good else 'beyond'} the threshold)",
            f"{v.text}; {shared_work_text(line)}; {depth_of(line)}",
            () if judged else v.points,
        )
        for line, v in local
    ] + floor
    seen = decide(source, judged, f"no dilated line with {MIN_LENGTHS} lengths over a factor of {CONSTANT_SPAN:g}", unjudged=aside)
    return replace(seen, status=SEEN, text=local_text(local) + left_out_text(floor)) if local and not judged else seen


def gathers_text(line: list[Point]) -> str:
    """ ", and a rank sends 1 MiB to 4 MiB a sequence, which grows with N"."""
    sent = sorted(found for p in line if (found := bytes_per_sequence(p)))
    low, high = (bytes_label(b) for b in (sent[0], sent[-1])) if sent else ("", "")
    span, grows = (low, "") if low == high else (f"{low} to {high}", ", which grows with N")
    return f", and a rank sends {span} a sequence{by_program(line)}{grows}" if sent else ""


def depth_of(line: list[Point]) -> str:
    longest = max(line, key=lambda p: p.seq_len or 0)
    return f"at {token_label(longest.seq_len)} tokens {depth_text(longest)}"


def local_text(local: list[tuple[list[Point], Verdict]]) -> str:
    """The worst of the lines that do not decide, and why they do not."""
    line, worst = local[0]
    found, counted = ("Constant", "as support") if worst.good else ("Not constant", "against it")
    rates = "rates as in section 2.4" if all(map(rates_follow_segments, line)) else "these rates"
    of = f", the worst of {len(local)} lines" if len(local) > 1 else ""
    return (
        f"{found} at {rates}{of}: {worst.text}; {depth_of(line)}. Not counted {counted}, because {shared_work_text(line)}. "
        "A run that counts: lnbench run configs/constant-latency-shared-cpu.json."
    )


def on_ranks(points: list[Point]) -> str:
    """ ", on 1 and 2 ranks"."""
    ranks = [str(n) for n in sorted({p.ranks for p in points})]
    return f", on {and_text(ranks)} {'rank' if ranks == ['1'] else 'ranks'}" if ranks else ""


def vanilla_grows(ctx: Context, source: str) -> Evidence:
    verdicts: list[Verdict] = []
    judged: list[Point] = []
    floor: list[Unjudged] = []
    for line in timed_lines(ctx, source, "dense", lambda p: p.ranks):
        where = f"{ctx.index.label(line.whole[0])} on {ranks_of(ctx, line.whole)}"
        fit = line.fit(lambda points: long_fit(points, time_per_token), where, floor)
        if fit:
            laws = f"time per token ~ {power(fit.exponent)}, so time of one sequence ~ {power(fit.exponent + 1)}"
            text = f"{where}: {laws} ({span_text(fit)}{line.note})"
            verdicts.append(Verdict(fit.exponent >= GROWING_EXPONENT, -fit.exponent, text, tuple(line.whole)))
            judged += line.kept
    nothing = f"no exact algorithm with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}"
    seen = decide(source, verdicts, nothing, unjudged=floor, within=f"the threshold{on_ranks(judged)}")
    return replace(seen, status=SEEN, text=seen.text + ASSUMED_LAW) if verdicts and source == "simulated" else seen


CATALOGUE: tuple[tuple[Claim, Callable[[Context, str], Evidence]], ...] = (
    (
        Claim(
            "Latency of dilated attention is nearly constant",
            "“It shows that dilated attention can successfully scale up the sequence length with almost constant latency.” (section 3.2)",
            f"Time per token against N at fixed ranks, and time against N at fixed tokens per rank: exponent ≤ {CONSTANT_EXPONENT:.2f} "
            f"(7 % per doubling) and no rise above {CONSTANT_RATIO:g}×, or no rise above {CONSTANT_WITHIN:g}×, on every line. "
            "A line counts if the branches that ranks share (on one rank and in walks: those beyond the first segment) do at least "
            f"{percent_label(SHARED_WORK)} of the FLOPs at each length. These thresholds are ours: the paper names none; its figure 5 has 8K to 1B tokens, 1B a batch, on GPUs. A line needs {MIN_LENGTHS} lengths over a factor of {CONSTANT_SPAN:g}.",
            ("batch_runtime", "time_per_token", "weak_scaling", "latency"),
            rules=("rates", "lines", "short lengths"),
        ),
        quiet_only(latency_constant),
    ),
    (
        Claim(
            "Latency of vanilla attention grows with N",
            "“In contrast, vanilla attention suffers from the quadratic dependency on the sequence length. Its latency dramatically "
            "increases as the length grows.” (section 3.2)",
            f"Exponent of time per token against N at fixed ranks, for exact algorithms: at least {GROWING_EXPONENT:.2f} on every line "
            f"(quadratic attention: 1; linear: 0), as table 1 is judged. A simulation, which assumes it, is undecided.",
            ("batch_runtime", "time_per_token", "latency"),
            rules=("lines", "lengths", "short lengths"),
        ),
        quiet_only(vanilla_grows),
    ),
    (
        Claim(
            "Communication per rank is constant",
            "“Different from vanilla attention, both sizes of K̃ᵢ and Ṽᵢ are independent of the sequence length N, making the "
            "communication cost constant.” (section 3.1)",
            f"Bytes that a rank sends per sequence (counted; what a library's collectives move, by the messages that they must deliver; of modelled points predicted), two or more ranks: no rise above {BYTES_RATIO:.2f}× as N grows at "
            f"fixed ranks, above {BYTES_RATIO_RANKS:.2f}× at fixed tokens per rank (the factor (P−1)/P alone reaches 2), on every line whose "
            f"rates grow as its segments; at slower rates it grows, which the sentence does not exclude. For such patterns it follows from the formulas; a run that counts its bytes shows that no more is sent.",
            ("communication_ranks", "communication_tokens"),
            rules=("rates", "lines", "lengths"),
        ),
        communication_constant,
    ),
    (
        Claim(
            "Backward is a reduce-scatter, of constant bytes per rank",
            "“Note that the all-gather operation in the backward becomes a reduce-scatter operation. Different from vanilla attention, both sizes "
            "of K̃ᵢ and Ṽᵢ are independent of the sequence length N, making the communication cost constant.” (section 3.1)",
            "Backward passes of dilated attention on two or more ranks: their programs sum the gradients of gathered keys and values by a "
            "reduce-scatter, sampled rows of dQ, dK and dV agree with the definition in double precision, and the bytes that a rank sends, of "
            f"gathers and of gradients in fp32, do not rise above {BYTES_RATIO:.2f}× as N grows at fixed ranks, on every line whose rates grow as "
            "its segments. A simulation computes no gradients: undecided.",
            ("passes",),
            rules=("rates", "lines", "lengths"),
        ),
        backward_reduce_scatters,
    ),
    (
        Claim(
            "One billion tokens fit",
            "“By partitioning the sequence dimension, it can leverage the distributed systems to scale the sequence length to 1 billion "
            "tokens.” (section 3.2)",
            f"A measured dilated point with at least {BILLION:,} tokens on two or more ranks, in a pattern that joins all tokens at some depth. "
            "One device in the place of all ranks is no distributed system, a simulation holds nothing, and a pattern that leaves tokens apart is "
            "none of section 2.4: undecided. Never contradicted: where it does not fit here, a larger machine may hold it.",
            ("memory", "latency"),
        ),
        billion_fits,
    ),
    (
        Claim(
            "One billion tokens are computed",
            "“In this work, we successfully scale the sequence length to 1 billion tokens.” (section 1)",
            f"A measured dilated point with at least {BILLION:,} tokens: every query and every key of every branch, no row "
            "approximated, no value of the output left unwritten, and its sampled rows agree with the reference in double precision; on two or "
            "more ranks, in a pattern that joins all tokens at some depth. One device in the place of all ranks, or a pattern that leaves tokens apart: undecided. Replayed, extrapolated and simulated points do not count. Attention alone: no layers, no training.",
            ("latency", "table"),
        ),
        billion_computed,
    ),
    (
        Claim(
            "Distributed dilated attention equals the reference",
            "“The concatenation of the outputs across different devices becomes the final attention output.” (section 3.1)",
            "Every dilated point that was checked on two or more ranks, with messages between them, agrees within its tolerance with this suite's "
            "own definition of the paper's formulas in double precision, in sampled rows of every branch, head and rank.",
            ("table",),
        ),
        equals_reference,
    ),
    (
        Claim(
            "Splitting the sequence is orthogonal to data and model parallelism",
            "“The distributed algorithm described above is orthogonal to other parallelisms, including data parallelism which partitions the "
            "batch dimension, model parallelism which partitions the hidden dimension, and pipeline parallelism which partitions the layers.” "
            "(section 3.1)",
            "Layers and training steps around dilated attention on ranks that share a sequence, some in replicas that share the batch, some beside "
            f"ranks that split heads and the feed-forward network: each has the loss of one rank within {LOSS_WITHIN:g} (bf16: 1e-2), and passes its checks. "
            "Pipelines are not built here.",
            ("model_parts", "table"),
        ),
        orthogonal,
    ),
    (
        Claim(
            "No distributed algorithm takes vanilla attention past its length limit",
            "“Moreover, there is no distributed algorithm for vanilla attention to break sequence length limitation.” (section 3.2)",
            "The sentence is of July 2023; section 3 cites sequence parallelism, which came before, and Ring Attention (arXiv 2310.01889) came later. "
            "We read the limit as memory. An exact algorithm speaks against the sentence if it ran on several ranks with messages between them "
            "and was checked at a length that fewer ranks refused for memory. If it merely needs at most half of the memory per rank: undecided. "
            "Memory over all ranks does not fall, and no exact algorithm lifts the quadratic work.",
            ("memory", "latency", "error_ranks", "communication_ranks", "table"),
        ),
        exact_distributed,
    ),
    (
        Claim(
            "Complexity: vanilla N², sparse N√N, dilated N",
            "“Comparison of computation complexity among different methods.” (table 1: vanilla O(N²d), sparse O(N√N d), dilated O(Nd))",
            f"Exponent of the time of a sequence against N at fixed ranks; the exponent of the counted FLOPs stands beside it. Vanilla (every exact "
            f"algorithm): within {EXPONENT_WITHIN:.2f} of 2. Sparse (segments and keys per query ~ √N, chosen so) and dilated attention (rates ~ segments): "
            f"at most {EXPONENT_WITHIN:.2f} above 1.5 and 1. The factor d and the table’s row “Recurrent” are not tested; what a simulation assumes is undecided. Judged is every line with R² ≥ {EXPONENT_R_SQUARED:g} of "
            f"{EXPONENT_LENGTHS} or more lengths over a factor of {EXPONENT_SPAN:g} or more, others that are long enough are listed; judged only if all three were run.",
            ("latency", "time_per_token", "table"),
            rules=("rates", "lines", "short lengths"),
        ),
        quiet_only(complexity_table),
    ),
    (
        Claim(
            "Token dependency is at most logarithmic",
            "“Therefore, the maximum path length of a sequence with N tokens can be estimated as: L ≈ log_α(N(α−1)/w₀) (α > 1). This "
            "proves that the token dependency is approximate to O(log N).” (section 2.4; the abstract: “it has a linear computation complexity and a "
            "logarithm dependency between any two tokens in a sequence”)",
            "Layers until every token has heard from every other, computed from each pattern (nothing is timed), against the paper's estimate: at most "
            f"{DEPTH_EXTRA} more than the estimate rounded up (a local hop at either end), and no pair that never meets. Judged are patterns of one "
            f"first segment and one α, of segments and of rates, whose estimates are {DEPTH_SPREAD:g} or more layers apart, and whose rates do not exceed "
            "the next shorter segment. O(log N) is an upper bound: fewer layers keep it.",
            ("dependency_depth",),
            COMPUTED,
        ),
        depth_logarithmic,
    ),
)


def judge(ctx: Context) -> list[Claim]:
    sources = sources_of(ctx.every)
    return [
        replace(c, evidence=[test(ctx, s) for s in ([c.about] if c.about else sources)])
        for c, test in CATALOGUE
    ]
