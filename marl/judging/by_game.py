"""The judge stage of a run with several games: a judge for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl.graph import branch_points
from marl.judging.diagnostics import nonzero
from marl.judging.judge import Judge, Judgement
from marl.protocols import Evidence

if TYPE_CHECKING:
    from marl.scenario.schema import CreditConfig


class GamesJudge:
    """Judges each game by rules of its own: what they compare, average, whiten and fit is of one game alone.

    A reward of 1 means something else in another game, so nothing of one is measured by another (SPIRAL's role average,
    arXiv 2506.24119, is per game and role for the same reason).
    """

    def __init__(self, settings: CreditConfig, games: Sequence[str] = (), deadline_s: float = 600.0) -> None:
        """`games`: names of several games; none: there is one. `deadline_s`: as of `Judge`, for each game."""
        self._judges = {name: Judge(settings, deadline_s) for name in games or ("",)}
        self._first = next(iter(self._judges.values()))
        self.needs = self._first.needs

    @property
    def may_have_state(self) -> bool:
        """Return True if a rule of any game may have a state."""
        return self._first.may_have_state

    @property
    def has_state(self) -> bool:
        """Return True if there is a state, so that a step is judged by those before it."""
        return any(judge.has_state for judge in self._judges.values())

    def __call__(self, evidence: Evidence) -> Judgement:
        if "" in self._judges:
            return self._first(evidence)
        for trajectory in evidence.trajectories:
            if trajectory.deal.game not in self._judges:
                names = f"game {trajectory.deal.game!r}, which this run has not; games: {', '.join(self._judges)}"
                raise ValueError(f"episode {trajectory.id} is of {names}")
        whole = Judgement({}, {}, {}, rulings := [])
        for name, judge in self._judges.items():
            episodes = [trajectory for trajectory in evidence.trajectories if trajectory.deal.game == name]
            if not episodes:
                continue
            judged = judge(replace(evidence, trajectories=episodes, game=name))
            whole.earned.update(judged.earned)
            whole.credit.update(judged.credit)
            whole.metrics.update({f"game/{name}/{figure}": value for figure, value in judged.metrics.items()})
            rulings += judged.rulings
        whole.metrics.update(nonzero(evidence, whole.credit, branch_points(evidence.trajectories)))
        return whole

    def state_dict(self) -> dict[str, Any]:
        if "" in self._judges:
            return self._first.state_dict()
        return {name: judge.state_dict() for name, judge in self._judges.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "" in self._judges:
            self._first.load_state_dict(state)
            return
        for name, judge in self._judges.items():
            judge.load_state_dict(state[name])
