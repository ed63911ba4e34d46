"""Settings of policy gradients: all fields of `grpo` and its variants; the code is not imported here."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from marl.core.config import Config, Sampling, field_errors
from marl.core.plugins import PluginField
from marl.protocols import LearnerSurroundings, LossConfig
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload
from marl.trainers.distillation.options import TaughtLearnerConfig
from marl.trainers.optim.memory_estimate import ANCHOR_LOGIT_TABLES, anchor_memory
from marl.trainers.optim.settings import FidelityCheck, KlAnchor
from marl.trainers.policy_gradient.loss_settings import LOSS_OPTIONS, AwrLoss, PpoClipLoss

DEFAULT_BOUNDS = {
    "tis": (0.0, 2.0),
    "mis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "geometric": (0.5, 5.0),
    "reject": (0.0, inf),
}
"""Kind of mismatch correction -> default bounds (low, high) of the ratio: those of verl for `tis` and `mis`, of Ring-1T
for `icepop`, of OpenRLHF for `geometric`; none for `reject`."""


class MismatchCorrection(Config):
    """Correction of a mismatch by token weights, from the ratio of the learner's to the sampler's probability."""

    example = "kind: tis, high: 2.0"
    kind: Literal["tis", "mis", "icepop", "geometric", "reject"]
    """Weight of a token. `tis` (Yao et al. 2025): the ratio clamped to the bounds. `mis` (Liu et al. 2025): the ratio,
    0 out of bounds. `icepop` (Ring-1T, 2510.18855): `mis` for single tokens. `geometric`: the ratio, 0 in rows with a
    geometric mean out of bounds. `reject`: 0 for tokens with a divergence out of bounds, else 1."""
    level: Literal["token", "sequence", "geometric"] | None = None
    """Ratio used by `tis` and `mis`: of the token (default), or the product or geometric mean over its row."""
    low: NonNegativeFloat | None = None
    """Lower bound of the ratio (default: by kind)."""
    high: PositiveFloat | None = None
    """Upper bound of the ratio (default: by kind). With `reject`: of the divergence, in nats, or of the ratio for
    k1."""
    divergence: Literal["k1", "k2", "k3"] | None = None
    """Divergence that `reject` bounds (default: k3). k1: π_old/μ (verl: μ/π_old). k2, k3: KL(μ ‖ π_old)."""
    span: Literal["token", "sum", "mean", "max"] | None = None
    """Divergence that `reject` compares: of the token (default), or the sum, mean or maximum over its row."""
    denominator: Literal["all", "kept"] = "all"
    """Tokens counted in the loss's denominator: `all` (AReaL), or `kept`, those of a weight above 0 (verl). With
    `kept`, KL penalties and entropy bonus also leave out tokens of weight 0."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        used = {"tis": {"level"}, "mis": {"level"}, "reject": {"divergence", "span"}}.get(self.kind, set())
        for name in ("level", "divergence", "span"):
            if (value := getattr(self, name)) is not None and name not in used:
                raise ValueError(f"{name}={value!r} has no effect with kind={self.kind!r}; remove it")
        if self.kind == "reject" and self.high is None:
            raise ValueError("kind='reject' needs `high`, the greatest divergence (nats; with k1, the greatest ratio)")
        low, high = self.bounds_or_defaults
        if low >= high:
            raise ValueError(f"low must be below high, got low={low} and high={high}")
        return self

    @property
    def bounds_or_defaults(self) -> tuple[float, float]:
        """(low, high): the fields `low` and `high`, or the default of `kind` for a field that is None."""
        low, high = DEFAULT_BOUNDS[self.kind]
        return low if self.low is None else self.low, high if self.high is None else self.high


class EntropyControl(Config):
    """Adaptive coefficient of the entropy bonus, changed at each update (Skywork-OR1, 2505.22312; TRL)."""

    example = "target: 0.3"
    target: PositiveFloat
    """Target entropy (nats a token). The bonus is added while the last measured entropy is at most the target."""
    step: PositiveFloat = 0.005
    """Change of the coefficient at each update: up while the entropy is at most the target, else down."""
    low: NonNegativeFloat = 0.0
    """Minimum coefficient."""
    high: PositiveFloat = 1.0
    """Maximum coefficient."""

    @model_validator(mode="after")
    def _check_bounds_ascending(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low: {self.low:g} is above high: {self.high:g}; choices: low up to high")
        return self


class ImplicitRewardModel(Config):
    """Implicit process reward model: a copy of the initial policy that is trained on episode outcomes."""

    beta: PositiveFloat = 0.05
    """Factor β of token rewards: β times the log-ratio of the reward model to a frozen copy of the initial policy."""
    lr: PositiveFloat | None = None
    """Learning rate of the reward model (default: the policy's; PRIME's script: twice that). It has the policy's
    warm-up and schedule."""
    threshold: float = 0.5
    """An agent's turns count as correct if its reward in the episode is at least this threshold."""


class PolicyGradientOptions(TaughtLearnerConfig):
    """Base settings of policy-gradient learners: loss, ratio, mismatch correction, KL anchors, entropy bonus."""

    loss: Annotated[LossConfig, PluginField("losses", LossConfig)] = PpoClipLoss()
    """Loss of the policy's tokens (`marl list losses`). With a ratio per token: `ppo_clip`, and `cispo` and `sapo`,
    which keep every token's gradient. With a ratio per row: `gspo`, `gspo_token`, `rloo`, `gmpo`. Without a ratio:
    `reinforce`, `awr`. A loss given here replaces a preset's loss with all its options."""
    unit: Literal["turn", "episode"] = "turn"
    """Tokens that count as one sequence in ratios per row, `seq_mean` aggregations, `mismatch` and `opsm`: those of one
    turn, or of all turns of an agent in an episode (verl: the masked trajectory). Minibatches do not split a sequence.
    The turns of an `episode` share a forward pass, which takes more memory."""
    filter_cut: bool = False
    """Drop completions that were cut off at the length limit from the loss and its denominators (DAPO, 2503.14476)."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus (nats, over the whole vocabulary), which is aggregated like the loss."""
    entropy_control: EntropyControl | None = None
    """Adaptation of the entropy bonus's coefficient, which starts at `entropy`. None: the coefficient is constant."""
    old: Literal["sampler", "read"] = "sampler"
    """Log-probabilities in the ratio's denominator: the sampler's, or the learner's, read before the update."""
    mismatch: MismatchCorrection | None = None
    """Correction for a sampler whose log-probabilities differ from the learner's. With `old: read`, weights come from
    the readings before the update (decoupled PPO). With `old: sampler`, the ratio contains the mismatch already, so
    only `reject` or a loss without ratio is allowed; weights come from the update's forward pass."""
    opsm: PositiveFloat | None = None
    """Threshold (nats) of off-policy sequence masking (2512.02556; slime: 1e-4): the policy's loss leaves out rows of
    negative advantage with a greater mean of log μ - log π. None: no masking."""
    stop_at_kl: PositiveFloat | None = None
    """KL (nats a token) from the policy before an update to the current one at which the update ends: the optimizer
    step that would follow and all later ones, also of later epochs, are left out (the k3 estimate on the step's tokens,
    as `target_kl` of Stable-Baselines3). With `old: sampler`, it is the KL from the sampler, which older weights or
    other arithmetic of the sampler add to (`kl_sampler`). None: an update takes all its steps."""
    truncated: Literal["refuse", "recompute"] = "refuse"
    """Treatment of top-p and top-k in sampling. `refuse`: an error. `recompute`: the learner's distribution is
    truncated in the same way."""
    reference: KlAnchor | None = None
    """KL anchor of GRPO (2402.03300) and RLHF, usually the frozen initial policy. Credit can read its
    log-probabilities. None: no such anchor."""
    magnet: KlAnchor | None = None
    """KL anchor of magnetic mirror descent (2206.05825), usually frozen, with an annealed coefficient."""
    proximal: KlAnchor | None = None
    """KL anchor that is usually refreshed: the policy of a few updates ago, which keeps self-play from cycling."""
    fidelity: FidelityCheck | None = FidelityCheck()

    @property
    def anchors(self) -> dict[str, KlAnchor]:
        """KL anchors that are set, by name."""
        named = {"reference": self.reference, "magnet": self.magnet, "proximal": self.proximal}
        return {name: anchor for name, anchor in named.items() if anchor is not None}

    @property
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        """Names of the terms of the loss that do not depend on advantages."""
        terms = {
            "loss": isinstance(self.loss, AwrLoss) and self.loss.weight == "exp",
            "entropy": bool(self.entropy),
            "entropy_control": self.entropy_control is not None,
            **{name: anchor.adds_kl_loss_term for name, anchor in self.anchors.items()},
        }
        return *super().learns_from_zero_advantages_by, *[name for name, is_used in terms.items() if is_used]

    @property
    def has_several_optimizer_steps(self) -> bool:
        """True if an update takes several optimizer steps, so that the policy moves within it (`kl_update`)."""
        return self.epochs * self.minibatches > 1

    @property
    def computable_reading_fields(self) -> frozenset[str]:
        """Fields of `Reading` that the learner can compute, with `reference` if that anchor is set."""
        return super().computable_reading_fields | (frozenset({"reference"}) if self.reference else frozenset())

    @property
    def logit_table_count(self) -> float:
        exact = [anchor for anchor in self.anchors.values() if anchor.adds_kl_loss_term and anchor.estimator == "exact"]
        return super().logit_table_count + ANCHOR_LOGIT_TABLES * len(exact)

    # This validator precedes the check of unknown fields, whose message would not point to `loss`.
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
    def _check_mismatch_and_estimators(self) -> Self:
        mismatch = self.mismatch if self.old == "sampler" else None
        if mismatch is not None and mismatch.kind != "reject" and self.loss.has_ratio:
            raise ValueError(
                f"mismatch.kind={mismatch.kind!r} would count the mismatch twice: with old='sampler' the ratio of "
                f"loss {self.loss.kind!r} holds it already; choose old='read', kind='reject' or loss 'reinforce'"
            )
        if mismatch is not None and mismatch.denominator == "kept":
            raise ValueError(
                "mismatch.denominator='kept' needs old='read': with old='sampler' it is known only when the loss is "
                "computed which tokens are kept"
            )
        if self.stop_at_kl is not None and not self.has_several_optimizer_steps:
            raise ValueError(
                f"stop_at_kl={self.stop_at_kl} has no effect with epochs=1 and minibatches=1: the first optimizer step "
                "is always taken; give more, or remove it"
            )
        sampled = {n: a.estimator for n, a in self.anchors.items() if a.estimator != "exact" and a.adds_kl_loss_term}
        if self.truncated == "recompute" and sampled:
            raise ValueError(
                f"truncated='recompute' needs estimator='exact': {sampled} would be biased, "
                "because the tokens were not drawn from the whole distribution"
            )
        return self

    def scenario_conflicts(self, surroundings: LearnerSurroundings) -> Iterable[str]:
        yield from super().scenario_conflicts(surroundings)
        if self.fidelity is None and surroundings.engines[surroundings.policy].may_differ_from_learner:
            yield (
                f"fidelity: null, but engine.args of policies.{surroundings.policy} may change the sampler's "
                "log-probabilities, which only this check measures; choices: {}, or {max: …, mean: …} in nats"
            )

    def supports(self, sampling: Sampling) -> bool:
        """Return True if tokens sampled with `sampling` can be learned from; greedy tokens have no gradient."""
        return sampling.temperature > 0 and (not sampling.truncates_distribution or self.truncated == "recompute")

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory_uses(size, work)
        yield from anchor_memory(size, {name: anchor.refresh is None for name, anchor in self.anchors.items()})
