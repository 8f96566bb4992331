"""Result directories, as runs of points.

A directory holds result.json with timelines.jsonl beside it, or, after an interruption, run.json and points.jsonl. A wrong
type is an error with its place (shape.py), a torn line is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .model import Point, Run
from .shape import ResultError, check, seal_holds
from .units import number

LARGEST = 1e30  # among numbers that mean anything


def parse_json(text: str) -> Any:
    """NaN, infinities and numbers beyond 1e30 read as null, those below 1e-30 as 0, halves of characters as "?": arithmetic
    and pictures have room for the rest."""
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=float_of, parse_int=int_of)
        if "\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", text, 0) from None
    return value


def load_json(path: Path, what: str, command: str) -> Any:
    """A file that the command has written; an error says what it is not."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("no regular file")
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path}: no {what}: {error}\n  hint: {command} writes one") from error


def float_of(digits: str) -> float | None:
    value = float(digits)
    return None if abs(value) > LARGEST else value if abs(value) * LARGEST >= 1 else 0.0


def int_of(digits: str) -> int | None:
    return int(digits) if len(digits) <= len(str(int(LARGEST))) else None


def pattern_of(branches: list[dict[str, Any]], seq_len: float | None) -> str:
    """The kind of a pattern, by its branches."""
    if any(number(b.get("summary_tokens")) for b in branches):
        return "sparse"
    width, rate = (number(branches[0].get(key)) for key in ("segment_length", "dilation_rate")) if branches else (0, 0)
    dense = len(branches) == 1 and rate == 1 and (width or 0) >= (seq_len or 0)
    return "dense" if dense else "dilated" if branches else ""


def with_mode_and_pattern(record: dict[str, Any]) -> dict[str, Any]:
    """The record with `params.mode` and `params.pattern`, which older results leave to the transport and the branches.
    Only a real run has a transport."""
    params = record.get("params")
    if not isinstance(params, dict):
        return record
    point, transport = Point(0, record), params.get("transport")
    mode = point.mode or (transport if transport in ("virtual", "simulated") else "real")
    pattern = point.pattern or pattern_of(point.branches, point.seq_len)
    kept = {k: v for k, v in params.items() if k != "transport" or mode == "real"}
    return record | {"params": kept | {"mode": mode, "pattern": pattern}}


def read_points(records: list[dict[str, Any]], run: int, notes: list[str]) -> list[Point]:
    """The last record of an id counts: a resumed run appends the repeated point."""
    by_id: dict[str, Point] = {}
    unnamed = 0
    for record in records:
        identity = record.get("id")
        if identity is None:
            unnamed += 1
            identity = f"unnamed-{unnamed}"
        key = f"{identity}/{record.get('source')}"
        if key in by_id:
            notes.append(f"Point {identity} was recorded twice; the later record counts.")
        by_id[key] = Point(run, with_mode_and_pattern(record))
    return list(by_id.values())


def read_lines(path: Path, part: str, notes: list[str]) -> list[dict[str, Any]]:
    """Lines that are whole, each as `part` of the schema of results. Older runs sealed no line, others every one."""
    records: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # splitlines() also cuts at U+2028, which JSON may hold
    sealed = any(map(seal_holds, lines))
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except json.JSONDecodeError:
            notes.append(f"Line {line_number} of {path.name} is torn and was left out.")
            continue
        check(record, f"{path}:{line_number}", "result", part)
        if (sealed or "sha256" in record) and not seal_holds(line):
            raise ResultError(f"{path}:{line_number}: the line was changed after it was written\n  hint: delete that line, and --resume measures the point again")
        records.append(record)
    return records


def read_timelines(path: Path, notes: list[str]) -> dict[str, Any]:
    """Id -> timeline; none where there is no such file."""
    lines = read_lines(path, "$defs/timeline_line", notes) if path.is_file() else []
    return {str(line.get("id")): line.get("timeline") for line in lines}


def load_result(directory: Path, index: int) -> Run:
    path, notes = directory / "result.json", []
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        other = (directory / "points.jsonl").is_file()
        hint = "move it away, and points.jsonl beside it is read instead" if other else "nothing else of this run is here: run it again"
        raise ResultError(f"{path}: not valid JSON ({error})\n  hint: {hint}") from error
    check(record, path, "result")
    points = read_points(record["points"], index, notes)
    timelines = read_timelines(directory / "timelines.jsonl", notes)
    for point in points:
        if point.text("id") in timelines:
            point.raw["timeline"] = timelines[point.text("id")]
    return Run(directory, record, points, notes=notes)


def read_manifest(directory: Path, notes: list[str]) -> dict[str, Any]:
    """run.json, whose `run` is an object though the file be torn."""
    manifest, record = directory / "run.json", {}
    if manifest.is_file():
        try:
            record = parse_json(manifest.read_text(encoding="utf-8"))
        except ValueError:  # no JSON, or no UTF-8
            notes.append("run.json is torn; the header is incomplete.")
        check(record, manifest, "result", "$defs/manifest")
    if not isinstance(record.get("run"), dict):  # a manifest may hold the fields of `run` directly
        record = {**record, "run": {k: v for k, v in record.items() if k not in ("run", "build", "environment", "ranks")}}
    return record


def load_run(directory: Path, index: int) -> Run:
    """Reads one result directory; falls back to run.json + points.jsonl of an interrupted run."""
    if (directory / "result.json").is_file():
        return load_result(directory, index)
    notes: list[str] = []
    lines = directory / "points.jsonl"
    if not (directory / "run.json").is_file() and not lines.is_file():
        raise ResultError(
            f"{directory}: no result.json, and no run.json or points.jsonl either\n  hint: name the folder that `lnbench run` wrote"
        )
    record = read_manifest(directory, notes)
    points = read_points(read_lines(lines, "$defs/point", notes) if lines.is_file() else [], index, notes)
    if not points and not record["run"]:
        raise ResultError(f"{directory}/run.json: nothing can be read: {' '.join(notes) or 'it is empty'}\n  hint: run again, nothing of this run is left")
    notes.insert(
        0,
        f"The run was interrupted: result.json is missing, {len(points)} recorded points were read from points.jsonl.",
    )
    return Run(directory, record, points, interrupted=True, notes=notes)
