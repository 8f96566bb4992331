"""Power laws: y = a·x^b by least squares of ln y on ln x.

Example: time 1, 4, 16 s at 1K, 2K, 4K tokens fits b = 2 exactly. A fit never mixes sources or batches: callers
pass a line of evidence.lines().
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PowerLaw:
    exponent: float
    prefactor: float
    r_squared: float
    count: int
    x_min: float
    x_max: float
    y_ratio: float  # largest y over smallest y
    y_rise: float  # largest y over the smallest one at the same or a smaller x: 1 where y only falls

    @property
    def x_span(self) -> float:
        return self.x_max / self.x_min


def fit_power_law(pairs: Iterable[tuple[float | None, float | None]]) -> PowerLaw | None:
    """None unless two different x > 0 with y > 0 remain."""
    data = [(float(x), float(y)) for x, y in pairs if x is not None and y is not None and x > 0 and y > 0]
    if len({x for x, _ in data}) < 2:
        return None
    log_x = [math.log(x) for x, _ in data]
    log_y = [math.log(y) for _, y in data]
    mean_x, mean_y = sum(log_x) / len(data), sum(log_y) / len(data)
    spread = sum((x - mean_x) ** 2 for x in log_x)
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in zip(log_x, log_y)) / spread
    intercept = mean_y - exponent * mean_x
    residual = sum((y - intercept - exponent * x) ** 2 for x, y in zip(log_x, log_y))
    total = sum((y - mean_y) ** 2 for y in log_y)
    ordered = sorted(data)
    lowest = itertools.accumulate((y for _, y in ordered), min)
    return PowerLaw(
        exponent=exponent,
        prefactor=math.exp(intercept),
        r_squared=1.0 if total == 0 else 1.0 - residual / total,
        count=len(data),
        x_min=min(x for x, _ in data),
        x_max=max(x for x, _ in data),
        y_ratio=max(y for _, y in data) / min(y for _, y in data),
        y_rise=max(y / low for (_, y), low in zip(ordered, lowest)),
    )
