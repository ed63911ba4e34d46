"""Generalised advantage estimation (GAE, arXiv 1506.02438) on the turns of an agent or of a team.

delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, from the last moment back, over moments
that are not always neighbours in the text: what others said, tool answers and prompts do not exist on the time axis and
cost no discount ("skip"). Turns that nobody learns from have no values, so they are part of the world, too: what is
paid there reaches the last moment before it.

Values are those of `Reading.values`: V_t is of the state *before* token t. A truncated episode goes on after its last
moment with `Reading.next_value`, if there is one; any other, with 0. `own` values (`credit.baselines.value`) are of the
state before a turn, so they serve the level `turn` only, and end with 0. Without values (`none`) all are 0.

What comes out: `tokens` (one advantage a token) and their mean as `value` at the levels `token` and `bi_level`; `value`
alone at the level `turn`. `returns` = advantage + value, the value targets: one a token; or one a turn, for the state
before its first token. They are not whitened: the usual baseline after GAE is `whiten` (PPO), or `none`.

What single tokens are paid (`credit.kl`, `credit.overlong`) enters at the token; at the level `turn`, with the turn.
With `values: none` A is the discounted sum to go; `whiten` as the baseline and a `credit.kl` make it REINFORCE++ (arXiv
2501.03262).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from credit.assign.advantage_estimation import OVER, Chain, Discount, Later
from credit.assign.teams import Team, TeamAssign
from credit.baselines.value import Floats, Valued, Values, explained
from marl.protocols import Assign, AssignConfig, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn


class _Gae(Valued, AssignConfig):
    """What all estimates have in common."""

    by_token: ClassVar[bool] = True
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a moment: a token, or a turn at the level `turn`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 trusts what was paid (unbiased, whatever the values), 0 trusts the values."""

    @model_validator(mode="after")
    def _trusts(self) -> Self:
        if self.values == "none" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} says how far values are trusted, and values are 'none'; choices: 1")
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Whose turns share a time axis."""
        raise NotImplementedError

    def judge(self, chain: Chain) -> list[Advantage]:
        """The advantage of each turn of a chain."""
        raise NotImplementedError

    def pay(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        """What the chain's turns were paid: each reward belongs to the last of them at or before it."""
        when: dict[TurnId, float] = defaultdict(float)
        for reward in trajectory.rewards:
            if reward.agent in team.agents:
                when[reward.turn] += team.share * reward.value
        paid, here = list[float](), {turn.id for turn in turns}
        for turn in trajectory.turns:
            if turn.id in here:
                paid.append(0.0)
            if paid:
                paid[-1] += when.get(turn.id, 0.0)
        return paid

    def build(self) -> Assign:
        return Estimator(self, self.source())


def _alone(trajectory: Trajectory, evidence: Evidence) -> list[Team]:
    return [Team(frozenset({a})) for a, role in trajectory.deal.seats.items() if role not in evidence.rules]


class Gae(_Gae):
    """GAE over each agent's own turns, on what it is paid itself.

    `token`: over all its tokens, one after the other (PPO; PaperScout's multi-step token GAE). `turn`: a turn is one
    action, from the state at the last token of its prompt (PSPO and Agent-R1's step-level MDP, VAGEN without
    concatenation). `bi_level`: over turns, then over the tokens of each (VAGEN, RAGEN), with explicit turn ends.
    """

    kind: str = "gae"
    level: Literal["token", "turn", "bi_level"] = "token"
    gamma_turn: float | None = Field(default=None, ge=0, le=1)
    """Discount from turn to turn at `bi_level`, where `gamma` is that of tokens inside a turn (VAGEN: 0.95). None: as
    `gamma`."""
    lam_turn: float | None = Field(default=None, ge=0, le=1)
    """Lambda from turn to turn at `bi_level`. None: as `lam`, as in VAGEN's code."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_source(self.level, self.values)
        for name, value in (("gamma_turn", self.gamma_turn), ("lam_turn", self.lam_turn)):
            if value is not None and self.level != "bi_level":
                raise ValueError(f"{name}: {value:g} has no effect at level {self.level!r}; choices: bi_level, or none")
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Each player by itself."""
        return _alone(trajectory, evidence)

    def judge(self, chain: Chain) -> list[Advantage]:
        """By its level."""
        inner = Discount(self.gamma, self.lam)
        if self.level == "turn":
            return chain.by_turn(inner)
        if self.level == "token":
            return chain.by_token(inner)
        gamma = self.gamma if self.gamma_turn is None else self.gamma_turn
        return chain.bi_level(inner, Discount(gamma, self.lam if self.lam_turn is None else self.lam_turn))


class ChainGae(_Gae, TeamAssign):
    """MARFT's chain: one reversed pass over all turns of a team's agents, in the order in which they spoke.

    At an agent's last token the next value is that of the next agent's first token (or turn), so what a speaker adds
    shows in what the next one expects. With gamma = lambda = 1 everyone gets the team's return minus its own value.
    """

    kind: str = "chain_gae"
    level: Literal["token", "turn"] = "token"
    rewards: Literal["last", "paid"] = "last"
    """Where what the team is paid enters: all at the end of its last turn (MARFT), or each where it was paid."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_source(self.level, self.values)
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Each team, and who is in none."""
        return self.teams_of(trajectory, evidence)

    def pay(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        """As `rewards` says."""
        if self.rewards == "paid":
            return super().pay(trajectory, team, turns)
        return [*[0.0] * (len(turns) - 1), team.worth(trajectory)]

    def judge(self, chain: Chain) -> list[Advantage]:
        """By its level."""
        discount = Discount(self.gamma, self.lam)
        return chain.by_turn(discount) if self.level == "turn" else chain.by_token(discount)


def check_source(level: str, values: str) -> None:
    """Raises:
    ValueError: if tokens are to be judged by values of turns.
    """
    if values == "own" and level != "turn":
        raise ValueError(
            f"level: {level!r} needs a value before each token, but values: 'own' has one a turn; "
            "choices: level: turn, or values: learner"
        )


class Estimator:
    """A GAE rule at work, with its source of values."""

    def __init__(self, settings: _Gae, source: Values) -> None:
        self._settings, self._source = settings, source
        self._metrics: Metrics = {}
        self.needs = source.needs

    def __call__(self, evidence: Evidence) -> Credit:
        """Judge every turn that has values; one that forks inherited, where it was said."""
        values = self._source.of(evidence)
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for team in self._settings.chains(trajectory, evidence):
                if turns := [turn for turn in team.turns(trajectory) if turn.id in values]:
                    chain = self._chain(trajectory, evidence, team, turns, values)
                    for turn, advantage in zip(chain.turns, self._settings.judge(chain), strict=True):
                        credit.setdefault(turn, advantage)
        targets = {turn: advantage.returns[0] for turn, advantage in credit.items()}
        self._source.learn(evidence, targets)
        self._metrics = explained(evidence, targets, values) if self._settings.values != "none" else {}
        return credit

    def metrics(self) -> Metrics:
        """`credit/explained_variance/ROLE`: how well the values at the prompts foretold their targets; 1 is exactly."""
        return self._metrics

    def _chain(
        self,
        trajectory: Trajectory,
        evidence: Evidence,
        team: Team,
        turns: Sequence[Turn],
        values: Mapping[TurnId, Floats],
    ) -> Chain:
        ids = [turn.id for turn in turns]
        last = evidence.readings.get(ids[-1]) if trajectory.end == "truncated" else None
        later = Later(last.next_value) if last and last.next_value is not None else OVER
        paid = self._settings.pay(trajectory, team, turns)
        return Chain(ids, [values[turn] for turn in ids], paid, later, evidence.token_rewards)

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.load_state_dict(state)
