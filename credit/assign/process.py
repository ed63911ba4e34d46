"""Process rewards: what single turns are paid for on the way, combined with the outcome."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from credit.assign.combining import FORMS, AgentRewards, SourceWeights, Step, whitened
from credit.assign.edges import EdgeAssign
from credit.assign.teams import StatelessRule, TeamAssign, first_values
from marl.config import nearest, wrong
from marl.protocols import Assign, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn

LEARNER, OUTCOME = "learner", "outcome"
Paid = Mapping[str, Mapping[TurnId, float]]
"""Source -> turn -> its process reward; turns without one are missing."""
_MOVED = {
    "verifiers": "checks run at a seat: give the game a stage with a `verifier` (`{role: verifier, verifies: ROLE, "
    "scores: [NAME]}`), and write `scores: {verifier: [NAME]}` here",
    "model": "a reward model sits at a seat: give the game a stage with a `rater` (`{role: rater, verifies: ROLE, "
    "scores: [reward]}`, its policy's `engine: {kind: reward_model}`), and write `scores: {rater: [reward]}` here",
    "roles": "the stage of a verifier or rater says whose turns it scores (`verifies`); leave it out",
}
"""Fields of earlier versions -> what to write instead."""


class Process(EdgeAssign, TeamAssign):
    """Rewards of single turns on the way (r_s), combined with what the agent's team is paid otherwise (the outcome R).

    A process reward comes from the game (`rewards`: it belongs to the payee's own last turn at or before the payment);
    from a seat that answers by rule, such as a verifier or a reward model (`scores`: it belongs to the turn that the
    seat read last); or from the model that the speaker's `learner` trains. All other rewards are the outcome, which
    teams share.

    `combine`, over the turns s of one agent in one episode (see `credit.assign.combining`):
    - `sum`: process rewards to go plus the outcome;
    - `max_abs`: the same, process rewards divided by the step's largest |reward-to-go| (Agent-R1);
    - `prime_paper`: both minus the mean of the agent's peers in other episodes with the same start (PRIME, published);
    - `prime_released`: PRIME as in its released code, which ends by whitening all turns of the step;
    - `decoupled`: each source compared with the peers' nth turns and divided by its own spread, then weighted, added
      and whitened (GDPO).

    The last three compare already. Use `baseline: none` with them, and a `group_size` of 2 or more: an agent without
    peers gets 0. PRIME's baseline is taken off once a turn, so it adds up over turns: where policies decide when to
    stop, that is a bonus or a penalty on going on (the report's stopping-bias test shows it); `decoupled` takes it off
    once. With `learner`, PRIME's forms are PRIME's own formulas, over tokens: so is that bonus, on longer answers.
    """

    kind: str = "process"
    example = "scores: {verifier: [correct]}"
    rewards: tuple[str, ...] = ()
    """Names of rewards that are process rewards."""
    scores: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Role that answers by rule -> names of its scores that are process rewards, such as `{verifier: [correct]}`: of
    the checks of `engine: {kind: verifiers}`, or of the `name` of `engine: {kind: reward_model}`."""
    learner: bool = False
    """True if the reward model that the speaker's own learner trains (`prime`) pays, token by token. Steps are then
    tokens: everything else counts as paid at a turn's last one, discounts are per token, and every token has a credit
    of its own."""
    combine: Literal["sum", "max_abs", "prime_paper", "prime_released", "decoupled"] = "sum"
    """Way of putting process rewards and outcome together: their sum; the sum with process rewards divided by the
    step's largest |reward-to-go|; PRIME's, as published or as released; or each divided by its own spread (GDPO)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward or score, or `learner`, or `outcome` -> its weight; default 1."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of process rewards, per turn of the agent."""
    outcome_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of the outcome, per turn of the agent; it counts as paid at the agent's last turn."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to the spreads of `decoupled` (NVlabs' and TRL's code: 1e-4)."""

    @property
    def sources(self) -> list[str]:
        """Return the names of the sources of process rewards: rewards, then scores, then the learner."""
        scores = [name for names in self.scores.values() for name in names]
        return [*self.rewards, *scores, *([LEARNER] if self.learner else [])]

    @property
    def needs(self) -> frozenset[str]:
        """Return the field with the rewards of the learner's own model, if that is a source."""
        return frozenset({"rewards"} if self.learner else ())

    @model_validator(mode="before")
    @classmethod
    def _refuse_moved(cls, data: Any) -> Any:
        """Refuse fields of earlier versions. Empty ones are dropped: the saved scenarios of old runs have them."""
        if not isinstance(data, Mapping):
            return data
        if problems := {name: message for name, message in _MOVED.items() if data.get(name)}:
            raise wrong(problems)
        return {name: value for name, value in data.items() if name not in _MOVED}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [*self.sources, OUTCOME]
        if len(names) == 1:
            raise ValueError(
                "no process rewards: give `rewards` (names of what the game pays), `scores` (of a seat that answers by "
                "rule) or `learner`"
            )
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is the name of more than one source: {', '.join(names)}")
        for name in self.weights:
            if name not in names:
                raise ValueError(f"weights.{name}: no such source; {nearest(name, names)}")
        return self

    @property
    def source_weights(self) -> SourceWeights:
        """Return the weights in the order of `sources`."""
        weights = [self.weights.get(name, 1.0) for name in self.sources]
        return SourceWeights(
            weights, self.weights.get(OUTCOME, 1.0), self.discount, self.outcome_discount, self.epsilon
        )

    def build(self) -> Assign:
        return ProcessRule(self)


class ProcessRule(StatelessRule):
    """Gathers the process rewards of turns and combines them with the outcome."""

    def __init__(self, settings: Process) -> None:
        super().__init__(settings.needs)
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team; `credit/process/SOURCE` is the mean process reward of a step.

        Raises:
            ValueError: if `scores` names a role that does not answer by rule here, or a score that it does not give.
        """
        self._check_seats(evidence)
        rows = [row for trajectory in evidence.trajectories for row in self._rows(trajectory, evidence)]
        sources = zip(self._settings.sources, zip(*[row.process for row in rows], strict=True), strict=False)
        self._metrics: Metrics = {
            f"credit/process/{name}": fmean([reward for row in process for reward in row]) for name, process in sources
        }
        values = self._whitened(rows, self._combined(rows))
        if self._settings.learner:
            return _token_credit(values)
        return {turn: Advantage(value) for (turn, _), value in values.items()}

    def _check_seats(self, evidence: Evidence) -> None:
        seated = {role for trajectory in evidence.trajectories for role in trajectory.deal.seats.values()}
        for role in self._settings.scores if seated else ():
            if role not in seated & evidence.rules:
                hint = nearest(role, seated & evidence.rules)
                raise ValueError(f"credit.assign.scores: {role!r} does not answer by rule here; {hint}")

    def _combined(self, rows: Sequence[AgentRewards]) -> dict[Step, float]:
        combined = FORMS[self._settings.combine](rows, self._settings.source_weights)
        return first_values(
            pair for row, values in zip(rows, combined, strict=True) for pair in zip(row.steps, values, strict=True)
        )

    def _whitened(self, rows: Sequence[AgentRewards], values: dict[Step, float]) -> dict[Step, float]:
        """Whiten over the steps that have peers, each of them once, if the form ends so. Groups in which nothing
        differs count, but stay exactly 0."""
        # PRIME's code adds 1e-8 to the variance, GDPO's adds epsilon to the standard deviation.
        added = {"prime_released": (1e-8, 0.0), "decoupled": (0.0, self._settings.epsilon)}
        if self._settings.combine not in added:
            return values
        sizes = Counter(row.group for row in rows)
        steps = dict.fromkeys(step for row in rows if sizes[row.group] > 1 for step in row.steps)
        white = whitened([values[step] for step in steps], *added[self._settings.combine])
        differ = {row.group for row in rows if any(values[step] for step in row.steps)}
        idle = {step for row in rows if row.group not in differ for step in row.steps}
        return values | {step: value for step, value in zip(steps, white, strict=True) if step not in idle}

    def _rows(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[AgentRewards]:
        """Yield one row for each agent of each team that took a turn."""
        turns_of: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            turns_of[turn.agent].append(turn)
        paid = paid_on_the_way(trajectory, self._settings.rewards)
        paid |= seat_scores(trajectory, self._settings, evidence.rules)
        outcomes = [reward for reward in trajectory.rewards if reward.name not in self._settings.rewards]
        for team in self._settings.teams_of(trajectory, evidence):
            outcome = team.share * sum(reward.value for reward in outcomes if reward.agent in team.agents)
            for agent, turns in turns_of.items():
                if agent in team.agents:
                    group = trajectory.start, agent, turns[0].role
                    steps = [(turn.id, t) for turn in turns for t in range(self._length(turn))]
                    yield AgentRewards(group, self._process(turns, paid, evidence), outcome, steps)

    def _process(self, turns: Sequence[Turn], paid: Paid, evidence: Evidence) -> list[list[float]]:
        """Return the process rewards of an agent's steps, for each source. A turn's reward counts at its last step."""
        process = [
            [r for turn in turns for r in (*[0.0] * (self._length(turn) - 1), paid[name].get(turn.id, 0.0))]
            for name in self._settings.sources
            if name != LEARNER
        ]
        if self._settings.learner:
            process.append([reward for turn in turns for reward in self._learner_rewards(turn, evidence)])
        return process

    def _length(self, turn: Turn) -> int:
        """Return the number of steps of a turn: 1, or its tokens. A turn without tokens is one step."""
        return max(1, len(turn.completion.token_ids)) if self._settings.learner else 1

    def _learner_rewards(self, turn: Turn, evidence: Evidence) -> Sequence[float]:
        """Return what the learner's model pays for each token; 0 if the turn was not read, as its policy is fixed."""
        reading = evidence.readings.get(turn.id)
        return (reading.rewards if reading else None) or [0.0] * self._length(turn)


def _token_credit(values: Mapping[Step, float]) -> Credit:
    """Return every token's own value, and for each turn their mean."""
    tokens: dict[TurnId, list[float]] = defaultdict(list)
    for (turn, _), value in values.items():
        tokens[turn].append(value)
    return {turn: Advantage(fmean(token_values), tuple(token_values)) for turn, token_values in tokens.items()}


def paid_on_the_way(trajectory: Trajectory, names: Sequence[str]) -> dict[str, Mapping[TurnId, float]]:
    """Return name -> turn -> the rewards of this name paid to its agent for its last turn at or before the payment.

    A reward that is paid before its agent took a turn is for none of its turns.
    """
    paid: dict[str, dict[TurnId, float]] = {name: defaultdict(float) for name in names}
    due: dict[TurnId, list[tuple[str, str, float]]] = defaultdict(list)
    for reward in trajectory.rewards:
        if reward.name in paid:
            due[reward.turn].append((reward.name, reward.agent, reward.value))
    last: dict[str, TurnId] = {}
    for turn in trajectory.turns if due else ():
        last[turn.agent] = turn.id
        for name, agent, value in due.get(turn.id, ()):
            if agent in last:
                paid[name][last[agent]] += value
    return dict(paid)


def seat_scores(trajectory: Trajectory, settings: Process, rules: frozenset[str]) -> dict[str, Mapping[TurnId, float]]:
    """Return score name -> turn -> the score that a seat of a role in `settings.scores` gave it.

    A seat scores the last turn that it read of a role that is not in `rules`; if it read nothing new, the one that it
    scored before. An answer that cannot be read scores nothing.

    Raises:
        ValueError: if an answer lacks one of the scores.
    """
    names = settings.scores
    scores: dict[str, dict[TurnId, float]] = {name: {} for role_names in names.values() for name in role_names}
    scored: dict[str, TurnId] = {}
    for turn in trajectory.turns if names else ():
        if turn.role not in names:
            continue
        sources = trajectory.sources(turn.id, settings.along)
        if judged := [read for read in sources if trajectory.turns[read[1]].role not in rules]:
            scored[turn.agent] = judged[-1]
        answer = _parse_scores(turn.completion.text)
        if answer is None or turn.agent not in scored:
            continue
        for name in names[turn.role]:
            if name not in answer:
                known = ", ".join(answer) or "none"
                raise ValueError(f"credit.assign.scores: {turn.role!r} gives no score {name!r}; scores: {known}")
            scores[name][scored[turn.agent]] = float(answer[name])
    return dict(scores)


def _parse_scores(text: str) -> Mapping[str, float] | None:
    """Return the scores of `{"scores": {name: number}, ...}`; None if `text` is something else."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, dict) or any(type(score) not in (int, float) for score in scores.values()):
        return None
    return scores
