"""The paper's claims, each decided from the data of one source at a time.

Example: ring at 8K, 16K, 32K, 64K with times 1, 4, 16, 64 s has time per token growing as N^1.00; the
threshold is 0.5, so "vanilla attention grows with N" is supported by that source. A claim whose data
are too few is "untested". The row takes the status of the strongest source that tested it: measured,
then replayed, extrapolated, simulated. One line that fails is enough for "contradicted"; a line decides where
its whole interval lies on one side of the threshold. Only growth counts against "constant". Claims about times take no run of a busy machine and no disturbed point (noise.py).
Source of the claims: LongNet, arXiv 2307.02486: abstract, sections 2.4, 3.1 and 3.2, table 1 and figure 5. Quotes are
whole sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .claims_billion import BILLION, billion_tokens
from .claims_communication import (
    BYTES_RATIO,
    BYTES_RATIO_RANKS,
    backward_reduce_scatters,
    by_formula,
    bytes_per_sequence,
    communication_constant,
)
from .claims_distributed import AFTER_THE_PAPER, BEFORE_THE_PAPER, equals_reference, exact_distributed
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
    NOT_TESTED,
    SEEN,
    SUPPORTED,
    Claim,
    Evidence,
    Unjudged,
    Verdict,
    decide,
    left_out_text,
    power,
    rise_text,
    series_name,
    span_text,
    whole_label,
)
from .fits import PowerLaw
from .model import BOTH, FORWARD, PASSES, Point
from .noise import busy, key_of, quiet_only
from .paper_lines import (
    COMPLEXITY,
    MIN_LENGTHS,
    MIN_SPAN,
    SHARED_WORK,
    TimedLine,
    and_text,
    branches_text,
    long_fit,
    on_machine,
    ranks_of,
    shared_work,
    shared_work_text,
    shorter_text,
    time_per_token,
    timed_lines,
    tokens_per_rank,
    walked_lines,
)
from .rows import Context
from .series import sources_of
from .units import bytes_label, percent_label, token_label

CONSTANT_SPAN = 16.0  # longest over shortest: a line of 1K to 4K tokens shows no constancy
CONSTANT_EXPONENT = 0.10  # b of time per token ~ N^b, at most: 7 % per doubling
CONSTANT_WITHIN = 1.25  # rise of the time per token that is constant whatever the exponent (short lines)
CONSTANT_RATIO = 2.0  # rise of the time per token on the line, at most
GROWING_EXPONENT = COMPLEXITY["dense"] - EXPONENT_WITHIN  # b of the time of a sequence, at least
SIDES = {True: "within the threshold", False: "beyond the threshold", None: "left open by intervals"}
LITTLE_SHARED = f"long branches do less than {percent_label(SHARED_WORK)} of the FLOPs at some length"


def time_per_sequence(point: Point) -> float | None:
    """Seconds of one sequence on the ranks that share it."""
    return point.median_s / point.group_batch if point.median_s else None


def flat(fit: PowerLaw, what: str, where: str, line: TimedLine) -> Verdict:
    """Only growth counts: what falls with N is better than constant."""
    good = line.keeps(fit, lambda exponent, rise: rise <= (CONSTANT_RATIO if exponent <= CONSTANT_EXPONENT else CONSTANT_WITHIN))
    steep = "rises" if fit.exponent > CONSTANT_EXPONENT else "jumps,"
    trend = f" {steep}" if good is False else " falls" if fit.exponent < -CONSTANT_EXPONENT else ""
    text = f"{where}: {what}{trend} ~ {power(fit)}, {rise_text(fit)} ({span_text(fit)}{line.note})"
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
        add(line, over_tokens, "time per token", f"{series_name(ctx, line.whole[0])} on {ranks_of(ctx, line.whole)}")
    for line in timed_lines(ctx, source, "dilated", lambda p: (tokens_per_rank(p), p.in_turn)):
        first = line.whole[0]
        if not first.in_turn:  # the time of all ranks is not that of one
            add(line, over_ranks, "time", f"{series_name(ctx, first)} at {token_label(tokens_per_rank(first))} tokens per rank")
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
            more = filter(None, (whole_label(ctx, line[0]), branches_text(line), on_machine(ctx, line), gathers_text(line), depth_of(line)))
            judged.append(replace(verdict, text=f"{verdict.text}; {shared_work_text(line)}{shorter_text(line)}", more="; ".join(more)))
        else:
            local.append((line, verdict))
    local.sort(key=lambda found: ((False, None, True).index(found[1].good), -found[1].badness))
    aside = [
        Unjudged(
            f"{LITTLE_SHARED} ({SIDES[v.good]})",
            f"{v.text}; {shared_work_text(line)}; {depth_of(line)}",
            () if judged else v.points,
        )
        for line, v in local
    ] + floor
    seen = decide(source, judged, f"no dilated line with {MIN_LENGTHS} lengths over a factor of {CONSTANT_SPAN:g}", unjudged=aside)
    return replace(seen, status=SEEN, text=local_text(local) + left_out_text(floor)) if local and not judged else seen


def gathers_text(line: list[Point]) -> str:
    """ "a rank sends 1 MiB to 4 MiB a sequence, which grows with N"."""
    sent = sorted(found for p in line if not p.in_turn and (found := bytes_per_sequence(p)))
    low, high = (bytes_label(b) for b in (sent[0], sent[-1])) if sent else ("", "")
    span, grows = (low, "") if low == high else (f"{low} to {high}", ", which grows with N")
    return f"a rank sends {span} a sequence{by_formula(line)}{grows}" if sent else ""


def depth_of(line: list[Point]) -> str:
    longest = max(line, key=lambda p: p.seq_len or 0)
    return f"at {token_label(longest.seq_len)} tokens {depth_text(longest)}"


def local_text(local: list[tuple[list[Point], Verdict]]) -> str:
    """The worst of the lines that do not decide, and why they do not."""
    line, worst = local[0]
    found, counted = {
        True: ("Constant", "as support"),
        False: ("Not constant", "against it"),
        None: ("Left open by intervals", "at all"),
    }[worst.good]
    rates = "rates that grow as the segments do, this suite's choice" if all(map(rates_follow_segments, line)) else "these rates"
    of = f", the worst of {len(local)} lines" if len(local) > 1 else ""
    return (
        f"{found} at {rates}{of}: {worst.text}. Not counted {counted}, because {shared_work_text(line)}."
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
        where = f"{series_name(ctx, line.whole[0])} on {ranks_of(ctx, line.whole)}"
        fit = line.fit(lambda points: long_fit(points, lambda p: p.time_per_sequence_s), where, floor)
        if fit:
            text = f"{where}: time of a sequence ~ {power(fit)} ({span_text(fit)}{line.note})"
            more = "; ".join(filter(None, (whole_label(ctx, line.whole[0]), on_machine(ctx, line.whole))))
            good = line.keeps(fit, lambda exponent, _: exponent >= GROWING_EXPONENT)
            verdicts.append(Verdict(good, -fit.exponent, text, tuple(line.whole), more))
            judged += line.kept
    nothing = f"no exact algorithm with {MIN_LENGTHS} lengths over a factor of {MIN_SPAN:g}"
    seen = decide(source, verdicts, nothing, unjudged=floor, within=f"the threshold{on_ranks(judged)}")
    return replace(seen, status=SEEN, text=seen.text + ASSUMED_LAW) if verdicts and source == "simulated" else seen


LATENCY, COMMUNICATION = "Latency of dilated attention is nearly constant", "Communication per rank is constant in N where rates grow as segments"
CATALOGUE: tuple[tuple[Claim, Callable[[Context, str], Evidence]], ...] = (
    (
        Claim(
            LATENCY,
            "“It shows that dilated attention can successfully scale up the sequence length with almost constant latency.” (section 3.2)",
            f"Time per token against N at fixed ranks, and time against N at fixed tokens per rank: exponent at most {CONSTANT_EXPONENT:.2f} (7 % per "
            f"doubling) and no rise above {CONSTANT_RATIO:g}× on every line. A line counts if its long branches do at least {percent_label(SHARED_WORK)} "
            "of the FLOPs. The thresholds are ours: the paper names none.",
            ("batch_runtime", "time_per_token", "weak_scaling", "latency"),
            command="lnbench run configs/constant-latency-shared-cpu.json",
            rules=("rates", "lines", "intervals", "short lengths"),
            more=f"A line without a rise above {CONSTANT_WITHIN:g}× is constant whatever its exponent. Long branches are those "
            "that ranks share; on one rank, and where one device takes the place of all, those beyond the first segment. Their share counts at each length. "
            f"A line needs {MIN_LENGTHS} lengths over a factor of {CONSTANT_SPAN:g}. The paper’s figure 5 has 8K to 1B tokens, 1B a batch, on GPUs.",
        ),
        quiet_only(latency_constant),
    ),
    (
        Claim(
            "Latency of vanilla attention grows with N",
            "“In contrast, vanilla attention suffers from the quadratic dependency on the sequence length. Its latency dramatically "
            "increases as the length grows.” (section 3.2)",
            f"Time of a sequence by every exact algorithm against N at fixed ranks: exponent at least {GROWING_EXPONENT:.2f} on every line "
            "(quadratic attention: 2, linear: 1). A simulation assumes this: undecided.",
            ("batch_runtime", "time_per_token", "latency"),
            command="lnbench run configs/complexity.json",
            rules=("lines", "lengths", "intervals", "short lengths"),
        ),
        quiet_only(vanilla_grows),
    ),
    (
        Claim(
            COMMUNICATION,
            "“Different from vanilla attention, both sizes of K̃ᵢ and Ṽᵢ are independent of the sequence length N, making the "
            "communication cost constant.” (section 3.1)",
            f"Bytes that a rank sends per sequence, on two or more ranks, on every line whose rates grow as its segments: no rise above {BYTES_RATIO:.2f}× "
            f"as N grows at fixed ranks, nor above {BYTES_RATIO_RANKS:.2f}× as both grow at fixed tokens per rank. At slower rates the bytes grow with N.",
            ("communication_ranks", "communication_tokens"),
            command="lnbench run configs/opponents-cpu.json --ranks 8",
            rules=("rates", "lines", "lengths"),
            more="Bytes are counted; what a library’s collectives move is taken from the messages that they must deliver; those of modelled points are "
            "predicted. At fixed tokens per rank (P−1)/P alone rises up to 2×. Lines at slower rates than section 2.4’s are listed, not judged. At its rates, constant bytes follow from the formulas; a run that counts them shows that no more is sent.",
        ),
        communication_constant,
    ),
    (
        Claim(
            "Backward is a reduce-scatter, its bytes constant in N",
            "“Note that the all-gather operation in the backward becomes a reduce-scatter operation. Different from vanilla attention, both sizes "
            "of K̃ᵢ and Ṽᵢ are independent of the sequence length N, making the communication cost constant.” (section 3.1)",
            "Backward passes of dilated attention on two or more ranks sum gradients by a reduce-scatter, sampled rows of dQ, dK and dV agree with the "
            f"definition in double precision, and a rank’s bytes do not rise above {BYTES_RATIO:.2f}× as N grows at fixed ranks, where rates grow as segments.",
            ("communication_tokens",),
            command="lnbench run configs/backward-cpu.json --ranks 4",
            rules=("rates", "lines", "lengths"),
            more="Counted are gradients in fp32 and keys and values that are gathered again (none with rows kept), on every line whose rates grow as its segments. Of a point of both passes, what a forward of "
            "the same problem sends is subtracted; without one both passes count together, and a rise is not judged. A simulation computes no gradients: undecided.",
            passes=PASSES,
        ),
        backward_reduce_scatters,
    ),
    (
        Claim(
            "The sequence scales to 1 billion tokens on a distributed system",
            "“By partitioning the sequence dimension, it can leverage the distributed systems to scale the sequence length to 1 billion "
            "tokens.” (section 3.2; section 1: “In this work, we successfully scale the sequence length to 1 billion tokens.”)",
            f"Dilated attention over at least {BILLION:,} tokens, measured and checked on two or more ranks. Less is undecided: one device "
            "in the place of all ranks, a simulation, outputs without a check. Only a wrong output contradicts.",
            ("memory", "latency", "table"),
            passes=(FORWARD, BOTH),
            command="mpirun -np 128 lnbench run configs/one-billion-cpu.json --mode real --set memory.limit_bytes=1TiB",
            more="Every query and key of every branch counts, no value of the output is left unwritten, sampled rows agree with the definition in double "
            "precision, and the pattern joins all tokens at some depth. Tested is attention’s forward pass, as in figure 5, or both passes: no layers, no training. Where it does "
            "not fit here, a larger machine may hold it.",
        ),
        billion_tokens,
    ),
    (
        Claim(
            "Distributed dilated attention equals the reference",
            "“The concatenation of the outputs across different devices becomes the final attention output: Õ = [Õ₁, Õ₂].” (section 3.1)",
            "Every dilated point that was checked on two or more ranks, with messages between them, agrees within its tolerance with this suite’s "
            "own definition of the paper’s formulas in double precision, in sampled rows of every branch, head and rank.",
            ("table",),
            command="lnbench run configs/opponents-cpu.json --ranks 8",
            passes=(FORWARD, BOTH),
        ),
        equals_reference,
    ),
    (
        Claim(
            "Splitting the sequence is orthogonal to data and model parallelism",
            "“The distributed algorithm described above is orthogonal to other parallelisms, including data parallelism which partitions the "
            "batch dimension, model parallelism which partitions the hidden dimension, and pipeline parallelism which partitions the layers.” "
            "(section 3.1)",
            "Layers and training steps around dilated attention on ranks that share a sequence, beside replicas that share the batch or ranks that split the "
            f"heads: each has the loss of one rank within {LOSS_WITHIN:g} (bf16: 1e-2) and passes its checks. Pipelines are not built here.",
            ("model_parts", "table"),
            passes=PASSES,
            command="lnbench run configs/layer-cpu.json --ranks 4",
        ),
        orthogonal,
    ),
    (
        Claim(
            "No distributed algorithm takes vanilla attention past its length limit (said in July 2023; asked of today’s)",
            "“Moreover, there is no distributed algorithm for vanilla attention to break sequence length limitation.” (section 3.2)",
            "Asked of today’s algorithms, all later than the sentence: it is outdated if an exact one ran on several ranks and was checked at a length that fewer "
            "ranks had no memory for. We read the limit as memory: no exact algorithm lifts the quadratic work.",
            ("memory", "latency", "error_ranks", "communication_ranks", "table"),
            passes=(FORWARD, BOTH),
            command="mpirun -np 8 lnbench run configs/h100-8.json --set exclude=[] --set sweep.algorithm=ring --set sweep.seq_len=16M "
            "--set sweep.ranks=1,8 --set memory.limit_bytes=1TiB --set measure.point_timeout_s=3600",
            more=f"{BEFORE_THE_PAPER} {AFTER_THE_PAPER} Lengths that fewer ranks hold as well are undecided, however little of the memory a rank takes there.",
        ),
        exact_distributed,
    ),
    (
        Claim(
            "Complexity: vanilla N², sparse N√N, dilated N",
            "“Comparison of computation complexity among different methods.” (table 1: vanilla O(N²d), sparse O(N√N d), dilated O(Nd))",
            f"Exponent of the time of a sequence against N at fixed ranks, on every line: vanilla within {EXPONENT_WITHIN:.2f} of 2; sparse and dilated at "
            f"most {EXPONENT_WITHIN:.2f} above 1.5 and 1. Judged only if all three were run; what a simulation assumes is undecided.",
            ("latency", "time_per_token", "table"),
            command="lnbench run configs/complexity.json",
            rules=("rates", "lines", "intervals", "short lengths"),
            more="Vanilla: every exact algorithm. Sparse: segments and keys per query ~ √N, chosen so. Dilated: rates ~ segments. A line needs "
            f"{EXPONENT_LENGTHS} lengths over a factor of {EXPONENT_SPAN:g} and R² ≥ {EXPONENT_R_SQUARED:g}. Counted FLOPs stand beside the times. The factor d "
            "and the table’s row “Recurrent” are not tested.",
        ),
        quiet_only(complexity_table),
    ),
    (
        Claim(
            "Token dependency is at most logarithmic",
            "“Therefore, the maximum path length of a sequence with N tokens can be estimated as: L ≈ log_α(N(α−1)/w₀) (α > 1). This "
            "proves that the token dependency is approximate to O(log N).” (section 2.4; the abstract: “it has a linear computation complexity and a "
            "logarithm dependency between any two tokens in a sequence”)",
            "Layers until every token has heard from every other, computed from each pattern (nothing is timed). They may exceed the paper’s estimate, rounded up, by "
            f"at most {DEPTH_EXTRA}, and no pair may stay apart. O(log N) is an upper bound, so fewer layers keep it.",
            ("dependency_depth",),
            COMPUTED,
            passes=PASSES,
            command="lnbench run configs/geometric-cpu.json",
            more=f"The {DEPTH_EXTRA} are a local hop at either end, which the estimate leaves out. Judged are patterns of one first segment and one α, of segments and of "
            f"rates, whose estimates are {DEPTH_SPREAD:g} or more layers apart and whose rates do not exceed the next shorter segment. The order O(log N) is "
            "tested, not the estimate as a number.",
        ),
        depth_logarithmic,
    ),
)


def judge(ctx: Context) -> list[Claim]:
    sources = sources_of(ctx.every)
    claims = []
    for c, test in CATALOGUE:
        own = ctx.of_passes(*c.passes)
        wanted = f"a forward pass {'alone or with a backward' if BOTH in c.passes else 'alone'}"
        nothing = f"no point is of {wanted}" if ctx.points and not own.points else ""
        claims.append(replace(c, evidence=[Evidence(s, NOT_TESTED, nothing) if nothing else test(own, s) for s in ([c.about] if c.about else sources)]))
    return [replace(c, evidence=[apart(claims, c, e) for e in c.evidence]) for c in claims]


def apart(claims: list[Claim], claim: Claim, evidence: Evidence) -> Evidence:
    """Says where constant latency and constant communication are supported by lines that have no point in common."""
    pair = {c.title: c.deciding for c in claims if c.title in (LATENCY, COMMUNICATION)}
    seen = [e for e in pair.values() if e and e.status == SUPPORTED]
    if len(seen) < len(pair) or evidence is not pair.get(claim.title):
        return evidence
    one, two = ({key_of(p) for line in e.judged for p in line} for e in seen)
    other = "communication" if claim.title == LATENCY else "latency"
    said = f" Constant {other} is shown by other lines, of other patterns or ranks; no line here shows both."
    return evidence if one & two else replace(evidence, text=evidence.text + said)
