"""Options of policy gradients: all fields of `grpo` and its variants, without the code that they set."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from marl.core.config import Config, Sampling, field_errors
from marl.core.plugins import PluginField
from marl.protocols import LossConfig
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import ANCHOR_LOGIT_TABLES, anchor_memory
from marl.trainers.optim.settings import FidelityCheck, GradientLearnerConfig, KlAnchor
from marl.trainers.policy_gradient.loss_settings import LOSS_OPTIONS, PpoClipLoss

DEFAULT_BOUNDS = {
    "tis": (0.0, 2.0),
    "mis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "geometric": (0.5, 5.0),
    "reject": (0.0, inf),
}
"""Default bounds of the ratio by kind of mismatch weights: verl's for `tis` and `mis`, Ring-1T's for `icepop`,
OpenRLHF's for `geometric`; `reject` has none."""


class MismatchCorrection(Config):
    """Weights of tokens, from the ratio π_old / μ: the learner's probability before the update over the sampler's."""

    example = "kind: tis, high: 2.0"
    kind: Literal["tis", "mis", "icepop", "geometric", "reject"]
    """`tis` (Yao et al. 2025) clamps the ratio to bounds; `mis` (Liu et al. 2025) sets the ratio to 0 outside them;
    `icepop` (Ring-1T, 2510.18855) is `mis` token by token; `geometric` takes the token's ratio in rows whose geometric
    mean is within bounds, else 0; `reject` weighs tokens with a divergence out of bounds by 0, and the others by 1."""
    level: Literal["token", "sequence", "geometric"] | None = None
    """Ratio of `tis` and `mis`: the token's (default), the row's product, or its geometric mean."""
    low: NonNegativeFloat | None = None
    """Least ratio within bounds. None: the kind's default."""
    high: PositiveFloat | None = None
    """Greatest ratio within bounds; of `reject`, the greatest divergence (nats; with k1, the greatest ratio). None: the
    kind's default."""
    divergence: Literal["k1", "k2", "k3"] | None = None
    """Measure of `reject` (default k3): k1 is the ratio (verl: its inverse); k2, k3 estimate KL(μ ‖ π_old)."""
    span: Literal["token", "sum", "mean", "max"] | None = None
    """Tokens over which `reject` measures: the token (default), or its row's sum, mean or maximum."""
    denominator: Literal["all", "kept"] = "all"
    """Tokens that the loss is divided by: all (as AReaL), or tokens of a weight above 0 (as verl). With `kept` the
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
        """The bounds `low` and `high`, with the kind's defaults where they are None."""
        low, high = DEFAULT_BOUNDS[self.kind]
        return low if self.low is None else self.low, high if self.high is None else self.high


class EntropyControl(Config):
    """Steers the coefficient of the entropy bonus from update to update (Skywork-OR1, 2505.22312; TRL)."""

    example = "target: 0.3"
    target: PositiveFloat
    """Entropy (nats a token). The bonus is added while the last measured entropy was at or under the target."""
    step: PositiveFloat = 0.005
    """Change of the coefficient at each update: up while the entropy is at or under the target, else down."""
    low: NonNegativeFloat = 0.0
    """Least coefficient."""
    high: PositiveFloat = 1.0
    """Greatest coefficient."""


class ImplicitRewardModel(Config):
    """Process reward model trained on outcomes: a second copy of the initial policy, beside a frozen copy."""

    beta: PositiveFloat = 0.05
    """Factor of log-ratios to the frozen copy; the products are the rewards."""
    lr: PositiveFloat | None = None
    """Learning rate of the reward model, at the height of the schedule, which is the policy's. None: the policy's
    (PRIME's script: twice that)."""
    threshold: float = 0.5
    """Least reward of an agent in an episode at which its turns count as correct."""


class PolicyGradientOptions(GradientLearnerConfig):
    """Base of all learners by policy gradient: the loss, its penalties, and the log-probabilities in the ratio."""

    loss: Annotated[LossConfig, PluginField("losses", LossConfig)] = PpoClipLoss()
    """Loss of the policy's tokens (`marl list losses`). Losses of a token: `ppo_clip`, and without lost gradients
    `cispo` and `sapo`; of a row: `gspo` (or `gspo_token`, for advantages that differ within a row), `rloo`, `gmpo`;
    without a ratio: `reinforce`, `awr`. A loss given here replaces a preset's loss with all its options."""
    unit: Literal["turn", "episode"] = "turn"
    """Tokens that form one sequence: a turn's, or all turns of an agent in an episode (verl: the trajectory, masked).
    Ratios of rows, `seq_mean` aggregations, `mismatch` and `opsm` are of sequences, and minibatches do not split them.
    An episode's turns are computed at once, so they take memory together."""
    filter_cut: bool = False
    """Leave completions cut off at the length limit out of the loss and its denominators (DAPO, 2503.14476)."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus (nats, over the whole vocabulary), aggregated like the loss."""
    entropy_control: EntropyControl | None = None
    """Steers the coefficient of the entropy bonus, from `entropy` on. None: it is constant."""
    old: Literal["sampler", "read"] = "sampler"
    """Log-probabilities in the ratio's denominator: the sampler's, or the learner's own before the update."""
    mismatch: MismatchCorrection | None = None
    """Corrects for a sampler that computes other log-probabilities than the learner. With `old: read` weights come from
    the readings (decoupled PPO); with `old: sampler`, whose ratio already holds the mismatch, from the update's own
    pass: rejection, or the loss `reinforce`."""
    opsm: PositiveFloat | None = None
    """Threshold (nats) of off-policy sequence masking: rows of negative advantage with a greater mean of log μ - log π
    are left out of the policy's loss (2512.02556; 1e-4 in slime). None: no row is."""
    truncated: Literal["refuse", "recompute"] = "refuse"
    """Consequence of sampling with top-p or top-k: refuse it, or truncate the learner's own distribution likewise."""
    reference: KlAnchor | None = None
    """KL anchor that is usually frozen: the penalty of GRPO (2402.03300) and RLHF. Credit can read its
    log-probabilities."""
    magnet: KlAnchor | None = None
    """KL anchor that is usually frozen and annealed: that of magnetic mirror descent (2206.05825)."""
    proximal: KlAnchor | None = None
    """KL anchor that is usually refreshed: the policy a few updates ago, which keeps self-play from cycling."""
    fidelity: FidelityCheck | None = FidelityCheck()

    @property
    def anchors(self) -> dict[str, KlAnchor]:
        """The anchors that are set, by name."""
        named = {"reference": self.reference, "magnet": self.magnet, "proximal": self.proximal}
        return {name: anchor for name, anchor in named.items() if anchor is not None}

    @property
    def readable(self) -> frozenset[str]:
        """Fields of `Reading` that the learner can read; with a `reference`, its log-probabilities as well."""
        return super().readable | (frozenset({"reference"}) if self.reference else frozenset())

    @property
    def logit_tables(self) -> float:
        in_loss = [anchor for anchor in self.anchors.values() if anchor.is_in_loss and anchor.estimator == "exact"]
        return super().logit_tables + ANCHOR_LOGIT_TABLES * len(in_loss)

    # Runs before `Config`'s own check, which would call these options unknown fields without naming their new home.
    @model_validator(mode="before")
    @classmethod
    def _refuse_loss_options(cls, data: Any) -> Any:
        misplaced = data.keys() & (LOSS_OPTIONS - cls.model_fields.keys()) if isinstance(data, Mapping) else ()
        problems: dict[str, str] = {}
        for name in sorted(misplaced):
            loss = data.get("loss", cls.model_fields["loss"].default)
            kind = loss if isinstance(loss, str) else loss["kind"] if isinstance(loss, Mapping) else loss.kind
            problems[name] = f"{name} is an option of the loss: write loss: {{kind: {kind}, {name}: {data[name]}}}"
        if problems:
            raise field_errors(problems)
        return data

    @model_validator(mode="after")
    def _check_mismatch(self) -> Self:
        if self.mismatch is None or self.old == "read":
            return self
        if self.mismatch.kind != "reject" and self.loss.has_ratio:
            raise ValueError(
                f"mismatch.kind={self.mismatch.kind!r} would count the mismatch twice: with old='sampler' the ratio of "
                f"loss {self.loss.kind!r} holds it already; choose old='read', kind='reject' or loss 'reinforce'"
            )
        if self.mismatch.denominator == "kept":
            raise ValueError(
                "mismatch.denominator='kept' needs old='read': with old='sampler' it is known only when the loss is "
                "computed which tokens are kept"
            )
        return self

    @model_validator(mode="after")
    def _check_estimators(self) -> Self:
        sampled = {n: a.estimator for n, a in self.anchors.items() if a.estimator != "exact" and a.is_in_loss}
        if self.truncated == "recompute" and sampled:
            raise ValueError(
                f"truncated='recompute' needs estimator='exact': {sampled} would be biased, "
                "because the tokens were not drawn from the whole distribution"
            )
        return self

    def supports(self, sampling: Sampling) -> bool:
        """Return True if tokens sampled with `sampling` can be learned from; greedy tokens have no gradient."""
        return sampling.temperature > 0 and (not sampling.truncated or self.truncated == "recompute")

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from anchor_memory(size, {name: anchor.refresh is None for name, anchor in self.anchors.items()})
