"""Process rewards: rewards of single turns within an episode, combined with the outcome."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Reward, Turn, TurnId
from marl.credit.assign.edges import EdgeAssign
from marl.credit.assign.process_formulas import FORMS, AgentRewards, SourceWeights, Step, whiten_values
from marl.credit.assign.teams import StatelessRule, TeamAssign, first_values
from marl.protocols import Assign, Evidence

LEARNER, OUTCOME = "learner", "outcome"
ProcessRewards = Mapping[str, Mapping[TurnId, float]]
"""Source -> turn -> its process reward; turns without a process reward are absent."""
_MOVED = {
    "verifiers": "checks run at a seat: give the game a stage with a `verifier` (`{role: verifier, verifies: ROLE, "
    "scores: [NAME]}`), and write `scores: {verifier: [NAME]}` here",
    "model": "a reward model sits at a seat: give the game a stage with a `rater` (`{role: rater, verifies: ROLE, "
    "scores: [reward]}`, its policy's `engine: {kind: reward_model}`), and write `scores: {rater: [reward]}` here",
    "roles": "the stage of a verifier or rater says whose turns it scores (`verifies`); leave it out",
}
"""Fields of earlier versions -> the settings that replace them."""


class Process(EdgeAssign, TeamAssign):
    """Rewards of single turns (process rewards r_s), combined with the other rewards of the agent's team (outcome R).

    A process reward comes from the game (`rewards`: it belongs to the rewarded agent's last turn at or before the
    payment); from a seat that answers by rule, such as a verifier or a reward model (`scores`: it belongs to the turn
    that the seat read last); or from the model that the speaker's `learner` trains. All other rewards are the outcome,
    which teams share.

    `combine`, over the turns s of one agent in one episode (see `credit.assign.process_formulas`):
    - `sum`: process rewards to go plus the outcome;
    - `max_abs`: the same, process rewards divided by the step's largest |reward-to-go| (Agent-R1);
    - `prime_paper`: both minus the mean of the agent's peers in other episodes with the same start (PRIME, published);
    - `prime_released`: PRIME as in its released code, which ends by whitening all turns of the step;
    - `decoupled`: each source compared with the peers' nth turns and divided by its own deviation, then weighted, added
      and whitened (GDPO).

    The last three contain a comparison with peers. Use `baseline: none` with them, and a `group_size` of 2 or more: an
    agent without peers gets 0. PRIME's baseline is subtracted at every turn, so it adds up over turns: where policies
    decide when to stop, this is a bonus or a penalty on further turns (the report's stopping-bias test shows it);
    `decoupled` subtracts it once. With `learner`, PRIME's forms are PRIME's own formulas over tokens, and the same
    bonus applies to longer answers."""

    kind: str = "process"
    example = "scores: {verifier: [correct]}"
    rewards: tuple[str, ...] = ()
    """Names of rewards that are process rewards."""
    scores: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Role that answers by rule -> names of its scores that are process rewards, such as `{verifier: [correct]}`: names
    of the checks of `engine: {kind: verifiers}`, or the `name` of `engine: {kind: reward_model}`."""
    learner: bool = False
    """True: the reward model that the speaker's own learner trains (`prime`) rewards every token. Then steps are
    tokens: all other rewards count as paid at a turn's last token, discounts are per token, and every token has its own
    credit."""
    combine: Literal["sum", "max_abs", "prime_paper", "prime_released", "decoupled"] = "sum"
    """Combination of process rewards and outcome: their sum; the sum with process rewards divided by the step's largest
    |reward-to-go|; PRIME's, as published or as released; or each divided by its own deviation (GDPO)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward or score, or `learner`, or `outcome` -> its weight; default 1."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of process rewards, per turn of the agent."""
    outcome_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of the outcome, per turn of the agent; it counts as paid at the agent's last turn."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to the standard deviations of `decoupled` (NVlabs' and TRL's code: 1e-4)."""

    @property
    def sources(self) -> list[str]:
        """Return the names of the sources of process rewards: rewards, then scores, then the learner."""
        return [*self.rewards, *chain.from_iterable(self.scores.values()), *([LEARNER] if self.learner else [])]

    @property
    def needs(self) -> frozenset[str]:
        """Return the field of `Reading` with the rewards of the learner's own model, if `learner` is a source."""
        return frozenset({"rewards"} if self.learner else ())

    @model_validator(mode="before")
    @classmethod
    def _refuse_moved(cls, data: Any) -> Any:
        """Refuse fields of earlier versions. Empty ones are dropped: the saved scenarios of old runs contain them."""
        if not isinstance(data, Mapping):
            return data
        if problems := {name: message for name, message in _MOVED.items() if data.get(name)}:
            raise field_errors(problems)
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
                raise ValueError(f"weights.{name}: no such source; {choices_hint(name, names)}")
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
    """Collects the process rewards of turns and combines them with the outcome."""

    def __init__(self, settings: Process) -> None:
        super().__init__(settings.needs)
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team; metric `credit/process/SOURCE`: mean process reward of a step.

        Raises:
            ValueError: if `scores` names a role that does not answer by rule here, or a score that it does not give.
        """
        settings = self._settings
        self._check_seats(evidence)
        rows: list[AgentRewards] = []
        for trajectory in evidence.trajectories:
            rows += self._rows(trajectory, evidence)
        self._metrics: Metrics = {}
        for k, name in enumerate(settings.sources if rows else ()):
            rewards = list(chain.from_iterable(row.process[k] for row in rows))
            self._metrics[f"credit/process/{name}"] = fmean(rewards)
        combined = FORMS[settings.combine](rows, settings.source_weights)
        pairs = (zip(row.steps, values, strict=True) for row, values in zip(rows, combined, strict=True))
        values = self._whitened(rows, first_values(chain.from_iterable(pairs)))
        if not settings.learner:
            return {turn: Advantage(value) for (turn, _), value in values.items()}
        tokens: dict[TurnId, list[float]] = defaultdict(list)
        for (turn, _), value in values.items():
            tokens[turn].append(value)
        return {turn: Advantage(fmean(numbers), tuple(numbers)) for turn, numbers in tokens.items()}

    def _check_seats(self, evidence: Evidence) -> None:
        seated = {role for trajectory in evidence.trajectories for role in trajectory.deal.seats.values()}
        for role in self._settings.scores if seated else ():
            if role not in seated & evidence.rule_based_roles:
                hint = choices_hint(role, seated & evidence.rule_based_roles)
                raise ValueError(f"credit.assign.scores: {role!r} does not answer by rule here; {hint}")

    def _whitened(self, rows: Sequence[AgentRewards], values: dict[Step, float]) -> dict[Step, float]:
        """Return `values` whitened over the distinct steps with peers, if the form ends with whitening.

        Steps of groups without differences count in the mean and the deviation, but stay exactly 0.
        """
        # PRIME's code adds 1e-8 to the variance, GDPO's adds epsilon to the standard deviation.
        added = {"prime_released": (1e-8, 0.0), "decoupled": (0.0, self._settings.epsilon)}
        if self._settings.combine not in added:
            return values
        sizes = Counter(row.group for row in rows)
        differing = {row.group for row in rows if any(values[step] for step in row.steps)}
        steps: dict[Step, None] = {}
        zero: set[Step] = set()
        for row in rows:
            if sizes[row.group] > 1:
                steps.update(dict.fromkeys(row.steps))
            if row.group not in differing:
                zero.update(row.steps)
        whitened = whiten_values([values[step] for step in steps], *added[self._settings.combine])
        return values | {step: value for step, value in zip(steps, whitened, strict=True) if step not in zero}

    def _rows(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[AgentRewards]:
        """Yield one row for each agent of each team that took a turn."""
        turns_of: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            turns_of[turn.agent].append(turn)
        rewards = process_rewards(trajectory, self._settings.rewards)
        rewards |= seat_scores(trajectory, self._settings, evidence.rule_based_roles)
        outcomes = [reward for reward in trajectory.rewards if reward.name not in self._settings.rewards]
        for team in self._settings.teams_of(trajectory, evidence):
            outcome = team.reward_scale * sum(reward.value for reward in outcomes if reward.agent in team.agents)
            for agent, turns in turns_of.items():
                if agent in team.agents:
                    group = trajectory.start, agent, turns[0].role
                    steps: list[Step] = []
                    for turn in turns:
                        steps += [(turn.id, index) for index in range(self._length(turn))]
                    yield AgentRewards(group, self._process(turns, rewards, evidence), outcome, steps)

    def _process(self, turns: Sequence[Turn], rewards: ProcessRewards, evidence: Evidence) -> list[list[float]]:
        """Return the process rewards of an agent's steps, for each source."""
        process: list[list[float]] = []
        for name in self._settings.sources:
            column: list[float] = []
            for turn in turns:
                length = self._length(turn)
                if name != LEARNER:
                    # A turn's reward counts at its last step.
                    column += [*[0.0] * (length - 1), rewards[name].get(turn.id, 0.0)]
                    continue
                # A turn that was not read has no token rewards: its policy does not learn.
                reading = evidence.readings.get(turn.id)
                column += (reading.rewards if reading else None) or [0.0] * length
            process.append(column)
        return process

    def _length(self, turn: Turn) -> int:
        """Return the number of steps of a turn: 1, or its tokens. A turn without tokens is one step."""
        return max(1, len(turn.completion.token_ids)) if self._settings.learner else 1


def process_rewards(trajectory: Trajectory, names: Sequence[str]) -> dict[str, Mapping[TurnId, float]]:
    """Return name -> turn -> sum of the rewards of this name after the turn, until its agent's next turn.

    A reward before its agent's first turn belongs to no turn.
    """
    sums: dict[str, dict[TurnId, float]] = {name: defaultdict(float) for name in names}
    by_turn: dict[TurnId, list[Reward]] = defaultdict(list)
    for reward in trajectory.rewards:
        if reward.name in sums:
            by_turn[reward.turn].append(reward)
    last: dict[str, TurnId] = {}
    for turn in trajectory.turns if by_turn else ():
        last[turn.agent] = turn.id
        for reward in by_turn.get(turn.id, ()):
            if reward.agent in last:
                sums[reward.name][last[reward.agent]] += reward.value
    return dict(sums)


def seat_scores(trajectory: Trajectory, settings: Process, rules: frozenset[str]) -> dict[str, Mapping[TurnId, float]]:
    """Return score name -> turn -> its score from a seat of a role in `settings.scores`.

    A seat scores the last turn that it read of a role outside `rules`; without a new one, the turn of its previous
    score. An answer that cannot be parsed scores nothing.

    Raises:
        ValueError: if an answer lacks one of the scores.
    """
    names = settings.scores
    scores: dict[str, dict[TurnId, float]] = {name: {} for name in chain.from_iterable(names.values())}
    scored: dict[str, TurnId] = {}
    for turn in trajectory.turns if names else ():
        if turn.role not in names:
            continue
        sources = trajectory.sources(turn.id, settings.along)
        if candidates := [read for read in sources if trajectory.turns[read[1]].role not in rules]:
            scored[turn.agent] = candidates[-1]
        answer = _parse_scores(turn.completion.text)
        if answer is None or turn.agent not in scored:
            continue
        for name in names[turn.role]:
            if name not in answer:
                present = ", ".join(answer) or "none"
                raise ValueError(f"credit.assign.scores: {turn.role!r} gives no score {name!r}; scores: {present}")
            scores[name][scored[turn.agent]] = float(answer[name])
    return dict(scores)


def _parse_scores(text: str) -> Mapping[str, float] | None:
    """Return the scores in `{"scores": {name: number}, ...}`, or None if `text` has another form."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, dict) or any(type(score) not in (int, float) for score in scores.values()):
        return None
    return scores
