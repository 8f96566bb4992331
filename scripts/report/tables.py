"""Tables that the page's program fills, sorts, filters and saves as CSV: their columns, one table of points per source, so
that no column mixes sources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .evidence import lines, span_text
from .fits import fit_power_law
from .markup import attribute, escape, packed, scroll_table, table_row
from .model import FORWARD, PATTERNS, Point, Run
from .paper_lines import interval_of
from .rows import Context, sample_count
from .series import DEFAULTS, group_by, sources_of
from .units import (
    MISSING,
    bracket,
    bytes_label,
    duration_label,
    integer_label,
    listed,
    number,
    percent_label,
    plural,
    rate_label,
    significant,
    token_label,
)

Cell = str | float | int | None
PRINTED_POINTS, PRINTED_GROUPS, PRINTED_FITS = 28, 15, 8  # rows of a table on paper


@dataclass(frozen=True)
class Column:
    key: str  # header of the CSV, with the unit
    title: str  # header on the page
    group: str  # "": always shown; else with the others of its group
    exact: Callable[[Any], Cell]  # from a point, or what else the table has rows of
    shown: Callable[[Any], str] | None = None  # None: the exact value as text
    css: str = ""  # class of its cells


def number_column(group: str, key: str, title: str, path: str, label: Callable[[float | None], str]) -> Column:
    return Column(key, title, group, lambda p: p.num(path), lambda p: label(p.num(path)))


def text_column(group: str, key: str, title: str, path: str, css: str = "") -> Column:
    return Column(key, title, group, lambda p: p.text(path), css=css)


def branches_text(point: Point) -> str:
    return " ".join(f"{b.get('segment_length')}/{b.get('dilation_rate')}{summary_text(b)}" for b in point.branches)


def summary_text(branch: dict[str, object]) -> str:
    """The summary tokens of a sparse branch, `+8`; nothing for a dilated one."""
    return f"+{branch['summary_tokens']}" if branch.get("summary_tokens") else ""


def branches_shown(point: Point) -> str:
    labels = [
        f"{token_label(w) if isinstance(w := b.get('segment_length'), int) else w}/{b.get('dilation_rate')}"
        + summary_text(b)
        for b in point.branches
    ]
    return ", ".join(labels) or MISSING


def error_label(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2g}"


def seconds(value: float | None) -> str:
    return duration_label(value, 4)


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"


def kernel_table_label(point: Point) -> str:
    return MISSING if point.source != "simulated" else "beyond" if point.beyond_kernel_table else "within"


COLUMNS: tuple[Column, ...] = (
    text_column("", "id", "id", "id"),
    text_column("", "status", "status", "status", "status"),
    text_column("", "algorithm", "algorithm", "params.algorithm"),
    Column("pass", "pass", "", lambda p: p.pass_name),
    Column("seq_len", "tokens", "", lambda p: p.seq_len, lambda p: token_label(p.seq_len)),
    Column("ranks", "ranks", "", lambda p: p.ranks, lambda p: str(p.ranks)),
    Column("batch", "batch", "", lambda p: p.batch, lambda p: integer_label(p.batch)),
    number_column("", "median_s", "median", "timing.median_s", seconds),
    number_column("", "ci_low_s", "interval from", "timing.ci_low_s", seconds),
    number_column("", "ci_high_s", "to", "timing.ci_high_s", seconds),
    Column("samples", "n", "", lambda p: sample_count(p) or None, lambda p: integer_label(sample_count(p) or None)),
    number_column("time", "ci_level", "level", "timing.ci_level", percent_label),
    number_column("time", "p95_s", "95th percentile", "timing.p95_s", seconds),
    number_column("time", "measured_share", "share measured", "metrics.measured_share", percent_label),
    number_column("time", "measured_s", "time measured", "metrics.measured_s", seconds),
    number_column("time", "compute_s", "compute", "phases.compute_s", seconds),
    number_column("time", "communication_s", "communication", "phases.communication_s", seconds),
    Column("exposed_communication_s", "exposed", "time", lambda p: p.exposed_s, lambda p: seconds(p.exposed_s)),
    number_column("time", "merge_s", "merge", "phases.merge_s", seconds),
    *(
        number_column("time", f"ablation_{key}", title, f"ablations.{key}", seconds)
        for key, title in (
            ("full_s", "full (ablation)"),
            ("compute_only_s", "compute only"),
            ("communication_only_s", "communication only"),
            ("serialised_s", "serialised"),
            ("single_attend_s", "one big attend"),
        )
    ),
    number_column("work", "flops", "FLOPs", "work.flops", count),
    number_column("work", "flops_per_s", "rate", "work.flops_per_s", rate_label),
    number_column("work", "share_of_peak", "share of peak", "work.share_of_peak", percent_label),
    number_column("work", "balance", "balance", "work.balance", percent_label),
    Column("beyond_kernel_table", "kernel table", "work", lambda p: int(p.beyond_kernel_table), kernel_table_label),
    *(
        number_column("messages and memory", f"{key}_per_rank", title, f"comm.{key}_per_rank", label)
        for key, title, label in (
            ("counted_bytes", "bytes counted", bytes_label),
            ("modelled_bytes", "bytes modelled", bytes_label),
            ("predicted_bytes", "bytes predicted", bytes_label),
            ("closed_form_bytes", "bytes by closed form", bytes_label),
            ("counted_messages", "messages counted", integer_label),
            ("modelled_messages", "messages modelled", integer_label),
            ("predicted_messages", "messages predicted", integer_label),
            ("closed_form_messages", "messages by closed form", integer_label),
        )
    ),
    number_column("messages and memory", "measured_peak_bytes", "memory measured", "memory.measured_peak_bytes", bytes_label),
    number_column("messages and memory", "predicted_peak_bytes", "memory predicted", "memory.predicted_peak_bytes", bytes_label),
    number_column("messages and memory", "closed_form_memory", "memory by closed form", "memory.closed_form_bytes", bytes_label),
    number_column("messages and memory", "resident_growth_bytes", "resident growth", "memory.resident_growth_bytes", bytes_label),
    number_column("messages and memory", "resident_difference", "resident less buffers", "memory.resident_difference", percent_label),
    text_column("check", "check_status", "check", "check.status"),
    number_column("check", "queries", "rows checked", "check.queries", integer_label),
    number_column("check", "strata", "strata", "check.strata", integer_label),
    number_column("check", "strata_left_out", "strata unchecked", "check.strata_left_out", integer_label),
    number_column("check", "rel_l2_error", "relative L2 error", "check.rel_l2_error", error_label),
    number_column("check", "max_rel_error", "largest relative error", "check.max_rel_error", error_label),
    number_column("check", "tolerance", "tolerance", "check.tolerance", error_label),
    text_column("check", "input_digest", "digest of inputs", "content.input_digest"),
    text_column("check", "output_digest", "digest of output", "content.output_digest"),
    Column("branches_w_r", "branches w/r", "parameters", branches_text, branches_shown),
    text_column("parameters", "reason", "reason", "reason", "long"),
)


def parameter_column(name: str) -> Column:
    """A parameter as the record has it; 0, where it lets the algorithm choose, shows as missing."""

    def value(point: Point) -> Cell:
        found = point.get(f"params.{name}")
        if isinstance(found, (dict, list)) or (found == 0 and DEFAULTS.get(name) == 0):
            return None
        return str(found) if isinstance(found, bool) else found

    return Column(name, name.replace("_", " "), "parameters", value)


def columns_of(points: list[Point], several_runs: bool) -> list[Column]:
    """Columns in which some point has a value; the run is named when there are several."""
    known = {c.key for c in COLUMNS}
    params = dict.fromkeys(k for p in points if isinstance(p.get("params"), dict) for k in p.get("params") if k not in known)
    found = [*COLUMNS, *map(parameter_column, params)]
    forward = {p.compute_pass for p in points} == {FORWARD}
    used = [c for c in found if any(c.exact(p) not in (None, "") for p in points) and not (forward and c.key == "pass")]
    return used[:1] + ([Column("run", "run", "", lambda p: p.run + 1)] if several_runs else []) + used[1:]


def shown_cell(column: Column, row: Any) -> str:
    if column.shown:
        return column.shown(row)
    value = column.exact(row)
    return MISSING if value in (None, "") else str(value)


def table_data(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """The data that the page's program fills a table from, column by column, which packs well."""
    found: list[dict[str, Any]] = [
        {"key": c.key, "title": c.title, "group": c.group, "css": c.css, "exact": [c.exact(row) for row in rows], "shown": [shown_cell(c, row) for row in rows]}
        for c in columns
    ]
    return json.dumps([column | {"number": not any(isinstance(value, str) for value in column["exact"])} for column in found])


def filled_table(name: str, title: str, label: str, rows: Sequence[Any], columns: Sequence[Column], printed: int) -> str:
    """A table that the page's program fills; a filter finds the words of `name` in each of its rows."""
    groups = "".join(
        f'<label><input type="checkbox" value="{attribute(g)}"> {escape(g)}</label>' for g in dict.fromkeys(c.group for c in columns) if g
    )
    more = f'<fieldset class="groups"><legend>more columns</legend>{groups}</fieldset>' if groups else ""
    return (
        f'<section class="points" data-source="{attribute(name)}" data-printed="{printed}"><div class="bar"><h3>{escape(title)}</h3>'
        f'<button type="button" class="button csv">CSV of {plural(len(rows), "row")}, all columns</button></div>{more}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{attribute(label)}"><table class="sortable"><caption>{escape(label)}</caption><thead></thead><tbody></tbody></table></div>'
        f'<p class="on-paper" hidden></p><button type="button" class="button rest" hidden></button></section>{packed(f"points-{name}", table_data(rows, columns))}'
    )


def source_table(points: list[Point], source: str, several_runs: bool) -> str:
    title = f"{source.capitalize()}: {plural(len(points), 'point')}"
    return filled_table(source, title, f"{source} points", points, columns_of(points, several_runs), PRINTED_POINTS)


def full_table(ctx: Context) -> str:
    if not ctx.every:
        return "<p>No point was recorded.</p>"
    tables = "\n".join(
        source_table([p for p in ctx.every if p.source == s], s, len(ctx.runs) > 1) for s in sources_of(ctx.every)
    )
    return (
        "<p>One table per source. Click a header to sort, again to reverse; hover over a number for its exact value. "
        "Branches are written segment_length/dilation_rate, those of summary tokens with +their number.</p>"
        '<p class="filter"><label for="filter">Filter</label> <input id="filter" type="search" autocomplete="off" '
        'placeholder="words that a row must contain, e.g. dilated 1M ok"> <span id="filter-state" role="status"></span></p>'
        '<noscript><p class="notice">The tables need JavaScript; the same records are in result.json.</p></noscript>' + tables
    )


def fit_table(ctx: Context) -> str:
    """Exponents of time against tokens, within one series, pass, source and rank count."""
    rows = []
    for source in sources_of(ctx.points):
        for pattern in PATTERNS:
            for group in lines(ctx, source, pattern, lambda p: p.ranks):
                fit = fit_power_law((p.seq_len, p.time_per_sequence_s, *interval_of(p, p.time_per_sequence_s)) for p in group)
                if fit and fit.count >= 3:
                    rows.append(
                        (
                            ctx.index.label(group[0]) + group[0].other_pass,
                            source,
                            str(group[0].ranks),
                            f"{fit.exponent:.3f}{bracket(fit.exponent_interval, '{:.3f}'.format)}",
                            f"{fit.exponent - 1:+.3f}",
                            f"{fit.r_squared:.4f}",
                            span_text(fit),
                        )
                    )
    if not rows:
        return "<p>No line has three points: nothing was fitted.</p>"
    heads = ("series", "source", "ranks", "time of a sequence ~ N^b: b", "time per token: b − 1", "R²", "range")
    return scroll_table("fits", heads, map(table_row, rows), PRINTED_FITS)


EXPONENT_ENDS = ("exponent_low", "exponent_high")  # absent in older results


def recorded_fits(ctx: Context) -> str:
    """`summary.fits` of the runs, whatever keys they have."""
    parts = []
    for run in ctx.runs:
        fits = run.get("summary.fits")
        listed = [f for f in fits if isinstance(f, dict)] if isinstance(fits, list) else []
        if not listed:
            continue
        keys = [k for k in dict.fromkeys(k for f in listed for k in f) if k not in EXPONENT_ENDS]
        rows = [table_row(recorded_cell(run, f, k) for k in keys) for f in listed]
        parts.append(f"<h3>Fits recorded by {escape(run.name)}</h3>{scroll_table('recorded fits', keys, rows, PRINTED_FITS)}")
    return "".join(parts)


def recorded_cell(run: Run, fit: dict[str, Any], key: str) -> str:
    if key == "series":
        return series_cell(run, fit)
    ends = [number(fit.get(k)) for k in EXPONENT_ENDS] if key == "exponent" else [None]
    return fit_cell(fit.get(key)) + (bracket(tuple(ends), fit_cell) if None not in ends else "")


def series_cell(run: Run, fit: dict[str, Any]) -> str:
    """The series of a fit; its batches, which older results leave out where they hold one number of tokens, by the config."""
    series, batch = fit_cell(fit.get("series")), run.get("run.config.sweep.batch")
    tokens = number(batch.get("tokens_per_batch")) if isinstance(batch, dict) else None
    return f"{series} (by its config, batches of {token_label(tokens)} tokens)" if tokens and "batch=" not in series else series


def fit_cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return significant(value, 4)
    return value if isinstance(value, str) else json.dumps(value)


def skipped_table(ctx: Context) -> str:
    """Points of one status, series and kind of reason share a row: numbers apart, the reasons are the same."""
    missing = [p for p in ctx.every if not p.ok]
    if not missing:
        return "<p>Every point ran and was right.</p>"
    missing.sort(key=lambda p: (p.status, ctx.index.label(p) + p.other_pass, p.ranks, p.seq_len or 0))
    groups = group_by(missing, lambda p: (p.status, ctx.index.label(p) + p.other_pass, p.source), lambda p: re.sub(r"[\d.,]+", "0", p.text("reason")))
    heads = ("status", "series", "points", "tokens", "ranks", "source", "reason, of the first")
    return scroll_table("points without a result", heads, [skipped_row(ctx, some) for some in groups.values()], PRINTED_GROUPS)


def skipped_row(ctx: Context, points: list[Point]) -> str:
    first = points[0]
    texts = (str(len(points)), listed([p.seq_len or 0 for p in points], token_label), listed([p.ranks for p in points], str))
    return (
        f'<tr><td class="status {attribute(first.status)}">{escape(first.status)}</td>'
        f"<td>{escape(ctx.index.label(first) + first.other_pass)}</td>"
        + "".join(f'<td class="number">{escape(t)}</td>' for t in texts)
        + f'<td>{escape(first.source)}</td><td class="long">{escape(first.text("reason") or "no reason given")}</td></tr>'
    )
