"""The method section: rules of measuring, thresholds of the claims, fitted exponents."""

from __future__ import annotations

from . import claims, claims_pattern, paper_lines
from .markup import escape, section
from .rows import Context
from .tables import fit_table, recorded_fits

RULES = (
    "Each sample is one forward of all ranks, after warm-up and right after a barrier: from the first rank's begin to the "
    "last rank's end where they share a clock (one machine), else the time of the slowest rank. Ablations are taken alike.",
    "On GPUs each rank's time is the device's own, by events before the first and after the last op, after its L2 cache was "
    "written over; devices share no clock, so the slowest rank's time counts. Runs of one rank below 0.2 ms are replayed from "
    "a CUDA graph.",
    "A point shows the median of its samples with the exact binomial interval of the median (n = 10: from the 2nd to "
    "the 9th of the sorted samples, 97.9 %).",
    "Packing, permuting and merging are inside the time. Exposed communication is the full time minus compute only, with "
    "its sign: a small negative value is noise; "
    "communication only less that was hidden; compute only ÷ one big attend is the loss to fragmentation: "
    "the big attend has as many pairs and reads the rank's own K and V again and again, which may stay in a cache.",
    "Balance is the work of all ranks ÷ (P · the work of the busiest rank), in exact (query, key) pairs.",
    "A result counts only if it was checked against the reference where the check applies, and if the bytes counted "
    "equal the bytes predicted from the program and, where one is known, by the algorithm's closed form. What the "
    "collectives of MPI or NCCL themselves move is modelled, not counted.",
    "FLOPs are exact: 4·head_dim for each (query, key) pair that the pattern attends. Lengths are global, never per "
    "rank. Tokens: K = 2^10, M = 2^20, B = 2^30.",
    "Bytes per rank are the maximum over ranks of the bytes sent in one forward.",
    "A point on one device in the place of all ranks (mode virtual) walks their programs one after another: its time is "
    "the sum of their attends, packs and merges, its memory that of one rank at a time. What other ranks would send is "
    "generated again where it would arrive; that, making inputs, digests and checks are timed apart.",
    "Exponents are least squares of ln(time) on ln(tokens), within one series, one source and one rank count.",
)
THRESHOLDS = (
    f"Nearly constant: exponent of time per token ≤ {claims.CONSTANT_EXPONENT:.2f}, that is at most 7 % per doubling, "
    f"and no rise above {claims.CONSTANT_RATIO:g}×, so that neither a steady drift nor one jump passes; or no rise above "
    f"{claims.CONSTANT_WITHIN:g}×. What falls with N passes. Judged are lines over a factor of {claims.CONSTANT_SPAN:g} of which the "
    f"branches that ranks share (on one rank and in walks: those beyond the first segment) do {100 * paper_lines.SHARED_WORK:g} % of the FLOPs "
    "or more at each length.",
    f"Grows with N: exponent of time per token ≥ {claims.GROWING_EXPONENT:.2f}, half-way between linear (0) and "
    "quadratic (1) attention.",
    f"Communication constant: bytes rise by no more than {claims.BYTES_RATIO:.2f}× at fixed ranks (rounding of rows), "
    f"{claims.BYTES_RATIO_RANKS:.2f}× at fixed tokens per rank, where (P−1)/P alone doubles the bytes from P = 2 on; "
    "a ring would grow as P − 1.",
    f"Complexity: exponent of the time within {claims_pattern.EXPONENT_WITHIN:.2f} of 2 (vanilla), and at most so much above 1.5 (sparse) "
    "and 1 (dilated), "
    f"of lines with R² ≥ {claims_pattern.EXPONENT_R_SQUARED:g} (times that follow no power law have no exponent) and {claims_pattern.EXPONENT_LENGTHS} lengths "
    f"over a factor of {claims_pattern.EXPONENT_SPAN:g}; only "
    "patterns that follow the paper's rule count (segments and keys per query ~ √N; rates ~ segments, within a factor of "
    f"{claims_pattern.RULE_WITHIN:g} for rounding).",
    f"Dependency: at most {claims_pattern.DEPTH_EXTRA} layers more than the paper's estimate rounded up, of patterns whose rates do not "
    "exceed the next shorter segment.",
    f"{paper_lines.FIGURE5_RULE} {paper_lines.FLOOR_RULE} One rule for all claims about times, walks included. Lines that are long enough and "
    "yet not judged are listed with the reason.",
    "A point is disturbed, and decides no claim about time, if its samples are more than 1.5 times apart, if its ablations repeat the "
    "full step 1.25 times slower or faster, if the same work as a single attend took more than 10 % longer than in another point, "
    "or if other programs used more than 15 % of the cores beside its samples. Such points are measured again, twice at most, "
    "within measure.disturbed_budget; the last time counts. Of a run that began on a busy machine, points beside which nobody "
    "looked decide nothing.",
    "Points of more threads than cores, of more ranks than GPUs, or of a GPU that had slowed its clocks down decide no claim "
    "about time.",
    f"A line of the other claims counts with {paper_lines.MIN_LENGTHS} or more lengths over a factor of {paper_lines.MIN_SPAN:g}; shorter lines test "
    "nothing.",
)


def bullets(texts: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def method_section(ctx: Context) -> str:
    return section(
        "method",
        "Method",
        f"{bullets(RULES)}<h3>Thresholds of the claims</h3>{bullets(THRESHOLDS)}<h3>Fitted exponents</h3>{fit_table(ctx)}{recorded_fits(ctx)}",
    )
