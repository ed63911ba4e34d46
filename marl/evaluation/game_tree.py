"""A small game, walked whole: exact values, best responses and NashConv of given move probabilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from marl.protocols import GameConfig, GameStart
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode, Guard, step_done_agents
from marl.types import Deal, Request

Strategy = Mapping["Situation", Mapping[str, float]]
"""Situation -> move -> probability; what is missing to 1 goes to the game's illegal-move rule."""
_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the agent to move knows."""

    agent: str
    state: str
    attempt: int


History = tuple[GameStart, tuple[str | None, ...]]
"""A deal and the answers since; None stands for an illegal one."""


@dataclass(slots=True)
class Node:
    """One history of the game. `paid` is what the last move paid, by agent."""

    paid: Mapping[str, float]
    situation: Situation | None = None
    request: Request | None = None
    moves: dict[str, Node] = field(default_factory=dict)
    refused: Node | None = None
    """Node after an illegal answer, without situation and moves if the game ends; None if a random move is played."""
    fee: Mapping[str, float] = field(default_factory=dict)
    """Paid on an illegal answer after which one of `moves` is played at random."""


@dataclass(frozen=True, slots=True)
class GameTree:
    """Every history of a game, from every deal."""

    agents: tuple[str, ...]
    roots: tuple[tuple[float, Node], ...]
    requests: Mapping[Situation, Request]
    """One question per situation: the same for every history that an agent cannot tell apart."""
    histories: Mapping[Situation, History]
    """One history that leads to each situation."""


class _Grower:
    """Walks a game by playing it, so that its own rules and the roles' own prompts are what is measured.

    Every history is played, and only where it leads to a new situation is it an episode, whose prompt is asked for.
    """

    def __init__(self, config: GameConfig, cast: RoleCasting, seats: Mapping[str, str]) -> None:
        self._game, self._cast, self._seats = config.build(), cast, seats
        self.agents = tuple(self._game.possible_agents)
        self.requests: dict[Situation, Request] = {}
        self.histories: dict[Situation, History] = {}
        self._nodes = 0

    def grow(self, start: GameStart, actions: tuple[str | None, ...] = ()) -> Node:
        """The tree below `actions`; None stands for an illegal answer."""
        self._nodes += 1
        if self._nodes > _LIMIT:
            raise ValueError(f"the game has more than {_LIMIT} histories: too many to be walked")
        with Guard(self._game, lambda: f"(options {start.options}, actions {list(actions)})"):
            paid, over = self._play(start, actions)
        node = Node(paid)
        if over:
            return node
        agent = self._game.agent_selection
        info, refusal = self._game.infos[agent], self._game.refusal()
        if info["legal"] is None:
            raise ValueError(f"{agent} may say any text: too many moves to be walked")
        node.situation = Situation(agent, info["state"], info["attempt"])
        if node.situation not in self.requests:
            self.requests[node.situation] = self._request(start, actions, agent)
            self.histories[node.situation] = start, actions
        node.fee = refusal.payments if refusal.moves else {}
        node.moves = {move: self.grow(start, (*actions, move)) for move in info["legal"]}
        node.refused = None if refusal.moves else self.grow(start, (*actions, None))
        return node

    def _play(self, start: GameStart, actions: Sequence[str | None]) -> tuple[dict[str, float], bool]:
        """Return agent -> reward of the last move, and True if the game is over."""
        game, over = self._game, False
        paid: dict[str, float] = {}
        game.reset(seed=0, options=start.options)
        for action in actions:
            game.step(action or "")
            paid = {agent: float(sum(parts.values())) for agent, parts in game.reward_components.items()}
            over = step_done_agents(game)
        return paid, over

    def _request(self, start: GameStart, actions: Sequence[str | None], agent: str) -> Request:
        """Return what `agent` is asked after `actions`."""
        episode = Episode(self._game, Deal("tree", "tree", 0, self._seats, "eval", options=start.options), self._cast)
        for action in actions:
            episode.force(action)
        return dict(episode.new_requests())[agent]


def grow(config: GameConfig, cast: RoleCasting, seats: Mapping[str, str]) -> GameTree:
    """Walk a game that exports its deals.

    Raises:
        ValueError: if it does not, or if it is too large.
    """
    starts = config.starts()
    if starts is None:
        raise ValueError(f"game {config.kind!r} does not export its deals, so it cannot be walked whole")
    grower = _Grower(config, cast, seats)
    roots = tuple((start.probability, grower.grow(start)) for start in starts)
    return GameTree(grower.agents, roots, grower.requests, grower.histories)


def values(tree: GameTree, strategy: Strategy) -> dict[str, float]:
    """Return the expected return of every agent when all play `strategy`."""
    return {
        agent: math.fsum(chance * _value(node, strategy, agent) for chance, node in tree.roots) for agent in tree.agents
    }


def nash_conv(tree: GameTree, strategy: Strategy) -> float:
    """Return the sum over agents of (best response value - value): 0 at an equilibrium, twice the exploitability."""
    expected = values(tree, strategy)
    return math.fsum(best_response(tree, strategy, agent) - expected[agent] for agent in tree.agents)


def legal_mass(strategy: Strategy) -> float:
    """Return the mean over situations of the probability (not normalised) of a legal move in its canonical text."""
    return fmean(math.fsum(moves.values()) for moves in strategy.values())


def best_response(tree: GameTree, strategy: Strategy, agent: str) -> float:
    """Return the highest expected return of `agent` if the other agents keep to `strategy`.

    Over information sets, not histories: the move in a situation maximises the value summed over all histories in
    it, each weighted with the chance that deal and opponents lead there. An illegal answer that is not replaced by a
    legal move is one of its choices. Assumes perfect recall.
    """
    response = _Response(strategy, agent, _reached(tree, strategy, [other for other in tree.agents if other != agent]))
    return math.fsum(chance * response.value(node) for chance, node in tree.roots)


def own_reach(tree: GameTree, strategy: Strategy) -> dict[Situation, float]:
    """Return situation -> a multiple of the probability with which its agent's own moves allow it.

    The factor, in how many ways and how likely chance and others lead there, is the same for every strategy.
    """
    by_agent = {agent: _reached(tree, strategy, [agent]) for agent in tree.agents}
    return {s: math.fsum(weight for weight, _ in by_agent[s.agent][s]) for s in tree.requests}


def _reached(tree: GameTree, strategy: Strategy, followers: Sequence[str]) -> dict[Situation, list[tuple[float, Node]]]:
    """Return the histories in each situation, with the probability of each if every choice of all but the `followers`
    of the strategy had probability 1."""
    reached: dict[Situation, list[tuple[float, Node]]] = defaultdict(list)

    def walk(node: Node, weight: float) -> None:
        if node.situation is None:
            return
        reached[node.situation].append((weight, node))
        for probability, child, _ in _branches(node, strategy if node.situation.agent in followers else None):
            walk(child, weight * probability)

    for chance, node in tree.roots:
        walk(node, chance)
    return reached


class _Response:
    """The best response of one agent, its moves worked out from the last situations to the first."""

    def __init__(
        self, strategy: Strategy, agent: str, reached: Mapping[Situation, Sequence[tuple[float, Node]]]
    ) -> None:
        self._strategy, self._agent, self._reached = strategy, agent, reached
        self._best: dict[Situation, str | None] = {}

    def value(self, node: Node) -> float:
        """Return the agent's expected return from here on, the reward that led here included."""
        paid = node.paid.get(self._agent, 0.0)
        if node.situation is None:
            return paid
        if node.situation.agent == self._agent:
            return paid + self.value(_choices(node)[self._move(node.situation)])
        branches = _branches(node, self._strategy)
        return paid + math.fsum(p * (self.value(child) + fee.get(self._agent, 0.0)) for p, child, fee in branches)

    def _move(self, situation: Situation) -> str | None:
        if situation not in self._best:
            worth: dict[str | None, float] = defaultdict(float)
            for chance, node in self._reached[situation]:
                for move, child in _choices(node).items():
                    worth[move] += chance * self.value(child)
            self._best[situation] = max(worth, key=worth.__getitem__)
        return self._best[situation]


def _value(node: Node, strategy: Strategy, agent: str) -> float:
    paid = node.paid.get(agent, 0.0)
    branches = _branches(node, strategy) if node.situation else []
    return paid + math.fsum(p * (_value(child, strategy, agent) + fee.get(agent, 0.0)) for p, child, fee in branches)


def _branches(node: Node, strategy: Strategy | None) -> list[tuple[float, Node, Mapping[str, float]]]:
    """(probability, child, fee); without a strategy, every choice with weight 1."""
    if strategy is None or node.situation is None:
        return [(1.0, child, {}) for child in _choices(node).values()]
    chances = strategy[node.situation]
    branches = [(chances.get(move, 0.0), child, {}) for move, child in node.moves.items()]
    illegal = max(0.0, 1.0 - math.fsum(chance for chance, _, _ in branches))
    if node.refused is not None:
        return [*branches, (illegal, node.refused, {})]
    each = illegal / len(node.moves)
    return [*branches, *((each, child, node.fee) for child in node.moves.values())]


def _choices(node: Node) -> dict[str | None, Node]:
    """Move -> child; None is an illegal answer, where it is not replaced by one of the moves."""
    choices: dict[str | None, Node] = {**node.moves}
    if node.refused is not None:
        choices[None] = node.refused
    return choices
