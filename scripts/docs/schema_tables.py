"""Markdown tables of a JSON Schema: one section per object, one row per key.

Example: {"properties": {"model": {"properties": {"heads": {"type": "integer", "minimum": 1}}}}} becomes

    ## `model`

    | key | value | meaning |
    |---|---|---|
    | `heads` | integer ≥ 1 |  |

Handles the part of JSON Schema that configs/schema uses. An unknown shape raises ValueError, so that a table never
leaves out what a schema says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]

DEFS = "#/$defs/"
IGNORED_KEYS = {"description", "default", "examples", "additionalProperties", "required"}
BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


@dataclass
class Section:
    """One table: the keys of the object at `path`."""

    path: str  # "sweep.batch"; empty for the top level
    description: str = ""
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)  # key, value, default, meaning


class SchemaTables:
    """Collects the sections of one schema. Objects of $defs get a section where they are used, other values a row of
    the table of values."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.sections: list[Section] = []
        self.used_defs: list[str] = []

    def add_object(self, path: str, node: Schema) -> None:
        """Adds the table of an object and, after it, those of the objects inside it."""
        section = Section(path, node.get("description", ""))
        self.sections.append(section)
        required = set(node.get("required", ()))
        inner: list[tuple[str, Schema]] = []
        for key, value in node["properties"].items():
            section.rows.append(self.row(key, value, key in required, inner, path))
        for inner_path, inner_node in inner:
            self.add_object(inner_path, inner_node)

    def row(
        self, key: str, node: Schema, required: bool, inner: list[tuple[str, Schema]], path: str
    ) -> tuple[str, str, str, str]:
        here = f"{path}.{key}" if path else key
        target = self.object_of(node)
        if target is not None:
            suffix, inside = target
            inner.append((here + suffix, inside))
            text = f"{'list of objects' if suffix else 'object'}: [`{here}{suffix}`](#{anchor(here + suffix)})"
        else:
            text = self.value_text(node)
        default = f"`{json.dumps(node['default'], ensure_ascii=False)}`" if "default" in node else ""
        return f"`{key}`" + (" *" if required else ""), text, default, node.get("description", "")

    def object_of(self, node: Schema) -> tuple[str, Schema] | None:
        """("", object) of an object with named keys, ("[]", object) of a list of such; None of anything else."""
        node = self.resolve(node)
        if "properties" in node:
            return "", node
        if node.get("type") == "array" and "properties" in self.resolve(node.get("items", {})):
            return "[]", self.resolve(node["items"])
        return None

    def resolve(self, node: Schema) -> Schema:
        name = node.get("$ref", "")
        return self.schema["$defs"][name.removeprefix(DEFS)] if name.startswith(DEFS) else node

    def value_text(self, node: Schema) -> str:
        """The values that a key may have, in words."""
        if "$ref" in node:
            name = node["$ref"].removeprefix(DEFS)
            if name not in self.used_defs:
                self.used_defs.append(name)
            return f"[{name.replace('_', ' ')}](#value-{anchor(name)})"
        if "const" in node:
            return f"`{json.dumps(node['const'], ensure_ascii=False)}`"
        if "enum" in node:
            return ", ".join(f"`{json.dumps(value, ensure_ascii=False)}`" for value in node["enum"])
        for word in ("anyOf", "oneOf"):
            if word in node:
                return self.alternatives_text(node[word])
        if "type" in node:
            return self.typed_text(node)
        if not set(node) - IGNORED_KEYS:
            return "any"
        raise ValueError(f"schema_tables does not know this shape: {json.dumps(node)[:200]}")

    def alternatives_text(self, alternatives: list[Schema]) -> str:
        """A scalar, a list of such scalars and a range of them read as one phrase."""
        scalars = [a for a in alternatives if a.get("type") not in ("array", "object")]
        texts = [self.value_text(a) for a in scalars]
        for other in alternatives:
            if other.get("type") == "array":
                texts.append("a list of these" if other["items"] in scalars else self.typed_text(other))
            elif other.get("type") == "object":
                texts.append(self.range_text(other))
        return ", or ".join(texts)

    def range_text(self, node: Schema) -> str:
        keys = list(node.get("properties", {}))
        if not keys:
            return "object"
        if keys[:2] == ["from", "to"]:
            return "a range"
        return "`{" + ", ".join(f'"{key}"' for key in keys) + "}`"

    def typed_text(self, node: Schema) -> str:
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        texts = []
        for kind in kinds:
            if kind == "array":
                items = node.get("items")
                texts.append(f"list of {self.value_text(items)}" if items else "list")
            elif kind == "object" and isinstance(node.get("additionalProperties"), dict):
                texts.append(f"object of {self.value_text(node['additionalProperties'])}")
            elif kind in ("integer", "number"):
                texts.append(" ".join([kind, *bounds_text(node)]))
            elif kind == "string" and "pattern" in node:
                texts.append(f"string `{node['pattern']}`" if len(node["pattern"]) <= 40 else "string")
            else:
                texts.append(kind)
        return " or ".join(texts)


def bounds_text(node: Schema) -> list[str]:
    found = [f"{sign} {node[key]:.12g}" for key, sign in BOUNDS if key in node]
    if "multipleOf" in node:
        found.append(f"a multiple of {node['multipleOf']}")
    return [", ".join(found)] if found else []


def anchor(path: str) -> str:
    """The part of a link after '#', as GitHub makes it from a heading `path`."""
    return "".join(c for c in path.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def section_lines(section: Section, title: str) -> list[str]:
    has_default = any(default for _, _, default, _ in section.rows)
    head = ["key", "value", *(["default"] if has_default else []), "meaning"]
    lines = [f"## {title}", ""]
    if section.description:
        lines += [section.description, ""]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, value, default, meaning in section.rows:
        cells = [key, value, *([default] if has_default else []), meaning]
        lines.append("| " + " | ".join(map(cell, cells)) + " |")
    return [*lines, ""]


def definition_lines(tables: SchemaTables) -> list[str]:
    """The table of named values; a definition may name another one, which then follows it."""
    lines: list[str] = []
    done = 0
    while done < len(tables.used_defs):
        name = tables.used_defs[done]
        node = tables.schema["$defs"][name]
        label = f'<a id="value-{anchor(name)}"></a>{name.replace("_", " ")}'
        lines.append(f"| {label} | {cell(tables.value_text(node))} | {cell(node.get('description', ''))} |")
        done += 1
    return ["## Values", "", "| name | value | meaning |", "|---|---|---|", *lines, ""] if lines else []
