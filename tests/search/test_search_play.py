"""Play with search: prompts, determinization, matches and exact figures, expert iteration."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from marl.commands.eval.evaluate import evaluate_policies, parse_search, policies_of_scenario
from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.core.types import Completion, CompletionFailure, Deal, Request, Ticket
from marl.engines.scripted import Random
from marl.evaluation.evaluate import OpponentPlayers, play_match
from marl.evaluation.search_policy import exact_search_metrics
from marl.experience.expert_iteration import SearchSelfPlay
from marl.games.base import TextGame
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig
from marl.games.tic_tac_toe import TicTacToeConfig, best_moves
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.roles.judging import JudgeRole
from marl.rollout.episode import Episode
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, load, validate
from marl.scenario.schema import Scenario
from marl.search.determinization import sample_determinizations
from marl.search.evaluation import SearchEvaluation
from marl.search.evaluators import PolicyPrior, RolloutOrCriticEvaluator
from marl.search.mcts import LeafEvaluation, LeafEvaluator, SearchLeaf, SearchResult
from marl.search.play import SearchPlayer, SearchRoles
from marl.search.settings import SearchSettings
from tests.support.small_games import (
    CircleConfig,
    FunctionEngine,
    HearingPlayer,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

SEATS = {"player_0": "player", "player_1": "player"}
SEARCHED = SearchSettings(simulations=20)


class Scored(FunctionEngine):
    """Says a random move; the log-probability of a forced text is that of one in five."""

    def __init__(self) -> None:
        super().__init__(random_move)

    def _answer(self, request: Request) -> Completion:
        text = random_move(request) if request.forced is None else request.forced
        return Completion(text, (1, 2), tuple(text.encode()), (math.log(0.2), *[0.0] * (len(text) - 1)), "stop")


def scenario(kind: str, **game: object) -> Scenario:
    return validate(
        {
            "game": {"kind": kind, **game},
            "seats": SEATS,
            "roles": {"player": {"kind": "player", "policy": "actor"}},
            "policies": {"actor": {"engine": {"kind": "random"}}},
            "schedule": {"steps": 1, "groups": 2, "group_size": 1},
        },
        "test",
        to_train=False,
    )


def searcher(simulator: RolloutSimulator, settings: SearchSettings = SEARCHED) -> SearchPlayer:
    return SearchPlayer(simulator, settings, SearchRoles(["player"], {}))


def moves(trajectories: Sequence[Trajectory]) -> list[list[str | None]]:
    return [[turn.action for turn in trajectory.turns] for trajectory in trajectories]


# --- copies of games -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [KuhnPokerConfig(), NimConfig(), TicTacToeConfig(), CircleConfig(), PenniesConfig(rounds=3)],
    ids=lambda config: config.kind,
)
def test_a_copy_goes_on_as_the_game_would_and_leaves_it_alone(config: GameConfig) -> None:
    game, rng = config.build(), random.Random(0)
    assert isinstance(game, TextGame)
    game.reset(3)
    while not any(game.terminations.values()):
        before = _state(game)
        other = game.copy()
        assert _state(other) == before
        legal = game.infos[game.agent_selection]["legal"] or ("x",)
        move = rng.choice(legal)
        other.step(move)
        assert _state(game) == before
        game.step(move)
        assert _state(other) == _state(game)


def _state(game: TextGame) -> str:
    names = sorted(vars(game).keys() - {"_rng", "_rng_state", "_observation_and_action_spaces_by_agent"})
    return repr([(name, vars(game)[name]) for name in names if name not in ("config", "metadata")]) + str(
        hash(game.rng.getstate())
    )


# --- episodes --------------------------------------------------------------------------------------------------------


def test_episodes_with_search_are_ordinary_ones_whose_texts_the_policy_scored() -> None:
    game, engine = TicTacToeConfig(), Scored()
    player = searcher(make_simulator(game, engine))
    (episode,) = player.play([make_deal("e", game)])
    assert episode.end == "terminated"
    assert [turn.completion.text for turn in episode.turns] == [f"[{turn.action}]" for turn in episode.turns]
    assert {turn.completion.logprobs[0] for turn in episode.turns} == {math.log(0.2)}
    assert {turn.request.forced for turn in episode.turns} == {None}
    assert [result.chosen_move for result in player.results] == [turn.action for turn in episode.turns]


def test_policies_are_asked_what_their_roles_would_ask_had_the_moves_really_been_played() -> None:
    game, engine = KuhnPokerConfig(), Scored()
    simulator = make_simulator(game, engine, player=HearingPlayer(policy="actor"))
    searcher(simulator, SearchSettings(simulations=60)).play(
        [make_deal("e", game, cards="KJ"), make_deal("f", game, cards="JQ")]
    )
    asked = {request.messages for request in engine.requests.values() if request.forced}
    real = set()
    for cards in ("KJ", "KQ", "JQ", "JK", "QJ", "QK"):
        for path in ((), ("check",), ("bet",), ("check", "bet")):
            episode = Episode(game.build(), make_deal("r", game, cards=cards), simulator.casting)
            for move in path:
                episode.force_action(move)
            real |= {request.messages for _, request in episode.take_new_requests()}
    assert len(asked) > 6
    assert asked <= real


@pytest.mark.parametrize("game", [KuhnPokerConfig(), TicTacToeConfig()], ids=lambda game: game.kind)
def test_prompts_without_earlier_turns_are_those_of_the_episode_and_give_the_same_moves(
    game: GameConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played() -> tuple[list[list[str | None]], set[Any]]:
        engine = Scored()
        deals = [make_deal(f"e{seed}", game, seed) for seed in range(3)]
        settings = SearchSettings(simulations=30, rollouts="policy", temperature=1.0)
        courses = moves(searcher(make_simulator(game, engine), settings).play(deals))
        asked = [request for request in engine.requests.values() if request.forced]
        return courses, {(r.messages, r.state, r.forced, r.policy, r.purpose, r.continues) for r in asked}

    assert PlayerRole(policy="actor").ignores_earlier_turns
    from_the_game_alone = played()
    monkeypatch.setattr(PlayerRole, "ignores_earlier_turns", False)
    assert played() == from_the_game_alone


def test_a_role_whose_requests_may_read_turns_or_differ_each_time_is_asked_in_its_episode() -> None:
    assert not HearingPlayer(policy="actor").ignores_earlier_turns  # its own `messages`
    assert not PlayerRole(policy="actor", history="append").ignores_earlier_turns
    assert not PlayerRole(policy="actor", prompt="{{ observation }} {{ mine | length }}").ignores_earlier_turns
    assert not PlayerRole(policy="actor", instructions="{% if last %}Again.{% endif %}").ignores_earlier_turns
    assert not JudgeRole(policy="actor").ignores_earlier_turns  # a tag of its own in each request


def test_equal_seeds_play_equal_episodes_whoever_plays_beside() -> None:
    game = TicTacToeConfig(openings=0.5)
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(3)]
    settings = SearchSettings(simulations=5, rollouts="policy", temperature=1.0)

    def played(some: Sequence[Deal]) -> list[list[str | None]]:
        return moves(searcher(make_simulator(game, Scored()), settings).play(some))

    together = played(deals)
    assert together == played(deals)
    assert [course for each in deals for course in played([each])] == together
    assert len({tuple(course) for course in together}) > 1


class Opinionated(Scored):
    """Scores a forced text by its prompt and itself, and counts the batches of forced texts."""

    batches = 0

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        self.batches += any(self.requests[ticket].forced for ticket in self._open)
        return super().step(wait_s)

    def _answer(self, request: Request) -> Completion:
        score = crc32(repr((request.messages, request.forced)).encode()) % 1000 / 250
        return replace(super()._answer(request), token_ids=(1,), logprobs=(-score,))


def evaluator_in_lockstep(simulator: RolloutSimulator, settings: SearchSettings) -> LeafEvaluator:
    """Return an evaluator that scores the prior of every new leaf at once.

    As a caller's own evaluator, it gets one leaf of every search in each round.
    """
    evaluate = RolloutOrCriticEvaluator(settings, PolicyPrior(simulator, "eval"))

    def values_and_priors(leaves: Sequence[SearchLeaf]) -> list[LeafEvaluation]:
        values, priors = evaluate(leaves), evaluate([replace(leaf, prior_only=True) for leaf in leaves])
        return [LeafEvaluation(prior.prior, value.values) for prior, value in zip(priors, values, strict=True)]

    return values_and_priors


@pytest.mark.parametrize("rule", ["puct", "gumbel"])
@pytest.mark.parametrize("hidden_information", ["ismcts", "pimc"])
@pytest.mark.parametrize("game", [TicTacToeConfig(), KuhnPokerConfig()], ids=lambda game: game.kind)
def test_searches_that_ask_for_priors_as_late_as_possible_find_the_same_bit_by_bit_with_fewer_batches_and_scores(
    game: GameConfig, hidden_information: Any, rule: Any
) -> None:
    settings = SearchSettings(simulations=60, hidden_information=hidden_information, rule=rule)
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(4)]

    def played(*, in_lockstep: bool) -> tuple[list[SearchResult], list[list[str | None]], int, int]:
        engine = Opinionated()
        simulator = make_simulator(game, engine)
        evaluator = evaluator_in_lockstep(simulator, settings) if in_lockstep else None
        player = SearchPlayer(simulator, settings, SearchRoles(["player"], {}), evaluate=evaluator)
        courses = moves(player.play(deals))
        return player.results, courses, engine.batches, len(engine.requests)

    results, courses, batches, scores = played(in_lockstep=False)
    expected_results, expected_courses, expected_batches, expected_scores = played(in_lockstep=True)
    assert (results, courses) == (expected_results, expected_courses)
    assert len({result.prior for result in results}) > 2
    assert batches < expected_batches
    if game.kind == "tic_tac_toe":
        # A game whose tree is larger than its searches: no more than a part of the new positions is passed again.
        assert scores < 0.8 * expected_scores
    else:
        assert scores <= expected_scores


def test_a_tiny_models_searches_visit_the_same_moves_whatever_prompts_share_its_batches() -> None:
    model = "policies.actor.model={kind: tiny, hidden: 16, layers: 1, heads: 2}"
    scenario = load("scenarios/tic_tac_toe_self_play.yaml", [model])
    simulator, settings = untrained_simulator(scenario), SearchSettings(simulations=40)
    deals = [make_deal(f"e{seed}", scenario.game, seed) for seed in range(3)]

    def decided(evaluate: LeafEvaluator | None) -> list[SearchResult]:
        player = SearchPlayer(simulator, settings, SearchRoles(["player"], {}), evaluate=evaluate)
        player.play(deals)
        return player.results

    expected_results = decided(evaluator_in_lockstep(simulator, settings))
    for result, expected in zip(decided(None), expected_results, strict=True):
        assert (result.visits, result.chosen_move) == (expected.visits, expected.chosen_move)
        # Other rows in a matrix product may change the last bit of a score.
        assert result.prior == pytest.approx(expected.prior, abs=1e-6)


def test_agents_that_move_together_cannot_search() -> None:
    game = PenniesConfig()
    with pytest.raises(ValueError, match="is asked together with another agent"):
        searcher(make_simulator(game, Scored())).play([make_deal("e", game)])
    # As for exact figures, where the position of the first agent is searched without an episode being played.
    simulator = make_simulator(game, Scored())
    episode = Episode(game.build(), make_deal("e", game), simulator.casting)
    with pytest.raises(ValueError, match="player_1 is asked together with another agent"):
        searcher(simulator).search_next_moves([episode])


# --- hidden information ----------------------------------------------------------------------------------------------


def test_states_that_an_agent_cannot_tell_apart_are_planned_from_alike() -> None:
    game = KuhnPokerConfig()
    simulator = make_simulator(game, Scored())
    episode = Episode(game.build(), make_deal("e", game, cards="JQ"), simulator.casting)
    episode.force_action("bet")
    drawn: Any = sample_determinizations(game, episode, 8, random.Random(0))
    assert sorted((weight, copy.cards) for weight, copy in drawn) == [(0.5, "JQ"), (0.5, "KQ")]
    (single,) = sample_determinizations(game, episode, 1, random.Random(0))
    assert single[0] == 1.0


def test_a_game_that_exports_no_deals_is_dealt_again_until_the_agent_cannot_tell() -> None:
    class Unknown(KuhnPokerConfig):
        kind: str = "unknown_deals"

        def all_start_states(self) -> None:  # type: ignore[override]
            return None

    game = Unknown()
    episode = Episode(game.build(), make_deal("e", game, seed=5), make_simulator(game, Scored()).casting)
    card = episode.game.infos["player_0"]["state"]
    dealt: Any = sample_determinizations(game, episode, 40, random.Random(0))
    drawn = [copy.cards for _, copy in dealt]
    assert {cards[0] for cards in drawn} == {card}
    assert len(set(drawn)) == 2
    moved = Episode(game.build(), make_deal("e", game, cards="KQ"), make_simulator(game, Scored()).casting)
    moved.game.infos["player_0"]["state"] = "an ace"
    with pytest.raises(ValueError, match="none of 1000 random deals of game 'unknown_deals' leads to what player_0"):
        sample_determinizations(game, moved, 1, random.Random(0))


def test_search_in_kuhn_poker_has_an_exact_nashconv() -> None:
    setting = scenario("kuhn_poker")
    simulator = make_simulator(setting.game, Random().build(None))
    uniform = exact_search_metrics(
        setting, simulator, SearchEvaluation(SearchSettings(simulations=1, prior="uniform", temperature=1e6))
    )
    # Visits of one simulation are all on one move, whatever the temperature: a deterministic policy.
    assert 0 < uniform["eval/nashconv"] <= 4
    searched = exact_search_metrics(
        setting, simulator, SearchEvaluation(SearchSettings(simulations=200, temperature=1.0))
    )
    assert searched["eval/nashconv"] < 11 / 12  # that of the random policy without search
    assert searched["eval/value/player_0"] == -searched["eval/value/player_1"]


# --- figures ---------------------------------------------------------------------------------------------------------


def test_search_plays_nim_perfectly_though_its_policy_knows_nothing() -> None:
    setting = scenario("nim", piles=[3, 5])
    simulator = make_simulator(setting.game, Random().build(None))
    settings = SearchSettings(simulations=80)
    assert exact_search_metrics(setting, simulator, SearchEvaluation(settings))["eval/optimal"] == 1.0
    results = play_match(
        setting,
        simulator,
        OpponentPlayers.from_scripted_player(setting, "random"),
        episodes=10,
        seed=0,
        search=SearchEvaluation(settings),
    )
    without = play_match(
        setting, simulator, OpponentPlayers.from_scripted_player(setting, "random"), episodes=10, seed=0
    )
    assert sum(map(sum, results.returns.values())) > sum(map(sum, without.returns.values()))


@pytest.mark.slow
def test_search_draws_against_minimax_in_tic_tac_toe() -> None:
    setting = scenario("tic_tac_toe")
    simulator = make_simulator(setting.game, Random().build(None))
    opponents = OpponentPlayers.from_scripted_player(setting, "minimax")
    settings = SearchSettings(simulations=300, repeats=4, prior="uniform")
    figures = play_match(setting, simulator, opponents, episodes=40, seed=0, search=SearchEvaluation(settings)).metrics(
        "m"
    )
    assert figures["m/draw"] >= 0.9


def test_eval_takes_the_settings_of_a_search(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--search: simulation: unknown field 'simulation'; did you mean"):
        parse_search("{simulation: 3}")
    with pytest.raises(ScenarioError, match="must be settings in braces"):
        parse_search("64")
    file = tmp_path / "nim.yaml"
    file.write_text(json.dumps(scenario("nim", piles=[3, 5]).model_dump(mode="json", exclude_defaults=True)))
    measured = policies_of_scenario(file, [], None, best=False)
    figures = evaluate_policies(measured, "minimax", 8, parse_search("{simulations: 100}"))
    assert figures["eval/minimax/episodes"] == 8
    assert "eval/optimal" not in figures


def test_exact_figures_of_a_search_have_a_budget_of_simulations(tmp_path: Path) -> None:
    file = tmp_path / "nim.yaml"
    file.write_text(json.dumps(scenario("nim", piles=[3, 5]).model_dump(mode="json", exclude_defaults=True)))
    measured, search = policies_of_scenario(file, [], None, best=False), parse_search("{simulations: 100}")
    figures = evaluate_policies(measured, "minimax", 8, search, exact_simulations=200)
    # Two of the three positions with a wrong move are searched, so the figure has an interval.
    assert figures["eval/optimal"] > 0.9
    assert "eval/optimal_low" in figures
    # NashConv needs all information states.
    assert "eval/nashconv" not in figures
    every = evaluate_policies(measured, None, 8, search)
    assert {"eval/nashconv", "eval/optimal"} <= every.keys()
    assert "eval/optimal_low" not in every
    with pytest.raises(ScenarioError, match="--exact-simulations 99: too few for any figure"):
        evaluate_policies(measured, None, 8, search, exact_simulations=99)
    with pytest.raises(ScenarioError, match="--exact-simulations 99 needs --search"):
        evaluate_policies(measured, None, 8, None, exact_simulations=99)


def test_a_search_shows_its_progress_and_its_chunks_change_no_figure() -> None:
    setting = scenario("kuhn_poker")
    simulator = make_simulator(setting.game, Random().build(None))
    settings, shown = SearchSettings(simulations=8, temperature=1.0), list[tuple[str, int]]()

    def track(items: Sequence[Any], description: str) -> Sequence[Any]:
        shown.append((description, len(items)))
        return items

    plain = exact_search_metrics(setting, simulator, SearchEvaluation(settings))
    assert exact_search_metrics(setting, simulator, SearchEvaluation(settings, 8 * 12, track)) == plain
    assert shown[0] == ("information states", 1)
    # NashConv needs all twelve information states.
    assert exact_search_metrics(setting, simulator, SearchEvaluation(settings, 8 * 12 - 1)) == {}


# --- expert iteration ------------------------------------------------------------------------------------------------


def test_expert_iteration_returns_episodes_in_deal_order_and_says_how_search_differs_from_policy() -> None:
    game = TicTacToeConfig()
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(4)]
    experience = SearchSelfPlay(simulations=16).build()
    played = experience.gather(0, lambda _: deals, make_simulator(game, Scored()))
    assert [trajectory.id for trajectory in played] == ["e0", "e1", "e2", "e3"]
    figures = experience.metrics()
    assert figures["search/decisions"] == sum(len(trajectory.turns) for trajectory in played)
    assert figures["search/entropy"] < figures["search/prior_entropy"]
    assert 0 <= figures["search/agreement"] <= 1


def test_roles_that_do_not_search_sample_their_answers() -> None:
    game, engine = TicTacToeConfig(), Scored()
    roles = {"player": HearingPlayer(policy="actor"), "guest": HearingPlayer(policy="actor")}
    seats = {"player_0": "player", "player_1": "guest"}
    experience = SearchSelfPlay(simulations=4, roles=("player",)).build()
    start = Deal("e", "e", 0, seats)
    (episode,) = experience.gather(0, lambda _: [start], make_simulator(game, engine, **roles))
    sampled = [request for request in engine.requests.values() if request.forced is None]
    assert len(sampled) == sum(turn.role == "guest" for turn in episode.turns)
    assert list(SearchSelfPlay(roles=("guess",)).seating_conflicts(seats, 1)) == [
        "roles: no seat has the role 'guess'; did you mean 'guest'? choices: guest, player"
    ]


def test_what_search_chooses_is_better_than_what_its_policy_says() -> None:
    game = TicTacToeConfig(openings=1.0, opening_moves=6)
    simulator = make_simulator(game, Random().build(None))
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(6)]
    played = SearchSelfPlay(simulations=80, temperature=0.0, noise=None).build().gather(0, lambda _: deals, simulator)
    boards = [(turn.request.state, turn.action) for trajectory in played for turn in trajectory.turns]
    good = [action in best_moves(board) for board, action in boards if len(best_moves(board)) < board.count(".")]
    assert sum(good) / len(good) > 0.8
