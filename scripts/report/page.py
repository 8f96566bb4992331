"""The report as one HTML file: the answer first, then figures, claims and points; the runs and the method at the end.

A Content-Security-Policy allows only the inlined scripts (by hash) and no network at all, so that a
name or reason in a result can neither run code nor call out.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from .answer import answer_section
from .charts import Figure
from .clusters import clusters_section
from .compare import compare_section
from .evidence import MEANING, NOT_TESTED, SEEN, Claim, Evidence
from .markup import (
    attribute,
    definition_list,
    escape,
    heading,
    json_block,
    packed,
    script_hash,
    script_json,
    script_safe,
    section,
)
from .method import method_section
from .model import Run
from .noise import disturbances
from .paper_lines import RULES
from .pictures import chart_library
from .rows import Context
from .rows_cost import host_memory
from .series import constants_text
from .specs import load_json
from .tables import full_table, skipped_table
from .training_page import training_answer, training_method, training_table
from .units import bytes_label, integer_label, number, plural
from .validation import validation_answer, validation_section

ASSETS = Path(__file__).resolve().parent
SOURCE_MEANING = {
    "measured": "run for real and timed",
    "replayed": "compute of some ranks measured; communication modelled where the config states latency and bandwidth, else left out",
    "extrapolated": "a stated share measured, the rest scaled up",
    "simulated": "the same programs on a modelled cluster",
}
GLOSSARY: list[tuple[str, object]] = [
    ("N, 8K, 1M, 1B", "tokens of one sequence; K = 2^10, M = 2^20, B = 2^30"),
    ("rank", "a thread, process or GPU that holds a part of the sequence: the paper’s device. P is their number"),
    ("segment, rate, branch", "a segment length and a dilation rate (w and r in the paper) are one branch of the pattern; α is the ratio of one to the next"),
    ("exact attention", "vanilla attention, on one rank (local) or on several (ring, ulysses, …)"),
    ("line", "points that differ in N alone, or in N and P at fixed tokens per rank"),
    ("~ N^b", "the power law through a line: b = 0 is constant, 1 linear, 2 quadratic. R² = 1 is a perfect fit"),
    ("rise", "a value divided by the smallest one at a shorter N of its line"),
    ("[a, b]", "behind a ratio, a rise or an exponent: how far the intervals of its medians leave it open; of simulated ratios the model’s bands. None where a point has fewer than five samples, nor of exponents of simulated lines, whose times have no scatter"),
    ("one device in the place of P ranks", "it computes their parts one after the other: every number is computed, no message is sent"),
    ("pairs", "of query and key, which attention computes; dilated attention has fewer"),
    ("FLOPs", "additions and multiplications: for each pair of query and key 4·head_dim of a forward, 10·head_dim of a backward (14·head_dim in all mixtures but lse)"),
    ("layers of dependency", "attention layers until every token can have heard from every other"),
    ("beyond the kernel table", "a simulated time that takes a kernel, a product or a function of a model at a size that the cluster has no figure of: a guess"),
    ("disturbed", "something else ran beside the point, so that its time decides nothing"),
]
GOOD_VERDICTS = ("ok", "pass", "passed", "success", "complete")


def command_of(run: Run) -> str:
    argv = run.get("run.argv")
    if isinstance(argv, list):
        return shlex.join(str(a) for a in argv)
    return str(run.get("run.command") or "not recorded")


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


def run_title(ctx: Context, place: int) -> str:
    """The config; of several runs the number, and what tells it from the others."""
    name = ctx.index.run_names[place - 1]
    return name[0].upper() + name[1:] if len(ctx.runs) > 1 else ctx.runs[0].name


def verdict_chip(run: Run) -> str:
    verdict = run.verdict
    warning = verdict in ("interrupted", "incomplete", "stopped early", "no results")
    tone = "good" if verdict.lower() in GOOD_VERDICTS else "warn" if warning else "bad"
    return f'<span class="verdict {tone}">verdict: <strong>{escape(verdict)}</strong></span>'


def header(ctx: Context, title: str) -> str:
    """The runs, and what a reader must know of them before any number."""
    runs, notes = "", [f'<p class="notice">{escape(note)}</p>' for note in ctx.notes]
    for place, run in enumerate(ctx.runs, 1):
        name = run_title(ctx, place)
        runs += f'<p class="run-line"><a href="#run-{place}">{escape(name)}</a> {verdict_chip(run)} {escape("; ".join(filter(None, (run.extent, constants_text(run)))))}</p>'
        which = f"Run {place}: " if len(ctx.runs) > 1 else ""
        notes += [f'<p class="notice">{which}{escape(note)}</p>' for note in [*run.notes, *disturbances(run)]]
    said = "".join(notes)
    if len(notes) > 1:
        said = f'<details><summary class="notice">{len(notes)} notes on how far these times can be trusted</summary>{said}</details>'
    return f'<header><p class="kind">LongNet-Bench report</p><h1>{escape(title)}</h1>{runs}{said}</header>'


def run_card(ctx: Context, place: int) -> str:
    """Everything that is known of one run: what, when, where, and how to repeat it."""
    run = ctx.runs[place - 1]
    counts = "".join(f'<li class="status {attribute(s)}">{integer_label(n)} {escape(s)}</li>' for s, n in run.counts.items())
    facts = definition_list(
        [
            ("started", run.get("run.started_utc")),
            ("finished", run.get("run.finished_utc") or ("not finished" if run.interrupted else None)),
            ("revision", run.get("build.revision") or run.get("run.revision")),
            ("machine", machine_of(run)),
            ("extent", run.extent),
            ("options asked at one value", constants_text(run)),
            *run.facts,
            ("config", run.get("run.config_path")),
            ("SHA-256 of the resolved config", run.get("run.config_sha256")),
            ("cluster", run.get("run.cluster.name")),
            ("SHA-256 of the cluster", run.get("run.cluster_sha256")),
        ]
    )
    blocks = "".join(
        f"<details><summary>{name}</summary>{json_block(run.get(key))}</details>"
        for name, key in (("environment", "environment"), ("build", "build"), ("ranks", "ranks"), ("resolved config", "run.config"))
        if run.get(key)
    )
    description = f"<p>{escape(run.get('run.description'))}</p>" if run.get("run.description") else ""
    return (
        f'<section class="run">{heading(3, f"run-{place}", escape(run_title(ctx, place)))}{verdict_chip(run)}{description}'
        f'<ul class="counts">{counts}</ul><pre class="command">{escape(command_of(run))}</pre>{facts}{blocks}</section>'
    )


def runs_section(ctx: Context) -> str:
    cards = "".join(run_card(ctx, place) for place in range(1, len(ctx.runs) + 1))
    how = "<p>To repeat a run, check out its revision, build it, and run the command on the same kind of machine.</p>"
    return section("runs", "Runs and their environment", how + cards)


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
        more = details_html("more", "".join(f"<li>{escape(d)}</li>" for d in e.details), "ul") if e.details else ""
        items.append(
            f'<li>{chips} <span class="mini {e.status}">{escape(e.status)}</span> {escape(e.text)}{more}</li>'
        )
    return "".join(items)


def details_html(summary: str, body: str, tag: str) -> str:
    return f"<details><summary>{summary}</summary><{tag}>{body}</{tag}></details>"


def claim_row(number: int, claim: Claim, figures: list[Figure]) -> str:
    scale = f'<span class="by">{escape(claim.scale)}</span>' if claim.scale else ""
    seen = evidence_items(claim) or "<li>no points</li>"
    links = ", ".join(link for link in (figure_link(n, figures) for n in claim.figures) if link) or "none"
    rules = f"Rules below the table: {', '.join(claim.rules)}." if claim.rules else ""
    decides = f"<p>To decide it: <code>{escape(claim.command)}</code></p>" if claim.status in (NOT_TESTED, SEEN) else ""
    told = " ".join(filter(None, (claim.more, rules)))
    more = details_html("more", escape(told), "p") if told else ""
    return (
        f'<tr id="claim-{number}" data-claim="{attribute(claim.title)}" data-status="{attribute(claim.status)}"><th scope="row">{escape(claim.title)}<p class="quote">{escape(claim.quote)}</p></th>'
        f'<td class="verdict-cell"><span class="badge {claim.status}">{escape(claim.status)}</span>{scale}</td>'
        f"<td><ul>{seen}</ul>{decides}</td><td>{escape(claim.test)}{more}</td><td>{links}</td></tr>"
    )


def claims_section(claims: list[Claim], figures: list[Figure]) -> str:
    rows = "".join(claim_row(number, c, figures) for number, c in enumerate(claims, 1))
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("claim", "status", "what was seen", "how it is tested", "figure"))
    return section(
        "claims",
        "The paper’s claims",
        "<p>Each status is computed from the points of this report, one source at a time. The badge is that of the strongest "
        'source that tested the claim: measured before replayed, extrapolated and simulated; “computed”: nothing is timed. '
        f'{"; ".join(f"“{status.capitalize()}”: {text}" for status, text in MEANING.items())}. '
        "Times and bytes are those of forward passes where the evidence names no other pass. What the paper says of the quality of language models (section 4) is not tested.</p>"
        f"{definition_list(GLOSSARY)}"
        '<div class="scroll" tabindex="0" role="region" aria-label="claims">'
        f'<table class="claims"><caption>the claims, and what this report’s points say of them</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"<ul>{''.join(f'<li><b>{escape(name)}</b>: {escape(text)}</li>' for name, text in RULES.items())}</ul>",
    )


def figure_html(figure: Figure) -> str:
    name = attribute(figure.name)
    chips = "".join(f' <span class="by">{escape(s)}</span>' for s in figure.sources)
    says = f"{figure.title}. {figure.finding}".strip()
    return (
        f'<figure>{heading(3, f"figure-{name}", escape(figure.title) + chips)}<div class="card"><div class="chart" data-figure="{name}" role="img" '
        f'aria-label="{attribute(says)}"></div></div><figcaption><p><strong>{escape(figure.finding)}</strong> {escape(figure.source_text)}</p>'
        f"<details><summary>how to read it</summary><p>{escape(figure.caption)}</p></details></figcaption></figure>"
        f"{packed(f'data-{figure.name}', json.dumps(for_screen(figure)))}"
    )


def figures_section(figures: list[Figure]) -> str:
    more = [f for f in figures if f.more]
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
    shown = "".join(figure_html(f) for f in figures if not f.more and not f.absent)
    rest = "".join(map(figure_html, more))
    paper = f'<p class="on-paper">{plural(len(more), "more figure")} on the page itself, not printed.</p>'
    behind = f'<details id="more"><summary>{plural(len(more), "more figure")}</summary>{rest}</details>{paper}' if more else ""
    return section(
        "figures",
        "Figures",
        "<p>Colour is the algorithm, dash the number of ranks, the fill of a mark its source. Click a legend entry to single out a series, again to release it; "
        f'hover over a mark for exact values; the menu of a figure saves it.</p><ul class="key">{key}<li><span class="mark cross" aria-hidden="true">×</span> not run, or wrong</li></ul>'
        f"{shown}{behind}{missing}",
    )


def for_screen(figure: Figure) -> dict[str, Any]:
    """The spec with those fields of its rows alone that it names."""
    bare = {k: v for k, v in figure.spec.items() if k != "datasets"}
    text = json.dumps(bare)
    rows = figure.spec["datasets"]["rows"]
    used = {name for name in {key for row in rows for key in row} if f'"{name}"' in text or f"datum.{name}" in text}
    return bare | {"datasets": {"rows": [{k: v for k, v in row.items() if k in used} for row in rows]}}


def render_page(
    ctx: Context,
    figures: list[Figure],
    claims: list[Claim],
    comparison: dict[str, Any] | None = None,
) -> str:
    drawn = [f for f in figures if not f.absent]
    first = figure_html(drawn[0]) if drawn else ""
    answer = compare_section(ctx, comparison) if comparison else answer_section(ctx, claims, first)
    others = figures if comparison else [f for f in figures if not drawn or f is not drawn[0]]
    sections = [
        answer,
        figures_section(others) if figures else "",
        claims_section(claims, figures) if claims else "",
        section("table", "All points", full_table(ctx)),
        section("skipped", "Points without a result", skipped_table(ctx)),
        validation_section(ctx.validation) if ctx.validation else "",
        runs_section(ctx),
        clusters_section(ctx),
        method_section(ctx),
    ]
    return whole_page(ctx, sections, bool(drawn))


def render_training(ctx: Context, figures: list[Figure]) -> str:
    """The page of runs of `lnbench train`, whose first figure is the loss curve."""
    first, others = (figure_html(figures[0]), figures_section(figures[1:])) if figures else ("", "")
    sections = [training_answer(ctx, first), others, training_table(ctx), runs_section(ctx), training_method()]
    return whole_page(ctx, sections, drawn=bool(figures))


def render_validation(ctx: Context, figures: list[Figure]) -> str:
    """The page of a validation alone."""
    drawn = [f for f in figures if not f.absent]
    sections = [validation_answer(ctx.validation or {}, "".join(map(figure_html, drawn))), validation_section(ctx.validation or {})]
    return whole_page(ctx, sections, drawn=bool(drawn))


def whole_page(ctx: Context, sections: list[str], drawn: bool) -> str:
    styles = (ASSETS / "report.css").read_text(encoding="utf-8")
    program = script_safe((ASSETS / "report.js").read_text(encoding="utf-8"))
    library = chart_library() if drawn else ""
    policy = (
        f"default-src 'none'; script-src {script_hash(library)} {script_hash(program)} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    names = " · ".join(dict.fromkeys(r.name for r in ctx.runs)) or "How right the simulator is"
    noscript = '<noscript><p class="notice">The figures need JavaScript; the same pictures are the SVG and PNG files written with this report.</p></noscript>'
    anchors = ("answer", "figures", "claims", "table", "skipped", "validation", "runs", "clusters", "method")
    body = "\n".join([noscript, *sections])
    nav = "".join(f'<a href="#{a}">{a.capitalize()}</a>' for a in anchors if f'<section id="{a}">' in body)
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
<a class="skip" href="#answer">Skip to the answer</a>
<nav aria-label="sections">{nav}</nav>
<main>
{header(ctx, names)}
{body}
</main>
<script type="application/json" id="style">{script_json(load_json("style.json"))}</script>
<script>{library}</script>
<script>{program}</script>
</body>
</html>
"""
