"""Positions that a search looks at: copies of a game in progress, and the requests that roles would make there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from marl.protocols import Game
from marl.rollout.episode import Episode, Guard, PlayLimits, step_done_agents
from marl.types import Completion, Request

RequestKey = tuple[str, int, str]
"""Agent, attempt and information state."""


@dataclass(slots=True)
class SearchedDecision:
    """One decision that is searched: the real episode, and what roles were found to ask below it."""

    episode: Episode
    """As it really is, its seats filled by the roles that the search takes everybody to play."""
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    """In one information state a role asks the same, so that is worked out once."""
    answers: dict[RequestKey, dict[str, Completion]] = field(default_factory=dict)
    """Move -> the completion that says it, where policies were asked."""


class SearchPosition:
    """A state of a game, below the position that is searched. It never changes, except by `play`."""

    __slots__ = ("_episode", "agents", "decision", "game", "move", "mover", "moves", "over", "paid", "parent")

    def __init__(
        self,
        game: Game,
        paid: tuple[float, ...] = (),
        *,
        parent: SearchPosition | None = None,
        move: str = "",
        decision: SearchedDecision | None = None,
    ) -> None:
        """`paid`: what each agent was paid since the root; `move` led here from `parent`. Without a `decision` there
        are no roles, so no policy can be asked."""
        self.game, self.parent, self.move, self.decision = game, parent, move, decision
        self.agents = tuple(game.possible_agents)
        self.paid = paid or (0.0,) * len(self.agents)
        self._episode: Episode | None = None
        self._look()

    def _look(self) -> None:
        """Read who is to move, and which moves there are."""
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

    def guard(self, *more: str) -> Guard:
        """Return a context in which whatever the game raises after the moves that led here, and `more`, is named."""
        episode = self.decision.episode if self.decision else None
        return Guard(self.game, lambda: self._place(more), (episode.limits if episode else PlayLimits()).deadline_s)

    def _place(self, more: Sequence[str]) -> str:
        """Return all that it takes to come to this line of play again, for messages."""
        moves, position = [*more], self
        while position.parent:
            moves, position = [position.move, *moves], position.parent
        place = f"{self.decision.episode.place} " if self.decision else ""
        return f"{place}in a line that a search looked at: {moves}"

    def after(self, move: str) -> SearchPosition:
        """Return the position after a legal move.

        Raises:
            GameError: if the game raises.
        """
        with self.guard(move):
            game = self.game.copy()
            game.step(move)
        return SearchPosition(game, self._paid_by(game), parent=self, move=move, decision=self.decision)

    def copy(self) -> SearchPosition:
        """Return a position to `play` on from, of which no request can be asked."""
        return SearchPosition(self.game.copy(), self.paid)

    def play(self, move: str) -> None:
        """Play a legal move in this very game."""
        self.game.step(move)
        self.paid = self._paid_by(self.game)
        self._look()

    def _paid_by(self, game: Game) -> tuple[float, ...]:
        components = game.reward_components
        if not components:
            return self.paid
        return tuple(
            [
                before + sum(components.get(agent, {}).values())
                for agent, before in zip(self.agents, self.paid, strict=True)
            ]
        )

    @property
    def key(self) -> RequestKey:
        """Return agent, attempt and information state of the one to move."""
        agent = self.game.agent_selection
        info = self.game.infos[agent]
        return agent, info["attempt"], info["state"]

    def request(self) -> Request:
        """Return what the role of the agent to move would ask its policy here."""
        requests, key = self._decision.requests, self.key
        if key not in requests:
            requests[key] = dict(self.episode.new_requests())[self.game.agent_selection]
        return requests[key]

    @property
    def episode(self) -> Episode:
        """Return the episode that leads here: the real one, then the moves of the search as policies would say them."""
        if self._episode is None:
            self._episode = self._continued()
        return self._episode

    def _continued(self) -> Episode:
        parent = self.parent
        if parent is None:
            return self._decision.episode.copy(self.game)
        episode = parent.episode.copy(parent.game.copy())
        episode.new_requests()
        answer = self._decision.answers.get(parent.key, {}).get(self.move)
        if answer is None:
            episode.force(self.move)
        else:
            episode.answer(parent.game.agent_selection, answer)
        return episode

    @property
    def _decision(self) -> SearchedDecision:
        if self.decision is None:
            raise ValueError("search: no roles sit at this game, so there is no policy to ask; choose prior: uniform")
        return self.decision


def normalised(weights: Sequence[float]) -> list[float]:
    """Return weights that add up to 1; equal ones if all are 0."""
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else [1 / len(weights)] * len(weights)
