"""The full table: its columns, one HTML table and one CSV per source, so that no column mixes sources."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from .evidence import lines, span_text
from .fits import fit_power_law
from .markup import attribute, escape, scroll_table, table_row
from .model import PATTERNS, Point
from .rows import Context, sample_count
from .series import sources_of
from .units import (
    MISSING,
    bytes_label,
    duration_label,
    integer_label,
    percent_label,
    plural,
    rate_label,
    significant,
    token_label,
)

Cell = str | float | int | None


@dataclass(frozen=True)
class Column:
    key: str  # header of the CSV, with the unit
    title: str  # header on the page
    exact: Callable[[Point], Cell]
    shown: Callable[[Point], str] | None = None  # None: the exact value as text


def number_column(key: str, title: str, path: str, label: Callable[[float | None], str]) -> Column:
    return Column(key, title, lambda p: p.num(path), lambda p: label(p.num(path)))


def text_column(key: str, title: str, path: str) -> Column:
    return Column(key, title, lambda p: p.text(path))


def degree_column(name: str) -> Column:
    """A knob of one algorithm; 0 lets the algorithm choose and shows as missing."""

    def value(point: Point) -> float | int | None:
        return point.num(f"params.{name}") or None

    return Column(name, name.replace("_", " "), value, lambda p: integer_label(value(p)))


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


def share_label(value: float | None) -> str:
    """Shares of an extrapolation are often tiny: 2.5e-05 as 0.0025 %."""
    return MISSING if value is None else f"{significant(100 * value)} %"


def error_label(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2g}"


COLUMNS: tuple[Column, ...] = (
    text_column("id", "id", "id"),
    text_column("status", "status", "status"),
    text_column("algorithm", "algorithm", "params.algorithm"),
    Column("seq_len", "tokens", lambda p: p.seq_len, lambda p: token_label(p.seq_len)),
    Column("ranks", "ranks", lambda p: p.ranks, lambda p: str(p.ranks)),
    degree_column("replicas"),
    Column("batch", "batch", lambda p: p.batch, lambda p: integer_label(p.batch)),
    number_column("median_s", "median", "timing.median_s", lambda v: duration_label(v, 4)),
    number_column("ci_low_s", "interval from", "timing.ci_low_s", lambda v: duration_label(v, 4)),
    number_column("ci_high_s", "to", "timing.ci_high_s", lambda v: duration_label(v, 4)),
    number_column("ci_level", "level", "timing.ci_level", percent_label),
    Column("samples", "n", lambda p: sample_count(p) or None, lambda p: integer_label(sample_count(p) or None)),
    number_column("measured_share", "share measured", "metrics.measured_share", share_label),
    number_column("measured_s", "time measured", "metrics.measured_s", lambda v: duration_label(v, 4)),
    number_column("p95_s", "95th percentile", "timing.p95_s", lambda v: duration_label(v, 4)),
    number_column("flops", "FLOPs", "work.flops", lambda v: MISSING if v is None else f"{v:.3g}"),
    number_column("flops_per_s", "rate", "work.flops_per_s", rate_label),
    number_column("share_of_peak", "share of peak", "work.share_of_peak", percent_label),
    number_column("compute_s", "compute", "phases.compute_s", lambda v: duration_label(v, 4)),
    number_column("communication_s", "communication", "phases.communication_s", lambda v: duration_label(v, 4)),
    Column("exposed_communication_s", "exposed", lambda p: p.exposed_s, lambda p: duration_label(p.exposed_s, 4)),
    number_column("merge_s", "merge", "phases.merge_s", lambda v: duration_label(v, 4)),
    number_column("balance", "balance", "work.balance", percent_label),
    *(
        number_column(f"ablation_{key}", title, f"ablations.{key}", lambda v: duration_label(v, 4))
        for key, title in (
            ("full_s", "full (ablation)"),
            ("compute_only_s", "compute only"),
            ("communication_only_s", "communication only"),
            ("serialised_s", "serialised"),
            ("single_attend_s", "one big attend"),
        )
    ),
    number_column("counted_bytes_per_rank", "bytes counted", "comm.counted_bytes_per_rank", bytes_label),
    number_column("predicted_bytes_per_rank", "bytes predicted", "comm.predicted_bytes_per_rank", bytes_label),
    number_column("counted_messages_per_rank", "messages counted", "comm.counted_messages_per_rank", integer_label),
    number_column(
        "predicted_messages_per_rank", "messages predicted", "comm.predicted_messages_per_rank", integer_label
    ),
    number_column("measured_peak_bytes", "memory measured", "memory.measured_peak_bytes", bytes_label),
    number_column("predicted_peak_bytes", "memory predicted", "memory.predicted_peak_bytes", bytes_label),
    text_column("check_status", "check", "check.status"),
    number_column("queries", "rows checked", "check.queries", integer_label),
    number_column("strata", "strata", "check.strata", integer_label),
    number_column("strata_left_out", "strata unchecked", "check.strata_left_out", integer_label),
    number_column("rel_l2_error", "relative L2 error", "check.rel_l2_error", error_label),
    number_column("max_rel_error", "largest relative error", "check.max_rel_error", error_label),
    number_column("tolerance", "tolerance", "check.tolerance", error_label),
    text_column("input_digest", "digest of inputs", "content.input_digest"),
    text_column("output_digest", "digest of output", "content.output_digest"),
    text_column("mode", "mode", "params.mode"),
    text_column("transport", "transport", "params.transport"),
    text_column("kernel", "kernel", "params.kernel"),
    text_column("layout", "layout", "params.layout"),
    text_column("collective", "collective", "params.collective"),
    degree_column("ulysses_degree"),
    degree_column("ring_inner"),
    degree_column("head_slice"),
    degree_column("node_size"),
    text_column("dtype", "dtype", "params.dtype"),
    number_column("heads", "heads", "params.heads", integer_label),
    number_column("kv_heads", "kv_heads", "params.kv_heads", integer_label),
    number_column("head_dim", "head_dim", "params.head_dim", integer_label),
    text_column("causal", "causal", "params.causal"),
    text_column("pattern", "pattern", "params.pattern"),
    Column("branches_w_r", "branches w/r", branches_text, branches_shown),
    text_column("reason", "reason", "reason"),
)


def columns_of(points: list[Point], several_runs: bool) -> list[Column]:
    """Columns in which some point has a value; the run is named when there are several."""
    used = [c for c in COLUMNS if any(c.exact(p) not in (None, "") for p in points)]
    return ([Column("run", "run", lambda p: p.run + 1)] if several_runs else []) + used


def safe_cell(value: Cell) -> Cell:
    """Text that a spreadsheet would run as a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def csv_text(points: list[Point], columns: list[Column]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(["source", *(c.key for c in columns)])
    for point in points:
        cells = (c.exact(point) for c in columns)
        writer.writerow([safe_cell(point.source), *("" if v is None else safe_cell(v) for v in cells)])
    return out.getvalue()


def cell_html(column: Column, point: Point) -> str:
    exact = column.exact(point)
    if isinstance(exact, str):
        shown = column.shown(point) if column.shown else exact or MISSING
        css = (
            f' class="status {attribute(point.status)}"'
            if column.key == "status"
            else ' class="long"'
            if column.key == "reason"
            else ""
        )
        return f'<td data-value="{attribute(exact)}"{css}>{escape(shown)}</td>'
    value = "" if exact is None else json.dumps(exact)
    shown = column.shown(point) if column.shown else value or MISSING
    return f'<td class="number" data-value="{value}" title="{value}">{escape(shown)}</td>'


def number_class(column: Column, points: list[Point]) -> str:
    return "" if any(isinstance(column.exact(p), str) for p in points) else ' class="number"'


def source_table(points: list[Point], source: str, several_runs: bool) -> str:
    columns = columns_of(points, several_runs)
    heads = "".join(
        f'<th scope="col" aria-sort="none"{number_class(c, points)}><button type="button">{escape(c.title)}<span class="arrow" aria-hidden="true"></span></button></th>'
        for c in columns
    )
    body = "\n".join("<tr>" + "".join(cell_html(c, p) for c in columns) + "</tr>" for p in points)
    data = quote(csv_text(points, columns), safe="")
    label = attribute(f"{source} points")
    return (
        f'<section class="points" data-source="{attribute(source)}">'
        f'<div class="bar"><h3>{escape(source.capitalize())}: <span class="shown">{plural(len(points), "point")}</span></h3>'
        f'<a class="button csv" download="points-{attribute(source)}.csv" href="data:text/csv;charset=utf-8,{data}">CSV of {plural(len(points), "row")}</a></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="sortable"><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div></section>'
    )


def full_table(ctx: Context) -> str:
    if not ctx.points:
        return "<p>No point was recorded.</p>"
    tables = "\n".join(
        source_table([p for p in ctx.points if p.source == s], s, len(ctx.runs) > 1) for s in sources_of(ctx.points)
    )
    return (
        "<p>One table per source. Click a header to sort, again to reverse; hover over a number for its exact value. "
        "Branches are written segment_length/dilation_rate, those of summary tokens with +their number.</p>"
        '<p class="filter"><label for="filter">Filter</label> <input id="filter" type="search" autocomplete="off" '
        'placeholder="words that a row must contain, e.g. dilated 1M ok"> <span id="filter-state" role="status"></span></p>'
        + tables
    )


def fit_table(ctx: Context) -> str:
    """Exponents of time against tokens, within one series, source and rank count."""
    rows = []
    for source in sources_of(ctx.points):
        for pattern in PATTERNS:
            for group in lines(ctx, source, pattern, lambda p: p.ranks):
                fit = fit_power_law((p.seq_len, p.time_per_sequence_s) for p in group)
                if fit and fit.count >= 3:
                    rows.append(
                        (
                            ctx.index.label(group[0]),
                            source,
                            str(group[0].ranks),
                            f"{fit.exponent:.3f}",
                            f"{fit.exponent - 1:+.3f}",
                            f"{fit.r_squared:.4f}",
                            span_text(fit),
                        )
                    )
    if not rows:
        return "<p>No line has three points: nothing was fitted.</p>"
    heads = ("series", "source", "ranks", "time of a sequence ~ N^b: b", "time per token: b − 1", "R²", "range")
    return scroll_table("fits", heads, "".join(map(table_row, rows)))


def recorded_fits(ctx: Context) -> str:
    """`summary.fits` of the runs, whatever keys they have."""
    parts = []
    for run in ctx.runs:
        fits = run.get("summary.fits")
        listed = [f for f in fits if isinstance(f, dict)] if isinstance(fits, list) else []
        if not listed:
            continue
        keys = list(dict.fromkeys(k for f in listed for k in f))
        body = "".join(table_row(fit_cell(f.get(k)) for k in keys) for f in listed)
        parts.append(f"<h3>Fits recorded by {escape(run.name)}</h3>{scroll_table('recorded fits', keys, body)}")
    return "".join(parts)


def fit_cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return significant(value, 4)
    return value if isinstance(value, str) else json.dumps(value)


def skipped_table(ctx: Context) -> str:
    missing = [p for p in ctx.points if not p.ok]
    if not missing:
        return "<p>Every point ran and was right.</p>"
    missing.sort(key=lambda p: (p.status, ctx.index.label(p), p.ranks, p.seq_len or 0))
    heads = ("status", "series", "tokens", "ranks", "batch", "source", "reason")
    return scroll_table("points without a result", heads, "".join(skipped_row(ctx, p) for p in missing))


def skipped_row(ctx: Context, point: Point) -> str:
    numbers = (token_label(point.seq_len), point.ranks, point.batch)
    return (
        f'<tr><td class="status {attribute(point.status)}">{escape(point.status)}</td>'
        f"<td>{escape(ctx.index.label(point))}</td>"
        + "".join(f'<td class="number">{escape(n)}</td>' for n in numbers)
        + f"<td>{escape(point.source)}</td>"
        f'<td class="long">{escape(point.text("reason") or "no reason given")}</td></tr>'
    )
