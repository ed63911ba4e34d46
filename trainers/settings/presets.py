"""Published variants of one learner: the same code, other defaults. What belongs to credit or experience is said so."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from trainers.settings.anchors import Anchor
from trainers.settings.grpo import Grpo, Loss
from trainers.settings.optimisation import Aggregation


class Reinforce(Grpo):
    """REINFORCE (Williams 1992): -A log π, no ratio. With the baseline `greedy` it is ReMax (2310.10505)."""

    kind: str = "reinforce"
    loss: Loss = "reinforce"
    aggregation: Aggregation = "seq_mean_token_sum"


class DrGrpo(Grpo):
    """Dr. GRPO (2503.20783): divides by the constant `norm`, the greatest length. Baseline: `group`, without scale."""

    kind: str = "dr_grpo"
    aggregation: Aggregation = "seq_mean_token_sum_norm"


class Dapo(Grpo):
    """DAPO (2503.14476): clip-higher, mean over tokens, cut completions filtered. Experience: `dynamic`."""

    kind: str = "dapo"
    clip_low: PositiveFloat | None = 0.2
    clip_high: PositiveFloat | None = 0.28
    filter_cut: bool = True


class Gspo(Grpo):
    """GSPO (2507.18071): the ratio of a whole row, to the power of one over its length; 4 minibatches."""

    kind: str = "gspo"
    loss: Loss = "gspo"
    aggregation: Aggregation = "seq_mean_token_mean"
    minibatches: PositiveInt = 4


class Cispo(Grpo):
    """CISPO (MiniMax-M1, 2506.13585): clips the weight of a token, never its gradient."""

    kind: str = "cispo"
    loss: Loss = "cispo"
    ratio_low: NonNegativeFloat | None = 0.0
    ratio_high: PositiveFloat | None = 5.0


class Sapo(Grpo):
    """SAPO (2511.20347): a sigmoid gate in place of the clip."""

    kind: str = "sapo"
    loss: Loss = "sapo"
    aggregation: Aggregation = "seq_mean_token_mean"


class Gmpo(Grpo):
    """GMPO (2507.20673): the geometric mean of a row's clipped ratios."""

    kind: str = "gmpo"
    loss: Loss = "gmpo"
    aggregation: Aggregation = "seq_mean_token_mean"


class Rloo(Grpo):
    """RLOO (2402.14740): a row's product of ratios, as in TRL. Baseline: `leave_one_out`; KL in the reward."""

    kind: str = "rloo"
    loss: Loss = "sequence"
    aggregation: Aggregation = "seq_mean_token_mean"


class ReinforcePlusPlus(Grpo):
    """REINFORCE++ (2501.03262): PPO's clip, no critic. Credit: KL in the reward (k1), whitened over tokens."""

    kind: str = "reinforce_pp"
    reference: Anchor | None = Anchor(coefficient=0)


class ReinforcePlusPlusBaseline(Grpo):
    """REINFORCE++ with a group baseline (2501.03262): KL in the loss (k2). Credit: the group's mean, then whitened."""

    kind: str = "reinforce_pp_baseline"
    reference: Anchor | None = Anchor(coefficient=1e-3, estimator="k2")
