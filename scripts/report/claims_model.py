"""The claim about other parallelisms, from steps and layers of models that ranks of one sequence share.

Example: a step on one rank has a loss of 5.5441; on four ranks, two for each half of the sequence's tokens in two replicas, or
two for each half of the heads, it has the same to 1e-6, and both gradients pass their check: supported.
"""

from __future__ import annotations

from .evidence import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, Evidence, machine_text, ranks_text
from .model import Point
from .rows import Context
from .series import PARAMS, group_by
from .units import plural

LOSS_WITHIN = 1e-6  # as io/agreement.h has it
BF16_LOSS_WITHIN = 1e-2


def loss(p: Point) -> float | None:
    return p.num("metrics.output_product" if p.of_layer else "metrics.loss_nats")


def function_of(p: Point) -> tuple[object, ...]:
    params = p.get("params")
    shape = [f"{k}={v}" for k, v in sorted(params.items()) if k not in PARAMS["how"]] if isinstance(params, dict) else []
    return (p.run, *shape)


def orthogonal(ctx: Context, source: str) -> Evidence:
    if source == "simulated":
        return Evidence(source, NOT_TESTED, "a simulation computes times, no losses")
    models = [p for p in ctx.models if p.pattern == "dilated" and p.source == source]
    for p in models:
        if p.status == "check_failed":
            return Evidence(source, NOT_SUPPORTED, f"{p.text('id')} failed its check: {p.text('reason')}", judged=((p,),))
    able = [p for p in models if p.ok and loss(p) is not None]
    data, tensor, compared, worst = [], [], [], 0.0
    for group in group_by(able, function_of).values():
        alone = next((p for p in group if p.ranks == 1), None)
        if alone is None:
            continue
        first = loss(alone) or 0.0
        within = BF16_LOSS_WITHIN if alone.text("params.dtype") == "bf16" else LOSS_WITHIN
        for p in group:
            off = abs((loss(p) or 0.0) - first) / max(1.0, abs(first))
            if off > within:
                text = f"{p.text('id')}: its loss is {off:.2g} away from that of {alone.text('id')} on one rank."
                return Evidence(source, NOT_SUPPORTED, text, judged=((p,),))
            worst = max(worst, off)
        together = [p for p in group if p.group_ranks > 1]
        data += [p for p in together if p.replicas > 1]
        tensor += [p for p in together if p.head_groups > 1]
        compared += group
    if not data or not tensor:
        lacks = " and ".join(name for name, found in (("replicas", data), ("head groups", tensor)) if not found)
        return Evidence(source, NOT_TESTED, f"no layer or training step around dilated attention ran both on one rank and, with {lacks}, on ranks that share a sequence")
    text = (
        f"{plural(len(compared), 'checked point')} on {ranks_text(compared)} have the losses of one rank within {worst:.1g}: {len(data)} with replicas (data "
        f"parallelism), {len(tensor)} with split heads (model parallelism). No pipeline was run."
    )
    return Evidence(source, SUPPORTED, text, (f"ranks are {machine_text(ctx, compared)}; ranks that split heads split the feed-forward network too",), judged=(tuple(compared),))
