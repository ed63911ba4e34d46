"""The credit stage: applies the credit rules of a scenario to the trajectories of one step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any, cast

from marl.core.errors import RunError
from marl.core.graph import Trajectory, branch_points
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.core.watchdog import CallWatchdog
from marl.credit_stage.diagnostics import (
    CreditRuleResult,
    credit_rule_agreement_by_role,
    credit_rule_diagnostics,
    nonzero_advantage_metrics,
)
from marl.credit_stage.records import CreditRecord, CreditRuleSettingsRecord, build_credit_record
from marl.credit_stage.token_penalties import TokenPenalties
from marl.credit_stage.turn_columns import TurnColumns
from marl.protocols import AssignRule, BaselineRule, Evidence
from marl.scenario.schema import CreditConfig, CreditRule

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/ROLE/sign_agreement/NAME | share of turns | same sign as the rule NAME of `credit.compare`, of turns to which
    either gives something other than 0
credit/ROLE/correlation/NAME | -1 to 1 | Pearson's, with the advantages of the rule NAME of `credit.compare`
credit/...@ROLE |  | any of the rule's own figures above (those not named `credit/ROLE/...`), of a rule in
    `credit.roles.ROLE`
"""

_REPORTED_AGREEMENT_MEASURES = ("sign_agreement", "correlation")
"""Measures of `credit_rule_agreement` that are reported as metrics for every compared rule."""


class InvalidCreditError(RunError):
    """Error that is raised if the result of a credit rule cannot be used. The message names the rule."""


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Earnings and advantages of every turn of a step."""

    earned: Credit
    """Output of `assign` minus token penalties."""
    credit: Credit
    """Advantages: the output of `baseline`."""
    metrics: Metrics
    rule_results: list[tuple[CreditRuleSettingsRecord, CreditRuleResult]] = field(
        default_factory=list, compare=False, repr=False
    )

    def to_credit_record(self, trajectories: Sequence[Trajectory], policy_by_role: Mapping[str, str]) -> CreditRecord:
        """Return the derivation of each turn's advantage; `policy_by_role` maps a role to its policy."""
        return build_credit_record(self.rule_results, policy_by_role, trajectories)


class StatefulCreditRule:
    """Credit rule with its state: `assign` and then `baseline`, on scaled rewards minus token penalties."""

    def __init__(self, field_name: str, settings: CreditRule, deadline_s: float) -> None:
        """`field_name`: the rule's field in the scenario. `deadline_s`: time limit of the rule's own code per step."""
        self._settings, self._deadline_s = settings, deadline_s
        self.assign: AssignRule = settings.assign.build()
        self.baseline: BaselineRule = settings.baseline.build()
        self.penalties = TokenPenalties(settings.kl, settings.overlong, settings.token_cost)
        self.needed_reading_fields = (
            self.penalties.needed_reading_fields
            | self.assign.needed_reading_fields
            | self.baseline.needed_reading_fields
        )
        assign, baseline = settings.assign.model_dump(mode="json"), settings.baseline.model_dump(mode="json")
        self.record = CreditRuleSettingsRecord(field_name, assign, baseline, settings.scale)
        # A plug-in whose `build()` returns the settings object itself is stateless.
        self.may_have_state = (
            self.assign is not settings.assign
            or self.baseline is not settings.baseline
            or self.penalties.has_adaptive_kl_coefficient
        )

    def compute_credit(self, evidence: Evidence, credited_turns: Set[TurnId] | None = None) -> CreditRuleResult:
        """Return the credit of `credited_turns` (None: all).

        `assign` reads full episodes; `baseline` compares `credited_turns` only.

        Raises:
            CallTimeoutError: if the rule's own code exceeds the deadline; time spent on forks does not count.
            InvalidCreditError: if the rule returns something other than finite advantages of this step's turns.
        """
        settings, scale = self._settings, self._settings.scale
        with CallWatchdog(
            lambda: f"{self.record.field} ({settings.assign.kind}, {settings.baseline.kind})", self._deadline_s
        ):
            if scale != 1:
                evidence = evidence.transform_rewards(lambda trajectory: trajectory.with_scaled_rewards(scale))
            token_rewards, penalties, metrics = self.penalties(evidence, credited_turns)
            with_token_rewards = replace(evidence, token_rewards=token_rewards)
            assign_evidence = with_token_rewards if settings.assign.uses_token_rewards else evidence
            assigned = self.assign(assign_evidence)
            # Scaled rewards and forks leave the turns of the evidence as they are.
            turns = evidence.turns()
            self._refuse_unusable_credit("assign", assigned, assign_evidence, turns)
            metrics |= self.assign.metrics()
            if settings.baseline.uses_reward_names:
                # To credit each reward component apart, `assign` runs once per name, on the rewards of this name alone.
                # `marl check` refuses stateful rules with such a baseline, because these runs would change their state.
                names: dict[str, None] = {}
                for trajectory in evidence.trajectories:
                    for reward in trajectory.rewards:
                        names[reward.name] = None
                earned_by_reward: dict[str, Credit] = {}
                for name in names:
                    only_name = partial(Trajectory.keep_only_rewards_named, reward_name=name)
                    earned_by_reward[name] = self.assign(evidence.transform_rewards(only_name))
                evidence = replace(evidence, earned_by_reward=earned_by_reward)
            earned = dict(assigned)
            if credited_turns is not None:
                earned = {turn: advantage for turn, advantage in assigned.items() if turn in credited_turns}
            if not settings.assign.uses_token_rewards:
                for turn in earned.keys() & token_rewards.keys():
                    penalty, advantage = sum(token_rewards[turn]), earned[turn]
                    tokens = tuple([token + penalty for token in advantage.tokens])
                    earned[turn] = Advantage(advantage.value + penalty, tokens, advantage.returns)
            compared = self.baseline(evidence, earned)
            # A third-party baseline may return only the credit, without metrics.
            credit, baseline_metrics = compared if isinstance(compared, tuple) else (compared, {})
            self._refuse_unusable_credit("baseline", credit, with_token_rewards, turns)
            return CreditRuleResult(
                evidence=evidence,
                assigned=assigned,
                earned=earned,
                credit=credit,
                metrics=metrics | baseline_metrics,
                peers=settings.baseline.compared_turn_groups(evidence, earned),
                reward_pools=[
                    settings.assign.agent_groups_with_shared_reward(episode, evidence)
                    for episode in evidence.trajectories
                ],
                penalties=penalties,
            )

    def _refuse_unusable_credit(
        self, assign_or_baseline: str, credit: object, evidence: Evidence, turns: Mapping[TurnId, Turn]
    ) -> None:
        """Raise InvalidCreditError if `credit`, the result of the rule's `assign` or `baseline`, cannot be used.

        `turns`: the turns of `evidence`, by id.
        """
        kind = {"assign": self._settings.assign, "baseline": self._settings.baseline}[assign_or_baseline].kind
        subject = f"{self.record.field}.{assign_or_baseline}: {kind!r}"
        if not isinstance(credit, Mapping):
            name = type(credit).__name__
            raise InvalidCreditError(
                f"{subject} returned {name}; it must return a mapping from the ids of turns to Advantage"
            )
        # A look at all turns together is several times as fast as a loop over them, which names the unusable turn.
        if credit.keys() <= turns.keys() and _are_finite_advantages(credit.values()):
            return
        for turn_id, advantage in credit.items():
            if turn_id not in turns:
                clause = (
                    f"judged {turn_id!r}, which is the id of no turn of this step, such as {next(iter(turns), None)}"
                )
                raise InvalidCreditError(f"{subject} {clause}")
            if not isinstance(advantage, Advantage):
                clause = f"gave turn {turn_id} {advantage!r}; it must be an Advantage, such as Advantage(0.5)"
                raise InvalidCreditError(f"{subject} {clause}")
            numbers = advantage.value, *advantage.tokens, *advantage.returns
            # Infinite numbers of a game or model pass, because the learner refuses them and names their source.
            if not all(map(isfinite, numbers)) and _has_finite_inputs(evidence):
                clause = f"gave turn {turn_id} {advantage.value:g}, though all rewards and readings are finite"
                raise InvalidCreditError(f"{subject} {clause}")

    def state_dict(self) -> dict[str, Any]:
        penalties = {"charges": self.penalties.state_dict()} if self.penalties.has_adaptive_kl_coefficient else {}
        return {"assign": self.assign.state_dict(), "baseline": self.baseline.state_dict(), **penalties}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.assign.load_state_dict(state["assign"])
        self.baseline.load_state_dict(state["baseline"])
        if self.penalties.has_adaptive_kl_coefficient:
            self.penalties.load_state_dict(state["charges"])


def _are_finite_advantages(credit: Collection[object]) -> bool:
    """Return True if all of `credit` are of the class Advantage itself, and have neither infinite numbers nor NaN."""
    if not set(map(type, credit)) <= {Advantage}:
        return False
    numbers: list[float] = []
    for advantage in cast("Collection[Advantage]", credit):
        numbers.append(advantage.value)
        # A rule's own code may give a list or an array instead of a tuple.
        numbers.extend(advantage.tokens)
        numbers.extend(advantage.returns)
    return all(map(isfinite, numbers))


def _has_finite_inputs(evidence: Evidence) -> bool:
    """Return True if all rewards and readings that a rule can read are finite."""
    columns: list[Sequence[float] | None] = [*evidence.token_rewards.values()]
    for trajectory in evidence.trajectories:
        columns.append([reward.value for reward in trajectory.rewards])
    for reading in evidence.readings.values():
        columns += [reading.logprobs, reading.values, reading.reference, reading.rewards, (reading.next_value or 0.0,)]
    return all(map(isfinite, chain.from_iterable(filter(None, columns))))


class GameCreditRules:
    """Credit rules of one game: the default rule, the rules of single roles, and the rules that are only reported."""

    def __init__(self, settings: CreditConfig, deadline_s: float) -> None:
        self._by_role: dict[str | None, StatefulCreditRule] = {None: StatefulCreditRule("credit", settings, deadline_s)}
        """Role -> its rule; None -> the default rule of all other roles."""
        for role, rule in settings.roles.items():
            self._by_role[role] = StatefulCreditRule(f"credit.roles.{role}", rule, deadline_s)
        self._compared: dict[str, StatefulCreditRule] = {}
        for name, rule in settings.compare.items():
            self._compared[name] = StatefulCreditRule(f"credit.compare.{name}", rule, deadline_s)
        self.all = [*self._by_role.values(), *self._compared.values()]

    def add_game_credit(self, evidence: Evidence, step_credit: StepCredit, metric_prefix: str) -> None:
        """Add the credit of one game's episodes to `step_credit`, and its metrics under names that begin with
        `metric_prefix`."""
        credited = branch_points(evidence.trajectories)
        # Role with a rule of its own -> its turns; None -> turns of all other roles. A value of None means all turns.
        turns_by_role: dict[str | None, Set[TurnId] | None] = {None: credited}
        if len(self._by_role) > 1:
            sets: dict[str | None, set[TurnId]] = {role: set() for role in self._by_role}
            for trajectory in evidence.trajectories:
                for turn in trajectory.turns:
                    if credited is None or turn.id in credited:
                        sets[turn.role if turn.role in sets else None].add(turn.id)
            turns_by_role.update(sets)
        results: dict[str | None, CreditRuleResult] = {}
        for role, turns in turns_by_role.items():
            results[role] = self._by_role[role].compute_credit(evidence, turns)
            step_credit.rule_results.append((self._by_role[role].record, results[role]))
        credit: Credit = {}
        metrics: Metrics = {}
        for role, result in results.items():
            step_credit.earned.update(result.earned)
            credit.update(result.credit)
            suffix = f"@{role}" if role else ""
            for name, value in result.metrics.items():
                metrics[name + suffix] = value
        columns = TurnColumns(evidence.trajectories)
        for result in results.values():
            metrics.update(credit_rule_diagnostics(result, columns))
        metrics.update(nonzero_advantage_metrics(columns, credit, credited, evidence.rule_based_roles))
        # Rules that are only compared run last, so that their forks cannot change the credit used in training.
        for compared_name, rule in self._compared.items():
            agreed = credit_rule_agreement_by_role(evidence.trajectories, credit, rule.compute_credit(evidence).credit)
            for role, figures in agreed.items():
                for figure in _REPORTED_AGREEMENT_MEASURES:
                    if figure in figures:
                        metrics[f"credit/{role}/{figure}/{compared_name}"] = figures[figure]
        step_credit.credit.update(credit)
        for name, value in metrics.items():
            step_credit.metrics[metric_prefix + name] = value

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
    """All credit rules of a run, separately for each game: rules compare, average, whiten and fit within one game.

    A reward of 1 means something different in each game, so rewards of different games are never compared. SPIRAL's
    role average (arXiv 2506.24119) is per game and role for the same reason.
    """

    def __init__(self, settings: CreditConfig, games: Sequence[str] = (), deadline_s: float = 600.0) -> None:
        """`games`: names of the games if there are several; empty: there is one. `deadline_s`: time limit of a rule's
        own code, for each step and game (time spent on forks does not count)."""
        # A single game is named "": its metrics have no prefix, and its episodes are not selected by game.
        self._rules = {game: GameCreditRules(settings, deadline_s) for game in games or ("",)}
        self._all: list[StatefulCreditRule] = []
        self.needed_reading_fields = frozenset[str]()
        self.may_have_state = False
        """True if a rule was built as an object of its own, or the coefficient of a penalty adapts."""
        for rules in self._rules.values():
            self._all += rules.all
        for rule in self._all:
            self.needed_reading_fields |= rule.needed_reading_fields
            self.may_have_state = self.may_have_state or rule.may_have_state

    @property
    def has_state(self) -> bool:
        """Return True if some rule has a state, so that the credit of a step depends on earlier steps."""
        return any(any(rule.state_dict().values()) for rule in self._all)

    def __call__(self, evidence: Evidence) -> StepCredit:
        """Return the credit of all turns of a step.

        Raises:
            ValueError: if there are several games, and an episode belongs to none of them.
        """
        step = StepCredit({}, {}, {})
        if "" in self._rules:
            self._rules[""].add_game_credit(evidence, step, "")
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
                self._rules[game].add_game_credit(game_evidence, step, f"game/{game}/")
        columns, credited = TurnColumns(evidence.trajectories), branch_points(evidence.trajectories)
        step.metrics.update(nonzero_advantage_metrics(columns, step.credit, credited, evidence.rule_based_roles))
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each game's rules; a single game has the name ""."""
        return {game: rules.state_dict() for game, rules in self._rules.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for game, rules in self._rules.items():
            rules.load_state_dict(state[game])
