"""Rows of the figures that draw predictions of the simulator against published measurements."""

from __future__ import annotations

from typing import Any

from .rows import Context, Drawing, Row
from .units import duration_label, percent_label

Case = dict[str, Any]
KINDS = ("attention", "training steps", "messages")


def is_predicted(case: Case) -> bool:
    known = all(case[key] is not None for key in ("error", "inside"))
    return known and all((case[key] or 0) > 0 for key in ("predicted_s", "low_s", "high_s"))


def predicted_cases(validation: dict[str, Any] | None) -> list[Case]:
    found = (validation or {}).get("published")
    return list(filter(is_predicted, found["cases"])) if found else []


def kind_of(case: Case) -> str:
    return "messages" if "tokens" not in case["size"] else "training steps" if case["family"].startswith("steps, ") else "attention"


def interval_of(case: Case) -> str:
    return f"{duration_label(case['low_s'], 4)} … {duration_label(case['high_s'], 4)}"


def marks_of(case: Case) -> str:
    """As the table of `lnbench validate --published` has them."""
    marks = ((case["blind"], "blind"), (case["beyond_kernel_table"], "beyond the kernel table"), (not case["inside"], "outside its interval"))
    return ", ".join(name for there, name in marks if there)


def inside_text(cases: list[Case]) -> str:
    """ "Inside their interval lie 71 of 82 development cases (87 %), 34 of 59 blind cases (58 %)."."""
    said = []
    for blind, name in ((False, "development"), (True, "blind")):
        inside = [c["inside"] for c in cases if c["blind"] == blind]
        if inside:
            said.append(f"{sum(inside)} of {len(inside)} {name} cases ({percent_label(round(sum(inside) / len(inside), 2))})")
    return f"Inside their interval lie {', '.join(said) or 'none'}."


def row_of(case: Case) -> Row:
    published = case["published_s"]
    return {
        "label": case["id"],
        "source": "simulated",
        "origin": case["source"],
        "algorithm": case["family"],
        "size": case["size"],
        "found": "blind" if case["blind"] else "development",
        "seconds": published,
        "value": case["predicted_s"] / published,
        "low": case["low_s"] / published,
        "high": case["high_s"] / published,
        "published_text": f"{duration_label(published, 4)} ± {percent_label(case['tolerance'])}",
        "predicted_text": duration_label(case["predicted_s"], 4),
        "interval": interval_of(case),
        "error_text": f"{100 * case['error']:+.1f} %",
        "marks": marks_of(case) or ("held out" if case["held_out"] else "its source informs the model"),
    }


def published(ctx: Context) -> list[Drawing]:
    """One mark a case: published seconds across, predicted over published up, with the interval of the prediction."""
    cases = predicted_cases(ctx.validation)
    found = ctx.validation["published"] if cases and ctx.validation else {"groups": []}
    drawings = []
    for kind in KINDS:
        some = [c for c in cases if kind_of(c) == kind]
        said = [
            f"{g['name'][0].upper()}{g['name'][1:]}: {g['cases']} cases, median error {100 * g['median_rel_error']:.2g} %, 95th percentile {100 * g['p95_rel_error']:.2g} %."
            for g in found["groups"]
            if f"{g['name']}, ".startswith(f"{kind}, ") and g["name"] != "messages" and "held out" not in g["name"]
        ]
        if kind == "attention" and found.get("pairs"):
            said.append(f"{found['pairs_in_order']} of {found['pairs']} pairs of algorithms are in the right order.")
        if some:
            drawings.append(Drawing([row_of(c) for c in some], [], suffix=kind.replace(" ", "_"), title=kind, finding=" ".join([*said, inside_text(some)])))
    return drawings
