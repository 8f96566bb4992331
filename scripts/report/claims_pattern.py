"""The paper's two statements about the pattern itself: complexity (table 1) and dependency depth (section 2.4).

Example: local at 4K, 8K, 16K, 32K with times 1, 4, 16, 64 s fits N^2.00, dilated with 1, 2, 4, 8 s N^1.00;
with a sparse line near N^1.50 the table is supported by that source, without one it is not tested.
"""

from __future__ import annotations

import itertools
import math

from .evidence import NOT_TESTED, SUPPORTED, Evidence, Verdict, decide, power, span_text
from .fits import fit_power_law
from .model import Point
from .paper_lines import COMPLEXITY, timed_lines, widths_and_rates
from .rows import Context
from .units import number, plural, significant, token_label

PAPER_NAMES = {"dense": "vanilla", "sparse": "sparse", "dilated": "dilated"}
EXPONENT_WITHIN = 0.15  # of the expected exponent
EXPONENT_LENGTHS = 4
EXPONENT_SPAN = 8.0
EXPONENT_R_SQUARED = 0.98  # below, time follows no power law and the exponent says nothing
RULE_WITHIN = 2.0  # of a pattern's rule: rounding of segments and rates to powers of two
DEPTH_EXTRA = 2  # layers: a local hop before and after the long way that the paper counts


def over_root(point: Point) -> tuple[float | None, float | None]:
    """Segment length and keys per query of a sparse pattern, both divided by √N."""
    widths = [w for w in (number(b.get("segment_length")) for b in point.branches) if w]
    if not widths or not point.seq_len:
        return None, None
    width, root = min(widths), math.sqrt(point.seq_len)
    summary = max(number(b.get("summary_tokens")) or 0 for b in point.branches)
    return width / root, (width + summary * point.seq_len / width) / root


def follows_its_rule(points: list[Point]) -> bool:
    """Whether the pattern of a line is the one whose complexity the paper states: for sparse attention segments w,
    and keys per query w + c N / w, that grow as √N; for dilated attention rates that grow as the segments; always
    for vanilla."""
    first = points[0]
    if first.pattern == "sparse":
        return all(
            None not in values and max(values) <= RULE_WITHIN * min(values) for values in zip(*map(over_root, points))
        )
    if first.pattern == "dilated":
        return all(rates_follow_segments(p) for p in points)
    return True


def rates_follow_segments(point: Point) -> bool:
    """Rates grow as the segments do, so that every segment keeps as many rows as the first (section 2.4: one ratio α
    for both)."""
    pairs = widths_and_rates(point)
    return bool(pairs) and all(r * pairs[0][0] * RULE_WITHIN >= w * pairs[0][1] for w, r in pairs)


def complexity_verdict(ctx: Context, points: list[Point], note: str) -> Verdict | None:
    fit = fit_power_law((p.seq_len, p.time_per_sequence_s) for p in points)
    if fit is None or len({p.seq_len for p in points}) < EXPONENT_LENGTHS or fit.x_span < EXPONENT_SPAN:
        return None
    if fit.r_squared < EXPONENT_R_SQUARED:
        return None
    pattern = points[0].pattern
    expected = COMPLEXITY[pattern]
    away = fit.exponent - expected
    away = abs(away) if pattern == "dense" else away  # O(): what grows more slowly keeps the bound
    flops = fit_power_law((p.seq_len, (p.value("work.flops") or 0) / p.batch) for p in points)
    counted = f", FLOPs ~ {power(flops.exponent)}" if flops and flops.count == fit.count else ""
    text = (
        f"{PAPER_NAMES[pattern]}, {ctx.index.label(points[0])} on {ctx.index.rank_label(points[0].ranks)}: time ~ "
        f"{power(fit.exponent)} (expected {power(expected)}; R² {fit.r_squared:.4f}{counted}; {span_text(fit)}{note})"
    )
    return Verdict(round(away, 9) <= EXPONENT_WITHIN, away, text)


def complexity_table(ctx: Context, source: str) -> Evidence:
    """Supported needs a line of each of the three methods; one line that fails is enough against it."""
    verdicts: list[Verdict] = []
    tested: set[str] = set()
    for pattern in COMPLEXITY:
        for group, note in timed_lines(ctx, source, pattern, lambda p: p.ranks):
            verdict = complexity_verdict(ctx, group, note) if follows_its_rule(group) else None
            if verdict:
                verdicts.append(verdict)
                tested.add(pattern)
    nothing = f"no line with {EXPONENT_LENGTHS} lengths over a factor of {EXPONENT_SPAN:g} that follows a power law"
    seen = decide(source, verdicts, nothing)
    missing = ", ".join(PAPER_NAMES[pattern] for pattern in COMPLEXITY if pattern not in tested)
    if not verdicts or not missing:
        return seen
    status = NOT_TESTED if seen.status == SUPPORTED else seen.status
    return Evidence(source, status, f"{seen.text} No such line: {missing}.", seen.details)


def depth_text(point: Point) -> str:
    """The dependency depth of the record's pattern, as part of a sentence."""
    layers = point.num("metrics.dependency_depth_layers")
    if layers is None:
        return "its dependency depth is not stated"
    if layers < 0:
        return "some token never hears from some other, however many layers"
    return f"every token hears from every other within {plural(int(layers), 'layer')}"


def skips_segments(point: Point) -> bool:
    """A rate above the next shorter segment: segments without any row of the longer branch hear nothing from afar."""
    pairs = widths_and_rates(point)
    return any(rate > width for (width, _), (_, rate) in itertools.pairwise(pairs))


def depth_logarithmic(ctx: Context, source: str) -> Evidence:
    """Layers counted on each different pattern; what the paper's formula is not defined for is left out."""
    verdicts: dict[tuple[object, ...], Verdict] = {}
    skipping: dict[tuple[object, ...], str] = {}
    for point in ctx.points:
        layers, bound = (point.num(f"metrics.dependency_depth_{key}layers") for key in ("", "bound_"))
        if point.pattern != "dilated" or point.source != source or layers is None or not point.seq_len:
            continue
        never = layers < 0
        if bound is None and not never:
            continue
        shape = (point.seq_len, *(point.text(f"params.{k}") for k in ("heads", "causal", "offset", "phase_parts", "branches")))
        causal = point.get("params.causal") is True
        mask = " under a causal mask" if causal else ""
        estimate = "" if bound is None else f", the paper estimates {significant(bound)}"
        missed = "some token never hears from some other"
        missed += ", as neighbours across a segment's border where no branch joins them" if causal else ""
        reached = missed if never else plural(int(layers), "layer")
        text = f"{ctx.index.label(point)}, {token_label(point.seq_len)} tokens{mask}: {reached}{estimate}"
        if skips_segments(point):
            skipping[shape] = f"not judged, a rate exceeds the next shorter segment: {text}"
            continue
        beyond = math.inf if never else layers - (bound or 0)
        good = not never and layers <= math.ceil(round(bound or 0, 9)) + DEPTH_EXTRA
        verdicts.setdefault(shape, Verdict(good, beyond, text))
    nothing = "no dilated point states the dependency depth of its pattern"
    skipped = (
        f" {plural(len(skipping), 'pattern')} not judged: a dilation rate exceeds the next shorter segment, so that whole segments "
        "are skipped. The paper's estimate leaves this out, and the patterns that it states have no such rate."
        if skipping
        else ""
    )
    seen = decide(source, list(verdicts.values()), "none judged." if skipping else nothing, "pattern")
    return Evidence(source, seen.status, seen.text + skipped, (*seen.details, *skipping.values()))
