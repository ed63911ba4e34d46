"""Settings of policy gradients: GRPO, published variants with other defaults, PPO with a critic, PRIME."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from marl.config import Config, Sampling
from marl.parts import Part
from marl.protocols import Learner, LearnerContext, LossConfig
from marl.protocols.memory import MemorySaver, MemoryUse, ModelSize, Workload
from trainers.settings.critics import CriticSettings
from trainers.settings.losses import LOSSES
from trainers.settings.memory import ANCHOR_TABLES, anchor_uses, second_model_uses
from trainers.settings.optimisation import Aggregation, Anchor, Fidelity, Optimisation

BOUNDS = {"tis": (0.0, 2.0), "mis": (0.0, 2.0), "icepop": (0.5, 5.0), "geometric": (0.5, 5.0), "reject": (0.0, inf)}
"""Kind of mismatch weights -> default bounds: verl's for `tis` and `mis`, Ring-1T's, OpenRLHF's; none for rejection."""
OPTIONS = tuple(dict.fromkeys(name for part in LOSSES.values() for name in part.model_fields if name != "kind"))
"""Options of the losses that a learner named by a word has as fields of its own."""
Loss = Annotated[str | LossConfig, Part("losses", LossConfig, words=tuple(LOSSES))]


class Mismatch(Config):
    """Weights of tokens, from the ratio π_old / μ: the learner's probability before the update over the sampler's."""

    example = "kind: tis, high: 2.0"
    kind: Literal["tis", "mis", "icepop", "geometric", "reject"]
    """`tis` (Yao et al. 2025) clamps the ratio to bounds; `mis` (Liu et al. 2025) makes it 0 outside; `icepop`
    (Ring-1T, 2510.18855) does so token by token; `geometric` takes the token's ratio in rows whose geometric mean is
    within bounds, else 0; `reject` weighs by 0 the tokens whose divergence is out of bounds, and by 1 the others."""
    level: Literal["token", "sequence", "geometric"] | None = None
    """Ratio of `tis` and `mis`: the token's (default), the row's product, or its geometric mean."""
    low: NonNegativeFloat | None = None
    """Least ratio within bounds. None: the kind's own."""
    high: PositiveFloat | None = None
    """Greatest ratio within bounds; of `reject`, the greatest divergence (nats; with k1, the greatest ratio). None: the
    kind's own."""
    divergence: Literal["k1", "k2", "k3"] | None = None
    """Measure of `reject` (default k3): k1 is the ratio (verl: its inverse); k2, k3 estimate KL(μ ‖ π_old)."""
    span: Literal["token", "sum", "mean", "max"] | None = None
    """Span that `reject` measures: the token (default), or its row's sum, mean or maximum."""
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
        """Return `low` and `high`, or the kind's own."""
        low, high = BOUNDS[self.kind]
        return low if self.low is None else self.low, high if self.high is None else self.high


class EntropyControl(Config):
    """Steers the coefficient of the entropy bonus from update to update (Skywork-OR1, 2505.22312; TRL)."""

    example = "target: 0.3"
    target: PositiveFloat
    """Entropy (nats a token). The bonus is given while the last one measured was at or under it."""
    step: PositiveFloat = 0.005
    """Change of the coefficient at each update: up while the entropy is at or under the target, else down."""
    low: NonNegativeFloat = 0.0
    """Least coefficient."""
    high: PositiveFloat = 1.0
    """Greatest coefficient."""


class Grpo(Optimisation):
    """Policy gradient on advantages that credit has already made relative, with KL anchors. Other kinds are presets."""

    kind: str = "grpo"
    loss: Loss = "clip"
    """Loss of the policy's tokens: a part (`marl list losses`), or a word, whose options are fields here. Words for
    losses of a token: PPO's `clip`; of a row: `gspo` (or `gspo_token`, for advantages that differ within a row),
    `sequence` (RLOO's unnormalised ratio), `gmpo`; without losing gradients: `cispo`, `sapo`; without a ratio:
    `reinforce`."""
    clip_low: PositiveFloat | None = None
    """Greatest distance of the ratio below 1: .2, for `gspo` 3e-4; of its log below 0 for `gmpo`: .4."""
    clip_high: PositiveFloat | None = None
    """Greatest distance of the ratio above 1: .2, for `gspo` 4e-4; of its log above 0 for `gmpo`: .4."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Greatest ratio of tokens with a negative advantage (verl: 3). None: there is none."""
    ratio_low: NonNegativeFloat | None = None
    """Least ratio of `cispo`, absolute: 0."""
    ratio_high: PositiveFloat | None = None
    """Greatest ratio of `cispo`, absolute: 5."""
    tau_positive: PositiveFloat | None = None
    """Temperature of `sapo` for advantages above 0: 1."""
    tau_negative: PositiveFloat | None = None
    """Temperature of `sapo` for other advantages: 1.05."""
    max_log_ratio: PositiveFloat | None = None
    """Log-ratios (nats) of tokens, or of rows where the ratio is a row's, are clamped to it, without gradient beyond:
    20 in verl and OpenRLHF, 10 in verl's GSPO. None: they are not."""
    unit: Literal["turn", "episode"] = "turn"
    """Tokens that are one sequence: a turn's, or those of all turns of an agent in an episode (verl: the trajectory,
    masked). Ratios of rows, `seq_mean` aggregations, `mismatch` and `opsm` are of sequences; minibatches do not part
    them. An episode's turns are computed at once, so they take memory together."""
    filter_cut: bool = False
    """Leave completions that were cut off for their length out of the loss and its denominators (DAPO, 2503.14476)."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus (nats, over the whole vocabulary), aggregated like the loss."""
    entropy_control: EntropyControl | None = None
    """Steers the coefficient of the entropy bonus, from `entropy` on. None: it is constant."""
    old: Literal["sampler", "read"] = "sampler"
    """Log-probabilities in the ratio's denominator: the sampler's, or the learner's own before the update."""
    mismatch: Mismatch | None = None
    """Corrects for the sampler's own numbers. With `old: read` weights come from the readings (decoupled PPO); with
    `old: sampler`, whose ratio holds the mismatch already, from the update's own pass: rejection, or `reinforce`."""
    opsm: PositiveFloat | None = None
    """Rows of negative advantage whose mean of log μ - log π (nats) is greater are left out of the policy's loss
    (off-policy sequence masking, 2512.02556; 1e-4 in slime). None: they are not."""
    truncated: Literal["refuse", "recompute"] = "refuse"
    """Consequence of sampling with top-p or top-k: refuse it, or truncate the learner's own distribution likewise."""
    reference: Anchor | None = None
    """KL anchor that is usually frozen: the penalty of GRPO (2402.03300) and RLHF. Credit can read its
    log-probabilities."""
    magnet: Anchor | None = None
    """KL anchor that is usually frozen and annealed: that of magnetic mirror descent (2206.05825)."""
    proximal: Anchor | None = None
    """KL anchor that is usually refreshed: the policy a few updates ago, which keeps self-play from cycling."""
    fidelity: Fidelity | None = Fidelity()

    @property
    def policy_loss(self) -> LossConfig:
        """Return the loss as a part: the one given, or the one named by a word, with the options beside it.

        Raises:
            ValueError: if an option has no effect.
        """
        options = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        if isinstance(self.loss, LossConfig):
            if options:
                raise ValueError(f"{options} has no effect beside a loss with a kind; make it an option of the loss")
            return self.loss
        part = LOSSES[self.loss]
        for name, value in options.items():
            if name not in part.model_fields:
                users = ", ".join(word for word, other in LOSSES.items() if name in other.model_fields)
                raise ValueError(f"{name}={value} has no effect with loss={self.loss!r}; it is an option of {users}")
        try:
            return part.model_validate(options)
        except ValidationError as error:  # each option is valid, but not all of them together
            problems = [each["msg"].removeprefix("Value error, ") for each in error.errors()]
            raise ValueError("; ".join(problems)) from error

    @property
    def anchors(self) -> dict[str, Anchor]:
        """Return the anchors that are set, by name."""
        named = {"reference": self.reference, "magnet": self.magnet, "proximal": self.proximal}
        return {name: anchor for name, anchor in named.items() if anchor is not None}

    @property
    def readable(self) -> frozenset[str]:
        """Return `reads`, and with a reference, its log-probabilities, too."""
        return super().readable | (frozenset({"reference"}) if self.reference else frozenset())

    @model_validator(mode="after")
    def _check_mismatch(self) -> Self:
        loss = self.policy_loss
        if self.mismatch is None or self.old == "read":
            return self
        if self.mismatch.kind != "reject" and loss.has_ratio:
            raise ValueError(
                f"mismatch.kind={self.mismatch.kind!r} would count the mismatch twice: with old='sampler' the ratio of "
                f"loss={self.loss!r} holds it already; choose old='read', kind='reject' or loss='reinforce'"
            )
        if self.mismatch.denominator == "kept":
            raise ValueError(
                "mismatch.denominator='kept' needs old='read': with old='sampler' it is known only when the loss is "
                "computed which tokens are kept"
            )
        return self

    @model_validator(mode="after")
    def _check_estimators(self) -> Self:
        sampled = {n: a.estimator for n, a in self.anchors.items() if a.estimator != "exact" and a.penalises}
        if self.truncated == "recompute" and sampled:
            raise ValueError(
                f"truncated='recompute' needs estimator='exact': {sampled} would be biased, "
                "because the tokens were not drawn from the whole distribution"
            )
        return self

    def supports(self, sampling: Sampling) -> bool:
        """Return whether tokens sampled like this can be learned from: greedy ones have no gradient."""
        return sampling.temperature > 0 and (not sampling.truncated or self.truncated == "recompute")

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from anchor_uses(size, {name: anchor.refresh is None for name, anchor in self.anchors.items()})

    @property
    def tables(self) -> float:
        exact = [name for name, anchor in self.anchors.items() if anchor.penalises and anchor.estimator == "exact"]
        return super().tables + ANCHOR_TABLES * len(exact)

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.policy_gradient import Surrogate

        model = context.source.model()
        return GradientLearner(self, context, model, Surrogate(self, model, context.steps))


class Reinforce(Grpo):
    """REINFORCE (Williams 1992): -A log π, no ratio. With the baseline `greedy` it is ReMax (2310.10505)."""

    kind: str = "reinforce"
    loss: Loss = "reinforce"
    aggregation: Aggregation = "seq_mean_token_sum"


class DrGrpo(Grpo):
    """Dr. GRPO (2503.20783): divides by the constant `norm`, the greatest length. Baseline: `group`, without scale."""

    kind: str = "dr_grpo"
    example = "lr: 1.0e-5, norm: 256"
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


class ReinforceSequence(Grpo):
    """RLOO (2402.14740): a row's product of ratios, as in TRL. Baseline: `rloo`; KL in the reward."""

    kind: str = "reinforce_sequence"
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


class Ppo(Grpo):
    """PPO (arXiv 1707.06347): the clipped policy gradient of `grpo`, and a critic whose values credit can read.

    Meant for `credit: {assign: {kind: gae}, baseline: {kind: whiten}}`, or for the baseline `value`.
    """

    kind: str = "ppo"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"values"}
    critic: CriticSettings = CriticSettings()
    """The model that estimates values, and how it learns."""

    @property
    def credit_needs(self) -> frozenset[str]:
        return frozenset({"values"})

    def missing(self) -> Iterable[str]:
        """Yield a message if the critic's folder of weights is not there."""
        yield from self.critic.missing()

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from self.critic.memory(self, size, work)

    def thrift(self) -> Iterator[MemorySaver]:
        yield from super().thrift()
        yield from self.critic.thrift()

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.actor_critic import ActorCritic
        from trainers.objectives.values import ValueLoss

        model = context.source.model()
        values = ValueLoss.of(self.critic, self, context, model)
        settings = self if values.critic.packs() else self.model_copy(update={"packing": "padded"})
        return GradientLearner(settings, context, model, ActorCritic(self, model, values, context.steps))


class Pspo(Ppo):
    """PSPO (PaperScout, arXiv 2601.10029): a turn is one action, with one ratio (GSPO's) and one value.

    Meant for `credit: {assign: {kind: gae, level: turn}, baseline: {kind: whiten, unit: sequence, guard: std}}`.
    """

    kind: str = "pspo"
    loss: Loss = "gspo"
    reference: Anchor | None = Anchor(coefficient=0.001, estimator="k3")


class ImplicitRewardModel(Config):
    """Process reward model that outcomes teach: a second copy of the initial policy, beside a frozen one."""

    beta: PositiveFloat = 0.05
    """Factor of log-ratios to the frozen copy, which makes them rewards."""
    lr: PositiveFloat | None = None
    """Learning rate of the reward model, at the height of the schedule, which is the policy's. None: the policy's
    (PRIME's script: twice that)."""
    threshold: float = 0.5
    """Reward of an agent in an episode from which its turns are correct."""


class Prime(Grpo):
    """PRIME (2502.01456): a policy gradient, and an implicit process reward model that learns from outcomes beside it.

    Each turn is a response: the model's rewards for its tokens add up to the log-odds that its episode was correct.
    They are read before the update in which the model learns from the same turns: PRIME's `update: after`. Meant for
    `credit: {assign: {kind: process, learner: true, combine: prime_paper}, baseline: none}`, and to leave out prompts
    that are too easy or too hard for `experience: {kind: dynamic}`.
    """

    kind: str = "prime"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"rewards"}
    prm: ImplicitRewardModel = ImplicitRewardModel()
    """The implicit process reward model, and how it learns."""

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from second_model_uses(self, size, work, "reward model's ")
        yield MemoryUse("reward model's reference", size.trained_bytes * size.trained)

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.prime import ImplicitRewards

        model = context.source.model()
        return GradientLearner(self, context, model, ImplicitRewards(self, model, context.steps))
