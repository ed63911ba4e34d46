"""Kuhn poker against enumeration and OpenSpiel."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import pyspiel
import pytest
from pydantic import ValidationError

from marl.engines.scripted import Random
from marl.games.kuhn_poker import AGENTS, DECK, KuhnEquilibrium, KuhnPoker, KuhnPokerConfig

Path = tuple[tuple[int, str, str], ...]
"""(player, information state, move) of every decision."""
Policy = Callable[[str, tuple[str, ...]], Mapping[str, float]]


def histories() -> Iterator[tuple[float, str, Path, float]]:
    """(probability of the deal, cards, path, chips of the first player) of every terminal history of the real game."""
    game = KuhnPokerConfig().build()
    for start in KuhnPokerConfig().all_start_states():
        paths: list[Path] = [()]
        while paths:
            path = paths.pop()
            game.reset(0, start.options)
            for _, _, move in path:
                game.step(move)
            if any(game.terminations.values()):
                yield start.probability, game.start_state_key(), path, game.rewards["player_0"]
                continue
            agent = game.agent_selection
            info = game.infos[agent]
            paths += [(*path, (AGENTS.index(agent), info["state"], move)) for move in info["legal"]]


TREE = list(histories())
MOVES = {}
for _, _, path, _ in TREE:
    for player, state, move in path:
        MOVES.setdefault((player, state), []).append(move)
MOVES = {key: tuple(dict.fromkeys(moves)) for key, moves in MOVES.items()}


def reach(path: Path, player: int, policy: Policy) -> float:
    chance = 1.0
    for who, state, move in path:
        if who == player:
            chance *= policy(state, MOVES[who, state])[move]
    return chance


def value(first: Policy, second: Policy) -> float:
    return sum(p * reach(path, 0, first) * reach(path, 1, second) * chips for p, _, path, chips in TREE)


def best_response(player: int, other: Policy) -> float:
    """Return the most that `player` can get: over all pure strategies, hence over information sets, not over states."""
    states = [state for who, state in MOVES if who == player]
    weighted = [(p * reach(path, 1 - player, other) * (chips, -chips)[player], path) for p, _, path, chips in TREE]
    best = -float("inf")
    for moves in product(*(MOVES[player, state] for state in states)):
        plan = dict(zip(states, moves, strict=True))
        chosen = sum(w for w, path in weighted if all(who != player or plan[s] == move for who, s, move in path))
        best = max(best, chosen)
    return best


def nash_conv(policy: Policy) -> float:
    worth = value(policy, policy)
    return best_response(0, policy) - worth + best_response(1, policy) + worth


def table(bet: Mapping[str, float], call: Mapping[str, float]) -> Policy:
    """A policy for both players from how often each card bets and calls."""

    def probabilities(state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        chance = (bet if "bet" in moves else call)[state[0]]
        return {move: chance if move in ("bet", "call") else 1 - chance for move in moves}

    return probabilities


def test_the_tree_has_30_terminal_histories_and_12_information_states() -> None:
    assert len(TREE) == 30
    assert len(MOVES) == 12
    assert sum(start.probability for start in KuhnPokerConfig().all_start_states()) == pytest.approx(1)


def test_a_called_bet_doubles_the_pot() -> None:
    for _, cards, path, chips in TREE:
        last = path[-1][2]
        winner = 1 if DECK.index(cards[0]) > DECK.index(cards[1]) else -1
        if last == "call":
            assert chips == 2 * winner
        elif last == "check":
            assert chips == winner
        else:
            assert chips == (1 if path[-1][0] == 1 else -1)


def test_the_whole_tree_agrees_with_openspiel() -> None:
    game = KuhnPokerConfig().build()
    count = 0

    def walk(theirs: pyspiel.State, cards: str, moves: list[str]) -> None:
        nonlocal count
        game.reset(0, {"cards": cards})
        for move in moves:
            game.step(move)
        assert theirs.is_terminal() == any(game.terminations.values())
        if theirs.is_terminal():
            count += 1
            assert theirs.returns() == [game._cumulative_rewards[agent] for agent in AGENTS]
            return
        assert AGENTS[theirs.current_player()] == game.agent_selection
        legal = game.infos[game.agent_selection]["legal"]
        assert len(theirs.legal_actions()) == len(legal)
        for action in theirs.legal_actions():  # 0 passes, 1 bets
            walk(theirs.child(action), cards, [*moves, legal[action]])

    root = pyspiel.load_game("kuhn_poker").new_initial_state()
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            walk(root.child(first).child(second), DECK[first] + DECK[second], [])
    assert count == 30


@pytest.mark.parametrize("alpha", [0.0, 1 / 6, 0.2, 1 / 3])
def test_every_equilibrium_is_worth_minus_one_eighteenth_and_cannot_be_exploited(alpha: float) -> None:
    policy = KuhnEquilibrium(alpha=alpha).move_probabilities
    assert value(policy, policy) == pytest.approx(-1 / 18, abs=1e-12)
    assert best_response(0, policy) == pytest.approx(-1 / 18, abs=1e-12)
    assert best_response(1, policy) == pytest.approx(1 / 18, abs=1e-12)
    assert all(
        sum(policy(s, m).values()) == pytest.approx(1) and min(policy(s, m).values()) >= 0
        for (_, s), m in MOVES.items()
    )


@pytest.mark.parametrize(
    ("policy", "worth", "gap"),
    [
        (Random().move_probabilities, 1 / 8, 11 / 12),
        (table(dict.fromkeys(DECK, 0.0), dict.fromkeys(DECK, 0.0)), 0, 2),
        (table(dict.fromkeys(DECK, 1.0), dict.fromkeys(DECK, 1.0)), 0, 2 / 3),
        (table({"J": 0, "Q": 0, "K": 1}, {"J": 0, "Q": 0.5, "K": 1}), 0, 1 / 4),
    ],
    ids=["uniform", "always pass", "always bet", "honest"],
)
def test_known_policies_have_their_known_value_and_nash_conv(policy: Policy, worth: float, gap: float) -> None:
    assert value(policy, policy) == pytest.approx(worth, abs=1e-12)
    assert nash_conv(policy) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("alpha", [-0.01, 0.34])
def test_an_alpha_outside_the_family_is_refused(alpha: float) -> None:
    with pytest.raises(ValidationError, match="alpha"):
        KuhnEquilibrium(alpha=alpha)


def test_the_game_exports_its_equilibrium() -> None:
    assert KuhnPokerConfig().reference_players() == {"nash": KuhnEquilibrium()}


def test_a_player_sees_its_own_card_and_the_betting() -> None:
    game = KuhnPokerConfig().build()
    game.reset(0, {"cards": "QK"})
    assert game.observe("player_0")["text"] == "card Q . betting none . moves [check] [bet]"
    game.step("check")
    assert game.observe("player_1")["text"] == "card K . betting check . moves [check] [bet]"
    game.step("bet")
    assert game.observe("player_0")["text"] == "card Q . betting check bet . moves [fold] [call]"
    assert game.infos["player_0"]["state"] == "Q check bet"
    assert game.infos["player_0"]["hears"] == AGENTS


def test_deals_are_uniform() -> None:
    game: KuhnPoker = KuhnPokerConfig().build()
    counts: dict[str, int] = {}
    for seed in range(6000):
        game.reset(seed)
        counts[game.start_state_key()] = counts.get(game.start_state_key(), 0) + 1
    assert len(counts) == 6
    assert all(880 < count < 1120 for count in counts.values())  # 1000 +- 4 standard deviations
