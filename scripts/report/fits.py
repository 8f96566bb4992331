"""Power laws: y = a·x^b by least squares of ln y on ln x.

Example: time 1, 4, 16 s at 1K, 2K, 4K tokens fits b = 2 exactly; where each time is known to 1 % alone, b lies in
[1.99, 2.01]: ends of the intervals that tilt the line most, as in `summary.fits` (src/measure/statistics.h). A fit never
mixes sources or batches: callers pass a line of evidence.lines().
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class PowerLaw:
    exponent: float
    exponent_interval: Interval  # left open by the intervals of all y; None where one y has none
    r_squared: float
    count: int
    x_min: float
    x_max: float
    y_rise: float  # largest y over the smallest one at the same or a smaller x: 1 where y only falls
    rise_interval: Interval  # the largest rise's, by the intervals of all y

    @property
    def x_span(self) -> float:
        return self.x_max / self.x_min

    @property
    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """(exponent, rise) at the lower and at the upper ends of their intervals; twice the fit's own without intervals."""
        (flat, steep), (low, high) = self.exponent_interval or (self.exponent,) * 2, self.rise_interval or (self.y_rise,) * 2
        return (flat, low), (steep, high)


def fit_power_law(data: Iterable[Sequence[float | None]]) -> PowerLaw | None:
    """Fits (x, y), or (x, y, low, high) with the interval of y; None unless two different x > 0 with y > 0 remain."""
    known = sorted(d for d in data if d[0] is not None and d[1] is not None and d[0] > 0 and d[1] > 0)
    if len({x for x, *_ in known}) < 2:
        return None
    log_x = [math.log(x) for x, *_ in known]
    log_y = [math.log(y) for _, y, *_ in known]
    mean_x, mean_y = sum(log_x) / len(known), sum(log_y) / len(known)
    spread = sum((x - mean_x) ** 2 for x in log_x)
    weights = [(x - mean_x) / spread for x in log_x]
    exponent = sum(w * (y - mean_y) for w, y in zip(weights, log_y))
    intercept = mean_y - exponent * mean_x
    residual = sum((y - intercept - exponent * x) ** 2 for x, y in zip(log_x, log_y))
    total = sum((y - mean_y) ** 2 for y in log_y)
    interval = steepest(weights, [d[2:] for d in known])
    return PowerLaw(
        exponent=exponent,
        exponent_interval=interval,
        r_squared=1.0 if total == 0 else 1.0 - residual / total,
        count=len(known),
        x_min=known[0][0],
        x_max=known[-1][0],
        y_rise=largest_rise(known, 1, 1),
        rise_interval=(largest_rise(known, 2, 3), largest_rise(known, 3, 2)) if interval else None,
    )


def largest_rise(known: Sequence[Sequence[float]], above: int, below: int) -> float:
    """The largest column `above` of a point over column `below` of an earlier one; 1 where all fall."""
    return max(1.0, *(after[above] / before[below] for before, after in itertools.combinations(known, 2)))


def steepest(weights: Sequence[float], intervals: Sequence[Sequence[float]]) -> Interval:
    """The least and the largest sum of weight times ln y that the intervals allow."""
    if not all(intervals):
        return None
    tilts = [sorted(w * math.log(end) for end in ends) for w, ends in zip(weights, intervals)]
    return sum(low for low, _ in tilts), sum(high for _, high in tilts)
