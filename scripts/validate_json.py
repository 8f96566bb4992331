#!/usr/bin/env python3
"""Checks configs and results against the schemas in configs/schema.

  validate_json.py configs/quick.json results/20261120T225600Z-quick-1a2b3c4d5e

A folder stands for its run.json, points.jsonl, timelines.jsonl and result.json; a *.jsonl file is checked line by
line, as timelines where it is called so, else as points; a file with "run" and "points" is a result, one with "run" alone a manifest, one with "device" and "links" a
cluster, one with "closed_form" a validation, one with "cases" published measurements, anything else a config.
The config inside a result is checked as well.
Exit code: 0 all valid, 1 something is not, 2 it could not be checked.
"""
import functools
import json
import re
import sys
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parent.parent / "configs" / "schema"


def strip_comments(text):
    """Blanks out // and /* */ outside strings; lines keep their numbers."""
    out, i, in_string = [], 0, False
    while i < len(text):
        c = text[i]
        if in_string:
            out.append(c)
            if c == "\\" and i + 1 < len(text):
                i += 1
                out.append(text[i])
            in_string = c != '"'
        elif text.startswith("//", i):
            end = text.find("\n", i)
            end = len(text) if end < 0 else end
            out.append(" " * (end - i))
            i = end - 1
        elif text.startswith("/*", i):
            end = text.find("*/", i + 2)
            if end < 0:
                raise ValueError("a /* comment is never closed")
            out.append("".join("\n" if x == "\n" else " " for x in text[i : end + 2]))
            i = end + 1
        else:
            out.append(c)
            in_string = c == '"'
        i += 1
    return "".join(out)


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key {key!r} occurs twice in one object")
    return dict(pairs)


def no_constant(name):
    raise ValueError(f"{name} is not JSON; write null")


def parse(text):
    return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)


@functools.lru_cache
def load_validators():
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        print("validate_json.py needs the Python package jsonschema: install Debian's "
              "python3-jsonschema, or run scripts/python_env.sh, or `pip install jsonschema`.",
              file=sys.stderr)
        sys.exit(2)
    config = json.loads((SCHEMAS / "config.schema.json").read_text())
    result = json.loads((SCHEMAS / "result.schema.json").read_text())
    cluster = json.loads((SCHEMAS / "cluster.schema.json").read_text())
    validation = json.loads((SCHEMAS / "validation.schema.json").read_text())
    published = json.loads((SCHEMAS / "published.schema.json").read_text())
    Draft202012Validator.check_schema(published)
    Draft202012Validator.check_schema(validation)
    Draft202012Validator.check_schema(config)
    Draft202012Validator.check_schema(cluster)
    Draft202012Validator.check_schema(result)

    def part(name):
        return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": result["$defs"]})

    return {"config": Draft202012Validator(config), "cluster": Draft202012Validator(cluster),
            "validation": Draft202012Validator(validation), "published": Draft202012Validator(published),
            "result": Draft202012Validator(result),
            "manifest": part("manifest"), "point": part("point"), "timeline_line": part("timeline_line")}


def kind_of(value):
    if isinstance(value, dict) and "run" in value and "schema_version" in value:
        if "points" in value or "summary" in value:
            return "result"
        if "build" in value or "environment" in value:
            return "manifest"
    if isinstance(value, dict) and "device" in value and "links" in value:
        return "cluster"
    if isinstance(value, dict) and "closed_form" in value:
        return "validation"
    if isinstance(value, dict) and "cases" in value:
        return "published"
    return "config"


def deepest(error):
    """The most telling branch of an anyOf: the one that got furthest into the value."""
    while error.context:
        error = max(error.context, key=lambda e: (len(e.absolute_path), e.validator != "type"))
    return error


def problems_in(validator, value):
    errors = validator.iter_errors(value)
    for error in sorted(errors, key=lambda e: list(map(str, e.absolute_path))):
        best = deepest(error)
        message = best.message if len(best.message) <= 300 else best.message[:297] + "..."
        yield f"{best.json_path}: {message}"


def check_lines(path, validators):
    kind = "timeline_line" if path.name == "timelines.jsonl" else "point"
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line:
            continue
        try:
            value = parse(line)
        except ValueError as error:
            yield f"{path}:{number}: not valid JSON: {error}"
            continue
        if isinstance(value, dict) and re.fullmatch("[0-9a-f]{16}", str(value.get("sha256"))):
            del value["sha256"]  # the seal of the line
        for problem in problems_in(validators[kind], value):
            yield f"{path}:{number}: {problem}"


def check_file(path, validators):
    if path.is_dir():
        files = [path / name for name in ("run.json", "points.jsonl", "timelines.jsonl", "result.json")]
        found = [file for file in files if file.exists()]
        for file in found:
            yield from check_file(file, validators)
        if not {"run.json", "result.json"} & {file.name for file in found}:
            yield f"{path}: holds neither run.json nor result.json, so it is no folder of results"
        return
    try:
        if path.suffix == ".jsonl":
            yield from check_lines(path, validators)
            return
        value = parse(strip_comments(path.read_text()))
    except (OSError, ValueError) as error:
        yield f"{path}: {error}"
        return
    kind = kind_of(value)
    for problem in problems_in(validators[kind], value):
        yield f"{path}: {problem}"
    run = value["run"] if kind in ("result", "manifest") else None
    config = run.get("config") if isinstance(run, dict) else None
    if config is not None and "mode" in run:  # the resolved config travels inside the result; before modes, an older one
        for problem in problems_in(validators["config"], config):
            yield f"{path}: run.config: {problem}"


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    validators = load_validators()
    problems = [p for a in arguments for p in check_file(Path(a), validators)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(arguments)} valid")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
