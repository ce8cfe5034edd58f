"""Confidence intervals of proportions."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple


class Proportion(NamedTuple):
    """A proportion with its confidence interval."""

    value: float
    low: float
    high: float


def wilson(right: int, samples: int) -> Proportion:
    """Return the proportion of `right` among `samples` with Wilson's 95 % score interval (1927):

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    """
    z, p = NormalDist().inv_cdf(0.975), right / samples
    middle = p + z * z / (2 * samples)
    reach = z * math.sqrt(p * (1 - p) / samples + z * z / (4 * samples * samples))
    scale = 1 + z * z / samples
    return Proportion(p, max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale))
