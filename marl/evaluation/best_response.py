"""Approximate best response: the gains of learners against a frozen player, a lower bound on its exploitability."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from marl.core.seeds import hash_to_seed
from marl.core.statistics import normal_interval
from marl.core.types import Deal, Metrics
from marl.evaluation.cross_play import Engines, TournamentPlayer
from marl.protocols import RoleConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario

ReturnsByStart = Mapping[str, Mapping[str, float]]
"""Episode id, which names the start -> agent -> return. Episodes that were dropped are missing."""


@dataclass(frozen=True, slots=True)
class TrainedResponderEvaluation:
    """A frozen player, and a responder for each seat that was trained against the frozen player in the other seats."""

    scenario: Scenario
    """Scenario with a single game."""
    frozen: TournamentPlayer
    responders: Mapping[str, TournamentPlayer]
    """Agent -> responder that replaces the frozen player in the agent's seat."""
    build_simulator: Callable[[Engines], RolloutSimulator]
    """Function that returns a simulator of the game with the given engines."""

    def measure_best_response_gains(self, start_count: int, seed: int) -> Metrics:
        """Return each seat's returns and gain, and lower bounds on NashConv and exploitability, with 95 % intervals.

        Intervals are over the `start_count` start states.

        A best response earns at least as much as a responder and never gains less than 0, so the sum of the gains is at
        most NashConv. Training ended before these starts were dealt, so no gain is a maximum over several tries.

        Raises:
            ValueError: if no start has an episode of every player.
        """
        engines = self.frozen.load_engines()
        frozen_returns = self._play_all_starts(self.frozen, engines, "", start_count, seed)
        figures: dict[str, list[float]] = {}
        gains: list[list[float]] = []
        response_returns: dict[str, ReturnsByStart] = {}
        for seat, responder in self.responders.items():
            response_returns[seat] = self._play_all_starts(responder, engines, seat, start_count, seed)
        # An episode is missing if it was dropped or has no verdict. Starts with a missing episode are left out.
        complete = [start for start in frozen_returns if all(start in played for played in response_returns.values())]
        if not complete:
            raise ValueError(f"best response: no start of {start_count} was played to its end by all players")
        for seat, played in response_returns.items():
            responses = [played[start][seat] for start in complete]
            before = [frozen_returns[start][seat] for start in complete]
            gains.append(list(map(operator.sub, responses, before)))
            figures |= {f"{seat}/return": before, f"{seat}/response": responses, f"{seat}/gain": gains[-1]}
        figures["nashconv"] = list(map(math.fsum, zip(*gains, strict=True)))
        figures["exploitability"] = [gain / len(self.scenario.seats) for gain in figures["nashconv"]]
        metrics: Metrics = {}
        for name, values in figures.items():
            low, mean, high = normal_interval(values)
            key = f"best_response/{name}"
            metrics |= {f"{key}_low": low, key: mean, f"{key}_high": high}
        return metrics

    def _play_all_starts(
        self, responder: TournamentPlayer, frozen_engines: Engines, seat: str, start_count: int, seed: int
    ) -> ReturnsByStart:
        """Play one episode from each start, with `responder` in `seat`, and return the returns.

        The frozen player plays all other seats, and every seat if `seat` is "".
        """
        # The frozen player and the responder may use equal names, so a prefix tells their roles and policies apart.
        roles: dict[str, RoleConfig] = {}
        policies: dict[str, str] = {}
        for agent, role in self.frozen.roles.items():
            roles[f"frozen:{agent}"] = role
            policies[f"frozen:{agent}"] = f"{role.policy}@frozen"
        engines = {f"{policy}@frozen": engine for policy, engine in frozen_engines.items()}
        seats = {agent: f"frozen:{agent}" for agent in self.scenario.seats}
        if seat:
            for policy, engine in responder.load_engines().items():
                engines[f"{policy}@response"] = engine
            seats[seat] = name = f"response:{seat}"
            roles[name] = responder.roles[seat]
            policies[name] = f"{roles[name].policy}@response"
        simulator = self.build_simulator(engines).variant(RoleRequestBuilder(roles, seed))
        deals: list[Deal] = []
        for start, options in enumerate(self.scenario.game.held_out_reset_options(start_count) or [None] * start_count):
            name = f"best_response.{start}"
            deals.append(Deal(name, name, hash_to_seed(seed, name), seats, "eval", options=options, policies=policies))
        return {episode.id: episode.returns for episode in simulator.play(deals)}
