"""Rows of the figures about training runs: loss, speed, gradients, where a step's time goes, memory."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

from .rows import Context, Drawing, Row, single
from .training import Training, Window
from .units import bytes_label, duration_label, percent_label, plural, significant, spoken_duration

MAX_MARKS = 500  # in a line: a mark is the mean of some steps where there are more
MAX_BARS = 60
SMALL_TAG = 0.02  # share of a rank's memory: tags below it share a bar
# Keys of train.jsonl's seconds_by, in the order in which they are stacked.
PARTS = {
    "gemm": "GEMM",
    "attention": "attention",
    "row_wise": "row-wise",
    "cross_entropy": "cross-entropy",
    "update": "update",
    "exposed_messages": "exposed messages",
}
OTHER = "other"  # the step's time that no op took


def steps_text(window: Window) -> str:
    """ "step 12", or "steps 10 to 12" of a mean."""
    first = window.steps[0].number
    return f"step {first:,}" if first == window.last.number else f"steps {first:,} to {window.last.number:,}"


def step_row(ctx: Context, run: Training, window: Window) -> Row:
    point = run.point
    return {
        "run": point.run,
        "source": point.source,
        "status": "ok",
        "series": ctx.index.label(point),
        "ranks": point.ranks,
        "ranks_label": ctx.index.rank_label(point.ranks),
        "line": str(point.run),
        "step": window.last.number,
        "minutes": window.last.end_s / 60,
        "steps": steps_text(window),
        "after": spoken_duration(window.last.end_s),
    }


def whose(ctx: Context, run: Training) -> str:
    """ "run 2 (its name): ", where there are several."""
    return f"{ctx.index.run_names[run.point.run]}: " if len(ctx.runs) > 1 else ""


def stepped(ctx: Context, value: Callable[[Training, Window], float | None], says: Callable[[Training], str]) -> list[Drawing]:
    """One drawing with a line for each run: the value of its windows, with a text for what they show."""
    rows = []
    for run in ctx.trainings:
        for window in run.windows(MAX_MARKS):
            found = value(run, window)
            if found is not None:
                rows.append(step_row(ctx, run, window) | {"value": found, "value_text": significant(found, 4)})
    return training_drawing(ctx, rows, says) if rows else []


def training_drawing(ctx: Context, rows: list[Row], says: Callable[[Training], str]) -> list[Drawing]:
    runs = ctx.trainings
    width = max(max(len(w.steps) for w in run.windows(MAX_MARKS)) for run in runs)
    note = f"Where a line would have more than {MAX_MARKS} marks, each is the mean of up to {width} steps." if width > 1 else ""
    finding = "; ".join(f"{whose(ctx, run)}{says(run)}" for run in runs) + "."
    counted = plural(sum(len(run.steps) for run in runs), "step")
    return single(rows, [run.point for run in runs], note=note, finding=finding, counted=counted)


def loss_text(run: Training) -> str:
    first, last = run.windows(20)[0], run.windows(20)[-1]
    held = f", {significant(run.held_out.held_out or 0, 4)} on held-out text after step {run.held_out.number:,}" if run.held_out else ""
    ends = [significant(w.mean("bits_per_byte") or 0) for w in (first, last)]
    return f"the batches' loss falls from {ends[0]} to {ends[1]} bits per byte ({steps_text(first)}, {steps_text(last)}){held}"


def training_loss(ctx: Context) -> list[Drawing]:
    """Marks of held-out losses stand at their own steps, whatever the windows of the batches are."""
    rows = []
    for run in ctx.trainings:
        for window in run.windows(MAX_MARKS):
            if (mean := window.mean("bits_per_byte")) is not None:
                rows.append(step_row(ctx, run, window) | {"value": mean, "value_text": significant(mean, 5), "what": "batches"})
        for step in run.steps:
            if step.held_out is not None:
                text = significant(step.held_out, 5)
                rows.append(step_row(ctx, run, Window([step])) | {"held_out": step.held_out, "value_text": text, "what": "held-out text"})
    return training_drawing(ctx, rows, loss_text) if rows else []


def training_speed(ctx: Context) -> list[Drawing]:
    def says(run: Training) -> str:
        slow = sum(s.seconds > 1.25 * run.tokens_per_step / run.tokens_per_s for s in run.steps)
        return f"{significant(run.tokens_per_s, 4)} tokens/s in the median step; {plural(slow, 'step')} of {len(run.steps):,} took over 1.25 times as long"

    return stepped(ctx, lambda run, window: run.tokens_per_step / window.seconds, says)


def training_gradient(ctx: Context) -> list[Drawing]:
    def says(run: Training) -> str:
        norms = [s.values["gradient_norm"] for s in run.steps if "gradient_norm" in s.values]
        return f"the gradient's norm is {significant(statistics.median(norms))} in the median step, {significant(max(norms))} at most"

    return stepped(ctx, lambda _, window: window.mean("gradient_norm"), says)


def training_rate(ctx: Context) -> list[Drawing]:
    def says(run: Training) -> str:
        rates = [(s.values["learning_rate"], s.number) for s in run.steps if "learning_rate" in s.values]
        return f"the learning rate is {significant(max(rates)[0])} at most, at step {max(rates)[1]:,}, and {significant(rates[-1][0])} at the end"

    return stepped(ctx, lambda _, window: window.mean("learning_rate"), says)


def parts_of(window: Window) -> dict[str, float]:
    """Mean seconds of a step by part; they add up to the step's."""
    parts = {name: window.seconds_of(key) for key, name in PARTS.items()}
    parts[OTHER] = max(0.0, window.seconds - sum(parts.values()))
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def training_parts(ctx: Context) -> list[Drawing]:
    """A picture for each run: bars of neighbouring steps, stacked."""
    drawings = []
    for run in ctx.trainings:
        if not any(step.seconds_by for step in run.steps):
            continue
        rows: list[Row] = []
        for window in run.windows(MAX_BARS):
            parts = parts_of(window)
            tops = list(itertools.accumulate(parts.values()))
            for (name, seconds), top in zip(parts.items(), tops):
                rows.append(
                    {
                        "begin": window.steps[0].number - 1,
                        "end": window.last.number,
                        "low": top - seconds,
                        "high": top,
                        "phase": name,
                        "steps": steps_text(window),
                        "time": duration_label(seconds, 4),
                        "share_text": percent_label(seconds / window.seconds),
                        "full": duration_label(window.seconds, 4),
                        "source": run.point.source,
                    }
                )
        whole = Window(run.steps)
        shares = {name: seconds / whole.seconds for name, seconds in parts_of(whole).items()}
        said = ", ".join(f"{name} {percent_label(round(share, 3))}" for name, share in shares.items() if share >= 0.001)
        drawings.append(of_one_run(ctx, run, rows, f"A step takes {duration_label(whole.seconds)} in the mean: {said}."))
    return drawings


def of_one_run(ctx: Context, run: Training, rows: list[Row], finding: str) -> Drawing:
    several = len(ctx.runs) > 1
    suffix, title = (str(run.point.run + 1), ctx.index.label(run.point)) if several else ("", "")
    return Drawing(rows, [run.point], suffix, title, finding=finding, counted=plural(len(run.steps), "step"))


def large_tags(run: Training) -> dict[str, int]:
    """Bytes by tag, the largest first, those of a few per cent together at the end."""
    sizes = sorted(run.memory_by_tag.items(), key=lambda item: -item[1])
    least = SMALL_TAG * sum(size for _, size in sizes)
    small = [size for _, size in sizes if size < least]
    large = {tag.replace("_", " "): size for tag, size in sizes if size >= least}
    return large | ({plural(len(small), "smaller tag"): sum(small)} if small else {})


def training_memory(ctx: Context) -> list[Drawing]:
    """A picture for each run."""
    drawings = []
    for run in ctx.trainings:
        rows: list[Row] = []
        for order, (tag, size) in enumerate(large_tags(run).items()):
            label = {"label": f"{tag}\n{bytes_label(size)}", "order": order, "value": size / (1 << 20), "tag": tag, "bytes": f"{size:,} B"}
            rows.append(step_row(ctx, run, Window(run.steps)) | label)
        if rows:
            total = bytes_label(sum(run.memory_by_tag.values()))
            finding = f"{total} on the rank with the most, of which {rows[0]['tag']} {bytes_label(large_tags(run)[rows[0]['tag']])}; predicted and measured alike."
            drawings.append(of_one_run(ctx, run, rows, finding))
    return drawings
