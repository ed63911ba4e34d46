"""Measurement of what learners gain against a frozen player, seat by seat: a lower bound on its exploitability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marl.evaluation.cross_play import Engines, Entrant
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.statistics import normal
from marl.types import Deal, Metrics


@dataclass(frozen=True, slots=True)
class Challenge:
    """A frozen player, and for seats of the game a learner that was trained against it there."""

    scenario: Scenario
    """One with a single game."""
    frozen: Entrant
    responders: Mapping[str, Entrant]
    """Agent -> who takes its seat."""
    simulator: Callable[[Engines], RolloutSimulator]
    """Return a simulator of the game with these engines."""

    def metrics(self, starts: int, seed: int) -> Metrics:
        """Return each seat's returns and gain, and the bounds that follow, with 95 % intervals over starts.

        A best response earns at least what a learner does, and none gains less than 0, so the sum of the gains is at
        most NashConv. The players were done learning before these starts were dealt: no gain is the best of several.
        """
        engines = self.frozen.engines()
        before = self._play(self.frozen, engines, "", (starts, seed))
        figures, gains = {}, []
        for seat, responder in self.responders.items():
            earned = [row[seat] for row in self._play(responder, engines, seat, (starts, seed))]
            returned = [row[seat] for row in before]
            gains.append([new - old for new, old in zip(earned, returned, strict=True)])
            figures |= {f"{seat}/return": returned, f"{seat}/response": earned, f"{seat}/gain": gains[-1]}
        total = [math.fsum(each) for each in zip(*gains, strict=True)]
        figures["nashconv"] = total
        figures["exploitability"] = [gain / len(self.scenario.seats) for gain in total]
        return {
            f"best_response/{name}{end}": value
            for name, values in figures.items()
            for end, value in zip(("_low", "", "_high"), normal(values), strict=True)
        }

    def _play(
        self, responder: Entrant, engines: Engines, seat: str, dealt: tuple[int, int]
    ) -> Sequence[Mapping[str, float]]:
        """Return the returns of all agents from each start, with a responder in one seat (none: "")."""
        theirs = responder.engines() if seat else {}
        roles = {f"frozen:{agent}": role for agent, role in self.frozen.roles.items()}
        roles |= {f"response:{seat}": responder.roles[seat]} if seat else {}
        policies = {name: f"{role.policy}@{name.partition(':')[0]}" for name, role in roles.items()}
        speakers = {f"{name}@frozen": engine for name, engine in engines.items()}
        speakers |= {f"{name}@response": engine for name, engine in theirs.items()}
        seats = {agent: f"{'response' if agent == seat else 'frozen'}:{agent}" for agent in self.scenario.seats}
        starts, seed = dealt
        table = self.simulator(speakers).variant(RoleCasting(roles, seed))
        held_out = self.scenario.game.held_out(starts) or [None] * starts
        deals = [
            Deal(name, name, seed_of(seed, name), seats, "eval", options=options, policies=policies)
            for name, options in ((f"best_response.{start}", options) for start, options in enumerate(held_out))
        ]
        return [episode.returns for episode in table.play(deals)]
