"""Positions of a search: copies of a game in progress, and the requests of roles in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from marl.core.types import Completion, Observation, Request
from marl.protocols import Game, PromptContext
from marl.rollout.episode import Episode
from marl.rollout.game_end import step_done_agents_and_check_game_is_over
from marl.rollout.game_errors import EpisodeLimits, GameErrorGuard
from marl.text.origins import without_origins

MOVES_TOGETHER = (
    "search: {agent} is asked together with another agent; a search of such moves needs prior: uniform, values: "
    "rollouts and rollouts: random"
)
"""Error message for a game in which several agents move at once."""
RequestKey = tuple[str, int, str]
"""(agent to move, number of its illegal answers at this decision, information state)."""


class ScoredMoves(dict[str, Completion]):
    """Legal move -> completion of the move, with log-probabilities by the policy to move."""

    @cached_property
    def probabilities(self) -> dict[str, float]:
        """Probability of each move's exact text; 0 for a move whose text could not be scored.

        They are computed once, because many positions of a search share a prompt.
        """
        probabilities: dict[str, float] = {}
        for move, answer in self.items():
            probabilities[move] = math.exp(math.fsum(answer.logprobs)) if answer.token_ids else 0.0
        return probabilities


@dataclass(slots=True)
class DecisionRequestCache:
    """Cache of the requests and scored answers of roles in all positions of one decision's search."""

    episode: Episode
    """Episode in which the decision is made, with the roles that the search assumes in all seats."""
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    """Key of an information state -> request of the role to move there."""
    answers: dict[RequestKey, ScoredMoves] = field(default_factory=dict)
    """Key of an information state -> its legal moves, scored by the policy to move there."""
    shared_requests: dict[tuple[object, ...], Request] = field(default_factory=dict)
    """Role, policy, purpose, and what the agent observes and is told -> request of a role that ignores earlier turns.
    All decisions of a `SearchPlayer` share this cache."""


class SearchPosition:
    """A state of a game at or below the root of a search. Only `play` changes it."""

    __slots__ = (
        "_children",
        "_episode",
        "agents",
        "decision",
        "game",
        "joint",
        "move",
        "mover",
        "moves",
        "over",
        "parent",
        "returns",
    )

    def __init__(
        self,
        game: Game,
        returns: tuple[float, ...] = (),
        *,
        parent: SearchPosition | None = None,
        move: str = "",
        decision: DecisionRequestCache | None = None,
    ) -> None:
        """Create a position.

        Args:
            game: the game in this state.
            returns: each agent's rewards since the root (default: 0).
            parent: previous position, or None for the root.
            move: move from `parent` to here.
            decision: the decision under search, or None if no roles play the game, so that no policy can be asked.
        """
        self.game, self.parent, self.move, self.decision = game, parent, move, decision
        self.agents = tuple(game.possible_agents)
        self.returns = returns or (0.0,) * len(self.agents)
        self._children: dict[str, SearchPosition] = {}
        self._episode: Episode | None = None
        self._update_mover_and_legal_moves()

    def _update_mover_and_legal_moves(self) -> None:
        """Set facts of the position to the game's present state.

        `over`: the game has ended; `mover`: index of the agent to move; `moves`: its legal moves; `joint`: index and
        legal moves of each agent, if several move at once, else ().
        """
        game = self.game
        self.over = step_done_agents_and_check_game_is_over(game)
        self.moves: tuple[str, ...] = ()
        self.joint: tuple[tuple[int, tuple[str, ...]], ...] = ()
        self.mover = -1
        if not self.over:
            agent = game.agent_selection
            legal = game.infos[agent]["legal"]
            if legal is None:
                raise ValueError(f"search: {agent} may say any text; puct and gumbel need legal moves")
            self.mover, self.moves = self.agents.index(agent), legal
            together = game.infos[agent]["together"]
            if len(together) > 1:
                self.joint = tuple([(self.agents.index(name), game.infos[name]["legal"] or ()) for name in together])

    def game_error_guard(self, *further_moves: str) -> GameErrorGuard:
        """Return a context whose errors name the moves that led here, and `further_moves`."""
        limits = self.decision.episode.limits if self.decision else EpisodeLimits()

        def describe_moves_since_root() -> str:
            moves, position = [*further_moves], self
            while position.parent:
                moves, position = [position.move, *moves], position.parent
            prefix = f"{self.decision.episode.description_for_replay()} " if self.decision else ""
            return f"{prefix}in a line that a search looked at: {moves}"

        return GameErrorGuard(self.game, describe_moves_since_root, limits.deadline_s)

    def position_after(self, *moves: str) -> SearchPosition:
        """Return the position after a legal move, or after the moves of several agents that move at once.

        Raises:
            GameError: if the game raises.
        """
        with self.game_error_guard(*moves):
            game, returns = self.game.copy(), self.returns
            for move in moves:
                game.step(move)
                returns = self._add_rewards_of_last_step(returns, game)
        return SearchPosition(game, returns, parent=self, move=" + ".join(moves), decision=self.decision)

    def child(self, move: str) -> SearchPosition:
        """Return the position after a legal move, which is stored here: later calls return the same position."""
        if move not in self._children:
            self._children[move] = self.position_after(move)
        return self._children[move]

    def copy(self) -> SearchPosition:
        """Return a copy, which `play` changes alone. It has no episode, so policies cannot be asked there."""
        return SearchPosition(self.game.copy(), self.returns)

    def play(self, move: str) -> None:
        """Play a legal move in this position's own game."""
        self.game.step(move)
        self.returns = self._add_rewards_of_last_step(self.returns, self.game)
        self._update_mover_and_legal_moves()

    def _add_rewards_of_last_step(self, returns: tuple[float, ...], game: Game) -> tuple[float, ...]:
        """Return `returns` plus each agent's rewards in the last step of `game`."""
        components = game.reward_components
        if not components:
            return returns
        totals: list[float] = []
        for agent, before in zip(self.agents, returns, strict=True):
            totals.append(before + sum(components.get(agent, {}).values()))
        return tuple(totals)

    @property
    def request_key(self) -> RequestKey:
        """Key of the position's information state in the cache of requests."""
        agent = self.game.agent_selection
        info = self.game.infos[agent]
        return agent, info["attempt"], info["state"]

    @property
    def scored_moves(self) -> dict[RequestKey, ScoredMoves]:
        """Return the scored answers of all positions of this decision (see `DecisionRequestCache.answers`)."""
        return self._decision_cache_or_error.answers

    def request(self) -> Request:
        """Return the request by which the role of the agent to move asks its policy at this position.

        Raises:
            ValueError: if the agent was asked before, together with another agent.
        """
        requests, key, agent = self._decision_cache_or_error.requests, self.request_key, self.game.agent_selection
        if key not in requests and (request := self._request_without_turns()):
            requests[key] = request
        elif key not in requests:
            new_requests = dict(self.episode.take_new_requests())
            if agent not in new_requests:
                raise ValueError(MOVES_TOGETHER.format(agent=agent))
            requests[key] = new_requests[agent]
        return requests[key]

    def _request_without_turns(self) -> Request | None:
        """Return the request built from the game alone, or None if its prompt may depend on earlier turns.

        Most of a request's cost is the copy of the episode up to the position. The request has no marks of turns.
        """
        game, episode = self.game, self._decision_cache_or_error.episode
        agent, deal = game.agent_selection, episode.trajectory.deal
        info, role = game.infos[agent], deal.seats[agent]
        if len(info["together"]) > 1 or not episode.casting.current_role(role).ignores_earlier_turns:
            return None
        with self.game_error_guard():
            observation = game.observe(agent)
        # Marks of the observation refer to turns, which are not here.
        text, policy = without_origins(observation["text"]), deal.policies.get(role)
        facts = [without_origins(fact) if isinstance(fact, str) else fact for fact in info.values()]
        # A mapping among the facts (`callers`) cannot be part of a key.
        key = None if "callers" in info else (role, policy, deal.purpose, agent, text, *facts)
        shared = self._decision_cache_or_error.shared_requests
        if key not in shared:
            context = PromptContext(agent, Observation(text=text), info)
            request = episode.casting.build_request(role, context, 0)
            request = replace(request, policy=policy or request.policy, purpose=deal.purpose)
            if key is None:
                return request
            shared[key] = request
        return shared[key]

    @property
    def episode(self) -> Episode:
        """Return the episode up to this position: the real turns, then turns for the moves of the search."""
        if self._episode is not None:
            return self._episode
        parent = self.parent
        if parent is None:
            self._episode = self._decision_cache_or_error.episode.copy(self.game)
            return self._episode
        episode = parent.episode.copy(parent.game.copy())
        # A move can only answer an open request, so the parent's requests are opened first.
        episode.take_new_requests()
        answer = self._decision_cache_or_error.answers.get(parent.request_key, ScoredMoves()).get(self.move)
        if answer is None:
            episode.force_action(self.move)
        else:
            episode.play_agent_answer(parent.game.agent_selection, answer)
        self._episode = episode
        return episode

    @property
    def _decision_cache_or_error(self) -> DecisionRequestCache:
        """Return the requests and scored answers of the current decision's search.

        Raises:
            ValueError: if the position belongs to a game without roles, so that no policy can be asked.
        """
        if self.decision is None:
            raise ValueError("search: no roles sit at this game, so there is no policy to ask; choose prior: uniform")
        return self.decision


def normalise_weights(weights: Sequence[float]) -> list[float]:
    """Return `weights` divided by their sum, or equal weights if all are 0."""
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else [1 / len(weights)] * len(weights)
