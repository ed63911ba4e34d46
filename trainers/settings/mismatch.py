"""What is done about a sampler whose probabilities are not the learner's."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from marl.config import Config

BOUNDS = {"tis": (0.0, 2.0), "mis": (0.0, 2.0), "icepop": (0.5, 5.0), "geometric": (0.5, 5.0), "reject": (0.0, None)}
"""Kind -> bounds where none are given: verl's for `tis` and `mis`, Ring-1T's, OpenRLHF's; none for rejection."""


class Mismatch(Config):
    """Weights of tokens, from the ratio π_old / μ: the learner's probability before the update over the sampler's."""

    kind: Literal["tis", "mis", "icepop", "geometric", "reject"]
    """`tis` (Yao et al. 2025) brings the ratio within bounds; `mis` (Liu et al. 2025) makes it 0 outside; `icepop`
    (Ring-1T, 2510.18855) does so token by token; `geometric` takes the token's ratio in rows whose geometric mean is
    within bounds, else 0; `reject` weighs by 1 what a divergence leaves, and by 0 the rest."""
    level: Literal["token", "sequence", "geometric"] | None = None
    """Which ratio, for `tis` and `mis`: the token's (default), the row's product, or its geometric mean."""
    low: NonNegativeFloat | None = None
    high: PositiveFloat | None = None
    divergence: Literal["k1", "k2", "k3"] | None = None
    """What `reject` measures (default k3): k1 is the ratio (verl: its inverse); k2, k3 estimate KL(μ ‖ π_old)."""
    span: Literal["token", "sum", "mean", "max"] | None = None
    """What `reject` measures it of: the token (default), or its row's sum, mean or maximum."""
    denominator: Literal["all", "kept"] = "all"
    """Tokens that the loss is divided by: all (as AReaL), or those of a weight above 0 (as verl), in which case the
    others have no part in KL penalties and entropy bonus either."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        used = {"tis": {"level"}, "mis": {"level"}, "reject": {"divergence", "span"}}.get(self.kind, set())
        for name in ("level", "divergence", "span"):
            if (value := getattr(self, name)) is not None and name not in used:
                raise ValueError(f"{name}={value!r} has no effect with kind={self.kind!r}; remove it")
        if self.kind == "reject" and self.high is None:
            raise ValueError("kind='reject' needs `high`, the greatest divergence (nats; with k1, the greatest ratio)")
        if self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"low must be below high, got low={self.bounds[0]} and high={self.bounds[1]}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Those given, or the kind's own."""
        low, high = BOUNDS[self.kind]
        given = (low if self.low is None else self.low, high if self.high is None else self.high)
        assert given[1] is not None, "checked when the settings were made"
        return given[0], given[1]

    @property
    def weighs(self) -> bool:
        """Whether weights are ratios; else they are 0 and 1."""
        return self.kind != "reject"
