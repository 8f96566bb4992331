"""SYNTHETIC lines of points for the tests of the claims, and the claim that is judged of them."""

from __future__ import annotations

import math

from .claims import judge
from .evidence import Claim
from .synthetic_fixture import K, context, point


def claim(records: list[dict], words: str, disturbed: dict[str, str] | None = None, interrupted: bool = False, **environment: object) -> Claim:
    ctx = context(records)
    ctx.runs[0].interrupted = interrupted
    ctx.runs[0].record["summary"] = {"disturbed": disturbed or {}}
    ctx.runs[0].record["environment"] = environment
    return next(c for c in judge(ctx) if words in c.title)


def busy_machine(load: float, usable: int = 8, threads: int = 16, mpi: str | None = None) -> dict[str, object]:
    cpu = {"threads": threads, "usable_threads": usable}
    return {"cpu": cpu, "load_average": [load, 0, 0], "mpi_version": mpi}


def slim(records: list[dict]) -> list[dict]:
    """The same points with memory in proportion to the tokens on a rank."""
    for record in records:
        record["memory"]["measured_peak_bytes"] = 16 * 768 * record["params"]["seq_len"] // record["params"]["ranks"]
    return records


def slower(record: dict, by: float) -> None:
    """Its samples take so many times as long."""
    for key in ("median_s", "ci_low_s", "ci_high_s"):
        record["timing"][key] *= by


def scattered(records: list[dict], by: float) -> list[dict]:
    """The same medians, each known to a factor of 1 + `by` either way alone."""
    for timing in (r["timing"] for r in records):
        timing |= {"ci_low_s": timing["median_s"] / (1 + by), "ci_high_s": timing["median_s"] * (1 + by)}
    return records


def floor_line(algorithm: str) -> list[dict]:
    """Quadratic once it is past a millisecond of latency."""
    return [point(algorithm, n * K, 4, time_s=1e-3 * (1 + (n / 64) ** 2)) for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)]


def equal_work(records: list[dict]) -> list[dict]:
    """The same points with rates sqrt(w / 2048): every branch does the work of the first."""
    for record in records:
        for branch in record["params"]["branches"]:
            branch["dilation_rate"] = max(1, math.isqrt(branch["segment_length"] // 2048))
    return records


def line_of(algorithm: str, exponent: float, **options: object) -> list[dict]:
    """Time of a sequence ~ N^(1 + exponent), exactly."""
    lengths = (8, 16, 32, 64, 128)
    records = [point(algorithm, n * K, 2, time_s=1e-6 * n * K * n**exponent, **options) for n in lengths]
    return equal_work(records) if algorithm == "dilated" else records


def paper_line() -> list[dict]:
    return [point("dilated", n * K, 2) for n in (8, 16, 32, 64)]
