"""The paper's two statements about the pattern itself: complexity (table 1) and dependency depth (section 2.4).

Example: local at 4K, 8K, 16K, 32K with times 1, 4, 16, 64 s fits N^2.00, dilated with 1, 2, 4, 8 s N^1.00;
with a sparse line near N^1.50 the table is supported by that source, without one it is untested.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from .evidence import (
    ASSUMED_LAW,
    PAPER_NAMES,
    SEEN,
    SUPPORTED,
    Evidence,
    Unjudged,
    Verdict,
    decide,
    power,
    series_name,
    span_text,
    whole_label,
)
from .fits import PowerLaw, fit_power_law
from .model import Point
from .paper_lines import (
    COMPLEXITY,
    TimedLine,
    interval_of,
    on_machine,
    ranks_of,
    shared_work_text,
    shorter_text,
    timed_lines,
    widths_and_rates,
)
from .rows import Context
from .units import number, plural, significant, token_label

EXPONENT_WITHIN = 0.15  # distance from the expected exponent
EXPONENT_LENGTHS = 4
EXPONENT_SPAN = 8.0
EXPONENT_R_SQUARED = 0.98  # below, time follows no power law and the exponent says nothing
RULE_WITHIN = 2.0  # factor to a pattern's rule: segments and rates are rounded to powers of two
NO_RATIO = "segments or rates have no single ratio α, which the paper's estimate assumes"
SKIPS = "a dilation rate exceeds the next shorter segment, so that its branch skips some, which the paper's estimate leaves out"
RATES_DIFFER = {
    "dilated": "rates do not grow as segments (which end with N), as in the paper's derivation of O(Nd)",
    "sparse": "segments and keys per query do not grow as √N",
}
DEPTH_EXTRA = 2  # layers: a local hop before and after the long way that the paper counts
DEPTH_SPREAD = 4.0  # layers between the estimates of a line, at least: twice what is allowed beside them
NEAR = f"their estimates are less than {DEPTH_SPREAD:g} layers apart, which does not tell log N from a constant"


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
    growth = [(r / pairs[0][1]) / (w / pairs[0][0]) for w, r in pairs]
    return bool(growth) and min(growth) >= 1 / RULE_WITHIN and max(growth) <= RULE_WITHIN


def complexity_fit(points: list[Point]) -> PowerLaw | None:
    """The power law of the time of a sequence, if the line is long enough for an exponent."""
    fit = fit_power_law((p.seq_len, p.time_per_sequence_s, *interval_of(p, p.time_per_sequence_s)) for p in points)
    enough = fit is not None and len({p.seq_len for p in points}) >= EXPONENT_LENGTHS and fit.x_span >= EXPONENT_SPAN
    return fit if enough else None


def complexity_verdict(ctx: Context, line: TimedLine, unjudged: list[Unjudged]) -> Verdict | None:
    first, points, whole = line.whole[0], line.kept, tuple(line.whole)
    pattern = first.pattern
    name = series_name(ctx, first)
    where = f"{name if name.startswith(pattern) else f'{PAPER_NAMES[pattern]}, {name}'} on {ranks_of(ctx, line.whole)}"
    fit = line.fit(complexity_fit, where, unjudged)
    if fit is None:
        return None
    if not follows_its_rule(points):
        unjudged.append(Unjudged(RATES_DIFFER[pattern], f"{where} ({span_text(fit)}): time ~ {power(fit)}", whole))
        return None
    if fit.r_squared < EXPONENT_R_SQUARED:
        unjudged.append(Unjudged("times follow no power law", f"{where} (R² {fit.r_squared:.4f}; {span_text(fit)})", whole))
        return None
    expected = COMPLEXITY[pattern]
    away = fit.exponent - expected
    two_sided = pattern == "dense"  # O(): what grows more slowly keeps the bound
    good = line.keeps(
        fit,
        lambda exponent, _: round(exponent - expected, 9) <= EXPONENT_WITHIN,
        lambda exponent, _: not two_sided or round(expected - exponent, 9) <= EXPONENT_WITHIN,
    )
    flops = fit_power_law((p.seq_len, (p.value("work.flops") or 0) / p.batch) for p in points)
    counted = f", FLOPs ~ {power(flops)}" if flops and flops.count == fit.count else ""
    work = shared_work_text(points) if pattern == "dilated" else ""
    text = f"{where}: time ~ {power(fit)} (expected N^{expected:.2f}{counted}; {span_text(fit)}{line.note}){shorter_text(points)}"
    more = "; ".join(filter(None, (whole_label(ctx, first), f"R² {fit.r_squared:.4f}", work, on_machine(ctx, line.whole))))
    return Verdict(good, abs(away) if two_sided else away, text, whole, more)


def complexity_table(ctx: Context, source: str) -> Evidence:
    """Supported needs a line of each of the three methods; one line that fails is enough against it."""
    verdicts: list[Verdict] = []
    unjudged: list[Unjudged] = []
    tested: set[str] = set()
    for pattern in COMPLEXITY:
        for line in timed_lines(ctx, source, pattern, lambda p: p.ranks):
            verdict = complexity_verdict(ctx, line, unjudged)
            if verdict:
                verdicts.append(verdict)
                tested.add(pattern)
    nothing = f"no line with {EXPONENT_LENGTHS} lengths over a factor of {EXPONENT_SPAN:g} that follows a power law"
    seen = decide(source, verdicts, nothing, unjudged=unjudged)
    if "dense" in tested and source == "simulated":
        seen = replace(seen, status=SEEN, text=seen.text + ASSUMED_LAW)
    missing = ", ".join(PAPER_NAMES[pattern] for pattern in COMPLEXITY if pattern not in tested)
    if not verdicts or not missing:
        return seen
    status = SEEN if seen.status == SUPPORTED else seen.status
    return replace(seen, status=status, text=f"{seen.text} The table is not judged without: {missing}.")


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


def depth_against_estimate(point: Point, layers: float, bound: float | None) -> str:
    """ "4 layers, 1 layer more than the paper's estimate of 3"; "5 layers; the paper's estimate does not apply" without an α."""
    estimate = "" if bound is None else f"the paper's estimate of {significant(bound)}"
    if bound is not None and significant(bound) != str(whole_layers(bound)):
        estimate += f", rounded up to {whole_layers(bound)}"
    if layers < 0:
        causal = ", as neighbours across a segment's border where no branch joins them" if point.get("params.causal") is True else ""
        against = f", against {estimate}" if estimate and None not in ratios(point) else ""
        return f"some token never hears from some other{causal}{against}"
    if None in ratios(point):
        return f"{plural(int(layers), 'layer')}; the paper's estimate does not apply"
    extra = int(layers) - whole_layers(bound or 0)
    return f"{plural(int(layers), 'layer')}, {plural(extra, 'layer') + ' more' if extra > 0 else 'no more'} than {estimate}"


def whole_layers(bound: float) -> int:
    return math.ceil(round(bound, 9))


@dataclass(frozen=True)
class Depth:
    """Layers of one pattern beside the paper's estimate; layers < 0: some token never hears from some other."""

    point: Point
    layers: float
    estimate: float
    text: str

    @property
    def verdict(self) -> Verdict:
        good = 0 <= self.layers <= whole_layers(self.estimate) + DEPTH_EXTRA
        return Verdict(good, math.inf if self.layers < 0 else self.layers - self.estimate, self.text, (self.point,))


def judged_text(judged: list[Depth]) -> str:
    """ " At 8K and 1M tokens 3 and 3 layers were computed, 2 and 9 estimated. The estimate is up to 1 too low and up to 6 too high."."""
    if not judged:
        return ""
    ends = [pick(judged, key=lambda d: d.point.seq_len or 0) for pick in (min, max)]
    tokens, layers, estimates = zip(*((token_label(d.point.seq_len), significant(d.layers), significant(d.estimate)) for d in ends))
    over, under = (max(sign * (d.layers - d.estimate) for d in judged) for sign in (1, -1))
    off = [f"{significant(by)} too {word}" for by, word in ((over, "low"), (under, "high")) if by > 0]
    wrong = f" The estimate is up to {' and up to '.join(off)}." if off else ""
    grown = "" if len({d.layers for d in judged}) > 1 else " Growth was not seen: O(log N) holds as an upper bound."
    return f" At {tokens[0]} and {tokens[1]} tokens {layers[0]} and {layers[1]} layers were computed, {estimates[0]} and {estimates[1]} estimated.{wrong}{grown}"


def within_text(unjudged: list[Unjudged]) -> str:
    """ ", though in each every token hears from every other within 3 to 5 layers"; empty where some token never does."""
    layers = [int(p.num("metrics.dependency_depth_layers") or 0) for u in unjudged for p in u.points]
    span = " to ".join(map(str, dict.fromkeys((min(layers), max(layers)))))
    return f", though in each every token hears from every other within {span} layers" if min(layers) >= 0 else ""


def ratios(point: Point) -> tuple[float | None, float | None]:
    """α: the ratio of each different segment to the next shorter one, and of their rates; None where it varies."""
    pairs = [next(same) for _, same in itertools.groupby(widths_and_rates(point), key=lambda pair: pair[0])]
    steps = [{round(longer / shorter, 3) for shorter, longer in itertools.pairwise(values)} for values in zip(*pairs)]
    segments, rates = (found.pop() if len(found) == 1 else None for found in steps)
    return segments, rates


def depth_logarithmic(ctx: Context, source: str) -> Evidence:
    """Layers computed from each different pattern, whatever the source of its point. Patterns of one w₀ and one α, as the
    paper's formula has them, are a line; others are left out, unless some token never hears from some other."""
    lines: dict[tuple[object, ...], dict[tuple[int, str], Depth]] = {}
    left_out: dict[tuple[object, ...], Unjudged] = {}
    for point in ctx.points:
        layers, bound = (point.num(f"metrics.dependency_depth_{key}layers") for key in ("", "bound_"))
        known = layers is not None and point.seq_len and widths_and_rates(point)
        if point.pattern != "dilated" or not known or (bound is None and layers >= 0):
            continue
        same = tuple(point.text(f"params.{k}") for k in ("heads", "causal", "offset", "phase_parts"))
        mask = " under a causal mask" if point.get("params.causal") is True else ""
        text = f"{series_name(ctx, point)}, {token_label(point.seq_len)} tokens{mask}: {depth_against_estimate(point, layers, bound)}"
        alpha = ratios(point)
        why = SKIPS if skips_segments(point) else NO_RATIO if None in alpha and layers >= 0 else ""
        if why:
            left_out.setdefault((point.seq_len, point.text("params.branches"), *same), Unjudged(why, text, (point,)))
        else:
            line = lines.setdefault((widths_and_rates(point)[0][0], *alpha, *same), {})
            line.setdefault((point.seq_len, point.text("params.branches")), Depth(point, layers, bound or 0, text))
    verdicts: list[Verdict] = []
    judged: list[Depth] = []
    unjudged = list(left_out.values())
    for line in lines.values():
        estimates = [depth.estimate for depth in line.values()]
        wide = max(estimates) - min(estimates) >= DEPTH_SPREAD
        verdicts += [d.verdict for d in line.values() if wide or d.layers < 0]
        judged += line.values() if wide and min(d.layers for d in line.values()) >= 0 else []
        unjudged += [Unjudged(NEAR, d.text, (d.point,)) for d in line.values() if not wide and d.layers >= 0]
    within = f"{DEPTH_EXTRA} layers of the paper's estimate rounded up"
    nothing = f"no pattern judged{within_text(unjudged)}" if unjudged else "no dilated point states the dependency depth of its pattern"
    seen = decide(source, verdicts, nothing, "pattern", unjudged=unjudged, within=within, said=judged_text(judged))
    return replace(seen, status=SEEN) if unjudged and not verdicts else seen
