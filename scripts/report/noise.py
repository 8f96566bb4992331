"""Whether the machine was busy with something else, during a run or a point, and what its times then decide: nothing.

Example: other programs used 40 % of the usable hardware threads just before the run began; of older results, a load
average of 1.9 on 2 of them. Whatever its times seem to say of a claim, the status is "not decided: machine was busy".
The rule is that of `lnbench env` (src/io/environment.cpp). A single point is disturbed when its own record says so: two
measurements of the same work differ.
"""

from __future__ import annotations

from collections.abc import Callable

from .evidence import NOT_TESTED, Evidence
from .model import Point, Run
from .rows import Context
from .series import group_by
from .units import number, percent_label, plural, ratio_label, significant

BUSY_SHARE = 0.15  # of the usable hardware threads, just before the run
BUSY_LOAD = 0.25  # of the usable hardware threads, over the minute before the run
DISTURBED = 1.25  # between two measurements of the same step, minutes apart at most
SAMPLES_APART = 1.5  # slowest ÷ fastest sample; 1.4 at most on a quiet machine (results/reference)
SAME_WORK = 1.10  # one rank's pairs as a single attend, between algorithms
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
    """Not empty where a CPU played the GPUs, as in tests."""
    devices = run.get("environment.devices")
    played = isinstance(devices, list) and any(str(d).startswith("emulated") for d in devices)
    return "the GPUs were emulated by a CPU" if played else ""


def repeated(point: Point) -> float | None:
    """The full step as the ablations took it ÷ as the samples did, or the reverse: at least 1."""
    again, median = point.num("ablations.full_s"), point.median_s
    return max(again / median, median / again) if again and median else None


def samples_apart(point: Point) -> float | None:
    return max(point.samples) / min(point.samples) if len(point.samples) > 1 else None


def same_work(point: Point) -> tuple[object, ...] | None:
    """What `single_attend_s` depends on: the busiest rank's pairs and how they are computed, not the algorithm."""
    ranks = point.get("per_rank")
    pairs = [number(r.get("pairs")) or 0 for r in ranks if isinstance(r, dict)] if isinstance(ranks, list) else []
    if not any(pairs) or not point.num("ablations.single_attend_s"):
        return None
    shape = ("mode", "transport", "kernel", "threads", "dtype", "heads", "kv_heads", "head_dim", "causal")
    return (point.run, point.source, point.ranks, point.seq_len, point.batch, max(pairs), *(point.text(f"params.{k}") for k in shape))


def beyond_the_fastest(points: list[Point]) -> dict[Key, float]:
    """`single_attend_s` ÷ the least of those that did the same work."""
    found: dict[Key, float] = {}
    for work, alike in group_by(points, same_work).items():
        seconds = [p.num("ablations.single_attend_s") or 0 for p in alike] if work[0] else []
        found |= {key_of(p): s / min(seconds) for p, s in zip(alike, seconds)}
    return found


def key_of(point: Point) -> Key:
    return (point.run, point.text("id"), point.source)


def disturbed(points: list[Point]) -> list[tuple[str, dict[Key, float]]]:
    """Points whose own record says that something else ran beside them: how it shows, and by what ratio. The banner
    names them, and no claim about time is decided from them."""
    timed = [p for p in points if p.ok and p.time_decides and p.source != MODELLED]
    kinds = (
        ("with other times when ablations repeated the full step", {key_of(p): repeated(p) for p in timed}, DISTURBED),
        (f"with samples more than {SAMPLES_APART:g} times apart", {key_of(p): samples_apart(p) for p in timed}, SAMPLES_APART),
        ("with more than 10 % longer times than others for the same single attend", beyond_the_fastest(timed), SAME_WORK),
    )
    return [(what, {k: r for k, r in ratios.items() if r and r > limit}) for what, ratios, limit in kinds]


def disturbances(run: Run) -> list[str]:
    """What a reader must know before looking at a time of this run."""
    notes = []
    if emulated(run):
        notes.append("The GPUs of this run are emulated: its times are those of the CPU that plays them, and decide no claim.")
    if (reason := busy(run)) and any(p.source != MODELLED for p in run.points):
        notes.append(f"The machine was busy when this run began: {reason}. Times are drawn, but decide no claim.")
    for what, ratios in disturbed(run.points):
        if ratios:
            worst = max(ratios, key=lambda k: ratios[k])
            notes.append(
                f"{plural(len(ratios), 'point')} {what}, {worst[1]} by {ratio_label(ratios[worst])}: something disturbed the "
                "machine. Such points are drawn, but decide no claim about time; measure them again."
            )
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
        noise = {i: text for i, run in enumerate(ctx.runs) if (text := emulated(run) or busy(run))}
        hit = {key for _, ratios in disturbed(ctx.points) for key in ratios}
        kept = [p for p in ctx.points if p.run not in noise and key_of(p) not in hit]
        all_seen = test(ctx, source)
        if source == MODELLED or len(kept) == len(ctx.points):
            return all_seen
        few = sum(1 for p in ctx.points if p.source == source and p.run not in noise and key_of(p) in hit)
        reasons = "; ".join([*dict.fromkeys(noise.values())] + ([f"{plural(few, 'point')} disturbed"] if few else []))
        if all_seen.status == NOT_TESTED:  # what is missing is missing, noise or not
            warned = f"{all_seen.text} Some of these times are of a busy machine ({reasons})." if all_seen.details else all_seen.text
            return Evidence(source, NOT_TESTED, warned, all_seen.details)
        seen = test(Context(kept, ctx.runs, ctx.index), source)
        if seen.status != NOT_TESTED:
            without = f" Without {plural(few, 'point')} that something disturbed." if few else ""
            return Evidence(source, seen.status, seen.text + without, seen.details)
        text = f"not decided: machine was busy ({reasons}). Seen all the same: {all_seen.text}"
        return Evidence(source, NOT_TESTED, text, all_seen.details)

    return quiet
