"""The report as one HTML file: sections in reading order, styles, data and scripts inlined.

A Content-Security-Policy allows only the inlined scripts (by hash) and no network at all, so that a
name or reason in a result can neither run code nor call out.
"""

from __future__ import annotations

import copy
import functools
import shlex
from pathlib import Path
from typing import Any

from .charts import VEGA_LITE, Figure
from .clusters import clusters_section
from .evidence import NOT_TESTED, Claim, Evidence
from .markup import attribute, definition_list, escape, json_block, script_hash, script_json, script_safe
from .method import method_section
from .model import Run
from .noise import disturbances
from .rows import Context
from .rows_cost import host_memory
from .tables import full_table, skipped_table
from .units import bytes_label, integer_label, number, plural
from .validation import validation_section

ASSETS = Path(__file__).resolve().parent
SOURCE_MEANING = {
    "measured": "run for real and timed",
    "replayed": "compute of some ranks measured; communication modelled where the config states latency and bandwidth, else left out",
    "extrapolated": "a stated share measured, the rest scaled up",
    "simulated": "the same programs on a modelled cluster",
}
GOOD_VERDICTS = ("ok", "pass", "passed", "success")


@functools.cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs nothing from outside."""
    import vl_convert

    return script_safe(vl_convert.javascript_bundle(vl_version=VEGA_LITE))


def command_of(run: Run) -> str:
    argv = run.get("run.argv")
    if isinstance(argv, list):
        return shlex.join(str(a) for a in argv)
    return str(run.get("run.command") or "not recorded")


def revision_of(run: Run) -> object:
    return run.get("build.revision") or run.get("run.revision")


def counted(devices: list[object]) -> list[str]:
    """Equal ones once: "8 × NVIDIA H200, ..."."""
    number_of: dict[str, int] = {}
    for device in devices:
        number_of[str(device)] = number_of.get(str(device), 0) + 1
    return [f"{n} × {device}" if n > 1 else device for device, n in number_of.items()]


def machine_of(run: Run) -> str:
    cpu = run.get("environment.cpu")
    model = cpu.get("model") if isinstance(cpu, dict) else cpu
    cores = number(cpu.get("cores")) if isinstance(cpu, dict) else None
    memory = host_memory(run)
    devices = run.get("environment.devices")
    parts = [
        run.get("environment.hostname"),
        model,
        plural(int(cores), "core") if cores else None,
        f"{bytes_label(memory, 3)} memory" if memory else None,
        ", ".join(counted(devices)) if isinstance(devices, list) else None,
    ]
    return ", ".join(str(p) for p in parts if p) or "not recorded"


def points_of(run: Run) -> str:
    planned = number(run.get("summary.planned")) or number(run.get("run.planned"))
    return f"{len(run.points):,}" + (f" of {planned:,} planned" if planned else "")


def header(ctx: Context) -> str:
    first = ctx.runs[0]
    title = first.name if len(ctx.runs) == 1 else f"{len(ctx.runs)} runs"
    cards = []
    for place, run in enumerate(ctx.runs, 1):
        verdict = run.verdict
        tone = (
            "good"
            if verdict.lower() in GOOD_VERDICTS
            else "warn"
            if verdict in ("interrupted", "incomplete", "no results")
            else "bad"
        )
        counts = "".join(
            f'<li class="status {attribute(s)}">{integer_label(n)} {escape(s)}</li>' for s, n in run.counts.items()
        )
        notes = "".join(f'<p class="notice">{escape(n)}</p>' for n in [*run.notes, *disturbances(run)])
        name = f"<h2>Run {place}: {escape(run.name)}</h2>" if len(ctx.runs) > 1 else ""
        description = f"<p>{escape(run.get('run.description'))}</p>" if run.get("run.description") else ""
        facts = definition_list(
            [
                ("started", run.get("run.started_utc")),
                ("finished", run.get("run.finished_utc") or ("not finished" if run.interrupted else None)),
                ("revision", revision_of(run)),
                ("machine", machine_of(run)),
                ("points", points_of(run)),
                ("command", command_of(run)),
            ]
        )
        cards.append(
            f'<section class="run">{name}<p class="verdict {tone}">verdict: <strong>{escape(verdict)}</strong></p>{notes}{description}'
            f'<ul class="counts">{counts}</ul>{facts}</section>'
        )
    return f'<header><p class="kind">LongNet-Bench report</p><h1>{escape(title)}</h1>{"".join(cards)}</header>'


def figure_link(name: str, figures: list[Figure]) -> str:
    if name == "table":
        return '<a href="#table">full table</a>'
    found = next((f for f in figures if f.name.split("-")[0] == name and not f.absent), None)
    return f'<a href="#figure-{attribute(found.name)}">{escape(found.title)}</a>' if found else ""


def evidence_items(claim: Claim) -> str:
    """One item per source; sources that did not test the claim, for the same reason, share one."""
    tested = [(e.source, e) for e in claim.evidence if e.status != NOT_TESTED]
    untested: dict[str, list[Evidence]] = {}
    for e in claim.evidence:
        if e.status == NOT_TESTED:
            untested.setdefault(e.text, []).append(e)
    items = []
    for names, e in [([s], e) for s, e in tested] + [([e.source for e in same], same[0]) for same in untested.values()]:
        chips = " ".join(f'<span class="by">{escape(s)}</span>' for s in names)
        more = (
            f"<details><summary>all {len(e.details)} lines</summary><ul>{''.join(f'<li>{escape(d)}</li>' for d in e.details)}</ul></details>"
            if len(e.details) > 1
            else ""
        )
        items.append(
            f'<li>{chips} <span class="mini {e.status.replace(" ", "-")}">{escape(e.status)}</span> {escape(e.text)}{more}</li>'
        )
    return "".join(items)


def claim_row(claim: Claim, figures: list[Figure]) -> str:
    css = claim.status.replace(" ", "-")
    source = f'<span class="by">{escape(claim.source)}</span>' if claim.source else ""
    seen = evidence_items(claim) or "<li>no points</li>"
    links = ", ".join(link for link in (figure_link(n, figures) for n in claim.figures) if link) or "none"
    return (
        f'<tr data-claim="{attribute(claim.title)}" data-status="{attribute(claim.status)}"><th scope="row">{escape(claim.title)}<p class="quote">{escape(claim.quote)}</p></th>'
        f'<td class="verdict-cell"><span class="badge {css}">{escape(claim.status)}</span>{source}</td>'
        f"<td><ul>{seen}</ul></td><td>{escape(claim.test)}</td><td>{links}</td></tr>"
    )


def claims_section(claims: list[Claim], figures: list[Figure]) -> str:
    rows = "".join(claim_row(c, figures) for c in claims)
    return (
        '<section id="claims"><h2>The paper’s claims</h2><p>Each status is computed from the points of this report, one source at a time. The badge is that of the strongest '
        'source that tested the claim: measured before replayed, extrapolated and simulated.</p><div class="scroll" tabindex="0" role="region" aria-label="claims">'
        '<table class="claims"><thead><tr><th scope="col">claim</th><th scope="col">status</th><th scope="col">what was seen</th>'
        f'<th scope="col">how it is tested</th><th scope="col">figure</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def figure_html(figure: Figure) -> str:
    name = attribute(figure.name)
    chips = "".join(f'<span class="by">{escape(s)}</span>' for s in figure.sources)
    return (
        f'<figure id="figure-{name}"><h3>{escape(figure.title)} {chips}</h3><div class="card"><div class="chart" data-figure="{name}" role="img" '
        f'aria-label="{attribute(figure.title)}"></div></div><figcaption>{escape(figure.caption)}</figcaption></figure>'
    )


def figures_section(figures: list[Figure]) -> str:
    drawn = [f for f in figures if not f.absent]
    absent = "".join(
        f'<li data-absent="{attribute(f.name)}"><strong>{escape(f.title)}</strong>: {escape(f.absent)}</li>'
        for f in figures
        if f.absent
    )
    missing = f'<div id="absent"><h3>Figures without data</h3><ul>{absent}</ul></div>' if absent else ""
    key = "".join(
        f'<li><span class="mark {s}" aria-hidden="true"></span> <strong>{s}</strong>: {text}</li>'
        for s, text in SOURCE_MEANING.items()
    )
    return (
        '<section id="figures"><h2>Figures</h2><p>Click a legend entry to single out a series, again to release it; hover over a mark for exact values; '
        f'the menu of a figure saves it as SVG or PNG.</p><ul class="key">{key}<li><span class="mark cross" aria-hidden="true">×</span> not run, or wrong</li></ul>'
        f'<noscript><p class="notice">The figures need JavaScript; the same pictures are the SVG and PNG files written with this report.</p></noscript>'
        f"{''.join(figure_html(f) for f in drawn)}{missing}</section>"
    )


def environment_section(ctx: Context) -> str:
    parts = []
    for place, run in enumerate(ctx.runs, 1):
        name = f"<h3>Run {place}: {escape(run.name)}</h3>" if len(ctx.runs) > 1 else ""
        blocks = "".join(
            f"<details{' open' if key == 'environment' else ''}><summary>{key}</summary>{json_block(run.get(key))}</details>"
            for key in ("environment", "build", "ranks")
            if run.get(key)
        )
        parts.append(name + (blocks or "<p>Not recorded.</p>"))
    return f'<section id="environment"><h2>Environment</h2>{"".join(parts)}</section>'


def reproduce_section(ctx: Context) -> str:
    parts = []
    for place, run in enumerate(ctx.runs, 1):
        name = f"<h3>Run {place}: {escape(run.name)}</h3>" if len(ctx.runs) > 1 else ""
        facts = definition_list(
            [
                ("revision", revision_of(run)),
                ("config", run.get("run.config_path")),
                ("SHA-256 of the resolved config", run.get("run.config_sha256")),
                ("cluster", run.get("run.cluster.name")),
                ("SHA-256 of the cluster", run.get("run.cluster_sha256")),
            ]
        )
        config = run.get("run.config")
        shown = (
            f"<details><summary>resolved config</summary>{json_block(config)}</details>"
            if config is not None
            else "<p>The resolved config is not recorded.</p>"
        )
        parts.append(f'{name}<pre class="command">{escape(command_of(run))}</pre>{facts}{shown}')
    return f'<section id="reproduce"><h2>How to reproduce</h2><p>Check out the revision, build it, and run the command on the same kind of machine.</p>{"".join(parts)}</section>'


def for_screen(figure: Figure) -> dict[str, Any]:
    """The spec as embedded, compiled to Vega: as wide as its container, no title, since the page has one."""
    import vl_convert

    spec = copy.deepcopy(figure.spec)
    spec["width"] = "container"
    spec["autosize"] = {"type": "fit-x", "contains": "padding", "resize": True}
    spec["title"] = {"text": spec["title"]["subtitle"], "fontSize": 12, "fontWeight": "normal", "color": "#555555"}
    compiled = vl_convert.vegalite_to_vega(spec, vl_version=VEGA_LITE)
    del compiled["$schema"]  # names an older Vega than the one inlined, which reads it all the same
    return compiled


def render_page(
    ctx: Context, figures: list[Figure], claims: list[Claim], validation: dict[str, Any] | None = None
) -> str:
    styles = (ASSETS / "report.css").read_text(encoding="utf-8")
    program = script_safe((ASSETS / "report.js").read_text(encoding="utf-8"))
    drawn = [f for f in figures if not f.absent]
    library = chart_library() if drawn else ""
    policy = (
        f"default-src 'none'; script-src {script_hash(library)} {script_hash(program)} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    names = " · ".join(r.name for r in ctx.runs)
    sections = (
        ("claims", "Claims"),
        ("figures", "Figures"),
        ("table", "Table"),
        ("skipped", "Skipped"),
        *([("validation", "Validation")] if validation else []),
        ("method", "Method"),
        *([("clusters", "Clusters")] if any(isinstance(run.get("run.cluster"), dict) for run in ctx.runs) else []),
        ("environment", "Environment"),
        ("reproduce", "Reproduce"),
    )
    nav = "".join(f'<a href="#{anchor}">{text}</a>' for anchor, text in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(names)} – LongNet-Bench report</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
<nav aria-label="sections">{nav}</nav>
<main>
{header(ctx)}
{claims_section(claims, figures)}
{figures_section(figures)}
<section id="table"><h2>All points</h2>{full_table(ctx)}</section>
<section id="skipped"><h2>Points without a result</h2>{skipped_table(ctx)}</section>
{validation_section(validation) if validation else ""}
{method_section(ctx)}
{clusters_section(ctx)}
{environment_section(ctx)}
{reproduce_section(ctx)}
</main>
<script type="application/json" id="figure-specs">{script_json({f.name: for_screen(f) for f in drawn})}</script>
<script>{library}</script>
<script>{program}</script>
</body>
</html>
"""
