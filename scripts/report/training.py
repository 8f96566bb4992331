"""A folder that `lnbench train` wrote, as a run whose one point has steps.

Example: run.json, train.jsonl and timelines.jsonl of 1,000 steps -> Training with 1,000 Steps, which figures draw as means of
windows, since no picture holds more than a few hundred marks. A line that is torn, or does not hold its seal, is left out
with a note.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .model import Point, Run
from .reading import parse_json, read_manifest, read_timelines, with_mode_and_pattern
from .shape import HINT, ResultError, check, compiled, seal_holds
from .units import bytes_label, integer_label, number, plural, significant

STEPS_FILE = "train.jsonl"
NAMED = ("bits_per_byte", "gradient_norm", "learning_rate")
SHAPE = {  # a step's line
    "type": "object",
    "required": ["step", "seconds"],
    "properties": {
        "step": {"type": "integer", "minimum": 1, "maximum": 1 << 53},
        "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e12},
        "seconds_by": {"type": "object", "additionalProperties": {"type": "number"}},
        **{name: {"type": ["number", "null"]} for name in (*NAMED, "held_out_bits")},
    },
}


@dataclass(frozen=True)
class Step:
    number: int  # from 1
    seconds: float
    end_s: float  # seconds of all steps until its end
    values: dict[str, float]  # those of NAMED that are known
    held_out: float | None  # bits per byte after it, where they were taken
    seconds_by: dict[str, float]  # rank 0's, by kind of op


@dataclass
class Window:
    """Neighbouring steps that one mark stands for."""

    steps: list[Step]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def seconds(self) -> float:
        return statistics.fmean(s.seconds for s in self.steps)

    def mean(self, name: str) -> float | None:
        known = [s.values[name] for s in self.steps if name in s.values]
        return statistics.fmean(known) if known else None

    def seconds_of(self, kind: str) -> float:
        return statistics.fmean(s.seconds_by.get(kind, 0.0) for s in self.steps)


@dataclass
class Training(Run):
    steps: list[Step] = field(default_factory=list)

    @property
    def point(self) -> Point:
        return self.points[0]

    @property
    def planned(self) -> int:
        return int(number(self.get("run.config.train.steps")) or len(self.steps))

    @property
    def complete(self) -> bool:
        return self.steps[-1].number >= self.planned

    @property
    def verdict(self) -> str:
        if self.missing:
            return "damaged"
        return "complete" if self.complete else "stopped early"

    @property
    def missing(self) -> int:
        """Steps before the last one whose lines are lost."""
        return self.steps[-1].number - len(self.steps)

    @property
    def counts(self) -> dict[str, int]:
        return {"steps": len(self.steps)}

    @property
    def extent(self) -> str:
        return f"{self.steps[-1].number:,} of {plural(self.planned, 'step')}"

    @property
    def facts(self) -> list[tuple[str, object]]:
        sizes = [number(self.get(f"run.training.{name}_bytes")) for name in ("trained", "held_out")]
        text = f"{bytes_label(sizes[0], 3)} trained on, {bytes_label(sizes[1], 3)} held out"
        return [("parameters", integer_label(number(self.get("run.training.parameters")))), ("text", text)]

    @property
    def tokens_per_step(self) -> int:
        return self.point.batch * (self.point.seq_len or 0)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @cached_property
    def tokens_per_s(self) -> float:
        """In the median step."""
        return self.tokens_per_step / statistics.median(s.seconds for s in self.steps)

    @property
    def held_out(self) -> Step | None:
        """The last step after which the held-out loss was taken."""
        return next((s for s in reversed(self.steps) if s.held_out is not None), None)

    @property
    def memory_by_tag(self) -> dict[str, int]:
        found = self.get("run.training.memory_by_tag")
        known = {str(k): number(v) for k, v in found.items()} if isinstance(found, dict) else {}
        return {tag: int(size) for tag, size in known.items() if size}

    def windows(self, limit: int) -> list[Window]:
        """Windows of equally many steps, at most `limit` of them; a window never spans a gap of lost lines."""
        size = -(-len(self.steps) // limit)
        groups = itertools.groupby(self.steps, key=lambda s: (s.number - 1) // size)
        return [Window(list(steps)) for _, steps in groups]

    @property
    def model_text(self) -> str:
        """ "a model of 2.68 million parameters", as far as the run says it."""
        parameters = number(self.get("run.training.parameters"))
        if not parameters:
            return "a model"
        millions = f"{significant(parameters / 1e6)} million" if parameters >= 1e6 else integer_label(parameters)
        return f"a model of {millions} parameters"


def read_step(line: str, checks: Callable[[Any], Any]) -> dict[str, Any] | None:
    """The record of a line that is whole."""
    try:
        record = parse_json(line) if seal_holds(line) else None
        checks(record)
    except ValueError:  # no JSON, or not of that shape
        return None
    return record


def read_steps(path: Path, notes: list[str]) -> list[Step]:
    steps: list[Step] = []
    damaged: list[int] = []
    checks = compiled(SHAPE)
    for line_number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        record = read_step(line, checks)
        if record is None or (steps and record["step"] <= steps[-1].number):
            damaged.append(line_number)
            continue
        known = {name: value for name in NAMED if (value := number(record.get(name))) is not None}
        end_s = record["seconds"] + (steps[-1].end_s if steps else 0.0)
        steps.append(Step(int(record["step"]), record["seconds"], end_s, known, number(record.get("held_out_bits")), record.get("seconds_by", {})))
    if damaged:
        few = ", ".join(map(str, damaged[:3])) + (", …" if damaged[3:] else "")
        notes.append(f"{plural(len(damaged), 'line')} of {path.name} torn, damaged or out of order (line {few}): left out.")
    return steps


def load_training(directory: Path, index: int) -> Training:
    """The run in a folder with train.jsonl. Raises ResultError where there is nothing to show."""
    notes: list[str] = []
    record = read_manifest(directory, notes)
    trained = record["run"].get("training")
    params = trained.get("point") if isinstance(trained, dict) else None
    if not isinstance(params, dict):
        raise ResultError(f"{directory}/run.json: it says nothing of what was trained (run.training)\n  hint: it is damaged, or an older lnbench wrote it: train again")
    check(params, f"{directory}/run.json", "result", "$defs/point/properties/params", "run.training.point")
    if not number(params.get("seq_len")):
        raise ResultError(f"{directory}/run.json: run.training.point must contain seq_len\n  hint: {HINT}")
    steps = read_steps(directory / STEPS_FILE, notes)
    if not steps:
        why = "; ".join(notes) or "the file is empty"
        raise ResultError(f"{directory}/{STEPS_FILE}: no step to show: {why}\n  hint: lnbench train CONFIG --resume {directory} goes on from its checkpoint")
    timelines = read_timelines(directory / "timelines.jsonl", notes)
    raw = {
        "id": "train",
        "source": "measured",
        "status": "ok",
        "params": params,
        "timing": {"median_s": statistics.median(s.seconds for s in steps)},
        "timeline": next(iter(timelines.values()), None),
    }
    record.setdefault("summary", {"disturbed": {}})
    run = Training(directory, record, [Point(index, with_mode_and_pattern(raw))], notes=notes, steps=steps)
    if run.missing:
        notes.append(f"{plural(run.missing, 'step')} before step {steps[-1].number:,} missing: times and tokens leave them out.")
    return run
