"""Escaping, in one place: every string that comes from a result passes through here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable
from typing import Any


def escape(value: object) -> str:
    return html.escape(str(value), quote=True)


def attribute(value: object) -> str:
    return html.escape(str(value), quote=True).replace("\n", "&#10;").replace("\r", "&#13;")


def script_json(value: Any) -> str:
    """JSON that may stand inside <script>: no `<`, `>` or `&`, and no line separators."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_safe(code: str) -> str:
    """Program text that may stand inside <script>."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def script_hash(code: str) -> str:
    """The value that a Content-Security-Policy names to allow exactly this script."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() + "'"


def definition_list(pairs: list[tuple[str, object]]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs if v not in (None, "")) + "</dl>"
    )


def packed(name: str, content: str) -> str:
    """Data that the page's program unpacks when it needs them: gzip in base64, a twentieth of the text."""
    data = base64.b64encode(gzip.compress(content.encode(), 6, mtime=0)).decode()
    return f'<script type="text/plain" id="{attribute(name)}">{data}</script>'


def heading(level: int, anchor: str, content: str) -> str:
    """A heading that can be linked to; `content` is HTML."""
    return f'<h{level} id="{attribute(anchor)}">{content} <a class="anchor" href="#{attribute(anchor)}" aria-label="link to this place">#</a></h{level}>'


def section(anchor: str, title: str, content: str) -> str:
    return f'<section id="{attribute(anchor)}">{heading(2, f"{anchor}-title", escape(title))}{content}</section>'


def scroll_table(label: str, heads: Iterable[str], rows: Iterable[str], printed: int | None = None) -> str:
    """A table that scrolls inside its box; `rows` are HTML. Where only the first ones are printed, paper says so."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    listed = list(rows)
    hidden = listed[printed:] if printed else []
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="{attribute(label)}">'
    bodies = f"<tbody>{''.join(listed[:printed])}</tbody>" + (f'<tbody class="unprinted">{"".join(hidden)}</tbody>' if hidden else "")
    table = f"{box}<table><caption>{escape(label)}</caption><thead><tr>{head}</tr></thead>{bodies}</table></div>"
    return table + (f'<p class="on-paper">{len(hidden):,} of {len(listed):,} rows are not printed: they are on the page itself.</p>' if hidden else "")


def table_row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def json_block(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
