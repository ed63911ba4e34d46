"""Trials of instructions: candidates play from the same training starts, with equal seeds of sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.spending import SpendingLimit
from marl.core.types import Completion, CompletionFailure, Deal, Request
from marl.rollout.base import BaseSimulator
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario


class ScenarioInstructionTrials:
    """Trials (protocol `InstructionTrials`) of one policy's instructions, in the games of a scenario."""

    def __init__(
        self, scenario: Scenario, simulator: BaseSimulator, policy: str, describe_players: Callable[[], str]
    ) -> None:
        """Create trials.

        Args:
            scenario: scenario with the games, seats and roles.
            simulator: simulator of the run, of which every trial uses a variant.
            policy: policy whose agents' returns are the scores.
            describe_players: function that returns the text `players`.
        """
        self._simulator, self._policy, self._describe_players = simulator, policy, describe_players
        self._seats = {name: dict(view.seats) for name, view in scenario.scenario_by_game().items()}
        self._roles = scenario.roles

    @property
    def players(self) -> str:
        return self._describe_players()

    def play(self, instructions: Mapping[str, str], starts: Sequence[int], limit: SpendingLimit) -> list[float | None]:
        simulator = self._limited_simulator(self._simulator.casting.with_instructions(instructions), limit)
        for role in instructions:
            simulator.casting.current_role(role)
        deals = list(map(self._deal, starts))
        scores = {trajectory.id: self._score(trajectory) for trajectory in simulator.play(deals)}
        return [scores.get(deal.episode) for deal in deals]

    def ask(self, requests: Sequence[Request], limit: SpendingLimit) -> list[Completion | CompletionFailure]:
        return self._limited_simulator(self._simulator.casting, limit).ask(requests)

    def _limited_simulator(self, casting: RoleRequestBuilder, limit: SpendingLimit) -> BaseSimulator:
        variant = self._simulator.variant(casting)
        # `marl check` refuses a limit on several simulators, which cannot observe it together.
        if isinstance(variant, RolloutSimulator):
            variant.limit = limit
        return variant

    def _deal(self, start: int) -> Deal:
        """Return the deal of the start state with index `start`. Its name, and with it all seeds, depends on `start`
        alone."""
        games = list(self._seats)
        game, name = games[start % len(games)], f"trial.{self._policy}.{start}"
        seed = hash_to_seed(self._simulator.casting.seed, "trial", start)
        return Deal(name, name, seed, self._seats[game], "credit", game=game)

    def _score(self, trajectory: Trajectory) -> float:
        """Return the mean return of the policy's agents, or of all agents if it has no seat in this game."""
        returns = trajectory.returns
        agents = [agent for agent, role in trajectory.deal.seats.items() if self._roles[role].policy == self._policy]
        return fmean(returns.get(agent, 0.0) for agent in agents or trajectory.deal.seats)
