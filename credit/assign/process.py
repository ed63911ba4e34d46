"""Process rewards: what single turns are paid for on the way, combined with the outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field, model_validator

from credit.assign.combining import Mix
from credit.assign.process_rewards import LEARNER, MODEL, ProcessRewards
from credit.assign.teams import TeamAssign
from marl.config import nearest
from marl.engines.reward_model.settings import RewardModel
from marl.engines.workers.settings import Verifiers
from marl.protocols import Assign

OUTCOME = "outcome"


class Process(TeamAssign):
    """Rewards of single turns on the way (r_s), combined with what the agent's team is paid otherwise (the outcome R).

    A process reward comes from the game, which may pay what a rule, a verifier or a judge at the table says (`rewards`:
    it belongs to the payee's own last turn at or before the payment); from `verifiers` that look at each turn; from a
    trained `model` that reads each turn; from the model that the speaker's `learner` trains. All other rewards are the
    outcome, which teams share.

    `combine`, over the turns s of one agent in one episode (see `credit.assign.combining`):
    - `sum`: process rewards to go plus the outcome;
    - `max_abs`: the same, process rewards divided by the step's largest |reward-to-go| (Agent-R1);
    - `prime_paper`: both minus the mean of the agent's peers in other episodes with the same start (PRIME, published);
    - `prime_released`: PRIME as in its released code, which ends by whitening all turns of the step;
    - `decoupled`: each source divided by its own spread among the peers, then weighted, added and whitened (GDPO).

    The last three compare already. Use `baseline: none` with them, and a `group_size` of 2 or more: who has no peers
    gets 0. PRIME's baseline is taken off once a turn, so it adds up over turns: where policies decide when to stop,
    that is a bonus or a penalty on going on (the report's stopping-bias test shows it); `decoupled` takes it off once.
    With `learner`, PRIME's forms are PRIME's own formulas, over tokens: so is that bonus, on longer answers.
    """

    kind: str = "process"
    rewards: tuple[str, ...] = ()
    """Names of rewards that are process rewards."""
    verifiers: Verifiers | None = None
    """Checks of every turn (`{checks: {name: {kind: ...}}}`), run in worker processes. One that fails scores 0. Those
    that compare with a right answer take it from what a verifier at the table was told."""
    model: RewardModel | None = None
    learner: bool = False
    """Whether the reward model that the speaker's own learner trains (`prime`) pays, token by token. Steps are then
    tokens: everything else counts as paid at a turn's last one, discounts are per token, and every token has a credit
    of its own."""
    roles: tuple[str, ...] = ()
    """Whose turns `verifiers` and `model` look at; default: everybody's."""
    combine: Literal["sum", "max_abs", "prime_paper", "prime_released", "decoupled"] = "sum"
    weights: dict[str, float] = Field(default_factory=dict)
    """Of a reward or check by its name, of the `model`, of the `learner`, of the `outcome`; default 1."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Of process rewards, per turn of the agent."""
    outcome_discount: float = Field(default=1.0, ge=0, le=1)
    """Of the outcome, per turn of the agent; it counts as paid at the agent's last turn."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to the spreads of `decoupled` (NVlabs' and TRL's code: 1e-4)."""

    @property
    def sources(self) -> list[str]:
        """Where process rewards come from: rewards, then checks, then the model."""
        checks = self.verifiers.checks if self.verifiers else ()
        return [*self.rewards, *checks, *([MODEL] if self.model else []), *([LEARNER] if self.learner else [])]

    @property
    def needs(self) -> frozenset[str]:
        """The rewards of the learner's own model, if they are a source."""
        return frozenset({"rewards"} if self.learner else ())

    @model_validator(mode="after")
    def _named(self) -> Self:
        names = [*self.sources, OUTCOME]
        if len(names) == 1:
            raise ValueError(
                "no process rewards: give `rewards` (names of what the game pays), `verifiers`, `model` or `learner`"
            )
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is the name of more than one source: {', '.join(names)}")
        for name in self.weights:
            if name not in names:
                raise ValueError(f"weights.{name}: no such source; {nearest(name, names)}")
        return self

    def missing(self) -> Iterable[str]:
        if self.verifiers:
            yield from (f"verifiers.{problem}" for problem in self.verifiers.missing())
        if self.model:
            yield from (f"model.{fault}" for fault in self.model.faults())

    @property
    def mix(self) -> Mix:
        """How much each source counts."""
        weights = [self.weights.get(name, 1.0) for name in self.sources]
        return Mix(weights, self.weights.get(OUTCOME, 1.0), self.discount, self.outcome_discount, self.epsilon)

    def build(self) -> Assign:
        return ProcessRewards(self)
