"""Whether the machine of a run was busy with something else, and what its times then decide: nothing.

Example: other programs used 40 % of the usable hardware threads just before the run began; of older results, a load
average of 1.9 on 2 of them. Whatever its times seem to say of a claim, the status is "not tested: noisy machine". The
rule is that of `lnbench env` (src/io/environment.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

from .evidence import NOT_TESTED, Evidence
from .model import Point, Run
from .rows import Context
from .units import number, percent_label, plural, ratio_label, significant

BUSY_SHARE = 0.15  # of the usable hardware threads, just before the run
BUSY_LOAD = 0.25  # of the usable hardware threads, over the minute before the run
DISTURBED = 1.25  # between two measurements of the same step, minutes apart at most
MODELLED = "simulated"  # its times come from no clock


def busy(run: Run) -> str:
    """ "load average 1.9 on 2 usable hardware threads"; empty for a quiet machine, or an unknown one."""
    share = number(run.get("environment.busy_share"))
    if share is not None:
        return "" if share <= BUSY_SHARE else f"other programs used {percent_label(share)} of the usable hardware threads"
    loads = run.get("environment.load_average")
    load = number(loads[0]) if isinstance(loads, list) and loads else None
    key = "threads" if run.get("environment.mpi_version") else "usable_threads"  # under mpirun ranks are bound
    threads = number(run.get(f"environment.cpu.{key}")) or number(run.get("environment.cpu.threads"))
    if load is None or not threads or load <= BUSY_LOAD * threads:
        return ""
    return f"load average {significant(load)} on {plural(int(threads), 'usable hardware thread')}"


def emulated(run: Run) -> str:
    """Not empty where a CPU played the GPUs, as in tests."""
    devices = run.get("environment.devices")
    played = isinstance(devices, list) and any(str(d).startswith("emulated") for d in devices)
    return "the GPUs were emulated by a CPU" if played else ""


def disturbances(run: Run) -> list[str]:
    """What a reader must know before looking at a time of this run."""
    notes = []
    if emulated(run):
        notes.append("The GPUs of this run are emulated: its times are those of the CPU that plays them, and decide no claim.")
    if (reason := busy(run)) and any(p.source != MODELLED for p in run.points):
        notes.append(f"The machine was busy when this run began: {reason}. Times are drawn, but decide no claim.")
    ratios = {p.text("id"): max(r, 1 / r) for p in run.points if (r := repeated(p)) and not 1 / DISTURBED < r < DISTURBED}
    if ratios:
        worst = max(ratios, key=lambda i: ratios[i])
        notes.append(
            f"{plural(len(ratios), 'point')} took other times when their ablations repeated the full step, {worst} by "
            f"{ratio_label(ratios[worst])}: something disturbed the machine in between. Measure them again."
        )
    for points, what in (
        ([p for p in run.points if p.ok and p.shares_gpu], "ran on fewer GPUs than ranks"),
        ([p for p in run.points if p.ok and p.throttled], "ran while a GPU had slowed its clocks down"),
    ):
        if points:
            few = ", ".join(p.text("id") for p in points[:3]) + (", …" if len(points) > 3 else "")
            notes.append(f"{plural(len(points), 'point')} {what} ({few}): drawn, but deciding no claim about time.")
    return notes


def repeated(point: Point) -> float | None:
    """The full step as the ablations took it ÷ as the samples did."""
    again, median = point.num("ablations.full_s"), point.median_s
    return again / median if again and median and point.ok and point.source != MODELLED else None


def quiet_only(test: Callable[[Context, str], Evidence]) -> Callable[[Context, str], Evidence]:
    """The same test of a claim about times, without the runs of busy machines."""

    def quiet(ctx: Context, source: str) -> Evidence:
        noise = {i: text for i, run in enumerate(ctx.runs) if (text := emulated(run) or busy(run))}
        if source == MODELLED or not noise:
            return test(ctx, source)
        kept = [p for p in ctx.points if p.run not in noise]
        seen = test(Context(kept, ctx.runs, ctx.index), source)
        with_noise = test(ctx, source)
        if seen.status != NOT_TESTED:
            return seen
        if with_noise.status == NOT_TESTED:  # what is missing is missing, noise or not
            return with_noise
        reasons = "; ".join(dict.fromkeys(noise.values()))
        text = f"noisy machine: {reasons}, so its times decide nothing. Seen all the same: {with_noise.text}"
        return Evidence(source, NOT_TESTED, text, with_noise.details)

    return quiet
