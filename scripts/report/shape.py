"""Values of files against the JSON Schemas of configs/schema, so that nothing behind the loaders meets a wrong type.

Example: check({"points": {}}, path, "result") raises ResultError "…/result.json: points must be array".
Results of older and of later versions pass: keys may lack or be new, names and texts may be any, null stands for a missing number or text.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "schema"
HINT = "it was damaged or edited by hand, or another program wrote it: scripts/validate_json.py names all that is wrong"
STRICT = ("required", "enum", "pattern", "minLength", "multipleOf", "if", "then", "else")  # for records of today alone
SCALARS = {"string", "number", "integer", "boolean"}
SEAL = ',"sha256":"'


class ResultError(Exception):
    """Files that hold no readable result; the text says what to do."""


def seal_holds(line: str) -> bool:
    """As src/io/sha256.h seals lines."""
    body, found, seal = line.rpartition(SEAL)
    return bool(found) and seal == hashlib.sha256(body.encode()).hexdigest()[:16] + '"}'


def lenient(node: Any) -> Any:
    """A schema without what older and later results need not keep."""
    if isinstance(node, list):
        return [lenient(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: lenient(child) for name, child in value.items()}
        elif key not in STRICT and (key, value) != ("additionalProperties", False):
            kept[key] = lenient(value)
    types = kept.get("type", "string" if "enum" in node else [])
    named = {types} if isinstance(types, str) else {*types}
    return kept | {"type": sorted(named | {"null"} if SCALARS & named else named)} if named else kept


def compiled(schema: dict[str, Any]) -> Callable[[Any], Any]:
    """Raises fastjsonschema.JsonSchemaValueException, a ValueError, where a value is not of that schema."""
    import fastjsonschema

    return fastjsonschema.compile(schema, use_default=False, use_formats=False)


@functools.cache
def checker(kind: str, part: str) -> Callable[[Any], Any]:
    root = json.loads((FOLDER / f"{kind}.schema.json").read_text(encoding="utf-8"))
    if kind == "result":
        root = lenient(root) | {"required": ["points"]}
    node = root
    for key in filter(None, part.split("/")):
        node = node[key]
    return compiled({**node, "$defs": root.get("$defs", {})})


def check(value: Any, where: object, kind: str, part: str = "", path: str = "") -> None:
    """`kind`: a schema of configs/schema; `part`: a place in it, such as $defs/point, else all of it; `path`: that of the
    value in its file."""
    check_with(checker(kind, part), value, where, path)


def check_with(checks: Callable[[Any], Any], value: Any, where: object, path: str = "") -> None:
    import fastjsonschema

    try:
        checks(value)
    except fastjsonschema.JsonSchemaValueException as error:
        message = f"{path}{error.message.removeprefix('data')}".removeprefix(".")
        raise ResultError(f"{where}: {f'it{message}' if message[:1] == ' ' else message}\n  hint: {HINT}") from None
