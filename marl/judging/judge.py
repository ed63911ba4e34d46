"""The judge stage: credit rules of a scenario, applied to one step."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marl.judging.agreement import compare
from marl.judging.diagnostics import Ruling, diagnose
from marl.judging.map_rewards import repaid
from marl.judging.token_penalties import Charges, TokenRewards
from marl.protocols import Assign, Baseline, Evidence
from marl.tried import tried
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.scenario.schema import CreditConfig, CreditRule


_AGREED = ("sign_agreement", "correlation")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What every turn was assigned, and how much better than its peers that was."""

    earned: Credit
    credit: Credit
    metrics: Metrics


class _Rule:
    """`assign` then `baseline`, on rewards times `scale` and minus what tokens are charged."""

    def __init__(self, settings: CreditRule) -> None:
        self._settings = settings
        self.assign: Assign = settings.assign.build()
        self.baseline: Baseline = settings.baseline.build()
        self.charges = Charges(settings.kl, settings.overlong)
        self.needs = self.charges.needs | self.assign.needs | self.baseline.needs

    def __call__(self, evidence: Evidence, turns: Set[TurnId] | None = None) -> Ruling:
        """Judge `turns` (None: all); the assignment sees the whole episodes, the comparison only these."""
        settings, scale = self._settings, self._settings.scale
        scaled = evidence if scale == 1 else repaid(evidence, lambda trajectory: trajectory.scaled(scale))
        charged, metrics = self.charges(scaled, turns)
        given = self.assign(replace(scaled, token_rewards=charged) if settings.assign.by_token else scaled)
        metrics |= self.assign.metrics()
        if settings.baseline.by_name:
            scaled = replace(scaled, named=self._named(scaled))
        earned = given if turns is None else {turn: worth for turn, worth in given.items() if turn in turns}
        if not settings.assign.by_token:
            earned = _charged(earned, charged)
        credit, found = self.baseline(scaled, earned)
        pots = [settings.assign.pots(trajectory, scaled) for trajectory in scaled.trajectories]
        return Ruling(scaled, given, earned, credit, metrics | found, settings.baseline.peers(scaled, earned), pots)

    def _named(self, evidence: Evidence) -> dict[str, Credit]:
        """What each reward alone would have earned. `marl check` sees to it that no rule that learns is asked."""
        names = dict.fromkeys([reward.name for trajectory in evidence.trajectories for reward in trajectory.rewards])
        return {name: self.assign(repaid(evidence, lambda t, name=name: t.paid_for(name))) for name in names}

    @property
    def built(self) -> bool:
        own = self._settings
        return self.assign is not own.assign or self.baseline is not own.baseline or self.charges.adapts

    @property
    def remembers(self) -> bool:
        return any(self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        charges = {"charges": self.charges.state_dict()} if self.charges.adapts else {}
        return {"assign": self.assign.state_dict(), "baseline": self.baseline.state_dict(), **charges}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.assign.load_state_dict(state["assign"])
        self.baseline.load_state_dict(state["baseline"])
        if self.charges.adapts:
            self.charges.load_state_dict(state["charges"])


def _charged(earned: Credit, charged: TokenRewards) -> Credit:
    """What turns earned, and the sum of what their tokens were paid."""
    sums = {turn: sum(charged[turn]) for turn in earned if turn in charged}
    return earned | {turn: _plus(earned[turn], paid) for turn, paid in sums.items()}


def _plus(worth: Advantage, paid: float) -> Advantage:
    return Advantage(worth.value + paid, tuple([token + paid for token in worth.tokens]), worth.returns)


class Judge:
    """The default rule, roles that have a rule of their own, and rules beside which those are reported."""

    def __init__(self, settings: CreditConfig) -> None:
        self._default = _Rule(settings)
        self._own = {role: _Rule(rule) for role, rule in settings.roles.items()}
        self._beside = {name: _Rule(rule) for name, rule in settings.compare.items()}
        self._rules = [self._default, *self._own.values(), *self._beside.values()]
        self.needs = frozenset[str]().union(*(rule.needs for rule in self._rules))

    @property
    def may_remember(self) -> bool:
        """Whether a part was built, as those are that have a state, or what is charged adapts."""
        return any(rule.built for rule in self._rules)

    @property
    def remembers(self) -> bool:
        """Whether there is a state, so that it judges a step by those before."""
        return any(rule.remembers for rule in self._rules)

    def __call__(self, evidence: Evidence) -> Judgement:
        rulings = self._rulings(evidence)
        judgement = Judgement({}, {}, {})
        for role, ruling in rulings.items():
            judgement.earned.update(ruling.earned)
            judgement.credit.update(ruling.credit)
            suffix = f"@{role}" if role else ""
            judgement.metrics.update({f"{name}{suffix}": value for name, value in ruling.metrics.items()})
        for ruling in rulings.values():
            judgement.metrics.update(diagnose(ruling))
        # Last, so that what they play changes nothing of what is learnt.
        for name, rule in self._beside.items():
            agreed = compare(evidence.trajectories, judgement.credit, rule(evidence).credit)
            told = ((role, figure) for role in agreed for figure in _AGREED if figure in agreed[role])
            judgement.metrics.update({f"credit/{role}/{f}/{name}": agreed[role][f] for role, f in told})
        return judgement

    def _rulings(self, evidence: Evidence) -> dict[str | None, Ruling]:
        """Of the roles that have a rule of their own, and of all others (None)."""
        fair = tried(evidence.trajectories)
        if not self._own:
            return {None: self._default(evidence, fair)}
        turns: dict[str | None, set[TurnId]] = {None: set(), **{role: set() for role in self._own}}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                if fair is None or turn.id in fair:
                    turns[turn.role if turn.role in self._own else None].add(turn.id)
        rules: dict[str | None, _Rule] = {None: self._default, **self._own}
        return {role: rule(evidence, turns[role]) for role, rule in rules.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "default": self._default.state_dict(),
            "roles": {role: rule.state_dict() for role, rule in self._own.items()},
            "compare": {name: rule.state_dict() for name, rule in self._beside.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._default.load_state_dict(state["default"])
        for role, rule in self._own.items():
            rule.load_state_dict(state["roles"][role])
        for name, rule in self._beside.items():
            rule.load_state_dict(state["compare"][name])
