"""What has been said so far, as expressions see it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from marl.types import Problem

if TYPE_CHECKING:
    from games.team.cast import Cast
    from games.team.stages import Stage

Facts = dict[str, Any]
"""Of one agent: `move` (text), `readable` (0 or 1), `score` (its move as a number; yes is 1), `spoke` (turns), `index`,
`posed` (whether its move poses a problem), each check that it is verified by, `of` (whom it spoke about), `before` (the
same, one turn earlier)."""

# What a model says is data: no number of its own may overflow a reward.
_MOST = 1e6
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


def score_of(move: str) -> float:
    """A move as a number of at most a million either way: yes is 1, and what is no number is 0."""
    try:
        score = _WORDS[move] if move in _WORDS else float(move)
    except ValueError:
        return 0.0
    return min(max(score, -_MOST), _MOST) if not math.isnan(score) else 0.0


class Board:
    """The facts of one episode."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self._blanks = {agent: self._blank(agent) for agent in cast.roles}

    def deal(self, problem: Problem, split: str = "train") -> None:
        """Wipe it, for a new problem."""
        self.problem, self.split = problem, split
        self._now: dict[str, Facts] = {agent: {**blank} for agent, blank in self._blanks.items()}
        self._at: dict[str, dict[str, Facts]] = {name: {} for name in self._cast.stages}

    def of(self, agent: str) -> Facts:
        """The facts of an agent's last turn."""
        return self._now[agent]

    def note(self, stage: Stage, agent: str, move: str) -> Facts:
        """Put down what `agent` said in a stage; "" if nothing could be read."""
        before = self._now[agent]
        facts = {**self._blanks[agent], "before": {**before, "before": None}, "spoke": before["spoke"] + 1}
        facts |= {"move": move, "readable": float(bool(move)), "score": score_of(move)}
        facts["of"] = self._cast.partner(stage, agent)
        self._now[agent] = self._at[stage.called][agent] = facts
        return facts

    def verdict(self, agent: str, verdict: str, scores: tuple[str, ...]) -> None:
        """Put down the scores of what `agent` said last. A verdict that cannot be read fails it."""
        given = _scores(verdict)
        if given is None:
            given = dict.fromkeys(scores, 0.0)
        for name in scores:
            if name not in given:
                raise ValueError(f"the verdict on {agent} has no check {name!r}; checks: {', '.join(given)}")
            self._now[agent][name] = float(given[name])

    def names(self, *, gold: bool = True) -> frozenset[str]:
        """All that an expression may use; without `gold`, nothing that gives the answer away."""
        return frozenset({*self._cast.stages, *self._cast.roles, *_GIVEN, *(_GOLD if gold else ())})

    def facts(self, names: Iterable[str], own: str | None = None, it: str | None = None) -> dict[str, Any]:
        """The facts of these names; `own` and `it` are agents."""
        agents = {"own": own, "it": it}
        return {name: self._fact(name, agents.get(name)) for name in names}

    def _fact(self, name: str, agent: str | None) -> Any:
        if agent is not None:
            facts = self._now[agent]
            return {**facts, "of": self._now.get(facts["of"])}
        if name in self._cast.stages:
            return self._view(self._cast.stages[name])
        if name in self._now:
            return self._now[name]
        return self.split if name == "split" else getattr(self.problem, _GIVEN.get(name) or _GOLD[name])

    def _view(self, stage: Stage) -> Facts:
        """What was said in a stage: of one agent its facts, of several a list of each fact."""
        here, agents = self._at[stage.called], self._cast.speakers(stage)
        said = [here.get(agent) or self._blanks[agent] for agent in agents]
        return said[0] if len(said) == 1 else {key: [facts[key] for facts in said] for key in said[0]}

    def _blank(self, agent: str) -> Facts:
        cast, role = self._cast, self._cast.roles[agent]
        facts: Facts = {"move": "", "readable": 0.0, "score": 0.0, "spoke": 0, "index": cast.index[agent], "posed": 0.0}
        facts |= dict.fromkeys(cast.scores.get(role, ()), 0.0)
        facts["of"] = next((cast.partner(s, agent) for s in cast.stages.values() if s.role == role and s.partner), None)
        return facts | {"before": facts}


def _scores(verdict: str) -> dict[str, Any] | None:
    try:
        read = json.loads(verdict)
    except ValueError:
        return None
    scores = read.get("scores") if isinstance(read, dict) else None
    return scores if isinstance(scores, dict) else None


_GIVEN = {"question": "question", "given": "facts", "split": "", "own": "", "it": ""}
_GOLD = {"answer": "answer", "wrong": "wrong"}
