"""SYNTHETIC result directories for tests. No number here was measured on any machine.

The invented model: dilated attention costs 1 µs per token ÷ ranks, an exact algorithm 1 µs · N/8192 per
token ÷ ranks, jitter from a fixed seed; bytes follow the closed forms of a ring.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .model import Point, Run
from .reading import with_mode_and_pattern
from .rows import Context
from .series import SeriesIndex

K, M, B = 1 << 10, 1 << 20, 1 << 30
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def branches_of(seq_len: int, ranks: int) -> list[dict[str, int]]:
    widths = sorted({min(2048, seq_len), seq_len // ranks, seq_len})
    return [{"segment_length": w, "dilation_rate": max(1, w // 2048)} for w in widths]


def sparse_branches(seq_len: int) -> list[dict[str, int]]:
    """The Sparse Transformer's fixed pattern: segments of √N, 8 summary tokens of each."""
    width = max(8, math.isqrt(seq_len))
    whole = {"segment_length": width, "dilation_rate": 1}
    return [whole, whole | {"summary_tokens": 8}]


def params_of(algorithm: str, seq_len: int, ranks: int, batch: int) -> dict[str, Any]:
    dense = [{"segment_length": seq_len, "dilation_rate": 1}]
    return {
        "algorithm": algorithm,
        "transport": "mpi",
        "kernel": "cpu",
        "seq_len": seq_len,
        "ranks": ranks,
        "batch": batch,
        "heads": 12,
        "kv_heads": 12,
        "head_dim": 64,
        "dtype": "fp32",
        "causal": False,
        "layout": "contiguous",
        "collective": "native",
        "ulysses_degree": 0,
        "ring_inner": 0,
        "head_slice": 0,
        "node_size": 0,
        "gather_scope": "segment_group",
        "offset": "paper",
        "mix": "lse",
        "phase_parts": 1,
        "threads": max(1, 4 // ranks),
        "seed": 1,
        "pattern": algorithm if algorithm in ("dilated", "sparse") else "dense",
        "branches": {"dilated": branches_of(seq_len, ranks), "sparse": sparse_branches(seq_len)}.get(algorithm, dense),
    }


def timing_of(samples: list[float], median: float) -> dict[str, Any]:
    shortest, longest = (min(samples), max(samples)) if samples else (None, None)
    return {
        "samples_s": samples,
        "median_s": median,
        "ci_low_s": shortest,
        "ci_high_s": longest,
        "ci_level": 0.979 if samples else None,
        "p95_s": longest,
        "min_s": shortest,
        "warmup": 3,
        "reduction": "max",
    }


def work_of(params: dict[str, Any], median: float) -> dict[str, Any]:
    is_dilated, seq_len, batch = params["algorithm"] == "dilated", params["seq_len"], params["batch"]
    flops = 4 * 64 * 12 * batch * seq_len * (2048 if is_dilated else seq_len)
    return {
        "tokens": seq_len * batch,
        "flops": flops,
        "paper_macs": flops // 4,
        "flops_per_s": flops / median,
        "share_of_peak": min(flops / median / 1.3e13, 0.9),
        "coverage": [1.0 / b["dilation_rate"] for b in params["branches"]],
    }


def point(
    algorithm: str,
    seq_len: int,
    ranks: int,
    *,
    batch: int = 1,
    source: str = "measured",
    seed: int = 0,
    time_s: float | None = None,
) -> dict[str, Any]:
    """A point that ran and was right; a stated time_s is exact, without jitter."""
    name = f"{algorithm}/{seq_len}/{ranks}/{batch}/{source}"
    rng = random.Random(f"{name}/{seed}")
    growth = 1.0 if algorithm == "dilated" else seq_len / (8 * K)
    base = time_s if time_s is not None else 1e-6 * seq_len * batch * growth / ranks + 2e-4 * (ranks - 1)
    samples = (
        sorted(base * rng.lognormvariate(0.0, 0.03 if time_s is None else 0.0) for _ in range(10))
        if source == "measured"
        else []
    )
    median = (samples[4] + samples[5]) / 2 if samples else base
    gathered = min(seq_len, 2048) * 2 * 768 * 4 if algorithm == "dilated" else seq_len * 2 * 768 * 4
    sent = int(batch * gathered * (ranks - 1) // ranks)
    rng.shuffle(samples)
    params = params_of(algorithm, seq_len, ranks, batch)
    memory = 16 * 768 * seq_len * batch // ranks + sent
    return {
        "id": f"{random.Random(name).getrandbits(32):08x}",
        "source": source,
        "status": "ok",
        "reason": None,
        "params": params,
        "timing": timing_of(samples, median),
        "phases": {
            "compute_s": 0.8 * median,
            "communication_s": 0.15 * median if ranks > 1 else 0.0,
            "exposed_communication_s": 0.1 * median if ranks > 1 else 0.0,
            "merge_s": 0.04 * median,
        },
        "per_rank": [{"rank": r, "median_s": median} for r in range(min(ranks, 8))],
        "work": work_of(params, median),
        "comm": {
            "counted_bytes_per_rank": sent,
            "predicted_bytes_per_rank": sent,
            "counted_messages_per_rank": 2 * (ranks - 1),
            "predicted_messages_per_rank": 2 * (ranks - 1),
        },
        "memory": {
            "measured_peak_bytes": int(memory * 1.07) if source == "measured" else None,
            "predicted_peak_bytes": memory,
            "by_tag": {},
        },
        "check": {
            "status": "pass",
            "reference": "double",
            "max_rel_error": 3.1e-6,
            "rel_l2_error": 8.0e-7,
            "queries": 64,
            "tolerance": 1e-4,
        },
    }


def of_pass(record: dict[str, Any], name: str) -> dict[str, Any]:
    """The record's problem in another pass: a backward takes 2.5 times as long as its forward, for 2.5 times its FLOPs, and
    sends three times its bytes."""
    time, sent = {"backward": (2.5, 3), "forward_backward": (3.5, 4)}[name]
    other = json.loads(json.dumps(record))
    other["id"] = f"{name[:4]}{record['id'][4:]}{time}"
    other["params"]["pass"] = name
    other["timing"] |= {k: v * time for k, v in record["timing"].items() if k.endswith("_s") and isinstance(v, float)}
    other["timing"]["samples_s"] = [v * time for v in record["timing"].get("samples_s") or []]
    other["work"] |= {k: int(v * time) for k, v in record["work"].items() if k == "flops" and v}
    other["comm"] |= {k: v * sent for k, v in record["comm"].items() if k.endswith("bytes_per_rank") and v}
    other["comm"]["collectives_used"] = ["all_gather: native", "reduce_scatter: linear"]
    other["check"]["gradients"] = {"dq_rel_l2_error": 5e-7, "dk_rel_l2_error": 4e-7, "dv_rel_l2_error": 3e-7}
    return other


def passes_sweep(*names: str) -> list[dict[str, Any]]:
    """Two algorithms over 8K to 64K on 1, 2 and 4 ranks, in those passes."""
    records = [point(algorithm, n * K, ranks) for algorithm in ("dilated", "ring") for ranks in (1, 2, 4) for n in (8, 16, 32, 64)]
    return [record if name == "forward" else of_pass(record, name) for name in names for record in records]


def refused(
    algorithm: str, seq_len: int, ranks: int, status: str, reason: str, source: str = "measured"
) -> dict[str, Any]:
    whole = point(algorithm, seq_len, ranks, source=source)
    for block, kept in (
        ("timing", ("warmup", "reduction")),
        ("phases", ()),
        ("work", ("tokens", "flops", "paper_macs", "coverage")),
        ("comm", ()),
        ("memory", ("predicted_peak_bytes", "by_tag")),
    ):
        whole[block] = {key: value if key in kept else None for key, value in whole[block].items()}
    whole["timing"]["samples_s"], whole["per_rank"] = [], []
    whole["check"] |= {
        "status": "not_run",
        "reference": None,
        "max_rel_error": None,
        "rel_l2_error": None,
        "queries": 0,
    }
    return whole | {"status": status, "reason": reason}


def timeline(ranks: int, step_s: float) -> list[dict[str, Any]]:
    ops: list[dict[str, Any]] = []
    for rank in range(ranks):
        shift = 0.02 * rank * step_s
        for op, lane, begin, end in (
            ("pack", "compute", 0, 0.05),
            ("attend", "compute", 0.05, 0.62),
            ("all_gather", "communication", 0.06, 0.35),
            ("attend", "compute", 0.62, 0.88),
            ("merge", "compute", 0.88, 0.94),
        ):
            ops.append(
                {"rank": rank, "lane": lane, "op": op, "begin_s": begin * step_s + shift, "end_s": end * step_s + shift}
            )
    return ops


def full_sweep() -> list[dict[str, Any]]:
    """Dilated and ring over 8K … 1M on 1, 2, 4 ranks, with every kind of point that a report must show."""
    points: list[dict[str, Any]] = []
    for ranks in (1, 2, 4):
        for exponent in range(13, 21):
            seq_len = 1 << exponent
            points.append(point("dilated", seq_len, ranks))
            if seq_len <= 256 * K:
                points.append(point("ring", seq_len, ranks))
            else:
                points.append(refused("ring", seq_len, ranks, "skipped_excluded", "over ten minutes a point"))
    for seq_len in (64 * M, 256 * M, B):
        points.append(point("dilated", seq_len, 512, source="simulated"))
        points.append(point("ring", seq_len, 512, source="simulated"))
    points.append(point("dilated", 64 * M, 64, source="replayed"))
    points.append(point("dilated", 128 * M, 64, source="extrapolated"))
    points[0]["timeline"] = timeline(1, points[0]["timing"]["median_s"])
    last = next(p for p in points if p["params"]["ranks"] == 4 and p["params"]["seq_len"] == M)
    last["timeline"] = timeline(4, last["timing"]["median_s"])
    points.append(refused("all_gather", M, 4, "skipped_memory", f"needs 24 GiB per rank, 6 GiB allowed {HOSTILE}"))
    return points


def batch_sweep() -> list[dict[str, Any]]:
    """Constant tokens per batch: the paper's figure 5."""
    return [
        point(algorithm, 1 << e, ranks, batch=M >> e)
        for algorithm in ("dilated", "ring")
        for ranks in (1, 2)
        for e in range(13, 21)
    ]


OPPONENTS: tuple[dict[str, Any], ...] = (
    {"algorithm": "dilated"},
    {"algorithm": "sparse"},
    {"algorithm": "ring"},
    {"algorithm": "ring", "layout": "zigzag"},
    {"algorithm": "ring", "layout": "striped"},
    {"algorithm": "all_gather"},
    {"algorithm": "all_gather", "layout": "zigzag", "head_slice": 2},
    {"algorithm": "ulysses"},
    {"algorithm": "usp", "layout": "zigzag", "ulysses_degree": 2},
    {"algorithm": "double_ring", "layout": "zigzag", "ring_inner": 2},
    {"algorithm": "query_gather"},
)
CHOICES = {"all_gather": ("ring", "recursive_doubling", "bruck"), "ulysses": ("pairwise", "linear")}
BALANCE = {"zigzag": 0.999, "striped": 0.992}


def opponent(seq_len: int, ranks: int, *, causal: bool = True, **params: Any) -> dict[str, Any]:
    """A point of any algorithm with its balance, ablations, bytes and an error that grows with the ranks."""
    algorithm, layout = params["algorithm"], params.get("layout", "contiguous")
    rng = random.Random(f"{sorted(params.items())}/{seq_len}/{ranks}/{causal}")
    even = algorithm == "ulysses" or not causal
    balance = 1.0 if even else BALANCE.get(layout, ranks / (2 * ranks - 1))
    growth = {"dilated": 1.0, "sparse": (seq_len / (8 * K)) ** 0.5}.get(algorithm, seq_len / (8 * K))
    compute = 1e-6 * seq_len * growth / ranks / balance
    communication = (2e-8 * seq_len + 1e-4 * rng.uniform(1, 3)) * (ranks - 1) / ranks
    choice = 1.0 if params.get("collective", "native") == "native" else rng.uniform(0.9, 1.4)
    record = point(algorithm, seq_len, ranks, time_s=choice * (compute + 0.3 * communication + 1e-5))
    full = record["timing"]["median_s"]
    shard = 2 * seq_len // ranks * 768 * 4  # K and V of one rank
    sent = {"ulysses": 2 * shard * (ranks - 1) // ranks, "usp": shard * (ranks - 1) // 2 + shard}.get(
        algorithm, shard * (ranks - 1)
    )
    if algorithm not in ("dilated", "sparse"):
        record["comm"] |= {"counted_bytes_per_rank": sent, "predicted_bytes_per_rank": sent}
    record["params"] |= {"causal": causal} | params
    record["work"]["balance"] = balance
    record["ablations"] = {
        "full_s": full,
        "compute_only_s": compute,
        "communication_only_s": communication if ranks > 1 else None,
        "serialised_s": compute + communication,
        "single_attend_s": compute / (1 + 0.02 * ranks),
    }
    record["phases"] = {
        "compute_s": 0.9 * compute,
        "communication_s": communication if ranks > 1 else 0.0,
        "exposed_communication_s": full - compute,
        "merge_s": 0.05 * compute,
    }
    record["check"]["rel_l2_error"] = 2e-7 * (1 + 0.04 * (ranks - 1) * (algorithm not in ("ulysses", "all_gather")))
    record["id"] = f"{rng.getrandbits(32):08x}"
    return record


def opponents_sweep() -> list[dict[str, Any]]:
    """Every algorithm and layout over 8K … 64K on 1, 2, 4, 8 ranks under a causal mask, then collectives."""
    points = []
    for exponent in range(13, 17):
        points.append(opponent(1 << exponent, 1, algorithm="local"))
        for ranks in (1, 2, 4, 8):
            points += [opponent(1 << exponent, ranks, **params) for params in OPPONENTS]
    for ranks in (4, 8):
        for algorithm, choices in CHOICES.items():
            points += [opponent(64 * K, ranks, algorithm=algorithm, collective=c) for c in choices]
    return points


def crossover_sweep() -> list[dict[str, Any]]:
    """The size of the largest config: 3,000 simulated points over lengths, ranks, algorithms and clusters."""
    points = []
    for exponent in range(13, 27):
        for ranks in (8 << i for i in range(10)):
            for algorithm in ("dilated", "ring", "all_gather", "ulysses", "usp", "double_ring", "query_gather"):
                for cluster in ("fast", "slow", "slower"):
                    record = point(algorithm, 1 << exponent, ranks, source="simulated")
                    time_s = record["timing"]["median_s"] * random.Random(f"{algorithm}{cluster}{exponent}").uniform(0.5, 2)
                    record["timing"] |= {"median_s": time_s, "ci_low_s": 0.8 * time_s, "ci_high_s": 1.5 * time_s}
                    record["params"] |= {"cluster": cluster, "mode": "simulated", "kernel": "modelled"}
                    record["id"] = f"{random.Random(f'{algorithm}{exponent}{ranks}{cluster}').getrandbits(32):08x}"
                    points.append(record)
    return points


EXPONENTS = {"local": 2.0, "ring": 2.0, "sparse": 1.5, "dilated": 1.0}


def complexity_sweep(**exponents: float) -> list[dict[str, Any]]:
    """Time ~ N^b exactly, 4K … 64K on two ranks (local: one); a keyword sets another b for an algorithm."""
    points = []
    for algorithm, exponent in (EXPONENTS | exponents).items():
        for n in (4, 8, 16, 32, 64):
            points.append(point(algorithm, n * K, 1 if algorithm == "local" else 2, time_s=1e-3 * n**exponent))
    return points


def with_depth(record: dict[str, Any], layers: int | None, bound: float | None) -> dict[str, Any]:
    return record | {"metrics": {"dependency_depth_layers": layers, "dependency_depth_bound_layers": bound}}


def published() -> dict[str, Any]:
    """The part of a validation that `lnbench validate --published` adds."""
    rng = random.Random(1)
    cases = []
    for number, (family, origin) in enumerate((f, o) for f in ("ring", "ulysses", "all_gather") for o in ("Someone et al.", "an issue") for _ in range(6)):
        seconds, ratio = 10 ** rng.uniform(-4, 0), rng.lognormvariate(0, 0.1)
        of = {"id": f"case-{number}", "source": origin, "family": family, "size": "4K to 16K tokens a rank", "ranks": 8}
        times = {"published_s": seconds, "predicted_s": ratio * seconds, "low_s": 0.9 * ratio * seconds, "high_s": 1.1 * ratio * seconds}
        found = {"error": ratio - 1, "inside": 0.9 * ratio <= 1 <= 1.1 * ratio, "tolerance": 0.02, "reason": None}
        cases.append(of | times | found | {"held_out": number % 3 > 0, "blind": number % 2 > 0, "beyond_kernel_table": number % 5 == 0})
    group = {"name": "attention", "cases": len(cases), "median_rel_error": 0.08, "p95_rel_error": 0.2, "bias": 0.01, "inside": 30}
    return {"cases": cases, "groups": [group], "pairs": 9, "pairs_in_order": 8}


def comparison(points: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """As `lnbench report --compare` writes it, of two runs that differ in every way."""
    listed = [p for p in points if p["status"] == "ok"]
    verdicts = (("slower", 1.2), ("faster", 0.8), ("ambiguous", 1.1), ("undecided", 0.9), ("same", 1.0))
    compared: list[dict[str, Any]] = []
    for place, p in enumerate(listed):
        base, (verdict, ratio) = p["timing"]["median_s"], verdicts[place % 5]
        compared.append({"id": p["id"], "verdict": verdict, "base_s": base, "new_s": ratio * base, "ratio": ratio, "note": ""})
    compared[-1] |= {"verdict": "missing", "new_s": None, "ratio": None, "note": "no such point in the new result"}
    environment = [{"what": "cpu", "base": "Synthetic CPU", "now": f"Another {HOSTILE}"}]
    return {"threshold": 0.05, "summary": "REGRESSION", "environment": environment, "points": compared}


STATUSES = (
    "ok",
    "skipped_memory",
    "skipped_excluded",
    "skipped_unsupported",
    "oom",
    "timeout",
    "check_failed",
    "error",
)


def manifest(name: str) -> dict[str, Any]:
    """run.json: as the schema wants it."""
    cpu = {"model": "Synthetic CPU", "packages": 1, "cores": 4, "threads": 4, "usable_threads": 4, "numa_nodes": 1}
    return {
        "schema_version": 1,
        "run": {
            "name": name,
            "description": "SYNTHETIC fixture of the report's tests: no number was measured",
            "command": "lnbench run configs/synthetic.json --set sweep.ranks=1,2,4",
            "config_path": "configs/synthetic.json",
            "config": {"name": name, "memory": {"limit_fraction": 0.9, "on_exceed": "skip"}},
            "config_sha256": "ab" * 32,
            "transport": "mpi",
            "world_size": 4,
            "started_utc": "2026-01-02T03:04:05Z",
            "finished_utc": "2026-01-02T03:14:05Z",
        },
        "build": {
            "version": "0.0.0",
            "revision": "0000000synthetic",
            "compiler": "SYNTHETIC 0.0",
            "flags": "",
            "build_type": "Release",
            "sanitizer": None,
        },
        "environment": {
            "hostname": "synthetic-host",
            "captured_utc": "2026-01-02T03:04:05Z",
            "os": "Synthetic",
            "kernel": "0",
            "cpu": cpu | {"l1d_bytes": 1, "l2_bytes": 2, "l3_bytes": 3, "governor": None, "turbo": None},
            "memory": {"total_bytes": 32 * B, "limit_bytes": 24 * B},
            "load_average": [0.1, 0.1, 0.1],
            "mpi_version": None,
            "devices": [],
            "variables": {},
        },
        "ranks": [{"rank": 0, "hostname": "synthetic-host", "cores": 4, "device": None}],
    }


def result(points: Iterable[dict[str, Any]], name: str = "synthetic", verdict: str = "pass") -> dict[str, Any]:
    listed = list(points)
    counts = dict.fromkeys(STATUSES, 0)
    for p in listed:
        status = p.get("status", "error")
        counts[status] = counts.get(status, 0) + 1
    fit = {"series": "ring mpi cpu ranks=2", "source": "measured", "exponent": 2.0, "r_squared": 0.999}
    fits = [fit | {"points": 6, "seq_len_min": 8 * K, "seq_len_max": 256 * K}]
    summary = {"verdict": verdict, "planned": len(listed), "counts": counts, "fits": fits, "disturbed": {}}
    return manifest(name) | {"points": listed, "summary": summary}


def context(*records: list[dict[str, Any]]) -> Context:
    """The points of one run or of several as a report sees them, without a directory."""
    runs = []
    for number, some in enumerate(records):
        run = Run(Path("synthetic"), {"run": {"name": "synthetic"}, "summary": {"disturbed": {}}}, [])
        run.points = [Point(number, with_mode_and_pattern(record)) for record in some]
        runs.append(run)
    points = [p for run in runs for p in run.points]
    return Context(points, runs, SeriesIndex(points, runs))


def write_result(directory: Path, points: Iterable[dict[str, Any]], **options: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    listed = list(points)
    bare = [{k: v for k, v in p.items() if k != "timeline"} for p in listed]
    (directory / "result.json").write_text(json.dumps(result(bare, **options)), encoding="utf-8")
    lines = [json.dumps({"id": p.get("id"), "timeline": p["timeline"]}) + "\n" for p in listed if "timeline" in p]
    (directory / "timelines.jsonl").write_text("".join(lines), encoding="utf-8")
    return directory


def write_interrupted(directory: Path, points: Iterable[dict[str, Any]], torn: bool = True) -> Path:
    """run.json and points.jsonl without result.json; the last line is cut as by a power failure."""
    directory.mkdir(parents=True, exist_ok=True)
    record = manifest("synthetic")
    record["run"]["finished_utc"] = None
    (directory / "run.json").write_text(json.dumps(record), encoding="utf-8")
    text = "".join(json.dumps(p) + "\n" for p in points)
    (directory / "points.jsonl").write_text(text[:-40] if torn else text, encoding="utf-8")
    return directory
