"""Rows of the figure that draws predictions of the simulator against published measurements."""

from __future__ import annotations

from .rows import Context, Drawing, Row
from .units import duration_label


def published(ctx: Context) -> list[Drawing]:
    """One mark a case: published seconds across, predicted over published up."""
    found = (ctx.validation or {}).get("published")
    cases = [c for c in found["cases"] if (c["predicted_s"] or 0) > 0] if found else []
    rows: list[Row] = [
        {
            "label": case["id"],
            "source": "simulated",
            "origin": case["source"],
            "algorithm": case["family"],
            "size": case["size"],
            "seconds": case["published_s"],
            "value": case["predicted_s"] / case["published_s"],
            "published_text": duration_label(case["published_s"], 4),
            "predicted_text": duration_label(case["predicted_s"], 4),
            "error_text": f"{100 * (case['predicted_s'] / case['published_s'] - 1):+.1f} %",
            "kernel_table": "beyond" if case.get("beyond_kernel_table") else "within",
            "held_out": "blind" if case.get("blind") else "held out" if case.get("held_out") else "informs the model",
        }
        for case in cases
    ]
    if not rows:
        return []
    groups = {g["name"]: g for g in found["groups"]}
    said = [
        f"{name}: {g['cases']} cases, median error {100 * g['median_rel_error']:.2g} %, "
        f"95th percentile {100 * g['p95_rel_error']:.2g} %."
        for name, g in groups.items()
        if name.startswith(("attention", "messages")) and "tokens" not in name
    ]
    order = f"{found['pairs_in_order']} of {found['pairs']} pairs of algorithms are in the right order."
    return [Drawing(rows, [], finding=" ".join([*said, order]))]
