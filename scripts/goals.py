#!/usr/bin/env python3
"""Prints the ratios of scripts/goals.sh beside their goals. Exit code 1 when one is missed."""
import json
import pathlib
import statistics
import sys

from report.reading import load_run


def points(folder):
    found = [p.raw for p in load_run(folder, 0).points]
    wrong = [p["id"] for p in found if p["status"] != "ok"]
    if wrong:
        sys.exit(f"error: points {', '.join(wrong)} of {folder} are not ok")
    return found


def pick(found, algorithm, ranks, seq_len, passes="forward"):
    for p in found:
        q = p["params"]
        if (q["algorithm"], q["ranks"], q["seq_len"], q.get("pass", "forward")) == (algorithm, ranks, seq_len, passes):
            return p
    sys.exit(f"error: no point {algorithm} P={ranks} N={seq_len} {passes}; delete the folder and run again")


def kernel_rows(path):
    """Shares of the peak reached right beside: their 90th percentile, of a backward pass their median."""
    result = json.loads(path.read_text())
    for b in result["benchmarks"]:
        name, backward = b["run_name"], b["run_name"].startswith("backward")
        if b["aggregate_name"] != "median":  # over the repetitions
            continue
        avx2 = "AVX2" in (name if "simd:" in name else result["context"]["simd_target"])
        goal = 0.80
        if "causal:1" in name:
            goal = 0.65
        elif (backward and avx2) or ("bf16" in name and "gemm" not in name):
            goal = 0.75
        elif name.startswith("attend") and "simd:" not in name:
            goal = 0.85
        yield name, b["interleaved_p50" if backward else "interleaved_p90"], ">=", goal


def simulator(folder):
    def usage(name):
        return json.loads((folder / f"{name}.usage.json").read_text())

    ring = points(folder / "simulate-ring")[0]["metrics"]
    if ring["simulated_ranks"] != 4096:
        sys.exit(f"error: {folder}/simulate-ring walks {ring['simulated_ranks']} ranks, not 4096")
    return [
        ("simulated ring, P = 4096: messages a second / 5 million", ring["messages_per_s"] / 5e6, ">=", 1),
        ("  seconds of one core, every rank walked twice", usage("simulate-ring")["cpu_s"], "<=", 10),
        ("  memory in MB", usage("simulate-ring")["max_rss_bytes"] / 1e6, "<=", 300),
        ("figure5-cluster: seconds of one core", usage("simulate-figure5")["cpu_s"], "<=", 60),
        ("crossover-cluster: seconds of one core", usage("simulate-crossover")["cpu_s"], "<=", 60),
        ("dilated, ring and usp on 131072 ranks: seconds of one core", usage("simulate-131072")["cpu_s"], "<=", 10),
    ]


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = list(kernel_rows(folder / "kernels.json"))
    exact, tokens, step = (points(folder / name) for name in ("exact", "tokens", "step"))
    checked = points(folder / "gradients")[0]["check"]["gradients"]
    gradient_error = max(checked[f"{x}_rel_l2_error"] for x in ("dq", "dk", "dv"))
    rounds = [points(folder / f"passes-{i}") for i in range(1, 6)]

    def median(algorithm, ranks, seq_len, found=exact, passes="forward"):
        return pick(found, algorithm, ranks, seq_len, passes)["timing"]["median_s"]

    def in_turn(above, below, group="timing", value="median_s"):
        """The median over the rounds of the ratio of two points of dilated attention, 1M, each (ranks, passes)."""
        pairs = [[pick(found, "dilated", p, 1 << 20, passes)[group][value] for p, passes in (above, below)] for found in rounds]
        return statistics.median(x / y for x, y in pairs)

    def over_attends(one):
        return max(t["end_s"] for t in one["timeline"]) / sum(t["end_s"] - t["begin_s"] for t in one["timeline"] if t["op"] == "attend")

    rows += [
        ("dilated forward / its attends, 1M", statistics.median(over_attends(pick(r, "dilated", 1, 1 << 20)) for r in rounds), "<=", 1.08),
        ("dilated 1M: one rank / two", in_turn((1, "forward"), (2, "forward")), ">=", 1.8),
        ("  forward and backward: one rank / two", in_turn((1, "forward_backward"), (2, "forward_backward")), ">=", 1.8),
        ("  on one rank: both passes / forward", in_turn((1, "forward_backward"), (1, "forward")), "<=", 3.7),
        ("  their FLOPs", in_turn((1, "forward_backward"), (1, "forward"), "work", "flops"), "==", 3.5),
        ("ring 64K on two ranks: L2 error of gradients, in 1e-6", 1e6 * gradient_error, "<=", 2),
        ("ring on one rank / local, 64K", median("ring", 1, 1 << 16) / median("local", 1, 1 << 16), "<=", 1.02),
        ("ring 64K: one rank / two, of ideal", median("local", 1, 1 << 16) / median("ring", 2, 1 << 16) / 2, ">=", 0.9),
        ("dilated, 1M tokens a batch: 1M / 8K", median("dilated", 2, 1 << 20, tokens) / median("dilated", 2, 1 << 13, tokens),
         "<=", 1.10),
    ]
    rows += [
        ("training step 64K: one rank / two", median("dilated", 1, 1 << 16, step, "step") / median("dilated", 2, 1 << 16, step, "step"),
         ">=", 1.7),
        ("  its ops and waits, of the step", min(p["metrics"]["op_time_share"] for p in step), ">=", 0.95),
    ]
    # A walk over virtual ranks: what it adds to its attends, and what a share says of the whole.
    walk = points(folder / "walk")[0]["metrics"]
    whole_ring, part = points(folder / "ring")[0], points(folder / "ring-share")[0]
    rows += [
        ("walk of 16M tokens: beside its attends", walk["walk_beside_attends_share"], "<=", 0.10),
        ("walk of 16M tokens: attends / bare kernel", walk["attend_share_of_kernel"], ">=", 0.95),
        ("a fifth of a ring, extrapolated / measured", 1 + abs(part["timing"]["median_s"] / whole_ring["timing"]["median_s"] - 1),
         "<=", 1.05),
    ]
    rows += simulator(folder)
    missed = 0
    print(f"# {'what':<58} value   goal")
    for what, value, sense, goal in rows:
        good = {">=": value >= goal, "<=": value <= goal, "==": value == goal}[sense]
        missed += not good
        print(f"{what:<60} {value:5.3f}   {sense} {goal:.2f}{'' if good else '   MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
