"""Full game trees of small games: exact values, best responses and NashConv of given move probabilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from marl.core.types import Deal, Request
from marl.protocols import GameConfig, GameStart
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode, GameErrorGuard, step_done_agents

Strategy = Mapping["InformationState", Mapping[str, float]]
"""Information state -> move -> probability. The remaining probability mass (up to 1) is an illegal answer."""
_LIMIT = 200_000
"""Maximum number of histories of a game tree."""


@dataclass(frozen=True, slots=True)
class InformationState:
    """Everything that the agent to move knows."""

    agent: str
    state: str
    attempt: int


History = tuple[GameStart, tuple[str | None, ...]]
"""A start state and the answers given since then; None stands for an illegal answer."""


@dataclass(slots=True)
class Node:
    """Node of the game tree: one history of the game."""

    rewards: Mapping[str, float]
    """Agent -> reward paid by the last move."""
    situation: InformationState | None = None
    request: Request | None = None
    moves: dict[str, Node] = field(default_factory=dict)
    after_illegal: Node | None = None
    """Node after an illegal answer, or None if the game replaces an illegal answer with a random legal move."""
    illegal_move_rewards: Mapping[str, float] = field(default_factory=dict)
    """Agent -> reward paid for an illegal answer where the game then plays one of `moves` at random."""


@dataclass(frozen=True, slots=True)
class GameTree:
    """All histories of a game, from all its start states."""

    agents: tuple[str, ...]
    roots: tuple[tuple[float, Node], ...]
    """(probability, root node) of each start state."""
    requests: Mapping[InformationState, Request]
    """Information state -> request for its agent, shared by all histories of the information state."""
    histories: Mapping[InformationState, History]
    """Information state -> one history that leads to it."""


class _TreeBuilder:
    """Builds a game tree by playing every history, so that the game's own rules and the roles' own prompts apply.

    Replaying a history as an `Episode` renders prompts, so it is done once for each information state only.
    """

    def __init__(self, config: GameConfig, cast: RoleCasting, seats: Mapping[str, str]) -> None:
        self._game, self._cast, self._seats = config.build(), cast, seats
        self.agents = tuple(self._game.possible_agents)
        self.requests: dict[InformationState, Request] = {}
        self.histories: dict[InformationState, History] = {}
        self._nodes = 0

    def build(self, start: GameStart, actions: tuple[str | None, ...] = ()) -> Node:
        """Return the subtree after `actions`; None stands for an illegal answer."""
        self._nodes += 1
        if self._nodes > _LIMIT:
            raise ValueError(f"the game has more than {_LIMIT} histories: too many to be walked")
        with GameErrorGuard(self._game, lambda: f"(options {start.options}, actions {list(actions)})"):
            rewards, over = self._replay(start, actions)
        node = Node(rewards)
        if over:
            return node
        # Read before the recursion below, which plays on with the same game object.
        agent = self._game.agent_selection
        info, refusal = self._game.infos[agent], self._game.illegal_move_outcome()
        if info["legal"] is None:
            raise ValueError(f"{agent} may say any text: too many moves to be walked")
        node.situation = InformationState(agent, info["state"], info["attempt"])
        if node.situation not in self.requests:
            self.requests[node.situation] = self._request(start, actions, agent)
            self.histories[node.situation] = start, actions
        node.illegal_move_rewards = refusal.rewards if refusal.moves else {}
        node.moves = {move: self.build(start, (*actions, move)) for move in info["legal"]}
        node.after_illegal = None if refusal.moves else self.build(start, (*actions, None))
        return node

    def _replay(self, start: GameStart, actions: Sequence[str | None]) -> tuple[dict[str, float], bool]:
        """Play `actions` from `start`; return agent -> reward of the last move, and True if the game is over."""
        game, over = self._game, False
        rewards: dict[str, float] = {}
        game.reset(seed=0, options=start.options)
        for action in actions:
            game.step(action or "")
            rewards = {agent: float(sum(values.values())) for agent, values in game.reward_components.items()}
            over = step_done_agents(game)
        return rewards, over

    def _request(self, start: GameStart, actions: Sequence[str | None], agent: str) -> Request:
        """Return the request for `agent` after `actions`."""
        episode = Episode(self._game, Deal("tree", "tree", 0, self._seats, "eval", options=start.options), self._cast)
        for action in actions:
            episode.force_action(action)
        return dict(episode.new_requests())[agent]


def build_game_tree(config: GameConfig, cast: RoleCasting, seats: Mapping[str, str]) -> GameTree:
    """Return the full tree of a game that exports its start states.

    Raises:
        ValueError: if the game does not export its start states, or has too many histories.
    """
    starts = config.starts()
    if starts is None:
        raise ValueError(f"game {config.kind!r} does not export its deals, so it cannot be walked whole")
    builder = _TreeBuilder(config, cast, seats)
    roots = tuple((start.probability, builder.build(start)) for start in starts)
    return GameTree(builder.agents, roots, builder.requests, builder.histories)


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
    """Return the mean probability of a legal move in canonical text, over information states (not normalised)."""
    return fmean(math.fsum(moves.values()) for moves in strategy.values())


def best_response(tree: GameTree, strategy: Strategy, agent: str) -> float:
    """Return the highest expected return of `agent` while all other agents play `strategy`.

    The best move of an information state maximises the value summed over its histories, weighted by the probability
    that chance and opponents lead to each history. An illegal answer counts as a choice unless the game replaces it by
    a legal move. Assumes perfect recall.
    """
    opponents = [name for name in tree.agents if name != agent]
    response = _Response(strategy, agent, _reach_weights(tree, strategy, opponents))
    return math.fsum(chance * response.value(node) for chance, node in tree.roots)


def own_reach(tree: GameTree, strategy: Strategy) -> dict[InformationState, float]:
    """Return information state -> reach probability of its agent's own moves, times a constant of that state.

    The constant depends on chance and the other agents only, so it is the same for every strategy and cancels in
    averages of strategies.
    """
    by_agent = {agent: _reach_weights(tree, strategy, [agent]) for agent in tree.agents}
    reach: dict[InformationState, float] = {}
    for situation in tree.requests:
        reach[situation] = math.fsum(weight for weight, _ in by_agent[situation.agent][situation])
    return reach


def _reach_weights(
    tree: GameTree, strategy: Strategy, followers: Sequence[str]
) -> dict[InformationState, list[tuple[float, Node]]]:
    """Return information state -> (weight, node) of each of its histories.

    A weight is the product of chance and of the `strategy` of the agents in `followers`; every choice of all other
    agents has probability 1.
    """
    reached: dict[InformationState, list[tuple[float, Node]]] = defaultdict(list)

    def walk(node: Node, weight: float) -> None:
        if node.situation is None:
            return
        reached[node.situation].append((weight, node))
        for probability, child, _ in _branches(node, strategy if node.situation.agent in followers else None):
            # Branches of probability 0 are walked as well: a best response needs the nodes in every state.
            walk(child, weight * probability)

    for chance, node in tree.roots:
        walk(node, chance)
    return reached


class _Response:
    """Best response of one agent, computed by recursion from the last information states to the first."""

    def __init__(
        self, strategy: Strategy, agent: str, histories: Mapping[InformationState, Sequence[tuple[float, Node]]]
    ) -> None:
        self._strategy, self._agent, self._histories = strategy, agent, histories
        self._best: dict[InformationState, str | None] = {}

    def value(self, node: Node) -> float:
        """Return the agent's expected return from `node` on, including the reward of the move that led to `node`."""
        reward = node.rewards.get(self._agent, 0.0)
        if node.situation is None:
            return reward
        if node.situation.agent == self._agent:
            return reward + self.value(_choices(node)[self._best_move(node.situation)])
        branches = _branches(node, self._strategy)
        return reward + math.fsum(p * (self.value(child) + fee.get(self._agent, 0.0)) for p, child, fee in branches)

    def _best_move(self, situation: InformationState) -> str | None:
        if situation not in self._best:
            move_values: dict[str | None, float] = defaultdict(float)
            for weight, node in self._histories[situation]:
                for move, child in _choices(node).items():
                    move_values[move] += weight * self.value(child)
            self._best[situation] = max(move_values, key=move_values.__getitem__)
        return self._best[situation]


def _value(node: Node, strategy: Strategy, agent: str) -> float:
    """Return the agent's expected return from `node` on if all agents play `strategy`."""
    reward = node.rewards.get(agent, 0.0)
    branches = _branches(node, strategy) if node.situation else []
    return reward + math.fsum(p * (_value(child, strategy, agent) + fee.get(agent, 0.0)) for p, child, fee in branches)


def _branches(node: Node, strategy: Strategy | None) -> list[tuple[float, Node, Mapping[str, float]]]:
    """Return (probability, child, rewards of an illegal answer) of each branch.

    Without a strategy every choice has probability 1.
    """
    if strategy is None or node.situation is None:
        return [(1.0, child, {}) for child in _choices(node).values()]
    chances = strategy[node.situation]
    branches = [(chances.get(move, 0.0), child, {}) for move, child in node.moves.items()]
    illegal = max(0.0, 1.0 - math.fsum(chance for chance, _, _ in branches))
    if node.after_illegal is not None:
        return [*branches, (illegal, node.after_illegal, {})]
    # The game replaces an illegal answer by a legal move drawn uniformly.
    share = illegal / len(node.moves)
    return [*branches, *((share, child, node.illegal_move_rewards) for child in node.moves.values())]


def _choices(node: Node) -> dict[str | None, Node]:
    """Return move -> child node; the key None is an illegal answer, present unless a random move replaces it."""
    choices: dict[str | None, Node] = {**node.moves}
    if node.after_illegal is not None:
        choices[None] = node.after_illegal
    return choices
