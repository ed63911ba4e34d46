"""When a learner compares its own log-probabilities with the sampler's, and how far apart they may be."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from marl.config import Config


class Fidelity(Config):
    """Of tokens sampled with the newest weights: the learner's log-probabilities against the sampler's, in nats.

    Thresholds that are not given follow the precision of the learner's weights: `max` 1e-4 in float32; in bfloat16 and
    float16 `mean` .03 and `max` .3.
    """

    every: PositiveInt = 50
    """Updates between two comparisons; the first is before the first update."""
    max: PositiveFloat | None = None
    """Greatest difference of one token."""
    mean: PositiveFloat | None = None
    """Greatest mean of the differences' sizes."""
