"""Published variants of `grpo` and `ppo`: the same learners with other defaults, one row each."""

from typing import Annotated, Any

from pydantic import create_model

from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.loss_settings import (
    CispoLoss,
    GmpoLoss,
    GspoLoss,
    PpoClipLoss,
    ReinforceLoss,
    RlooLoss,
    SapoLoss,
)
from marl.trainers.policy_gradient.settings import Grpo, Ppo


def define_preset_class(base: type[Grpo], name: str, kind: str, description: str, **defaults: Any) -> type[Grpo]:
    """Return a subclass `name` of the settings `base` with other default values; fields keep their types and texts.

    A class for each preset lets `marl describe` and the JSON schema show its own defaults.
    """
    fields: dict[str, Any] = {}
    for field, default in {"kind": kind, **defaults}.items():
        info = base.model_fields[field]
        annotation = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[field] = (annotation, default)
    return create_model(name, __base__=base, __doc__=description, __module__=__name__, **fields)


_ROW_MEANS = "seq_mean_token_mean"

Reinforce = define_preset_class(
    Grpo,
    "Reinforce",
    "reinforce",
    "REINFORCE (Williams 1992): -A log π, no ratio. With the baseline `greedy` it is ReMax (2310.10505).",
    loss=ReinforceLoss(),
    aggregation="seq_mean_token_sum",
)
DrGrpo = define_preset_class(
    Grpo,
    "DrGrpo",
    "dr_grpo",
    "Dr. GRPO (2503.20783): divides by the constant `norm`, the greatest length. Baseline: `group`, without scale.",
    aggregation="seq_mean_token_sum_norm",
)
DrGrpo.example = "lr: 1.0e-5, norm: 256"
Dapo = define_preset_class(
    Grpo,
    "Dapo",
    "dapo",
    "DAPO (2503.14476): clip-higher, mean over tokens, cut completions filtered. Experience: `dynamic`.",
    loss=PpoClipLoss(clip_low=0.2, clip_high=0.28),
    filter_cut=True,
)
Gspo = define_preset_class(
    Grpo,
    "Gspo",
    "gspo",
    "GSPO (2507.18071): the ratio of a whole row, to the power of one over its length; 4 minibatches.",
    loss=GspoLoss(),
    aggregation=_ROW_MEANS,
    minibatches=4,
)
Cispo = define_preset_class(
    Grpo,
    "Cispo",
    "cispo",
    "CISPO (MiniMax-M1, 2506.13585): clips the weight of a token, never its gradient.",
    loss=CispoLoss(),
)
Sapo = define_preset_class(
    Grpo,
    "Sapo",
    "sapo",
    "SAPO (2511.20347): a sigmoid gate in place of the clip.",
    loss=SapoLoss(),
    aggregation=_ROW_MEANS,
)
Gmpo = define_preset_class(
    Grpo,
    "Gmpo",
    "gmpo",
    "GMPO (2507.20673): the geometric mean of a row's clipped ratios.",
    loss=GmpoLoss(),
    aggregation=_ROW_MEANS,
)
Rloo = define_preset_class(
    Grpo,
    "Rloo",
    "rloo",
    "RLOO (2402.14740): a row's product of ratios, as in TRL. Baseline: `rloo`; KL in the reward.",
    loss=RlooLoss(),
    aggregation=_ROW_MEANS,
)
ReinforcePlusPlus = define_preset_class(
    Grpo,
    "ReinforcePlusPlus",
    "reinforce_plus_plus",
    "REINFORCE++ (2501.03262): PPO's clip, no critic. Credit: KL in the reward (k1), whitened over tokens.",
    reference=KlAnchor(coefficient=0),
)
ReinforcePlusPlusBaseline = define_preset_class(
    Grpo,
    "ReinforcePlusPlusBaseline",
    "reinforce_plus_plus_baseline",
    "REINFORCE++ with a group baseline (2501.03262): KL in the loss (k2). Credit: the group's mean, then whitened.",
    reference=KlAnchor(coefficient=1e-3, estimator="k2"),
)
Pspo = define_preset_class(
    Ppo,
    "Pspo",
    "pspo",
    """PSPO (PaperScout, arXiv 2601.10029): a turn is one action, with one ratio (GSPO's) and one value.

    Meant for `credit: {assign: {kind: gae, level: turn}, baseline: {kind: whiten, unit: sequence, guard: std}}`.
    """,
    loss=GspoLoss(),
    reference=KlAnchor(coefficient=0.001, estimator="k3"),
)
