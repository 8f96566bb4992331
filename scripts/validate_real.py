#!/usr/bin/env python3
"""Real runs against the simulator's predictions of them, point by point.

  validate_real.py compare WHERE=MEASURED:SIMULATED ... -o real.json
      folders of `lnbench run` and `lnbench simulate` of one config; error = predicted / measured - 1
  validate_real.py page validation.json -o validation.md
      the page of the figures

scripts/validate_real.sh makes the folders. Standard library only.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

from report.strata import HEADS, domain_text, percentile, program_of, samples_text, stratum_rows

# All other parameters make two points the same one.
DIFFER = {"mode", "transport", "kernel", "threads", "cluster"}
SHOWN = ("algorithm", "seq_len", "ranks", "heads", "head_dim", "dtype", "causal")
GOALS = (0.05, 0.15)  # for the median error and the 95th percentile
HELD = 0.8  # share of points that a cluster's `error` is to hold


def points_of(folder):
    """The points of a result; those beside which something else ran, whose times decide nothing, as points that failed."""
    result = json.loads((pathlib.Path(folder) / "result.json").read_text())
    disturbed = result.get("summary", {}).get("disturbed") or {}
    return [p | {"status": "disturbed", "reason": disturbed[p["id"]]} if p.get("id") in disturbed else p for p in result["points"]]


def key_of(point):
    return json.dumps({k: v for k, v in point["params"].items() if k not in DIFFER}, sort_keys=True)


def compare(where, measured, simulated):
    predictions = {key_of(p): p for p in simulated}
    compared, left_out = [], []
    for point in measured:
        prediction = predictions.get(key_of(point))
        shown = {"where": where, **{k: point["params"][k] for k in SHOWN}, "pass": point["params"].get("pass", "forward")}
        if "recompute" in point["params"]:  # models', where it is not the usual one
            shown["recompute"] = point["params"]["recompute"]
        if point["status"] != "ok":
            left_out.append({**shown, "reason": f"{point['status']}: {point['reason']}"})
        elif prediction is None or prediction["status"] != "ok":
            left_out.append({**shown, "reason": "no prediction: " + (prediction or {}).get("reason", "not simulated")})
        else:
            seconds, predicted = point["timing"]["median_s"], prediction["timing"]["median_s"]
            compared.append({**shown, "samples": len(point["timing"]["samples_s"]), "measured_s": seconds, "ci_low_s": point["timing"]["ci_low_s"],
                             "ci_high_s": point["timing"]["ci_high_s"], "predicted_s": predicted,
                             "error": predicted / seconds - 1})
    return compared, left_out


def summary(points, left_out, setup, goals):
    errors = [abs(p["error"]) for p in points]
    return {"points": len(points), "median_rel_error": statistics.median(errors), "p95_rel_error": percentile(errors, 0.95),
            "max_rel_error": max(errors), "goal_median_rel_error": goals[0], "goal_p95_rel_error": goals[1],
            "reason": None, "setup": setup, "cases": points, "left_out": left_out}


def factor_of(point):
    """Factor between prediction and measurement, either way: the interval of a prediction holds those of at most 1 + `error`."""
    return max(point["predicted_s"] / point["measured_s"], point["measured_s"] / point["predicted_s"])


def error_of(points):
    """The smallest `error` of a cluster file, in whole percents, whose intervals hold the share HELD of the points."""
    return math.ceil(round(100 * (percentile(map(factor_of, points), HELD) - 1), 6)) / 100


def held_text(points, error):
    held = sum(factor_of(p) <= 1 + error for p in points)
    return f"{held} of {len(points)} points ({100 * held / len(points):.0f} %)"


def setup_of(folder):
    """Description of the measuring machine for the page; nothing that names it."""
    result = json.loads((pathlib.Path(folder) / "result.json").read_text())
    env = result["environment"]
    return {"date": result["run"]["started_utc"][:10], "revision": result["build"]["revision"], "cpu": env["cpu"]["model"],
            "usable_threads": env["cpu"]["usable_threads"], "mpi": env["mpi_version"], "load_average": env["load_average"]}


def run_compare(args):
    points, left_out, setup = [], [], None
    for case in args.cases:
        where, folders = case.split("=", 1)
        measured, simulated = folders.split(":")
        setup = setup or setup_of(measured)
        compared, out = compare(where, points_of(measured), points_of(simulated))
        points += compared
        left_out += out
    if not points:
        sys.exit("error: no measured point has a prediction: run and simulate the same config")
    real = summary(points, left_out, setup, args.goals)
    pathlib.Path(args.output).write_text(json.dumps(real, indent=1) + "\n")
    for p in points:
        print(f"{p['where']:<28}{program_of(p):<32}{p['ranks']:>2}{p['seq_len']:>8}{p['head_dim']:>5} {p['dtype']:<5}"
              f"{'causal' if p['causal'] else 'full':<7}{p['measured_s'] * 1e3:>10.3f}{p['predicted_s'] * 1e3:>10.3f} ms"
              f"{100 * p['error']:>+8.1f} %")
    print(f"# {len(points)} points: median error {100 * real['median_rel_error']:.1f} % (goal {100 * args.goals[0]:g}), "
          f"95th percentile {100 * real['p95_rel_error']:.1f} % (goal {100 * args.goals[1]:g}); {len(left_out)} left out")
    error = error_of(points)
    print(f'# "error" {error:g} in the cluster file: intervals hold {held_text(points, error)}')
    met = real["median_rel_error"] <= args.goals[0] and real["p95_rel_error"] <= args.goals[1]
    return 0 if met else 1


def percent(value):
    return "not compared" if value is None else f"{100 * value:.2g} %"


def page(validation):
    real, closed, simgrid = validation["real"], validation["closed_form"], validation["simgrid"]
    lines = ["# How right the simulator is", "", "Made from the validation's JSON by `scripts/validate_real.py page`; do not edit.", "",
             "| against | compared | error |", "|---|---|---|",
             f"| equations | {len(closed['cases'])} cases | {closed['max_rel_error']:.1e} at most |"]
    for kind in ("uncontended", "contended"):
        error = simgrid[f"{kind}_max_rel_error"]
        if error is not None:
            lines.append(f"| SimGrid, {kind} | {simgrid[f'{kind}_cases']} cases | {error:.1e} at most |")
    if real["points"] is None:
        return "\n".join([*lines, f"| real runs | none: {real['reason']} | |"]) + "\n"
    lines += [f"| real runs | {real['points']} points | {percent(real['median_rel_error'])} in the median, "
              f"{percent(real['p95_rel_error'])} at the 95th percentile |", ""]
    setup = real["setup"]
    lines += [f"Goal for real runs: {percent(real['goal_median_rel_error'])} in the median, {percent(real['goal_p95_rel_error'])} at the 95th percentile. "
              f"Measured on {setup['date']} at revision {setup['revision']}: {setup['cpu']}, {setup['usable_threads']} usable "
              f"threads, {setup['mpi']}, load average {setup['load_average'][0]:.2f} when it began.", ""]
    lines += [f"{domain_text(real['cases'])} {samples_text(real['cases'])}".strip(), "", "Signed: predicted / measured - 1, positive where the simulator is too slow.", ""]
    lines += ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(row) + " |" for row in stratum_rows(real["cases"])] + [""]
    lines += ["| where | algorithm | ranks | tokens | head_dim | dtype | causal | measured ms | predicted ms | error |",
              "|---|---|---|---|---|---|---|---|---|---|"]
    for c in real["cases"]:
        lines.append(f"| {c['where']} | {program_of(c)} | {c['ranks']} | {c['seq_len']} | {c['head_dim']} | {c['dtype']} | "
                     f"{'yes' if c['causal'] else 'no'} | {c['measured_s'] * 1e3:.3f} | {c['predicted_s'] * 1e3:.3f} | "
                     f"{100 * c['error']:+.1f} % |")
    for c in real["left_out"]:
        lines.append(f"\nLeft out: {c['where']}, {program_of(c)}, {c['ranks']} ranks, {c['seq_len']} tokens: {c['reason']}")
    return "\n".join(lines) + "\n"


def run_page(args):
    pathlib.Path(args.output).write_text(page(json.loads(pathlib.Path(args.validation).read_text())))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    c = commands.add_parser("compare")
    c.add_argument("cases", nargs="+", metavar="WHERE=MEASURED:SIMULATED")
    c.add_argument("--goals", nargs=2, type=float, default=GOALS, metavar=("MEDIAN", "P95"))
    c.add_argument("-o", "--output", required=True)
    c.set_defaults(run=run_compare)
    p = commands.add_parser("page")
    p.add_argument("validation")
    p.add_argument("-o", "--output", required=True)
    p.set_defaults(run=run_page)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
