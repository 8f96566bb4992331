"""Whether the machine was busy with something else, during a run or a point, and what its times then decide: nothing.

Example: other programs used 40 % of the usable hardware threads just before the run began; of older results, a load
average of 1.9 on 2 of them. Whatever the times of points seem to say beside which nobody looked, the status of a claim is
"not decided: machine was busy". The rule is that of `lnbench env` (src/io/environment.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .evidence import NOT_TESTED, SEEN, Evidence, series_name
from .model import Point, Run
from .rows import Context, few_named
from .units import number, percent_label, plural, significant

BUSY_SHARE = 0.15  # share of the usable hardware threads, just before the run
BUSY_LOAD = 0.25  # share of the usable hardware threads, over the minute before the run
MODELLED = "simulated"  # its times come from no clock
Key = tuple[int, str, str]  # run, id, source of a point


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
    """Not empty where a CPU emulated the GPUs, as in tests."""
    devices = run.get("environment.devices")
    by_cpu = isinstance(devices, list) and any(str(d).startswith("emulated") for d in devices)
    return "the GPUs were emulated by a CPU" if by_cpu else ""


def never_looked(run: Run) -> str:
    """Why no point of the run is known to be undisturbed: lnbench looks for disturbed points as a run ends."""
    if run.interrupted:
        return "the run was interrupted before it looked for disturbed points"
    return "" if isinstance(run.get("summary.disturbed"), dict) else "the run was recorded before lnbench looked for disturbed points"


def undecided(run: Run) -> str:
    """Why none of the run's times decides, whatever was sampled beside them."""
    return emulated(run) or never_looked(run)


def watched(point: Point) -> bool:
    """True when the load of other programs was sampled beside its samples, which then take half a second or more."""
    return point.num("metrics.busy_share") is not None


def key_of(point: Point) -> Key:
    return (point.run, point.text("id"), point.source)


def disturbed(run: Run, points: list[Point]) -> dict[Key, str]:
    """Points whose own records say that something else ran beside them, and how it shows: as lnbench found when the run ended
    (src/io/disturbed.cpp). The banner names them, and no claim about time is decided from them."""
    found = run.get("summary.disturbed")
    reasons = found if isinstance(found, dict) else {}
    return {key_of(p): str(reasons[p.text("id")]) for p in points if p.time_decides and p.text("id") in reasons}


def why_undecided(ctx: Context, point: Point) -> str:
    """Why the time of a point decides no claim; empty where it may."""
    run = ctx.runs[point.run]
    if point.shares_cores:
        threads = int(point.ranks * (point.num("params.threads") or 1))
        return f"{plural(threads, 'thread')} of its ranks shared {plural(int(point.num('metrics.usable_cores') or 0), 'core')}"
    if point.shares_gpu:
        return "its ranks shared GPUs"
    if point.throttled:
        return "a GPU had slowed its clocks down"
    if point.source == MODELLED:
        return ""
    if reason := busy(run):
        reason = "" if watched(point) else f"the machine was busy ({reason})"
    return undecided(run) or reason or disturbed(run, [point]).get(key_of(point), "")


def disturbances(run: Run) -> list[str]:
    """Warnings that a reader needs before looking at a time of this run."""
    notes = []
    if emulated(run):
        notes.append("The GPUs of this run are emulated: its times are those of the CPU that emulates them, and decide no claim.")
    if (reason := never_looked(run)) and any(p.source != MODELLED for p in run.points):
        notes.append(f"Whether something disturbed points of this run is not known ({reason}): its times decide no claim.")
    if (reason := busy(run)) and any(p.source != MODELLED for p in run.points):
        notes.append(f"The machine was busy when this run began: {reason}. Times without a load check beside their samples decide no claim.")
    if found := disturbed(run, run.points):
        ids: dict[str, list[str]] = {}
        for key, why in list(found.items())[:3]:
            ids.setdefault(why, []).append(key[1])
        few = "; ".join(f"{', '.join(some)}: {why}" for why, some in ids.items()) + ("; …" if len(found) > 3 else "")
        notes.append(f"Something disturbed {plural(len(found), 'point')} ({few}): drawn, but deciding no claim about time. Measure again.")
    for points, what in (
        ([p for p in run.points if p.ok and p.shares_gpu], "ran on fewer GPUs than ranks"),
        ([p for p in run.points if p.ok and p.throttled], "ran while a GPU had slowed its clocks down"),
    ):
        if points:
            few = ", ".join(p.text("id") for p in points[:3]) + (", …" if len(points) > 3 else "")
            notes.append(f"{plural(len(points), 'point')} {what} ({few}): drawn, but deciding no claim about time.")
    return notes


def quiet_only(test: Callable[[Context, str], Evidence]) -> Callable[[Context, str], Evidence]:
    """The same test of a claim about times, without the runs of busy machines and the points that were disturbed."""

    def quiet(ctx: Context, source: str) -> Evidence:
        noise = {i: text for i, run in enumerate(ctx.runs) if (text := undecided(run) or busy(run))}
        noisy = {key_of(p) for p in ctx.points if p.source == source and p.run in noise and (undecided(ctx.runs[p.run]) or not watched(p))}
        hit = {key for i, run in enumerate(ctx.runs) for key in disturbed(run, [p for p in ctx.points if p.run == i])}
        kept = [p for p in ctx.points if key_of(p) not in noisy | hit]
        all_seen = test(ctx, source)
        if source == MODELLED or len(kept) == len(ctx.points):
            return all_seen
        own = {key_of(p) for p in all_seen.points}  # points of the lines that the claim is about
        noisy &= own
        gone = [p for p in ctx.points if key_of(p) in (hit & own) - noisy]
        reasons = "; ".join([*dict.fromkeys(noise[key[0]] for key in sorted(noisy))] + ([f"{plural(len(gone), 'point')} disturbed"] if gone else []))
        loud = gone or any(not undecided(ctx.runs[key[0]]) for key in noisy)
        seen = test(Context(kept, ctx.runs, ctx.index), source)
        if not (gone or noisy):
            return seen
        if all_seen.status == NOT_TESTED:  # missing points are missing, noise or not
            warned = f"{all_seen.text} Some of these times {'are of a busy machine' if loud else 'decide nothing'} ({reasons})." if all_seen.details else all_seen.text
            return Evidence(source, NOT_TESTED, warned, all_seen.details)
        if seen.status == all_seen.status or seen.status not in (NOT_TESTED, SEEN):
            still = [set(map(key_of, line)) for line in seen.judged]
            lost = [line for line in all_seen.judged if not any(keys <= set(map(key_of, line)) for keys in still)]
            without = without_text(ctx, gone, lost)
            return replace(seen, text=seen.text + without)
        text = f"not decided: {f'machine was busy ({reasons})' if loud else reasons}. These times alone would say: {all_seen.text}"
        return Evidence(source, NOT_TESTED, text, all_seen.details)

    return quiet


def without_text(ctx: Context, gone: list[Point], lost: list[tuple[Point, ...]]) -> str:
    """ " Without 1 point that something disturbed (ring at 4K on 2 ranks), and so without the line of ring on 2 ranks." """
    if not gone:
        return ""
    names = dict.fromkeys(f"{series_name(ctx, line[0])} on {ctx.index.rank_label(line[0].ranks)}" for line in lost)
    lines = f", and so without the {'line' if len(names) == 1 else 'lines'} of {' and '.join(names)}" if names else ""
    return f" Without {plural(len(gone), 'point')} that something disturbed ({few_named(ctx, sorted(gone, key=lambda p: p.algorithm))}){lines}."
