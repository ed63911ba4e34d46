"""Positions of a search: copies of a game in progress, and the requests of roles in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from marl.core.types import Completion, Request
from marl.protocols import Game
from marl.rollout.episode import Episode, EpisodeLimits, GameErrorGuard, step_done_agents

RequestKey = tuple[str, int, str]
"""Agent, attempt and information state."""


@dataclass(slots=True)
class DecisionContext:
    """The decision under search: the real episode, and the requests and answers of roles below it."""

    episode: Episode
    """The real episode, with the seats as the search assumes them."""
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    """Cache of requests: a role's request depends on the information state alone."""
    answers: dict[RequestKey, dict[str, Completion]] = field(default_factory=dict)
    """Move -> its completion, in information states where the policy was asked."""


class SearchPosition:
    """A state of a game at or below the root of a search. Only `play` changes it."""

    __slots__ = ("_episode", "agents", "decision", "game", "move", "mover", "moves", "over", "parent", "returns")

    def __init__(
        self,
        game: Game,
        returns: tuple[float, ...] = (),
        *,
        parent: SearchPosition | None = None,
        move: str = "",
        decision: DecisionContext | None = None,
    ) -> None:
        """Create a position.

        Args:
            game: the game in this state.
            returns: each agent's rewards since the root (default: 0).
            parent: previous position, or None for the root.
            move: move from `parent` to here.
            decision: the decision under search. None: there are no roles, so no policy can be asked.
        """
        self.game, self.parent, self.move, self.decision = game, parent, move, decision
        self.agents = tuple(game.possible_agents)
        self.returns = returns or (0.0,) * len(self.agents)
        self._episode: Episode | None = None
        self._update_moves()

    def _update_moves(self) -> None:
        """Set `over`, `mover` and `moves` from the game."""
        game = self.game
        self.over = step_done_agents(game)
        self.moves: tuple[str, ...] = ()
        self.mover = -1
        if not self.over:
            agent = game.agent_selection
            legal = game.infos[agent]["legal"]
            if legal is None:
                raise ValueError(f"search: {agent} may say any text; puct and gumbel need legal moves")
            self.mover, self.moves = self.agents.index(agent), legal

    def guard(self, *further_moves: str) -> GameErrorGuard:
        """Return a context whose errors name the moves to this position, and `further_moves`."""
        limits = self.decision.episode.limits if self.decision else EpisodeLimits()
        return GameErrorGuard(self.game, lambda: self._line_of_play(further_moves), limits.deadline_s)

    def _line_of_play(self, further_moves: Sequence[str]) -> str:
        """Return the real episode and the moves of the search, for messages."""
        moves, position = [*further_moves], self
        while position.parent:
            moves, position = [position.move, *moves], position.parent
        prefix = f"{self.decision.episode.replay_info} " if self.decision else ""
        return f"{prefix}in a line that a search looked at: {moves}"

    def after(self, move: str) -> SearchPosition:
        """Return the position after a legal move.

        Raises:
            GameError: if the game raises.
        """
        with self.guard(move):
            game = self.game.copy()
            game.step(move)
        return SearchPosition(game, self._returns_with(game), parent=self, move=move, decision=self.decision)

    def copy(self) -> SearchPosition:
        """Return a copy for `play`, without requests."""
        return SearchPosition(self.game.copy(), self.returns)

    def play(self, move: str) -> None:
        """Play a legal move in this position's own game."""
        self.game.step(move)
        self.returns = self._returns_with(self.game)
        self._update_moves()

    def _returns_with(self, game: Game) -> tuple[float, ...]:
        """Return the returns including the rewards of the last step of `game`."""
        components = game.reward_components
        if not components:
            return self.returns
        return tuple(
            [
                before + sum(components.get(agent, {}).values())
                for agent, before in zip(self.agents, self.returns, strict=True)
            ]
        )

    @property
    def key(self) -> RequestKey:
        """Return agent, attempt and information state of the agent to move."""
        agent = self.game.agent_selection
        info = self.game.infos[agent]
        return agent, info["attempt"], info["state"]

    def request(self) -> Request:
        """Return the request to the policy of the agent to move, as its role would make it here."""
        requests, key = self._roles.requests, self.key
        if key not in requests:
            requests[key] = dict(self.episode.new_requests())[self.game.agent_selection]
        return requests[key]

    @property
    def episode(self) -> Episode:
        """Return the episode up to here: the real one, then the search's moves as their policies phrase them."""
        if self._episode is not None:
            return self._episode
        parent = self.parent
        if parent is None:
            self._episode = self._roles.episode.copy(self.game)
            return self._episode
        episode = parent.episode.copy(parent.game.copy())
        # Poses the questions of the parent: only an open question can be answered.
        episode.new_requests()
        answer = self._roles.answers.get(parent.key, {}).get(self.move)
        if answer is None:
            episode.force_action(self.move)
        else:
            episode.answer(parent.game.agent_selection, answer)
        self._episode = episode
        return episode

    @property
    def _roles(self) -> DecisionContext:
        if self.decision is None:
            raise ValueError("search: no roles sit at this game, so there is no policy to ask; choose prior: uniform")
        return self.decision


def normalised(weights: Sequence[float]) -> list[float]:
    """Return `weights` divided by their sum, or equal weights if all are 0."""
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else [1 / len(weights)] * len(weights)
