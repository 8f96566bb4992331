"""The words and tables of a report of training runs: the answer, how two runs differ, the steps with a held-out loss."""

from __future__ import annotations

import statistics

from .markup import escape, scroll_table, section, table_row
from .rows import Context, spread
from .rows_training import whose
from .training import Training
from .units import MISSING, duration_label, plural, significant, spoken_duration, token_label

MAX_ROWS = 60
METHOD = (
    "Bits per byte are the cross-entropy of the next byte, divided by ln 2. Those of a batch are taken before its update; held-out "
    "text is never trained on: whole files of it, or its end where they are few.",
    "A step’s time is rank 0’s, from its batch to updated weights; evaluations and checkpoints are outside of it. Which bytes a step "
    "sees follows from model.seed and its number alone: the same on any number of ranks.",
    "Each step holds the bytes that each rank sent, and its memory tag by tag, against what its program says; a difference ends the run.",
    "Seconds by kind of op are those of rank 0; messages count where they are waited for.",
)


def answer_of(ctx: Context, run: Training) -> str:
    """HTML: what the run reached."""
    last, point = run.steps[-1], run.point
    held = run.held_out
    bits = held.held_out if held else last.values.get("bits_per_byte")
    why = "held-out text was not evaluated yet" if run.get("run.training.held_out_bytes") else "nothing was held out"
    where = "on held-out text" if held else f"in its last batch ({why})"
    after = "" if held in (None, last) else f" (after step {held.number:,})"
    return (
        f"After {plural(last.number, 'step')} and {spoken_duration(run.seconds)} of training on {ctx.index.rank_label(point.ranks)} "
        f"{escape(run.model_text)} with {escape(point.algorithm)} attention over {token_label(point.seq_len)} bytes reaches "
        f"<strong>{significant(bits, 4) if bits is not None else MISSING} bits per byte</strong> {where}{after}. "
        f"Its speed is <strong>{significant(run.tokens_per_s, 3)} tokens/s</strong> (measured)."
    )


def difference(ctx: Context) -> list[str]:
    """HTML: how far apart the losses of two runs are at the steps that both made, and their speeds."""
    if len(ctx.trainings) != 2:
        return []
    first, second = ctx.trainings
    other = {s.number: s.values.get("bits_per_byte") for s in second.steps}
    gaps = [
        (abs(mine - its), s.number)
        for s in first.steps
        if (mine := s.values.get("bits_per_byte")) is not None and (its := other.get(s.number)) is not None
    ]
    speed = f"Run 2 makes {significant(second.tokens_per_s / first.tokens_per_s)} times the tokens per second of run 1."
    if not gaps:
        return [f"The runs have no step in common. {speed}"]
    gap, step = max(gaps)
    text = f"Over {plural(len(gaps), 'common step')} the batches’ losses are at most <strong>{gap:.2g} bits per byte</strong> apart (step {step:,}). {speed}"
    return [text]


def training_answer(ctx: Context, figure: str) -> str:
    said = [escape(whose(ctx, run)) + answer_of(ctx, run) for run in ctx.trainings[:3]] + difference(ctx)
    text = "".join(f"<p>{sentence[0].upper()}{sentence[1:]}</p>" for sentence in said)
    return f'<section id="answer"><div class="said">{text}</div>{figure}</section>'


def steps_table(ctx: Context, run: Training) -> str:
    """The steps after which held-out text was evaluated, the first and the last one."""
    evaluated = [place for place, step in enumerate(run.steps) if step.held_out is not None]
    shown = sorted({0, len(run.steps) - 1, *spread(evaluated, MAX_ROWS)})
    rows: list[str] = []
    before = 0
    for place in shown:
        since = run.steps[before if place else 0 : place + 1]
        before = place + 1
        step = run.steps[place]
        norm, rate = (step.values.get(key) for key in ("gradient_norm", "learning_rate"))
        known = [s.values["bits_per_byte"] for s in since if "bits_per_byte" in s.values]
        seconds = statistics.fmean(s.seconds for s in since)
        cells = (
            f"{step.number:,}",
            spoken_duration(step.end_s),
            significant(statistics.fmean(known), 5) if known else MISSING,
            significant(step.held_out, 5) if step.held_out is not None else MISSING,
            significant(norm) if norm is not None else MISSING,
            significant(rate) if rate is not None else MISSING,
            duration_label(seconds),
            significant(run.tokens_per_step / seconds),
        )
        rows.append(table_row(cells))
    heads = ("step", "training time", "bits per byte of batches", "held out", "gradient norm", "learning rate", "time of a step", "tokens/s")
    return scroll_table(f"steps of {run.name}, {ctx.index.label(run.point)}: losses of batches and times are means since the row before", heads, rows)


def training_table(ctx: Context) -> str:
    return section("table", "Steps", "".join(steps_table(ctx, run) for run in ctx.trainings))


def training_method() -> str:
    return section("method", "Method", "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in METHOD) + "</ul>")
