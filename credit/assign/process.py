"""Process rewards: rewards of single turns within an episode, combined with the outcome."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, product
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Reward, Turn, TurnId
from marl.credit.assign.edges import EdgeFollowingAssign
from marl.credit.assign.process_formulas import FORMS, AgentEpisodeRewards, RewardSourceWeights, Step, whiten_values
from marl.credit.assign.segments import last_tokens_of_segments, segment_advantage
from marl.credit.assign.teams import StatelessAssignRule, TeamAssign
from marl.protocols import AssignRule, Evidence
from marl.protocols.tasks import overall_score

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/process/SOURCE | reward | mean process reward of a source, a turn or segment (`process`)
"""

LEARNER, OUTCOME = "learner", "outcome"
"""Names under `weights` for token rewards by the learner's reward model, and for the outcome."""
Score = float | list[float]
"""Process reward of a turn, or one for each of its segments."""
ProcessRewards = Mapping[str, Mapping[TurnId, Score]]
"""Source of process rewards -> turn -> its process reward; turns without a process reward are absent."""
_REPLACED_FIELDS = {
    "verifiers": "checks run at a seat: give the game a stage with a `verifier` (`{role: verifier, verifies: ROLE, "
    "scores: [NAME]}`), and write `scores: {verifier: [NAME]}` here",
    "model": "a reward model sits at a seat: give the game a stage with a `rater` (`{role: rater, verifies: ROLE, "
    "scores: [reward]}`, its policy's `engine: {kind: reward_model}`), and write `scores: {rater: [reward]}` here",
    "roles": "the stage of a verifier or rater says whose turns it scores (`verifies`); leave it out",
}
"""Fields of earlier versions -> the settings that replace them."""


class ProcessRewardAssign(EdgeFollowingAssign, TeamAssign):
    """Rewards of single turns (process rewards r_s), combined with the other rewards of the agent's team (outcome R).

    A process reward comes from one of three sources. `rewards`: the game pays the reward, which belongs to the rewarded
    agent's last turn at or before the payment. `scores`: a rule-based seat, such as a verifier or a reward
    model, gives the reward to the turn that this seat read last. `learner`: the reward model that the learner trains
    gives rewards to tokens. All other rewards are the outcome, which teams share.

    `combine`, over the turns s of one agent in one episode (see `credit.assign.process_formulas`):
    - `sum`: process rewards to go plus the outcome;
    - `max_abs`: as `sum`, with process rewards divided by the step's largest |reward-to-go| (Agent-R1);
    - `prime_paper`: both minus the mean of the agent's peers in other episodes with the same start (PRIME, published);
    - `prime_released`: PRIME as in its released code, which ends by whitening all turns of the step;
    - `decoupled`: each source compared with the peers' nth turns and divided by its own deviation, then weighted, added
      and whitened (GDPO).

    With `level: segment` the steps s are the segments of the agent's turns: each gets its own score if a seat gives a
    list, any other process reward belongs to the turn's last segment, discounts are per segment, and all tokens of a
    segment share its credit.

    The last three contain a comparison with peers. Use `baseline: none` with them, and a `group_size` of 2 or more: an
    agent without peers gets 0. PRIME's baseline is subtracted at every turn, so it adds up over turns. Where policies
    decide when to stop, the baseline is a bonus or a penalty on further turns, which the metric
    `credit/ROLE/stopping_bias` measures. `decoupled` subtracts its baseline once. With `learner`, PRIME's forms are
    PRIME's own formulas over tokens, and the same bonus applies to longer answers.
    """

    kind: str = "process"
    example = "scores: {verifier: [correct]}"
    rewards: tuple[str, ...] = ()
    """Names of the game's rewards that are process rewards (default: none)."""
    scores: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rule-based role -> names of its scores that are process rewards, such as `{verifier: [correct]}`: names
    of the checks of `engine: {kind: verifiers}`, or the `name` of `engine: {kind: reward_model}`."""
    learner: bool = False
    """True: the reward model that the policy's own learner trains (`prime`) rewards every token. Then steps are tokens:
    all other rewards count as paid at a turn's last token, discounts are per token, and every token has its own
    credit."""
    combine: Literal["sum", "max_abs", "prime_paper", "prime_released", "decoupled"] = "sum"
    """Combination of process rewards and outcome. `sum`: their sum; `max_abs`: the sum, with process rewards divided by
    the step's largest |reward-to-go|; `prime_paper`, `prime_released`: PRIME's formula as published, or as in its code;
    `decoupled`: each source divided by its own deviation (GDPO)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward or score, or `learner`, or `outcome` -> its weight in the combination (default: 1)."""
    level: Literal["turn", "segment"] = "turn"
    """Steps that are credited: turns (with `learner`: tokens), or the segments of answers, which need `segments` of the
    role. At level `turn` a list of scores counts as its mean."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of process rewards, per step."""
    outcome_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of the outcome, per step; the outcome counts as paid at the agent's last step."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Number added to the standard deviations of `decoupled` (NVlabs' and TRL's code: 1e-4)."""

    @property
    def reward_source_names(self) -> list[str]:
        """Return the names of the sources of process rewards: rewards, then scores, then the learner."""
        return [*self.rewards, *chain.from_iterable(self.scores.values()), *([LEARNER] if self.learner else [])]

    @property
    def needs_segments(self) -> bool:
        return self.level == "segment"

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Return `rewards` (token rewards by the learner's reward model) if `learner` is true."""
        return frozenset({"rewards"} if self.learner else ())

    @model_validator(mode="before")
    @classmethod
    def _refuse_fields_of_old_versions(cls, settings_data: Any) -> Any:
        """Refuse fields of earlier versions, except empty fields, which saved scenarios of old runs contain."""
        if not isinstance(settings_data, Mapping):
            return settings_data
        if problems := {name: message for name, message in _REPLACED_FIELDS.items() if settings_data.get(name)}:
            raise field_errors(problems)
        return {name: value for name, value in settings_data.items() if name not in _REPLACED_FIELDS}

    @model_validator(mode="after")
    def _check_source_names(self) -> Self:
        names = [*self.reward_source_names, OUTCOME]
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

    def build(self) -> AssignRule:
        return ProcessRewardRule(self)


class ProcessRewardRule(StatelessAssignRule):
    """Rule built from `ProcessRewardAssign`: collects the process rewards of turns and combines them with the
    outcome."""

    def __init__(self, settings: ProcessRewardAssign) -> None:
        self._settings, self.needed_reading_fields = settings, settings.needed_reading_fields

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team; metric `credit/process/SOURCE`: mean process reward of a step.

        Raises:
            ValueError: if `scores` names a role that is not rule-based here, or a score that it does not give, or if a
                list of scores has not one score for each segment.
        """
        settings = self._settings
        seated: set[str] = set()
        rows: list[AgentEpisodeRewards] = []
        for trajectory in evidence.trajectories:
            seated.update(trajectory.deal.seats.values())
        for role in settings.scores if seated else ():
            if role not in seated & evidence.rule_based_roles:
                hint = choices_hint(role, seated & evidence.rule_based_roles)
                raise ValueError(f"credit.assign.scores: {role!r} does not answer by rule here; {hint}")
        for trajectory in evidence.trajectories:
            rows += self._collect_agent_rewards(trajectory, evidence)
        metrics: Metrics = {}
        for k, name in enumerate(settings.reward_source_names if rows else ()):
            metrics[f"credit/process/{name}"] = fmean(chain.from_iterable(row.process[k] for row in rows))
        self._metrics = metrics
        weights = RewardSourceWeights(
            process=[settings.weights.get(name, 1.0) for name in settings.reward_source_names],
            outcome=settings.weights.get(OUTCOME, 1.0),
            discount=settings.discount,
            outcome_discount=settings.outcome_discount,
            epsilon=settings.epsilon,
        )
        values: dict[Step, float] = {}
        for row, row_values in zip(rows, FORMS[settings.combine](rows, weights), strict=True):
            for step, value in zip(row.steps, row_values, strict=True):
                # A turn shared by several forks of an episode is credited in the first of these forks only.
                values.setdefault(step, value)
        # Before whitening, PRIME's code adds 1e-8 to the variance, while GDPO's adds epsilon to the standard deviation.
        if settings.combine == "prime_released":
            _whiten_steps_in_place(rows, values, variance_epsilon=1e-8, std_epsilon=0.0)
        elif settings.combine == "decoupled":
            _whiten_steps_in_place(rows, values, variance_epsilon=0.0, std_epsilon=settings.epsilon)
        by_turn: dict[TurnId, list[float]] = defaultdict(list)
        for (turn, _), value in values.items():
            by_turn[turn].append(value)
        turns = evidence.turns()
        credit: Credit = {}
        for turn, numbers in by_turn.items():
            if settings.level == "segment":
                credit[turn] = segment_advantage(turns[turn], numbers)
            else:
                # Without `learner`, each turn is one step, so there is no credit per token.
                credit[turn] = Advantage(fmean(numbers), tuple(numbers)) if settings.learner else Advantage(numbers[0])
        return credit

    def _collect_agent_rewards(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[AgentEpisodeRewards]:
        """Yield process rewards and outcome of each agent that took a turn, team by team."""
        turns_by_agent: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            turns_by_agent[turn.agent].append(turn)
        rewards: dict[str, Mapping[TurnId, Score]] = {**rewards_by_name_and_turn(trajectory, self._settings.rewards)}
        rewards |= scores_by_name_and_turn(trajectory, self._settings, evidence.rule_based_roles)
        outcomes = [reward for reward in trajectory.rewards if reward.name not in self._settings.rewards]
        for team in self._settings.teams_in_trajectory(trajectory, evidence):
            outcome = team.reward_scale * sum(reward.value for reward in outcomes if reward.agent in team.agents)
            for agent, turns in turns_by_agent.items():
                if agent in team.agents:
                    steps, process = self._steps_with_rewards(turns, rewards, evidence)
                    yield AgentEpisodeRewards((trajectory.start, agent, turns[0].role), process, outcome, steps)

    def _steps_with_rewards(
        self, turns: Sequence[Turn], rewards: ProcessRewards, evidence: Evidence
    ) -> tuple[list[Step], list[list[float]]]:
        """Return the steps of an agent's turns, and for each source of process rewards the reward of each step."""
        names = self._settings.reward_source_names
        steps: list[Step] = []
        process: list[list[float]] = [[] for _ in names]
        by_segment = self._settings.level == "segment"
        for turn in turns:
            # With `learner`, every token is a step. A turn without tokens still counts as one step.
            length = max(1, len(turn.completion.token_ids)) if self._settings.learner else 1
            if by_segment:
                length = max(1, len(turn.completion.segments))
            steps += product((turn.id,), range(length))
            for name, column in zip(names, process, strict=True):
                if name == LEARNER:
                    # A turn without a reading has no token rewards, because its policy does not learn.
                    reading = evidence.readings.get(turn.id)
                    tokens = reading.rewards if reading else None
                    if tokens and by_segment:
                        ends = [0, *[last + 1 for last in last_tokens_of_segments(turn)]]
                        tokens = [math.fsum(tokens[begin:end]) for begin, end in pairwise(ends)]
                    column += tokens or [0.0] * length
                    continue
                score = rewards[name].get(turn.id, 0.0)
                if by_segment and isinstance(score, list) and turn.completion.segments:
                    if len(score) != length:
                        raise ValueError(
                            f"credit.assign.scores: {name!r} has {len(score)} numbers for the {length} segments of "
                            f"turn {turn.id}"
                        )
                    column += score
                else:
                    # The reward for a turn belongs to the turn's last step; the other steps get 0.
                    column += [*[0.0] * (length - 1), overall_score(score)]
        return steps, process


def _whiten_steps_in_place(
    rows: Sequence[AgentEpisodeRewards], values: dict[Step, float], *, variance_epsilon: float, std_epsilon: float
) -> None:
    """Whiten `values` in place, over all steps of rows with peers; `variance_epsilon`, `std_epsilon`: see
    `whiten_values`.

    Steps of groups without differences count in the mean and the deviation, but stay exactly 0.
    """
    sizes = Counter[Hashable]()
    differing: set[Hashable] = set()
    for row in rows:
        sizes[row.group] += 1
        if any(map(values.__getitem__, row.steps)):
            differing.add(row.group)
    compared: dict[Step, float] = {}
    zero: set[Step] = set()
    for row in rows:
        if sizes[row.group] > 1:
            compared |= {step: values[step] for step in row.steps}
        if row.group not in differing:
            zero.update(row.steps)
    whitened = whiten_values(list(compared.values()), variance_epsilon, std_epsilon)
    for step, value in zip(compared, whitened, strict=True):
        if step not in zero:
            values[step] = value


def rewards_by_name_and_turn(trajectory: Trajectory, reward_names: Sequence[str]) -> dict[str, Mapping[TurnId, float]]:
    """Return name of a reward -> turn -> sum of these rewards to the turn's agent, until the agent's next turn.

    A reward before its agent's first turn belongs to no turn.
    """
    sums: dict[str, dict[TurnId, float]] = {name: defaultdict(float) for name in reward_names}
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


def scores_by_name_and_turn(
    trajectory: Trajectory, settings: ProcessRewardAssign, rule_based_roles: frozenset[str]
) -> dict[str, Mapping[TurnId, Score]]:
    """Return name of a score -> turn -> the turn's score, given by a seat of a role in `settings.scores`.

    A seat scores the last turn that it read, apart from turns of `rule_based_roles`. If it read no new turn, it scores
    the turn of its previous score again. An answer that cannot be parsed scores nothing.

    Raises:
        ValueError: if an answer lacks one of the scores.
    """
    names = settings.scores
    scores: dict[str, dict[TurnId, Score]] = {name: {} for name in chain.from_iterable(names.values())}
    scored: dict[str, TurnId] = {}
    for turn in trajectory.turns if names else ():
        if turn.role not in names:
            continue
        sources = trajectory.sources(turn.id, settings.along)
        if candidates := [read for read in sources if trajectory.turns[read[1]].role not in rule_based_roles]:
            scored[turn.agent] = candidates[-1]
        answer = _parse_scores_json(turn.completion.text)
        if answer is None or turn.agent not in scored:
            continue
        for name in names[turn.role]:
            if name not in answer:
                present = ", ".join(answer) or "none"
                raise ValueError(f"credit.assign.scores: {turn.role!r} gives no score {name!r}; scores: {present}")
            score = answer[name]
            scores[name][scored[turn.agent]] = list(map(float, score)) if isinstance(score, list) else float(score)
    return dict(scores)


def _parse_scores_json(text: str) -> Mapping[str, Score] | None:
    """Return the scores in `{"scores": {name: number or list of numbers}, ...}`, or None if `text` has another form."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, dict):
        return None
    for score in scores.values():
        if any(type(number) not in (int, float) for number in (score if isinstance(score, list) else [score])):
            return None
    return scores
