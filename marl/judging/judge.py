"""The judge stage: the credit rules of a scenario, applied to one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from marl.errors import RunError
from marl.graph import Trajectory, branch_points
from marl.judging.diagnostics import Ruling, compare, diagnose, nonzero
from marl.judging.records import RuleRecord, StepRecord, record_step
from marl.judging.token_penalties import TokenPenalties, TokenRewards
from marl.protocols import Assign, Baseline, Evidence
from marl.types import Advantage, Credit, Metrics, Reading, TurnId
from marl.watchdog import Watch

if TYPE_CHECKING:
    from marl.scenario.schema import CreditConfig, CreditRule

_REPORTED = ("sign_agreement", "correlation")


class CreditError(RunError):
    """The result of a credit rule cannot be used; the message names the rule."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Earnings and advantages of every turn of a step."""

    earned: Credit
    credit: Credit
    metrics: Metrics
    rulings: Sequence[tuple[RuleRecord, Ruling]] = field(default=(), compare=False, repr=False)

    def record(self, trajectories: Sequence[Trajectory], policies: Mapping[str, str]) -> StepRecord:
        """Return why each turn got its advantage; `policies` maps a role to the policy that speaks for it."""
        return record_step(self.rulings, policies, trajectories)


class _Rule:
    """`assign`, then `baseline`, on rewards times `scale` minus token penalties."""

    def __init__(self, field_name: str, settings: CreditRule, deadline_s: float) -> None:
        self._settings, self._deadline_s = settings, deadline_s
        self.assign: Assign = settings.assign.build()
        self.baseline: Baseline = settings.baseline.build()
        self.penalties = TokenPenalties(settings.kl, settings.overlong)
        self.needs = self.penalties.needs | self.assign.needs | self.baseline.needs
        parts = settings.assign.model_dump(mode="json"), settings.baseline.model_dump(mode="json")
        self.record = RuleRecord(field_name, *parts, settings.scale)

    def __call__(self, evidence: Evidence, turns: Set[TurnId] | None = None) -> Ruling:
        """Judge `turns` (None: all). `assign` reads whole episodes; `baseline` compares these turns only.

        Raises:
            HangError: if the rule's own code does not come back in time; what it has played does not count.
        """
        settings = self._settings
        with Watch(lambda: f"{self.record.field} ({settings.assign.kind}, {settings.baseline.kind})", self._deadline_s):
            return self._judge(evidence, turns)

    def _judge(self, evidence: Evidence, turns: Set[TurnId] | None) -> Ruling:
        settings, scale = self._settings, self._settings.scale
        scaled = evidence if scale == 1 else evidence.map_rewards(lambda trajectory: trajectory.scaled(scale))
        token_rewards, penalties, metrics = self.penalties(scaled, turns)
        read = replace(scaled, token_rewards=token_rewards) if settings.assign.by_token else scaled
        assigned = self._checked("assign", self.assign(read), read)
        metrics |= self.assign.metrics()
        if settings.baseline.by_name:
            scaled = replace(scaled, named=self._earned_by_name(scaled))
        earned = assigned if turns is None else {turn: worth for turn, worth in assigned.items() if turn in turns}
        if not settings.assign.by_token:
            earned = _with_token_rewards(earned, token_rewards)
        compared = self.baseline(scaled, earned)
        credit, figures = compared if isinstance(compared, tuple) else (compared, {})
        self._checked("baseline", credit, replace(scaled, token_rewards=token_rewards))
        return Ruling(
            evidence=scaled,
            assigned=assigned,
            earned=earned,
            credit=credit,
            metrics=metrics | figures,
            peers=settings.baseline.peers(scaled, earned),
            reward_pools=[settings.assign.reward_pools(trajectory, scaled) for trajectory in scaled.trajectories],
            penalties=penalties,
        )

    def _earned_by_name(self, evidence: Evidence) -> dict[str, Credit]:
        """Return what each named reward alone would have earned.

        `marl check` refuses rules that learn here: asking them would change them.
        """
        names = dict.fromkeys([reward.name for trajectory in evidence.trajectories for reward in trajectory.rewards])
        return {name: self.assign(evidence.map_rewards(lambda t, name=name: t.paid_for(name))) for name in names}

    def _checked(self, half: str, credit: Credit, evidence: Evidence) -> Credit:
        """Return `credit`.

        Raises:
            CreditError: if it is no mapping from turns of this step to advantages, or not finite though all that the
                rule was shown is.
        """
        for problem in problems(credit, evidence):
            kind = {"assign": self._settings.assign, "baseline": self._settings.baseline}[half].kind
            raise CreditError(f"{self.record.field}.{half}: {kind!r} {problem}")
        return credit

    @property
    def has_parts(self) -> bool:
        settings = self._settings
        return self.assign is not settings.assign or self.baseline is not settings.baseline or self.penalties.adapts

    @property
    def has_state(self) -> bool:
        return any(self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        penalties = {"charges": self.penalties.state_dict()} if self.penalties.adapts else {}
        return {"assign": self.assign.state_dict(), "baseline": self.baseline.state_dict(), **penalties}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.assign.load_state_dict(state["assign"])
        self.baseline.load_state_dict(state["baseline"])
        if self.penalties.adapts:
            self.penalties.load_state_dict(state["charges"])


def problems(credit: object, evidence: Evidence) -> Iterator[str]:
    """Yield what is wrong with the result of a rule, in words that follow its name."""
    if not isinstance(credit, Mapping):
        yield f"returned {type(credit).__name__}; it must return a mapping from the ids of turns to Advantage"
        return
    turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
    for turn_id, advantage in credit.items():
        if turn_id not in turns:
            yield f"judged {turn_id!r}, which is the id of no turn of this step, such as {next(iter(turns), None)}"
        elif not isinstance(advantage, Advantage):
            yield f"gave turn {turn_id} {advantage!r}; it must be an Advantage, such as Advantage(0.5)"
        elif not _finite(advantage.value, *advantage.tokens, *advantage.returns) and _all_finite(evidence):
            yield f"gave turn {turn_id} {advantage.value:g}, though all rewards and readings are finite"


def _all_finite(evidence: Evidence) -> bool:
    rewards = [reward.value for trajectory in evidence.trajectories for reward in trajectory.rewards]
    tokens = [value for values in evidence.token_rewards.values() for value in values]
    return _finite(*rewards, *tokens) and all(map(_readable, evidence.readings.values()))


def _readable(reading: Reading) -> bool:
    fields = (reading.logprobs, reading.values, reading.reference, reading.rewards)
    return _finite(reading.next_value or 0.0, *(value for values in fields for value in values or ()))


def _finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


def _with_token_rewards(earned: Credit, token_rewards: TokenRewards) -> Credit:
    """Return what turns earned plus the sum of their token rewards."""
    sums = {turn: sum(token_rewards[turn]) for turn in earned if turn in token_rewards}
    return earned | {turn: _plus(earned[turn], total) for turn, total in sums.items()}


def _plus(worth: Advantage, total: float) -> Advantage:
    return Advantage(worth.value + total, tuple([token + total for token in worth.tokens]), worth.returns)


class Judge:
    """The default rule, the rules of roles that have one, and rules that are only reported for comparison."""

    def __init__(self, settings: CreditConfig, deadline_s: float = 600.0) -> None:
        """`deadline_s`: longest time that a rule's own code may take for a step."""

        def rules(field_name: str, settings: Mapping[str, CreditRule]) -> dict[str, _Rule]:
            return {name: _Rule(f"{field_name}.{name}", rule, deadline_s) for name, rule in settings.items()}

        self._default = _Rule("credit", settings, deadline_s)
        self._of_roles, self._compared = (
            rules("credit.roles", settings.roles),
            rules("credit.compare", settings.compare),
        )
        self._rules = [self._default, *self._of_roles.values(), *self._compared.values()]
        self.needs = frozenset[str]().union(*(rule.needs for rule in self._rules))

    @property
    def may_have_state(self) -> bool:
        """Return True if a part was built, as those with a state are, or a penalty's coefficient adapts."""
        return any(rule.has_parts for rule in self._rules)

    @property
    def has_state(self) -> bool:
        """Return True if there is a state, so that a step is judged by those before it."""
        return any(rule.has_state for rule in self._rules)

    def __call__(self, evidence: Evidence) -> Judgement:
        fair = branch_points(evidence.trajectories)
        rulings = self._rulings(evidence, fair)
        records = [(self._rule_of(role).record, ruling) for role, ruling in rulings.items()]
        judgement = Judgement({}, {}, {}, records)
        for role, ruling in rulings.items():
            judgement.earned.update(ruling.earned)
            judgement.credit.update(ruling.credit)
            suffix = f"@{role}" if role else ""
            judgement.metrics.update({f"{name}{suffix}": value for name, value in ruling.metrics.items()})
        for ruling in rulings.values():
            judgement.metrics.update(diagnose(ruling))
        judgement.metrics.update(nonzero(evidence, judgement.credit, fair))
        # Last, so that what they play changes nothing of what is learnt.
        for name, rule in self._compared.items():
            agreed = compare(evidence.trajectories, judgement.credit, rule(evidence).credit)
            figures = ((role, figure) for role in agreed for figure in _REPORTED if figure in agreed[role])
            judgement.metrics.update({f"credit/{role}/{f}/{name}": agreed[role][f] for role, f in figures})
        return judgement

    def _rule_of(self, role: str | None) -> _Rule:
        return self._default if role is None else self._of_roles[role]

    def _rulings(self, evidence: Evidence, fair: Set[TurnId] | None) -> dict[str | None, Ruling]:
        """Return the rulings on roles that have a rule of their own, and on all others (None)."""
        if not self._of_roles:
            return {None: self._default(evidence, fair)}
        turns: dict[str | None, set[TurnId]] = {None: set(), **{role: set() for role in self._of_roles}}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                if fair is None or turn.id in fair:
                    turns[turn.role if turn.role in self._of_roles else None].add(turn.id)
        return {role: self._rule_of(role)(evidence, turns[role]) for role in turns}

    def state_dict(self) -> dict[str, Any]:
        return {
            "default": self._default.state_dict(),
            "roles": {role: rule.state_dict() for role, rule in self._of_roles.items()},
            "compare": {name: rule.state_dict() for name, rule in self._compared.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._default.load_state_dict(state["default"])
        for role, rule in self._of_roles.items():
            rule.load_state_dict(state["roles"][role])
        for name, rule in self._compared.items():
            rule.load_state_dict(state["compare"][name])
