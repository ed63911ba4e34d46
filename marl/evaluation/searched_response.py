"""Approximate best response by search: one seat learns a table of moves against frozen players, by UCT.

The frozen players' moves are part of the environment, so that the seat faces a decision problem of one agent, whose
states are its information states (Silver and Veness 2010, POMCP; Timbers et al. 2022, "Approximate exploitability",
arXiv 2004.09677, search in the same way). Moves are selected by UCB1 (Kocsis and Szepesvari 2006). Unlike in UCT, the
value of a state is that of its best move instead of the mean over its visits, so that exploration does not lower it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence

from marl.core.seeds import hash_to_seed
from marl.core.types import Deal, Request
from marl.engines.scripted import Tabular
from marl.evaluation.game_tree import InformationState
from marl.protocols import GameConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.rollout.game_end import step_done_agents_and_check_game_is_over
from marl.rollout.game_errors import GameErrorGuard
from marl.search.positions import normalise_weights
from marl.search.tree import ValueRange, ucb1_scores

_BATCH = 64
"""Maximum number of episodes that wait for move probabilities of the frozen players, which are computed together."""
_EXPLORATION = 1.0
"""Factor of sqrt(ln N / n) in UCB1, in units of the range of returns so far."""
MoveProbabilities = Callable[[Sequence[Request]], Sequence[Mapping[str, float]]]
"""Function that returns, for each request, move -> probability of the frozen policy."""


class _State:
    """Information state of the searching agent, with the statistics of its moves. Lists are indexed by move."""

    def __init__(self, moves: tuple[str, ...]) -> None:
        self.moves, self.value = moves, 0.0
        """Legal moves, and the value of the best move so far: the expected return from here on."""
        self.visits = [0] * len(moves)
        self.rewards = [0.0] * len(moves)
        """Sum of the rewards between each move and the agent's next decision."""
        self.successors: list[Counter[str]] = [Counter() for _ in moves]
        """Number of visits of each next information state, after each move."""

    def move_values(self, states: Mapping[str, _State]) -> dict[int, float]:
        """Return index -> mean return of each visited move: rewards until the next decision, and its value."""
        values: dict[int, float] = {}
        for move, count in enumerate(self.visits):
            if count:
                later = [states[text].value * visits for text, visits in self.successors[move].items()]
                values[move] = (self.rewards[move] + math.fsum(later)) / count
        return values


class BestResponseSearch:
    """Search for the best moves of one agent in all its information states, against frozen players.

    Only legal moves of the frozen players are considered, with normalised probabilities.
    """

    def __init__(
        self, game: GameConfig, casting: RoleRequestBuilder, agent: str, frozen: MoveProbabilities, seed: int
    ) -> None:
        """Create a search without episodes. The roles in `casting` are named after their agents."""
        self._config, self._casting, self._agent, self._frozen, self._seed = game, casting, agent, frozen, seed
        self._states: dict[str, _State] = {}
        self._frozen_moves: dict[InformationState, tuple[Sequence[str], Sequence[float]]] = {}
        self._bounds, self._episodes = ValueRange(), 0

    def run(self, episodes: int) -> None:
        """Play `episodes` more episodes.

        Raises:
            ValueError: if an agent may say any text.
            GameError: if the game raises.
        """
        waiting: list[_WaitingEpisode] = []
        for number in range(1, episodes + 1):
            seed = hash_to_seed(self._seed, "best response by search", self._agent, self._episodes)
            self._episodes += 1
            _resume(self._play(seed), waiting)
            while len(waiting) == _BATCH or (waiting and number == episodes):
                asked, waiting = waiting, []
                requests = {situation: request for _, situation, request in asked}
                answers = self._frozen(list(requests.values()))
                for (situation, request), probabilities in zip(requests.items(), answers, strict=True):
                    moves = tuple(request.options or ())
                    self._frozen_moves[situation] = moves, normalise_weights([probabilities[move] for move in moves])
                for episode, _, _ in asked:
                    _resume(episode, waiting)

    def _play(self, seed: int) -> _EpisodeGenerator:
        """Play an episode: yield each information state of the frozen players that is new, with its request."""
        # Random numbers of the game follow from `seed`, too: the moves must not depend on what is dealt.
        game, rng, actions = self._config.build(), random.Random(hash_to_seed(seed, "moves")), list[str]()
        path: list[tuple[_State, int]] = []
        earned = 0.0
        with GameErrorGuard(game, lambda: f"(seed {seed}, actions {actions})"):
            game.reset(seed=seed)
        over = False
        while not over:
            agent = game.agent_selection
            info = game.infos[agent]
            legal, text = info["legal"], info["state"]
            if legal is None:
                raise ValueError(f"best response by search: {agent} may say any text; it needs legal moves")
            if agent == self._agent:
                state = self._states.setdefault(text, _State(legal))
                if path:
                    path[-1][0].successors[path[-1][1]][text] += 1
                choice = self._select_move(state, rng)
                # The visit counts at once, so that episodes side by side do not all choose the same move.
                state.visits[choice] += 1
                path.append((state, choice))
                move = state.moves[choice]
            else:
                situation = InformationState(agent, text, info["attempt"])
                if situation not in self._frozen_moves:
                    yield situation, self._request(seed, actions, agent)
                move = rng.choices(*self._frozen_moves[situation])[0]
            actions.append(move)
            with GameErrorGuard(game, lambda: f"(seed {seed}, actions {actions})"):
                game.step(move)
            reward = sum(game.reward_components.get(self._agent, {}).values())
            earned += reward
            if path:
                path[-1][0].rewards[path[-1][1]] += reward
            over = step_done_agents_and_check_game_is_over(game)
        self._bounds.extend_to_include([earned])
        for state, _ in reversed(path):
            state.value = max(state.move_values(self._states).values())

    def _select_move(self, state: _State, rng: random.Random) -> int:
        """Return the index of the move with the greatest UCB1 score, or of a random one among the moves without visit.

        Scores are in units of the range of returns."""
        untried = [move for move, count in enumerate(state.visits) if not count]
        if untried:
            return rng.choice(untried)
        width = max(self._bounds.high - self._bounds.low, 1e-9)
        values = [value / width for value in state.move_values(self._states).values()]
        scores = ucb1_scores(values, state.visits, _EXPLORATION)
        return scores.index(max(scores))

    def _request(self, seed: int, actions: Sequence[str], agent: str) -> Request:
        """Return the request of the frozen player `agent` after `actions` in the episode with `seed`."""
        seats = {name: name for name in self._config.build().possible_agents}
        episode = Episode(self._config.build(), Deal("search", "search", seed, seats, "eval"), self._casting)
        for action in actions:
            episode.force_action(action)
        return dict(episode.take_new_requests())[agent]

    def response(self) -> Tabular:
        """Return a player with the most visited move of each information state. Elsewhere it plays at random."""
        table: dict[str, dict[str, float]] = {}
        for text, state in self._states.items():
            table[text] = {state.moves[state.visits.index(max(state.visits))]: 1.0}
        return Tabular(table=table)


_EpisodeGenerator = Generator[tuple[InformationState, Request], None, None]
_WaitingEpisode = tuple[_EpisodeGenerator, InformationState, Request]
"""Episode that waits for the move probabilities of a frozen player in an information state, and the request for it."""


def _resume(episode: _EpisodeGenerator, waiting: list[_WaitingEpisode]) -> None:
    """Play `episode` on until its end, or until it is added to `waiting`."""
    if (missing := next(episode, None)) is not None:
        waiting.append((episode, *missing))
