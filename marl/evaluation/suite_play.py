"""Play a suite's tests, and compute figures of one policy or of two policies on the same problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.statistics import interval, paired_bootstrap
from marl.core.types import Deal, Metrics, Turn
from marl.evaluation.evaluate import Opponents
from marl.evaluation.held_out import with_bounds
from marl.evaluation.pass_at_k import best_at_k, majority_at_k, pass_at_k
from marl.evaluation.suite import Suite, SuiteTest
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class ProblemScores:
    """Scores of the episodes from one start state, in the order of their seeds."""

    start: str
    """Name of the start state."""
    scores: tuple[float, ...]
    ratings: tuple[float, ...] = ()
    """Ratings by which best@k chooses an episode; empty if it chooses by score."""
    answers: tuple[str | None, ...] = ()
    """Answers for maj@k, None for an unreadable answer; empty if there is no maj@k."""
    tokens: tuple[int, ...] = ()
    """Number of tokens sampled by the measured policies, per episode."""
    unreadable: tuple[float, ...] = ()
    """Share of the measured policies' turns without a readable legal move, per episode."""

    def estimates(self, solved: float, numbers: Iterable[int]) -> Metrics:
        """Return mean figures, and pass@k, best@k and maj@k for each k in `numbers` up to the number of episodes."""
        scores, right = self.scores, sum(score >= solved for score in self.scores)
        means = {"mean": scores, "tokens": self.tokens, "unreadable": self.unreadable}
        figures: Metrics = {name: fmean(values) for name, values in means.items() if values}
        possible = [k for k in numbers if k <= len(scores)]
        figures |= {f"pass@{k}": pass_at_k(len(scores), right, k) for k in possible}
        several = [k for k in possible if k > 1]  # for k = 1, best@k and maj@k equal the mean
        figures |= {f"best@{k}": best_at_k(scores, self.ratings or scores, k) for k in several}
        if self.answers:
            figures |= {f"maj@{k}": majority_at_k(self.answers, scores, k) for k in several}
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
        self._expect("against", test.against, {"random", *game.opponents()})
        if test.answer and not self.answering:
            self._expect("answer", test.answer[0], self.scenario.roles)
        if (measures := game.measure_names()) is not None:
            self._expect("measure", test.measure, measures)
            self._expect("rating", test.rating, measures)

    @property
    def agents(self) -> list[str]:
        """Agents that the measured policies play."""
        roles = self.scenario.roles
        return [agent for agent, role in self.scenario.seats.items() if roles[role].policy in self.measured]

    def _expect(self, field_name: str, value: str | None, choices: Iterable[str]) -> None:
        if value is not None and value not in choices:
            raise ScenarioError(
                f"tests.{self.name}.{field_name}: game {self.scenario.game.kind!r} has no {value!r}; "
                f"{choices_hint(value, choices)}"
            )

    def play(self, suite: Suite, simulator: RolloutSimulator) -> list[ProblemScores]:
        """Play the test's episodes; return their scores, without start states whose episodes all failed."""
        roles = dict(self.scenario.roles)
        roles |= {n: suite.sampling.applied_to(role) for n, role in roles.items() if role.policy in self.measured}
        seated, policies, engines = {}, {}, {}
        if self.test.against:
            opponents = Opponents.scripted(self.scenario, self.test.against)
            seated = {f"opponent:{agent}": role for agent, role in opponents.roles.items()}
            policies = {name: f"{role.policy}@opponent" for name, role in seated.items()}
            engines = {f"{policy}@opponent": engine for policy, engine in opponents.engines.items()}
        simulator = simulator.variant(RoleCasting({**roles, **seated}, suite.seed), engines)
        deals = self._deals(suite, policies)
        trajectories = {trajectory.id: trajectory for trajectory in simulator.play(deals)}
        by_start: dict[str, list[Trajectory]] = defaultdict(list)
        for deal in deals:
            # An episode is missing if its process failed.
            if deal.episode in trajectories:
                by_start[deal.group].append(trajectories[deal.episode])
        return [self._scores(episodes) for episodes in by_start.values()]

    def _deals(self, suite: Suite, policies: Mapping[str, str]) -> list[Deal]:
        """Return `suite.samples` deals of every start state of the test."""
        problem_count = self.test.problems or suite.problems
        starts = self.scenario.game.held_out(problem_count) or [None] * problem_count
        deals = []
        for index, options in enumerate(starts):
            group, seats = f"{self.name}.{index}", self._seats(index)
            seed = seed_of(suite.seed, self.name, index)
            for nth in range(suite.samples):
                episode = f"{group}.{nth}"
                deals.append(Deal(episode, group, seed, seats, "eval", options=options, policies=policies))
        return deals

    def _seats(self, index: int) -> dict[str, str]:
        """Return agent -> role in the episodes from the start state `index`."""
        if not self.test.against:
            return dict(self.scenario.seats)
        measured = self.agents[index % len(self.agents)]
        return {
            agent: role if agent == measured else f"opponent:{agent}" for agent, role in self.scenario.seats.items()
        }

    def _scores(self, episodes: Sequence[Trajectory]) -> ProblemScores:
        answering, rating = self.answering, self.test.rating
        return ProblemScores(
            episodes[0].start,
            tuple([self._score(episode) for episode in episodes]),
            tuple([self._measure(episode, rating) for episode in episodes]) if rating else (),
            tuple([_last_move(episode, answering) for episode in episodes]) if answering else (),
            tuple([sum(len(turn.completion.token_ids) for turn in self._turns(episode)) for episode in episodes]),
            tuple([_unreadable(self._turns(episode)) for episode in episodes]),
        )

    def _score(self, episode: Trajectory) -> float:
        measures = episode.findings.measures
        if self.test.measure or "success" in measures:
            return self._measure(episode, self.test.measure or "success")
        returns, seats = episode.returns, episode.deal.seats
        return fmean(returns.get(agent, 0.0) for agent in self.agents if not seats[agent].startswith("opponent:"))

    def _measure(self, episode: Trajectory, name: str) -> float:
        measures = episode.findings.measures
        if name not in measures:
            raise ScenarioError(f"tests.{self.name}: the game reports no {name!r}; {choices_hint(name, measures)}")
        return measures[name]

    @property
    def answering(self) -> str | None:
        """Role whose last move is the answer for maj@k, or None if several seats are measured."""
        if self.test.answer:
            return next((role for role in self.test.answer if role in self.scenario.roles), None)
        return self.scenario.seats[self.agents[0]] if len(self.agents) == 1 and not self.test.against else None

    def _turns(self, episode: Trajectory) -> list[Turn]:
        """Return the turns of the measured policies."""
        return [turn for turn in episode.turns if turn.request.policy in self.measured]


def _unreadable(turns: Sequence[Turn]) -> float:
    """Return the share of turns without a legal move, or 0 without turns."""
    return fmean([turn.action is None for turn in turns]) if turns else 0.0


def _last_move(episode: Trajectory, role: str) -> str | None:
    return next((turn.action for turn in reversed(episode.turns) if turn.role == role), None)


def suite_figures(suite: Suite, played: Mapping[str, Sequence[ProblemScores]]) -> Metrics:
    """Return `eval/TEST/FIGURE`: means over the problems of each test, with 95 % intervals."""
    metrics: Metrics = {}
    for name, problems in played.items():
        metrics[f"eval/{name}/problems"] = float(len(problems))
        for figure, values in _estimates(suite, name, problems).items():
            metrics |= with_bounds(f"eval/{name}/{figure}", interval(list(values.values())))
    return metrics


def suite_gains(
    suite: Suite, before: Mapping[str, Sequence[ProblemScores]], after: Mapping[str, Sequence[ProblemScores]]
) -> Metrics:
    """Return `gain/TEST/FIGURE`: after - before, with 95 % intervals of the paired bootstrap over problems.

    Raises:
        ScenarioError: if `before` and `after` are scores of different problems.
    """
    metrics: Metrics = {}
    for name in suite.tests:
        starts = [[problem.start for problem in side[name]] for side in (before, after)]
        if starts[0] != starts[1]:
            raise ScenarioError(
                f"tests.{name}: not the same problems: {len(starts[0])} before and {len(starts[1])} after, "
                f"{len({*starts[0]} & {*starts[1]})} of them in common; measure both with the same suite"
            )
        old, new = (_estimates(suite, name, side[name]) for side in (before, after))
        for figure in (figure for figure in new if figure in old):
            # A figure can be missing for single problems, such as pass@k where an episode failed.
            common = [index for index in new[figure] if index in old[figure]]
            if common:
                pair = [old[figure][index] for index in common], [new[figure][index] for index in common]
                metrics |= with_bounds(f"gain/{name}/{figure}", paired_bootstrap(*pair, seed=suite.seed))
    return metrics


def _estimates(suite: Suite, name: str, problems: Sequence[ProblemScores]) -> dict[str, dict[int, float]]:
    """Return figure -> index of a problem -> estimate for this problem."""
    estimates: dict[str, dict[int, float]] = defaultdict(dict)
    for number, problem in enumerate(problems):
        for figure, value in problem.estimates(suite.tests[name].solved, suite.k_values).items():
            estimates[figure][number] = value
    return estimates
