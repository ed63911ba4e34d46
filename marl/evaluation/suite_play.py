"""Play a suite's tests, and compute figures of one policy or of two policies on the same problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.statistics import confidence_interval, paired_bootstrap_interval
from marl.core.types import Deal, Metrics
from marl.evaluation.evaluate import OpponentPlayers
from marl.evaluation.held_out import metric_with_interval
from marl.evaluation.pass_at_k import best_at_k, majority_at_k, pass_at_k
from marl.evaluation.suite import Suite, SuiteTest
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario

_ProblemKey = tuple[str, int]
"""Name of a problem's start state, and the number of earlier problems with the same start."""
_MIN_COMMON_SHARE = 0.9
"""Minimum share of problems that two measurements must have in common. A run ends if more than a tenth of its verdicts
are missing, so two measurements of one suite have more in common."""


@dataclass(frozen=True, slots=True)
class EpisodeScoresOfProblem:
    """Scores of the episodes from one start state, in the order of their seeds."""

    start: str
    """Name of the start state."""
    scores: tuple[float, ...]
    """Score of each episode."""
    ratings: tuple[float, ...] = ()
    """Ratings by which best@k chooses an episode; empty if it chooses by score."""
    answers: tuple[str | None, ...] = ()
    """Answers for maj@k, None for an unreadable answer; empty if there is no maj@k."""
    tokens: tuple[int, ...] = ()
    """Number of tokens sampled by the measured policies, per episode."""
    unreadable: tuple[float, ...] = ()
    """Share of the measured policies' turns without a readable legal move, per episode."""

    def estimated_metrics(self, solved_score_threshold: float, k_values: Iterable[int]) -> Metrics:
        """Return the mean score, tokens and unreadable share, and pass@k, best@k and maj@k for each possible k.

        An episode with a score of at least `solved_score_threshold` counts as solved for pass@k.
        """
        scores, figures = self.scores, Metrics()
        for name, numbers in (("mean", scores), ("tokens", self.tokens), ("unreadable", self.unreadable)):
            if numbers:
                figures[name] = fmean(numbers)
        possible = [k for k in k_values if k <= len(scores)]
        solved_count = sum(score >= solved_score_threshold for score in scores)
        for k in possible:
            figures[f"pass@{k}"] = pass_at_k(len(scores), solved_count, k)
        several = [k for k in possible if k > 1]  # best@1 and maj@1 would repeat the mean score
        for k in several:
            figures[f"best@{k}"] = best_at_k(scores, self.ratings or scores, k)
        for k in several if self.answers else ():
            figures[f"maj@{k}"] = majority_at_k(self.answers, scores, k)
        return figures


@dataclass(frozen=True)
class SuiteTestRun:
    """One test of a suite, and the scenario whose policies are evaluated on it."""

    name: str
    test: SuiteTest
    scenario: Scenario
    measured: frozenset[str]
    """Names of the measured policies."""

    def __post_init__(self) -> None:
        """Check the test's settings against the scenario.

        Raises:
            ScenarioError: if the test names an opponent, role or measure that does not exist.
        """
        game, test = self.scenario.game, self.test
        self._require_choice("against", test.against, {"random", *game.reference_players()})
        if test.answer and not self.answering_role:
            self._require_choice("answer", test.answer[0], self.scenario.roles)
        if (measures := game.measure_names()) is not None:
            self._require_choice("measure", test.measure, measures)
            self._require_choice("rating", test.rating, measures)

    @property
    def measured_agents(self) -> list[str]:
        """Agents that the measured policies play."""
        roles = self.scenario.roles
        return [agent for agent, role in self.scenario.seats.items() if roles[role].policy in self.measured]

    def _require_choice(self, field_name: str, value: str | None, choices: Iterable[str]) -> None:
        """Raise ScenarioError if the test's field `field_name` has a value outside `choices`."""
        if value is not None and value not in choices:
            raise ScenarioError(
                f"tests.{self.name}.{field_name}: game {self.scenario.game.kind!r} has no {value!r}; "
                f"{choices_hint(value, choices)}"
            )

    def play_test(self, suite: Suite, simulator: RolloutSimulator) -> list[EpisodeScoresOfProblem]:
        """Play the test's episodes; return their scores, without start states whose episodes all failed."""
        # The suite's sampling settings replace those of roles that the measured policies play.
        roles, sampling = dict(self.scenario.roles), suite.sampling.model_dump(exclude_none=True)
        for name, role in self.scenario.roles.items():
            if role.policy in self.measured:
                roles[name] = role.model_copy(update={"sampling": role.sampling.model_copy(update=sampling)})
        policies: dict[str, str] = {}
        engines = {}
        if self.test.against:
            opponents = OpponentPlayers.from_scripted_player(self.scenario, self.test.against)
            for agent, role in opponents.roles.items():
                roles[f"opponent:{agent}"] = role
                policies[f"opponent:{agent}"] = f"{role.policy}@opponent"
            engines = {f"{policy}@opponent": engine for policy, engine in opponents.engines.items()}
        simulator = simulator.variant(RoleRequestBuilder(roles, suite.seed), engines)

        deals: list[Deal] = []
        problem_count = self.test.problems or suite.problems
        for index, options in enumerate(
            self.scenario.game.held_out_reset_options(problem_count) or [None] * problem_count
        ):
            seats = dict(self.scenario.seats)
            if self.test.against:
                # The measured agent changes from start to start, and opponents have the other seats.
                measured = self.measured_agents[index % len(self.measured_agents)]
                seats = {agent: f"opponent:{agent}" for agent in seats} | {measured: seats[measured]}
            group, seed = f"{self.name}.{index}", hash_to_seed(suite.seed, self.name, index)
            for nth in range(suite.samples):
                episode = f"{group}.{nth}"
                deals.append(Deal(episode, group, seed, seats, "eval", options=options, policies=policies))

        trajectories = {trajectory.id: trajectory for trajectory in simulator.play(deals)}
        by_start: dict[str, list[Trajectory]] = defaultdict(list)
        for deal in deals:
            # Episodes whose process failed are missing in `trajectories`.
            if deal.episode in trajectories:
                by_start[deal.group].append(trajectories[deal.episode])
        return list(map(self._problem_scores, by_start.values()))

    def _problem_scores(self, episodes: Sequence[Trajectory]) -> EpisodeScoresOfProblem:
        """Return the scores of the episodes from one start state."""
        answering_role, rating = self.answering_role, self.test.rating
        scores: list[float] = []
        ratings: list[float] = []
        answers: list[str | None] = []
        tokens: list[int] = []
        unreadable: list[float] = []
        for episode in episodes:
            measure = self.test.measure or ("success" if "success" in episode.findings.measures else "")
            if measure:
                scores.append(self._measure_value(episode, measure))
            else:
                seats = episode.deal.seats
                returns: list[float] = []
                for agent in self.measured_agents:
                    if not seats[agent].startswith("opponent:"):
                        returns.append(episode.returns.get(agent, 0.0))
                scores.append(fmean(returns))
            if rating:
                ratings.append(self._measure_value(episode, rating))
            answer: str | None = None
            token_count, is_unreadable = 0, list[bool]()
            for turn in episode.turns:
                if turn.role == answering_role:
                    answer = turn.action
                if turn.request.policy in self.measured:
                    token_count += len(turn.completion.token_ids)
                    is_unreadable.append(turn.action is None)
            if answering_role:
                answers.append(answer)
            tokens.append(token_count)
            unreadable.append(fmean(is_unreadable) if is_unreadable else 0.0)
        return EpisodeScoresOfProblem(
            episodes[0].start, tuple(scores), tuple(ratings), tuple(answers), tuple(tokens), tuple(unreadable)
        )

    def _measure_value(self, episode: Trajectory, measure: str) -> float:
        """Return the game's measure `measure` of an episode, or raise ScenarioError if the game does not report it."""
        measures = episode.findings.measures
        if measure not in measures:
            raise ScenarioError(
                f"tests.{self.name}: the game reports no {measure!r}; {choices_hint(measure, measures)}"
            )
        return measures[measure]

    @property
    def answering_role(self) -> str | None:
        """Role whose last move is the answer for maj@k, or None if several seats are measured."""
        if self.test.answer:
            return next((role for role in self.test.answer if role in self.scenario.roles), None)
        return (
            self.scenario.seats[self.measured_agents[0]]
            if len(self.measured_agents) == 1 and not self.test.against
            else None
        )


def suite_metrics(suite: Suite, problem_scores_by_test: Mapping[str, Sequence[EpisodeScoresOfProblem]]) -> Metrics:
    """Return `eval/TEST/FIGURE`: means over the problems of each test, with 95 % intervals."""
    metrics: Metrics = {}
    for name, problems in problem_scores_by_test.items():
        metrics[f"eval/{name}/problems"] = float(len(problems))
        for figure, values in _estimates_by_problem(suite, name, problems).items():
            metrics |= metric_with_interval(f"eval/{name}/{figure}", confidence_interval(list(values.values())))
    return metrics


def paired_gain_metrics(
    suite: Suite,
    before: Mapping[str, Sequence[EpisodeScoresOfProblem]],
    after: Mapping[str, Sequence[EpisodeScoresOfProblem]],
) -> Metrics:
    """Return `gain/TEST/FIGURE`: after - before, with 95 % intervals of the paired bootstrap over problems.

    A problem of which one side has no episode, because its verifier gave no verdict, is left out.

    Raises:
        ScenarioError: if `before` and `after` have fewer than `_MIN_COMMON_SHARE` of their problems in common.
    """
    metrics: Metrics = {}
    for name in suite.tests:
        old, new = _estimates_by_problem(suite, name, before[name]), _estimates_by_problem(suite, name, after[name])
        common_problems = _problems_by_key(before[name]).keys() & _problems_by_key(after[name]).keys()
        if len(common_problems) < _MIN_COMMON_SHARE * max(len(before[name]), len(after[name])):
            raise ScenarioError(
                f"tests.{name}: not the same problems: {len(before[name])} before and {len(after[name])} after, "
                f"{len(common_problems)} of them in common; measure both with the same suite"
            )
        for figure, new_estimates in new.items():
            old_estimates = old.get(figure, {})
            # A problem may lack a figure, for example pass@k after a failed episode.
            common = [index for index in new_estimates if index in old_estimates]
            if common:
                pair = list(map(old_estimates.__getitem__, common)), list(map(new_estimates.__getitem__, common))
                metrics |= metric_with_interval(
                    f"gain/{name}/{figure}", paired_bootstrap_interval(*pair, seed=suite.seed)
                )
    return metrics


def _estimates_by_problem(
    suite: Suite, test_name: str, problems: Sequence[EpisodeScoresOfProblem]
) -> dict[str, dict[_ProblemKey, float]]:
    """Return figure -> key of a problem -> the problem's estimate of the figure."""
    estimates: dict[str, dict[_ProblemKey, float]] = defaultdict(dict)
    for key, problem in _problems_by_key(problems).items():
        for figure, value in problem.estimated_metrics(suite.tests[test_name].solved, suite.k_values).items():
            estimates[figure][key] = value
    return estimates


def _problems_by_key(problems: Sequence[EpisodeScoresOfProblem]) -> dict[_ProblemKey, EpisodeScoresOfProblem]:
    """Return problems by a key that does not depend on which other problems were left out, unless starts repeat."""
    occurrences: Counter[str] = Counter()
    by_key: dict[_ProblemKey, EpisodeScoresOfProblem] = {}
    for problem in problems:
        by_key[problem.start, occurrences[problem.start]] = problem
        occurrences[problem.start] += 1
    return by_key
