"""The clusters section: what the simulator was told, every figure with its source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .markup import escape, json_block
from .rows import Context


def quantities(node: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(name, value, source) of every figure of a cluster file."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            yield from quantities(item, f"{path} {place + 1}")
    elif isinstance(node, dict) and "source" in node:
        values = {k: v for k, v in node.items() if k != "source"}
        text = ", ".join(f"{k.replace('_', ' ')} {json.dumps(v)}" for k, v in values.items())
        yield path, json.dumps(values["value"]) if list(values) == ["value"] else text, str(node["source"])
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
        rows = "".join(
            f"<tr><th scope=\"row\">{escape(what)}</th><td>{escape(value)}</td><td>{escape(source)}</td></tr>"
            for what, value, source in quantities(cluster)
        )
        parts.append(
            f"<h3>{escape(name)}</h3><p>{escape(str(cluster.get('description') or ''))}</p>"
            '<div class="scroll" tabindex="0" role="region" aria-label="figures of the cluster"><table><thead><tr><th scope="col">figure</th>'
            f'<th scope="col">value</th><th scope="col">source</th></tr></thead><tbody>{rows}</tbody></table></div>'
            f"<details><summary>the whole file</summary>{json_block(cluster)}</details>"
        )
    if not parts:
        return ""
    return (
        '<section id="clusters"><h2>Clusters</h2><p>What the simulator knew of the machines that were not there. Simulated times are '
        f"as good as these figures; what-ifs change them point by point.</p>{''.join(parts)}</section>"
    )
