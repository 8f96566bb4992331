"""The clusters section: what the simulator was told, every figure with its source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .markup import escape, json_block, scroll_table, section
from .rows import Context
from .units import number, number_label


def value_text(value: Any) -> str:
    return json.dumps(value) if number(value) is None else number_label(value)


def quantities(node: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(name, value, source) of every figure of a cluster file."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            yield from quantities(item, f"{path} {place + 1}")
    elif isinstance(node, dict) and "source" in node:
        values = {k: v for k, v in node.items() if k != "source"}
        text = ", ".join(f"{k.replace('_', ' ')} {value_text(v)}" for k, v in values.items())
        yield path, value_text(values["value"]) if list(values) == ["value"] else text, str(node["source"])
    elif isinstance(node, dict):
        for key, item in node.items():
            yield from quantities(item, f"{path} {key.replace('_', ' ')}".strip())


def clusters_section(ctx: Context) -> str:
    """Each simulated run's cluster: every figure with its source."""
    parts = []
    for place, run in enumerate(ctx.runs, 1):
        cluster = run.get("run.cluster")
        if not isinstance(cluster, dict):
            continue
        name = f"Run {place}: {cluster.get('name')}" if len(ctx.runs) > 1 else str(cluster.get("name"))
        rows = [
            f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td><td class="long">{escape(source)}</td></tr>'
            for what, value, source in quantities(cluster)
        ]
        table = scroll_table(f"figures of {name}", ("figure", "value", "source"), rows)
        parts.append(
            f"<h3>{escape(name)}</h3><p>{escape(str(cluster.get('description') or ''))}</p>{table}"
            f"<details><summary>the whole file</summary>{json_block(cluster)}</details>"
        )
    if not parts:
        return ""
    intro = "<p>What the simulator knew of the machines that it modelled. Simulated times are as good as these figures; what-ifs change them point by point.</p>"
    return section("clusters", "Clusters", intro + "".join(parts))
