"""The first screen: short sentences in the report's own numbers, the figure that answers, and a word for each claim.

Below each sentence a smaller line tells its conditions: heads, segments and rates, shares of work, what the times decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .claims_pattern import depth_text
from .doubt import kind_of, ranged
from .evidence import MEANING, Claim
from .markup import escape
from .model import BOTH, FORWARD, STEP, Point
from .noise import why_undecided
from .paper_lines import PAPER_SEGMENT, and_text, has_paper_segments, shared_work_text, widths_and_rates
from .rows import Context, heads_text, problem_of, timed_points
from .rows_time import matched, pairs_text, times_text
from .series import group_by, sources_of
from .units import plural, ratio_label, spoken_duration, token_label

OTHER_FUNCTION = "another function, of fewer pairs: this compares cost, not quality"


@dataclass(frozen=True)
class Said:
    text: str  # HTML
    points: tuple[Point, ...]  # those whose times it names
    detail: str = ""  # its conditions, HTML

    @property
    def length(self) -> int:
        return self.points[0].seq_len or 0


def deciding_first(ctx: Context, points: list[Point], say: Callable[[Context], list[Said]]) -> list[Said]:
    """Applies `say` to points whose times may decide a claim; to others only where no such point speaks, with the reason."""

    def said_of(some: list[Point]) -> list[Said]:
        return say(Context(some, ctx.runs, ctx.index))

    if said := said_of([p for p in points if not why_undecided(ctx, p)]):
        return said
    return [replace(one, detail=f"{one.detail} {decides_nothing(ctx, one.points)}".strip()) for one in said_of(points)]


def decides_nothing(ctx: Context, points: Iterable[Point]) -> str:
    reasons = dict.fromkeys(filter(None, (why_undecided(ctx, p) for p in points)))
    return f"Such times decide no claim: {escape('; '.join(map(ranged, group_by(reasons, kind_of).values())))}."


def place_of(ctx: Context, point: Point) -> str:
    """ "on 64 ranks of h100-ndr400 (simulated)", "on one device in the place of 16 ranks (measured)"."""
    cluster = ctx.runs[point.run].get("run.cluster.name") if point.source == "simulated" else None
    ranks = plural(point.ranks, "rank")
    where = f"one device in the place of {ranks}" if point.in_turn else f"{ranks} of {cluster}" if cluster else ranks
    return f"on {escape(where)} ({escape(point.source)})"


def time_of(point: Point) -> str:
    """Its time, and whether the cluster file has figures of kernels of that size."""
    guess = " (a guess, beyond the kernel table)" if point.beyond_kernel_table else ""
    return f"<strong>{spoken_duration(point.median_s)}</strong>{guess}"


def pass_of(point: Point) -> str:
    """Empty of a forward, which figure 5 times."""
    return "" if point.compute_pass == FORWARD else f"a {escape(point.pass_name)} pass of "


def length_of(point: Point) -> str:
    if point.batch > 1:
        return f"For {token_label(point.batch * (point.seq_len or 0))} tokens in sequences of {token_label(point.seq_len)}"
    return f"At {token_label(point.seq_len)} tokens"


def conditions(point: Point, *others: str) -> str:
    """ "One head; segments of 256 and 64K tokens at rates 1 and 256." """
    text = "; ".join(filter(None, (heads_text(point), pattern_text(point), *others)))
    return f"{text[:1].upper()}{text[1:]}."


def pattern_text(point: Point) -> str:
    """ "segments of 2K, 4M and 16M tokens at rates 1, 2,048 and 8,192"; of more than three: "10 segments of 2K to 1M ..."."""
    pairs = widths_and_rates(point)
    if not pairs:
        return ""
    widths, rates = ([label(x) for x in values] for values, label in zip(zip(*pairs), (token_label, "{:,.0f}".format)))
    few, equal = len(pairs) <= 3, "rate" if len(pairs) == 1 else "rates"
    said = f"{and_text(widths)} tokens at {equal} {and_text(rates)}" if few else f"{widths[0]} to {widths[-1]} tokens at rates {rates[0]} to {rates[-1]}"
    return f"{'segments' if few else f'{len(pairs)} segments'} of {said}"


def shorter_segment_text(exact: Point, dilated: Point) -> str:
    """The largest ratio possible with the paper's first segment, by pairs of query and key."""
    if has_paper_segments(dilated) or not widths_and_rates(dilated):
        return ""
    most = max(1.0, (exact.seq_len or 0) / PAPER_SEGMENT)
    return f"with the paper’s first segment ({PAPER_SEGMENT:,} tokens, undilated) at most {ratio_label(most)} by count of pairs"


def never_heard_text(dilated: Point) -> str:
    """That the pattern does not join all tokens, which exact attention does in one layer."""
    return depth_text(dilated) if (dilated.num("metrics.dependency_depth_layers") or 0) < 0 else ""


def work_text(point: Point) -> str:
    """The share of its branches that ranks share, of dilated attention."""
    return shared_work_text([point]) if point.pattern == "dilated" and widths_and_rates(point) else ""


def comparison(ctx: Context) -> list[Said]:
    """The longest sequence that dilated and exact attention both computed, and what each took: in a pattern with the paper's
    first segment, if there is one."""
    as_in_paper = [p for p in ctx.points if p.pattern != "dilated" or has_paper_segments(p)]
    pairs = matched(Context(as_in_paper, ctx.runs, ctx.index)) or matched(ctx)
    if not pairs:
        return []
    longest = max((p.seq_len or 0, p.ranks) for p, _ in pairs)
    exact, dilated = min((pair for pair in pairs if ((pair[0].seq_len or 0), pair[0].ranks) == longest), key=lambda pair: pair[0].median_s or 0)
    text = (
        f"{length_of(exact)} {place_of(ctx, exact)} {pass_of(dilated)}dilated attention takes {time_of(dilated)}, "
        f"exact attention ({escape(exact.algorithm)}) {time_of(exact)}: {times_text(exact, dilated)}{pairs_text(exact, dilated)}."
    )
    remarks = (work_text(dilated), OTHER_FUNCTION, never_heard_text(dilated), shorter_segment_text(exact, dilated))
    return [Said(text, (exact, dilated), conditions(dilated, *remarks))]


def longest_run(ctx: Context) -> list[Said]:
    """The longest sequence that one algorithm computed alone."""
    able = timed_points(ctx)
    if not able:
        return []
    point = max(able, key=lambda p: (p.pattern == "dilated", p.seq_len or 0, p.ranks))
    per_token = spoken_duration((point.median_s or 0) / ((point.seq_len or 1) * point.batch))
    text = (
        f"{length_of(point)} {place_of(ctx, point)} {pass_of(point)}{escape(point.algorithm)} attention takes "
        f"{time_of(point)}, {per_token} per token."
    )
    return [Said(text, (point,), conditions(point, work_text(point)))]


def of_attention(ctx: Context) -> list[Said]:
    """The longest length that both computed, and the longest run alone only where that is far longer."""
    pair, alone = comparison(ctx), longest_run(ctx)
    return pair + [one for one in alone if not pair or one.length >= 16 * pair[0].length]


def sentences(ctx: Context) -> list[Said]:
    """The longest sequence first; every source speaks for itself: of forwards, of other passes where it has none."""
    found = []
    for source in sources_of(ctx.points):
        points = [p for p in timed_points(ctx) if p.source == source]
        found += deciding_first(ctx, [p for p in points if p.compute_pass == FORWARD] or points, of_attention)
    return sorted(found, key=lambda one: -one.length)


def both_passes(ctx: Context) -> list[Said]:
    """How many forwards both passes of the longest sequence take, dilated if it is there, and of how many they have the
    multiply-adds; every source speaks for itself."""
    timed = timed_points(ctx)
    forward = {problem_of(ctx, p): p for p in timed if p.compute_pass == FORWARD}
    pairs = [(p, forward[problem_of(ctx, p)]) for p in timed if p.compute_pass == BOTH and problem_of(ctx, p) in forward]
    said: list[Said] = []
    for some in group_by(pairs, lambda pair: pair[0].source).values():
        both, ahead = max(some, key=lambda pair: (pair[0].seq_len or 0, pair[0].pattern == "dilated", pair[0].ranks))
        every, once = both.value("work.flops"), ahead.value("work.flops")
        work = f", for {ratio_label(every / once)} its multiply-adds" if every and once else ""
        text = (
            f"{length_of(both)} {place_of(ctx, both)} a forward and backward pass of {escape(both.algorithm)} attention takes "
            f"{times_text(both, ahead)} the time of a forward{work}."
        )
        said.append(Said(text, (both, ahead)))
    return said


def claims_strip(claims: list[Claim]) -> str:
    items = "".join(
        f'<li><a href="#claim-{number}"><span class="badge {claim.status}">{escape(claim.status)}</span> '
        f'{escape(claim.title)}{f" <span class=by>{escape(claim.scale)}</span>" if claim.scale else ""}</a></li>'
        for number, claim in enumerate(claims, 1)
    )
    found = {claim.status for claim in claims}
    key = "".join(f"<li><b>{escape(status)}</b>: {escape(text)}</li>" for status, text in MEANING.items() if status in found)
    return f'<div class="strip"><h2>The paper’s claims</h2><ul>{items}</ul><ul class="words">{key}</ul></div>'


def of_models(ctx: Context) -> list[Said]:
    """A step at the longest sequence that dilated and exact attention both held, and the longest one of all."""
    timed = [p for p in ctx.models if p.ok and p.median_s]
    places = group_by(timed, lambda p: p.run, lambda p: p.source, lambda p: p.compute_pass, lambda p: p.seq_len, lambda p: p.ranks, lambda p: p.of_layer)
    both = [some for some in places.values() if {"dilated", "dense"} <= {p.pattern for p in some}]
    said = []
    if both:
        longest = max(both, key=lambda some: (some[0].seq_len or 0, some[0].ranks))
        dilated, exact = (min((p for p in longest if p.pattern == kind), key=lambda p: p.median_s or 0) for kind in ("dilated", "dense"))
        text = (
            f"{model_problem(ctx, dilated)} takes {time_of(dilated)} with dilated attention, "
            f"{time_of(exact)} with exact attention ({escape(exact.algorithm)}): "
            f"{times_text(exact, dilated)} the time."
        )
        said.append(Said(text, (dilated, exact)))
    if timed:
        longest = max(timed, key=lambda p: (p.seq_len or 0, -(p.median_s or 0)))
        if not both or (longest.seq_len or 0) > said[0].length:
            text = f"{model_problem(ctx, longest)} takes {time_of(longest)} with {escape(longest.algorithm)} attention."
            said.append(Said(text, (longest,)))
    return said


def model_sentences(ctx: Context) -> list[Said]:
    return deciding_first(ctx, ctx.models, of_models)


def model_problem(ctx: Context, point: Point) -> str:
    name = "training step" if point.compute_pass == STEP else f"{point.pass_name} pass"
    layers = int(point.num("params.layers") or 6)  # the schema's default
    whole = "one layer" if point.of_layer else f"a model of {plural(layers, 'layer')}"
    batch = f"{point.batch} sequences of " if point.batch > 1 else ""
    return f"A {escape(name)} of {whole} over {batch}{token_label(point.seq_len)} tokens {place_of(ctx, point)}"


def paragraphs(said: list[Said]) -> str:
    return "".join(f'<p>{one.text}</p>{f"<p class=detail>{one.detail}</p>" if one.detail else ""}' for one in said)


def answer_section(ctx: Context, claims: list[Claim], figure: str) -> str:
    passes = deciding_first(ctx, ctx.points, both_passes)
    text = paragraphs([*sentences(ctx)[: 3 - len(passes)], *passes, *model_sentences(ctx)][:3]) or "<p>No point of this run has a time.</p>"
    first = f'<div class="first">{figure}{claims_strip(claims)}</div>' if claims else figure
    return f'<section id="answer"><div class="said">{text}</div>{first}</section>'
