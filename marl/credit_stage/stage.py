"""The credit stage: applies the credit rules of a scenario to the trajectories of one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from marl.core.errors import RunError
from marl.core.graph import Trajectory, branch_points
from marl.core.types import Advantage, Credit, Metrics, Reading, TurnId
from marl.core.watchdog import CallWatchdog
from marl.credit_stage.diagnostics import RuleResult, agreement_by_role, nonzero_fraction, rule_diagnostics
from marl.credit_stage.records import CreditRecord, RuleRecord, record_step
from marl.credit_stage.token_penalties import TokenPenalties, TokenRewards
from marl.protocols import Assign, Baseline, Evidence
from marl.scenario.schema import CreditConfig, CreditRule

_REPORTED = ("sign_agreement", "correlation")
"""Figures of `agreement` that become metrics for every compared rule."""


class CreditError(RunError):
    """The result of a credit rule cannot be used; the message names the rule."""


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Earnings and advantages of every turn of a step."""

    earned: Credit
    credit: Credit
    metrics: Metrics
    rule_results: list[tuple[RuleRecord, RuleResult]] = field(default_factory=list, compare=False, repr=False)

    def to_record(self, trajectories: Sequence[Trajectory], policies: Mapping[str, str]) -> CreditRecord:
        """Return the derivation of each turn's advantage; `policies` maps a role to its policy."""
        return record_step(self.rule_results, policies, trajectories)


class BuiltRule:
    """One credit rule with its state: `assign`, then `baseline`, on scaled rewards minus token penalties."""

    def __init__(self, field_name: str, settings: CreditRule, deadline_s: float) -> None:
        """`field_name`: the rule's field in the scenario. `deadline_s`: time limit of the rule's own code a step."""
        self._settings, self._deadline_s = settings, deadline_s
        self.assign: Assign = settings.assign.build()
        self.baseline: Baseline = settings.baseline.build()
        self.penalties = TokenPenalties(settings.kl, settings.overlong)
        self.needs = self.penalties.needs | self.assign.needs | self.baseline.needs
        assign, baseline = settings.assign.model_dump(mode="json"), settings.baseline.model_dump(mode="json")
        self.record = RuleRecord(field_name, assign, baseline, settings.scale)
        # A plug-in without state is its own built object.
        self.may_have_state = (
            self.assign is not settings.assign or self.baseline is not settings.baseline or self.penalties.adapts
        )

    def apply(self, evidence: Evidence, turns: Set[TurnId] | None = None) -> RuleResult:
        """Return the credit of `turns` (None: all). `assign` reads full episodes; `baseline` compares these turns only.

        Raises:
            HangError: if the rule's own code exceeds the deadline; time spent on forks does not count.
            CreditError: if the rule returns something other than finite advantages of this step's turns.
        """
        settings, scale = self._settings, self._settings.scale
        with CallWatchdog(
            lambda: f"{self.record.field} ({settings.assign.kind}, {settings.baseline.kind})", self._deadline_s
        ):
            if scale != 1:
                evidence = evidence.transform_rewards(lambda trajectory: trajectory.with_scaled_rewards(scale))
            token_rewards, penalties, metrics = self.penalties(evidence, turns)
            with_token_rewards = replace(evidence, token_rewards=token_rewards)
            assign_evidence = with_token_rewards if settings.assign.uses_token_rewards else evidence
            assigned = self.assign(assign_evidence)
            self._refuse_problems("assign", assigned, assign_evidence)
            metrics |= self.assign.metrics()
            if settings.baseline.uses_reward_names:
                evidence = replace(evidence, earned_by_reward=self._earned_by_reward(evidence))
            earned = assigned
            if turns is not None:
                earned = {turn: advantage for turn, advantage in assigned.items() if turn in turns}
            if not settings.assign.uses_token_rewards:
                earned = _with_token_rewards(earned, token_rewards)
            compared = self.baseline(evidence, earned)
            # A third-party baseline may return the credit alone.
            credit, baseline_metrics = compared if isinstance(compared, tuple) else (compared, {})
            self._refuse_problems("baseline", credit, replace(evidence, token_rewards=token_rewards))
            return RuleResult(
                evidence=evidence,
                assigned=assigned,
                earned=earned,
                credit=credit,
                metrics=metrics | baseline_metrics,
                peers=settings.baseline.peers(evidence, earned),
                reward_pools=[settings.assign.reward_pools(episode, evidence) for episode in evidence.trajectories],
                penalties=penalties,
            )

    def _earned_by_reward(self, evidence: Evidence) -> dict[str, Credit]:
        """Return, for each reward name, the earnings if only rewards of that name were paid.

        The same `assign` runs once for each name. `marl check` refuses rules with a state here, because these extra
        runs would change that state.
        """
        earned: dict[str, Credit] = {}
        for trajectory in evidence.trajectories:
            for reward in trajectory.rewards:
                earned.setdefault(reward.name, {})
        for name in earned:
            earned[name] = self.assign(evidence.transform_rewards(lambda t, name=name: t.with_rewards_named(name)))
        return earned

    def _refuse_problems(self, half: str, credit: Credit, evidence: Evidence) -> None:
        """Raises:
        CreditError: if `credit`, the result of `half` of the rule, cannot be used.
        """
        for problem in _problems(credit, evidence):
            kind = {"assign": self._settings.assign, "baseline": self._settings.baseline}[half].kind
            raise CreditError(f"{self.record.field}.{half}: {kind!r} {problem}")

    def state_dict(self) -> dict[str, Any]:
        penalties = {"charges": self.penalties.state_dict()} if self.penalties.adapts else {}
        return {"assign": self.assign.state_dict(), "baseline": self.baseline.state_dict(), **penalties}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.assign.load_state_dict(state["assign"])
        self.baseline.load_state_dict(state["baseline"])
        if self.penalties.adapts:
            self.penalties.load_state_dict(state["charges"])


def _problems(credit: object, evidence: Evidence) -> Iterator[str]:
    """Yield each reason why the result of a rule cannot be used, as a clause that follows the rule's name."""
    if not isinstance(credit, Mapping):
        yield f"returned {type(credit).__name__}; it must return a mapping from the ids of turns to Advantage"
        return
    turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
    for turn_id, advantage in credit.items():
        if turn_id not in turns:
            yield f"judged {turn_id!r}, which is the id of no turn of this step, such as {next(iter(turns), None)}"
        elif not isinstance(advantage, Advantage):
            yield f"gave turn {turn_id} {advantage!r}; it must be an Advantage, such as Advantage(0.5)"
        # Numbers of the game or of a model that are not finite pass: the learner refuses them and names their source.
        elif not _finite(advantage.value, *advantage.tokens, *advantage.returns) and _has_finite_inputs(evidence):
            yield f"gave turn {turn_id} {advantage.value:g}, though all rewards and readings are finite"


def _has_finite_inputs(evidence: Evidence) -> bool:
    rewards = [reward.value for trajectory in evidence.trajectories for reward in trajectory.rewards]
    if not _finite(*rewards) or not all(_finite(*values) for values in evidence.token_rewards.values()):
        return False
    return all(map(_is_finite_reading, evidence.readings.values()))


def _is_finite_reading(reading: Reading) -> bool:
    columns = (reading.logprobs, reading.values, reading.reference, reading.rewards)
    return _finite(reading.next_value or 0.0) and all(_finite(*(column or ())) for column in columns)


def _finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


def _with_token_rewards(earned: Credit, token_rewards: TokenRewards) -> Credit:
    """Return `earned` with the sum of each turn's token rewards added to its value and to its tokens' numbers."""
    credit = dict(earned)
    for turn, advantage in earned.items():
        if turn in token_rewards:
            total = sum(token_rewards[turn])
            tokens = tuple([token + total for token in advantage.tokens])
            credit[turn] = Advantage(advantage.value + total, tokens, advantage.returns)
    return credit


class GameRules:
    """The rules of one game: the default, one for each role that has its own, and rules that are only reported."""

    def __init__(self, settings: CreditConfig, deadline_s: float) -> None:
        self._by_role: dict[str | None, BuiltRule] = {None: BuiltRule("credit", settings, deadline_s)}
        """Role -> its rule; None -> the default rule of all other roles."""
        for role, rule in settings.roles.items():
            self._by_role[role] = BuiltRule(f"credit.roles.{role}", rule, deadline_s)
        self._compared = {
            name: BuiltRule(f"credit.compare.{name}", rule, deadline_s) for name, rule in settings.compare.items()
        }
        self.all = [*self._by_role.values(), *self._compared.values()]

    def apply(self, evidence: Evidence, step: StepCredit, prefix: str) -> None:
        """Add the credit of one game's episodes to `step`, and its metrics under names that begin with `prefix`."""
        credited = branch_points(evidence.trajectories)
        results: dict[str | None, RuleResult] = {}
        for role, turns in self._turns_by_role(evidence, credited).items():
            results[role] = self._by_role[role].apply(evidence, turns)
            step.rule_results.append((self._by_role[role].record, results[role]))
        credit: Credit = {}
        metrics: Metrics = {}
        for role, result in results.items():
            step.earned.update(result.earned)
            credit.update(result.credit)
            suffix = f"@{role}" if role else ""
            metrics.update({f"{name}{suffix}": value for name, value in result.metrics.items()})
        for result in results.values():
            metrics.update(rule_diagnostics(result))
        metrics.update(nonzero_fraction(evidence, credit, credited))
        # Compared rules run last, so that the episodes that they play change nothing of the credit that is learnt.
        for name, rule in self._compared.items():
            agreed = agreement_by_role(evidence.trajectories, credit, rule.apply(evidence).credit)
            for role, figures in agreed.items():
                reported = [figure for figure in _REPORTED if figure in figures]
                metrics.update({f"credit/{role}/{figure}/{name}": figures[figure] for figure in reported})
        step.credit.update(credit)
        step.metrics.update({prefix + name: value for name, value in metrics.items()})

    def _turns_by_role(
        self, evidence: Evidence, credited: Set[TurnId] | None
    ) -> Mapping[str | None, Set[TurnId] | None]:
        """Return the `credited` turns (None: all) of each role with a rule of its own, and under None all others."""
        if len(self._by_role) == 1:
            return {None: credited}
        turns: dict[str | None, set[TurnId]] = {role: set() for role in self._by_role}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                if credited is None or turn.id in credited:
                    turns[turn.role if turn.role in self._by_role else None].add(turn.id)
        return turns

    def state_dict(self) -> dict[str, Any]:
        roles = {role: rule.state_dict() for role, rule in self._by_role.items() if role is not None}
        compared = {name: rule.state_dict() for name, rule in self._compared.items()}
        return {"default": self._by_role[None].state_dict(), "roles": roles, "compare": compared}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for role, rule in self._by_role.items():
            rule.load_state_dict(state["default"] if role is None else state["roles"][role])
        for name, rule in self._compared.items():
            rule.load_state_dict(state["compare"][name])


class CreditStage:
    """All credit rules of a run, for each game apart: rules compare, average, whiten and fit within one game.

    A reward of 1 has another meaning in another game, so no game's rewards enter the comparisons of another (SPIRAL's
    role average, arXiv 2506.24119, is per game and role for the same reason).
    """

    def __init__(self, settings: CreditConfig, games: Sequence[str] = (), deadline_s: float = 600.0) -> None:
        """`games`: names of several games; empty: there is one. `deadline_s`: time limit of a rule's own code, for
        each step and game (forks that it plays do not count)."""
        # The name of a single game is "": its episodes need no selection, and its metrics have no prefix.
        self._rules = {game: GameRules(settings, deadline_s) for game in games or ("",)}
        self._all = [rule for rules in self._rules.values() for rule in rules.all]
        self.needs = frozenset[str]().union(*(rule.needs for rule in self._all))

    @property
    def may_have_state(self) -> bool:
        """Return True if an object with a state may have been built, or a penalty's coefficient adapts."""
        return any(rule.may_have_state for rule in self._all)

    @property
    def has_state(self) -> bool:
        """Return True if there is a state, so that the credit of a step depends on the steps before."""
        return any(any(rule.state_dict().values()) for rule in self._all)

    def __call__(self, evidence: Evidence) -> StepCredit:
        """Return the credit of all turns of a step.

        Raises:
            ValueError: if there are several games, and an episode belongs to none of them.
        """
        step = StepCredit({}, {}, {})
        if "" in self._rules:
            self._rules[""].apply(evidence, step, "")
            return step
        episodes: dict[str, list[Trajectory]] = {game: [] for game in self._rules}
        for trajectory in evidence.trajectories:
            if trajectory.deal.game not in episodes:
                names = f"game {trajectory.deal.game!r}, which this run has not; games: {', '.join(episodes)}"
                raise ValueError(f"episode {trajectory.id} is of {names}")
            episodes[trajectory.deal.game].append(trajectory)
        for game, trajectories in episodes.items():
            if trajectories:
                game_evidence = replace(evidence, trajectories=trajectories, game=game)
                self._rules[game].apply(game_evidence, step, f"game/{game}/")
        step.metrics.update(nonzero_fraction(evidence, step.credit, branch_points(evidence.trajectories)))
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each game's rules; a single game has the name ""."""
        return {game: rules.state_dict() for game, rules in self._rules.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for game, rules in self._rules.items():
            rules.load_state_dict(state[game])
