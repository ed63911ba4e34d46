"""Full game trees of small games: exact values, best responses and NashConv of given move probabilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from marl.core.types import Deal, Request
from marl.protocols import GameConfig, GameStart
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.rollout.game_end import step_done_agents_and_check_game_is_over
from marl.rollout.game_errors import GameErrorGuard

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/nashconv | reward | sum over seats of what a best response would gain; 0 in equilibrium; exact
"""

Strategy = Mapping["InformationState", Mapping[str, float]]
"""Information state -> move -> probability. The remaining mass, up to 1, is the probability of an illegal answer."""
_MAX_HISTORIES = 200_000
"""Maximum number of histories of a game tree."""


@dataclass(frozen=True, slots=True)
class InformationState:
    """Everything that the agent to move knows."""

    agent: str
    """Agent to move."""
    state: str
    """Game's text of all facts that the agent knows, such as `Q:pass`."""
    attempt: int
    """Number of the agent's illegal answers before this one at the same decision."""


History = tuple[GameStart, tuple[str | None, ...]]
"""A start state and the answers given since then; None stands for an illegal answer."""


@dataclass(slots=True)
class GameTreeNode:
    """Node of the game tree: one history of the game."""

    rewards: Mapping[str, float]
    """Agent -> reward paid by the last move."""
    situation: InformationState | None = None
    """Information state of the agent to move, or None at the end of the game."""
    moves: dict[str, GameTreeNode] = field(default_factory=dict)
    """Legal move -> node after the move."""
    after_illegal: GameTreeNode | None = None
    """Node after an illegal answer, or None if the game replaces an illegal answer with a random legal move."""
    illegal_move_rewards: Mapping[str, float] = field(default_factory=dict)
    """Agent -> reward paid for an illegal answer where the game then plays one of `moves` at random."""


_WeightedHistories = Mapping[InformationState, Sequence[tuple[float, GameTreeNode]]]
"""Information state -> (weight, node) of each of its histories."""


@dataclass(frozen=True, slots=True)
class GameTree:
    """All histories of a game, from all its start states."""

    agents: tuple[str, ...]
    roots: tuple[tuple[float, GameTreeNode], ...]
    """(probability, root node) of each start state."""
    requests: Mapping[InformationState, Request]
    """Information state -> request for its agent, shared by all histories of the information state."""
    histories: Mapping[InformationState, History]
    """Information state -> one history that leads to it."""


class _TreeBuilder:
    """Builds a game tree by playing every history, so that the game's own rules and the roles' own prompts apply.

    Replaying a history as an `Episode` renders prompts, so only one history of each information state is replayed.
    """

    def __init__(self, config: GameConfig, casting: RoleRequestBuilder, seats: Mapping[str, str]) -> None:
        self._game, self._casting, self._seats = config.build(), casting, seats
        self.agents = tuple(self._game.possible_agents)
        self.requests: dict[InformationState, Request] = {}
        self.histories: dict[InformationState, History] = {}
        self._nodes = 0

    def build_subtree(self, start: GameStart, actions: tuple[str | None, ...] = ()) -> GameTreeNode:
        """Return the node after `start` and `actions` with all nodes below (an action None is an illegal answer)."""
        self._nodes += 1
        if self._nodes > _MAX_HISTORIES:
            raise ValueError(f"the game has more than {_MAX_HISTORIES} histories: too many to be walked")
        with GameErrorGuard(self._game, lambda: f"(options {start.options}, actions {list(actions)})"):
            game, over = self._game, False
            rewards: dict[str, float] = {}
            game.reset(seed=0, options=start.options)
            for action in actions:
                game.step(action or "")
                rewards = {agent: float(sum(values.values())) for agent, values in game.reward_components.items()}
                over = step_done_agents_and_check_game_is_over(game)
        node = GameTreeNode(rewards)
        if over:
            return node
        # The game's state is read before the recursion below, which plays on with the same game object.
        agent = self._game.agent_selection
        info, refusal = self._game.infos[agent], self._game.illegal_move_outcome()
        if info["legal"] is None:
            raise ValueError(f"{agent} may say any text: too many moves to be walked")
        node.situation = InformationState(agent, info["state"], info["attempt"])
        if node.situation not in self.requests:
            deal = Deal("tree", "tree", 0, self._seats, "eval", options=start.options)
            episode = Episode(self._game, deal, self._casting)
            for action in actions:
                episode.force_action(action)
            self.requests[node.situation] = dict(episode.take_new_requests())[agent]
            self.histories[node.situation] = start, actions
        node.illegal_move_rewards = refusal.rewards if refusal.moves else {}
        node.moves = {move: self.build_subtree(start, (*actions, move)) for move in info["legal"]}
        node.after_illegal = None if refusal.moves else self.build_subtree(start, (*actions, None))
        return node


def build_game_tree(config: GameConfig, request_builder: RoleRequestBuilder, seats: Mapping[str, str]) -> GameTree:
    """Return the full tree of a game that exports its start states.

    Raises:
        ValueError: if the game does not export its start states, or has too many histories.
    """
    starts = config.all_start_states()
    if starts is None:
        raise ValueError(f"game {config.kind!r} does not export its deals, so it cannot be walked whole")
    builder = _TreeBuilder(config, request_builder, seats)
    roots = tuple((start.probability, builder.build_subtree(start)) for start in starts)
    return GameTree(builder.agents, roots, builder.requests, builder.histories)


def expected_returns(tree: GameTree, joint_strategy: Strategy) -> dict[str, float]:
    """Return agent -> expected return when all agents play `joint_strategy`."""
    returns: dict[str, float] = {}
    for agent in tree.agents:
        returns[agent] = math.fsum(
            chance * _expected_return(node, joint_strategy, agent) for chance, node in tree.roots
        )
    return returns


def nash_conv(tree: GameTree, joint_strategy: Strategy) -> float:
    """Return the sum over agents of (best response value - value): 0 at an equilibrium, twice the exploitability."""
    expected = expected_returns(tree, joint_strategy)
    return math.fsum(best_response_return(tree, joint_strategy, agent) - expected[agent] for agent in tree.agents)


def mean_legal_move_probability(strategy: Strategy) -> float:
    """Return the mean over information states of the probability that the answer is a legal move in canonical text."""
    return fmean(math.fsum(moves.values()) for moves in strategy.values())


def best_response_return(tree: GameTree, others_strategy: Strategy, agent: str) -> float:
    """Return the highest expected return of `agent` while all other agents play `others_strategy`.

    The best move of an information state maximises the value summed over its histories, weighted by the probability
    that chance and opponents lead to each history. An illegal answer counts as a choice unless the game replaces it by
    a legal move. Assumes perfect recall.
    """
    opponents = [name for name in tree.agents if name != agent]
    response = _BestResponse(others_strategy, agent, _weighted_histories_by_state(tree, others_strategy, opponents))
    return math.fsum(chance * response.node_value(node) for chance, node in tree.roots)


def own_reach_probabilities(tree: GameTree, strategy: Strategy) -> dict[InformationState, float]:
    """Return information state -> probability of the agent's own moves on the way there, times a constant.

    The constant of a state depends on chance and the other agents only, so it is the same for every strategy and
    cancels in averages of strategies.
    """
    histories = {agent: _weighted_histories_by_state(tree, strategy, [agent]) for agent in tree.agents}
    reach: dict[InformationState, float] = {}
    for situation in tree.requests:
        weights = [weight for weight, _ in histories[situation.agent][situation]]
        reach[situation] = math.fsum(weights)
    return reach


def _weighted_histories_by_state(
    tree: GameTree, strategy: Strategy, agents_with_strategy: Sequence[str]
) -> _WeightedHistories:
    """Return information state -> (weight, node) of each of its histories.

    A weight is the product of chance and of the `strategy` of the agents in `agents_with_strategy`; every choice of all
    other agents has probability 1.
    """
    reached: dict[InformationState, list[tuple[float, GameTreeNode]]] = defaultdict(list)

    def add_histories(node: GameTreeNode, weight: float) -> None:
        if node.situation is None:
            return
        reached[node.situation].append((weight, node))
        for probability, child, _ in _branches_with_probability(
            node, strategy if node.situation.agent in agents_with_strategy else None
        ):
            # Branches of probability 0 are visited, too, because a best response needs the nodes of every state.
            add_histories(child, weight * probability)

    for chance, node in tree.roots:
        add_histories(node, chance)
    return reached


class _BestResponse:
    """Best response of one agent to a strategy, computed by recursion from the last information states to the first."""

    def __init__(self, strategy: Strategy, agent: str, histories: _WeightedHistories) -> None:
        self._strategy, self._agent, self._histories = strategy, agent, histories
        self._best_moves: dict[InformationState, str | None] = {}

    def node_value(self, node: GameTreeNode) -> float:
        """Return the agent's expected return from `node` on, including the reward of the move that led to `node`."""
        reward = node.rewards.get(self._agent, 0.0)
        if node.situation is None:
            return reward
        if node.situation.agent != self._agent:
            terms: list[float] = []
            for probability, child, fee in _branches_with_probability(node, self._strategy):
                terms.append(probability * (self.node_value(child) + fee.get(self._agent, 0.0)))
            return reward + math.fsum(terms)
        if node.situation not in self._best_moves:
            move_values: dict[str | None, float] = defaultdict(float)
            for weight, other_node in self._histories[node.situation]:
                for move, child in _children_by_move(other_node).items():
                    move_values[move] += weight * self.node_value(child)
            self._best_moves[node.situation] = max(move_values, key=move_values.__getitem__)
        return reward + self.node_value(_children_by_move(node)[self._best_moves[node.situation]])


def _expected_return(node: GameTreeNode, strategy: Strategy, agent: str) -> float:
    """Return the agent's expected return from `node` on if all agents play `strategy`."""
    reward = node.rewards.get(agent, 0.0)
    terms: list[float] = []
    for probability, child, fee in _branches_with_probability(node, strategy) if node.situation else ():
        terms.append(probability * (_expected_return(child, strategy, agent) + fee.get(agent, 0.0)))
    return reward + math.fsum(terms)


def _branches_with_probability(
    node: GameTreeNode, strategy: Strategy | None
) -> list[tuple[float, GameTreeNode, Mapping[str, float]]]:
    """Return (probability, child, agent -> reward for an illegal answer) of each branch of `node`.

    Without a strategy every choice has probability 1.
    """
    branches: list[tuple[float, GameTreeNode, Mapping[str, float]]] = []
    if strategy is None or node.situation is None:
        for child in _children_by_move(node).values():
            branches.append((1.0, child, {}))
        return branches
    chances = strategy[node.situation]
    for move, child in node.moves.items():
        branches.append((chances.get(move, 0.0), child, {}))
    illegal = max(0.0, 1.0 - math.fsum(probability for probability, _, _ in branches))
    if node.after_illegal is not None:
        return [*branches, (illegal, node.after_illegal, {})]
    # Under this policy for illegal moves, the game plays a uniformly drawn legal move instead.
    for child in node.moves.values():
        branches.append((illegal / len(node.moves), child, node.illegal_move_rewards))
    return branches


def _children_by_move(node: GameTreeNode) -> dict[str | None, GameTreeNode]:
    """Return move -> child node; the key None is an illegal answer, present unless a random move replaces it."""
    choices: dict[str | None, GameTreeNode] = {**node.moves}
    if node.after_illegal is not None:
        choices[None] = node.after_illegal
    return choices
