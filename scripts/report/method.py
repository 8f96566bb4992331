"""The method section: rules of measuring, fitted exponents. What claims ask of lines stands beside them."""

from __future__ import annotations

from .markup import escape, section
from .rows import Context
from .tables import fit_table, recorded_fits

RULES = (
    "Each sample is one pass of all ranks, after warm-up and right after a barrier: from the first rank's begin to the "
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
    "FLOPs are exact: for each (query, key) pair that the pattern attends 4·head_dim of a forward, 10·head_dim of a backward (14·head_dim "
    "in all mixtures but lse, which attend once more). Lengths are global, never per rank. Tokens: K = 2^10, M = 2^20, B = 2^30.",
    "Bytes per rank are the maximum over ranks of the bytes sent in one pass.",
    "A point on one device in the place of all ranks (mode virtual) walks their programs one after another: its time is "
    "the sum of their attends, packs and merges, its memory that of one rank at a time. What other ranks would send is "
    "generated again where it would arrive; that, making inputs, digests and checks are timed apart.",
    "Exponents are least squares of ln(time) on ln(tokens), within one series, one source and one rank count; [a, b] are the least and the "
    "largest that the intervals of all its medians allow, where each has five samples or more.",
    "A point is disturbed, and decides no claim about time, if its samples are more than 1.5 times apart, if its ablations repeat the "
    "full step 1.25 times slower or faster, if the same work as a single attend took more than 10 % longer than in another point, "
    "or if other programs used more than 15 % of the cores beside its samples. Such points are measured again, twice at most, "
    "within measure.disturbed_budget; the last time counts. Of a run that began on a busy machine, points beside which nobody "
    "looked decide nothing; likewise all points of a run that never looked for disturbed ones: an interrupted one, or an older result.",
    "Points of more threads than cores, of more ranks than GPUs, or of a GPU that had slowed its clocks down decide no claim "
    "about time.",
)


def bullets(texts: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def method_section(ctx: Context) -> str:
    return section(
        "method",
        "Method",
        f"{bullets(RULES)}<h3>Fitted exponents</h3>{fit_table(ctx)}{recorded_fits(ctx)}",
    )
