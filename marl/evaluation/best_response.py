"""Approximate best response: the gains of learners against a frozen player, a lower bound on its exploitability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marl.core.seeds import seed_of
from marl.core.statistics import normal
from marl.core.types import Deal, Metrics
from marl.evaluation.cross_play import Engines, Entrant
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class Challenge:
    """A frozen player, and one responder per seat that was trained against the frozen player in that seat."""

    scenario: Scenario
    """Scenario with a single game."""
    frozen: Entrant
    responders: Mapping[str, Entrant]
    """Agent -> responder that replaces the frozen player in this seat."""
    simulator: Callable[[Engines], RolloutSimulator]
    """Return a simulator of the game with the given engines."""

    def metrics(self, starts: int, seed: int) -> Metrics:
        """Return each seat's returns and gain, and lower bounds on NashConv, with 95 % intervals over starts.

        A best response earns at least as much as a responder and never gains less than 0, so the sum of the gains is at
        most NashConv. Training ended before these starts were dealt, so no gain is a maximum over several tries.
        """
        engines = self.frozen.engines()
        before = self._play(self.frozen, engines, "", (starts, seed))
        figures, gains = {}, []
        for seat, responder in self.responders.items():
            responses = [row[seat] for row in self._play(responder, engines, seat, (starts, seed))]
            returns = [row[seat] for row in before]
            gains.append([new - old for new, old in zip(responses, returns, strict=True)])
            figures |= {f"{seat}/return": returns, f"{seat}/response": responses, f"{seat}/gain": gains[-1]}
        total = [math.fsum(seat_gains) for seat_gains in zip(*gains, strict=True)]
        figures["nashconv"] = total
        figures["exploitability"] = [gain / len(self.scenario.seats) for gain in total]
        metrics: Metrics = {}
        for name, values in figures.items():
            low, mean, high = normal(values)
            key = f"best_response/{name}"
            metrics |= {f"{key}_low": low, key: mean, f"{key}_high": high}
        return metrics

    def _play(
        self, responder: Entrant, engines: Engines, seat: str, starts_and_seed: tuple[int, int]
    ) -> Sequence[Mapping[str, float]]:
        """Return agent -> return of one episode per start, with `responder` in `seat` ("": frozen in all seats)."""
        responder_engines = responder.engines() if seat else {}
        roles = {f"frozen:{agent}": role for agent, role in self.frozen.roles.items()}
        roles |= {f"response:{seat}": responder.roles[seat]} if seat else {}
        policies = {name: f"{role.policy}@{name.partition(':')[0]}" for name, role in roles.items()}
        speakers = {f"{name}@frozen": engine for name, engine in engines.items()}
        speakers |= {f"{name}@response": engine for name, engine in responder_engines.items()}
        seats = {agent: f"{'response' if agent == seat else 'frozen'}:{agent}" for agent in self.scenario.seats}
        starts, seed = starts_and_seed
        simulator = self.simulator(speakers).variant(RoleCasting(roles, seed))
        deals: list[Deal] = []
        for start, options in enumerate(self.scenario.game.held_out(starts) or [None] * starts):
            name = f"best_response.{start}"
            deals.append(Deal(name, name, seed_of(seed, name), seats, "eval", options=options, policies=policies))
        return [episode.returns for episode in simulator.play(deals)]
