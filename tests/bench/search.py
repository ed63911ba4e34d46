"""Tree search: what a simulation costs, beside OpenSpiel's own, and what search at play time adds to a policy.

    python tests/bench/search.py [cost] [--games 50] [--run RUN] [--out FILE]
    python tests/bench/search.py tic_tac_toe --run RUN [--games 100] [--out FILE]
    python tests/bench/search.py connect_four [--run RUN] [--games 20] [--simulations 100 400] [--out FILE]
    python tests/bench/search.py hidden [--out FILE]
    python tests/bench/search.py speed [--repeats 7] [--out FILE]

`tic_tac_toe`: draws of a run's policy against minimax, alone and with 400 simulations. `connect_four`: wins, draws and
losses of a policy alone and with search, on the 4 x 5 board of its scenario, against alpha-beta of depth 6, perfect
play (alpha-beta to the end) and OpenSpiel's MCTS of 1000 simulations. Without `--run` the policy plays at random, and
is no prior. Games begin with the empty board, seats are balanced, intervals are of 95 %. `hidden`: exact NashConv
of searches (uniform prior, random rollouts, moves drawn by visits) in Kuhn and Leduc poker by simulations a decision,
mean of three seeds: over information sets, over determinizations, and OpenSpiel's `ISMCTSBot` with the best of three
weights of exploration, where ours is always the default. `speed`: simulations a CPU second with a uniform prior and
one random rollout each, 8 searches side by side from the start of the game; then with the prior of the tiny model of
the game's scenario, 16 games side by side (of tic-tac-toe also one, and 64 as in `marl eval --search`), their first
move and whole games. As in `marl eval --search`, games side by side share the scores of equal prompts, and the empty
board is the root of all first moves; rollouts, and with them the trees, differ. One game alone shares nothing with
others. The rest is of `cost`.

Cost: tic-tac-toe from the empty board, PUCT, the same Python evaluator (uniform prior, value 0) in our search and in
OpenSpiel's Python MCTS, in turns in one process. `driver_us` is the CPU time of a simulation without the evaluator, the
game's rules included: ours are Python, theirs C++. Then with the scenario's tiny model as the prior, for 1, 8 and 32
games side by side. Play: draws against minimax. Hidden information: exact NashConv in Kuhn poker of a random and of an
equilibrium policy, without search and with it. `--run`: a run whose policy is to be measured, too.
"""

from __future__ import annotations

import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyspiel
from _bench import ROOT, parser, report, silent, spread
from _mcts_player import Mcts
from open_spiel.python.algorithms.exploitability import nash_conv
from open_spiel.python.algorithms.mcts import Evaluator, MCTSBot
from open_spiel.python.policy import TabularPolicy

import marl
from marl.commands.eval.evaluate import EvaluatedPolicies, policies_of_run
from marl.commands.simulators import untrained_simulator
from marl.core.types import Deal
from marl.engines.scripted import Random, ScriptedConfig
from marl.evaluation.evaluate import OpponentPlayers, move_probability_metrics, play_match
from marl.evaluation.game_tree import build_game_tree
from marl.evaluation.search_policy import exact_search_metrics
from marl.games.base import TextGameConfig
from marl.games.connect_four import ConnectFourConfig
from marl.games.connect_four_search import ConnectFourAlphaBeta
from marl.games.kuhn_poker import KuhnEquilibrium
from marl.games.tic_tac_toe import EMPTY, TicTacToeConfig
from marl.games.wrappers.openspiel import OpenSpielConfig
from marl.host.garbage_collection import tune_garbage_collection
from marl.protocols import EngineConfig
from marl.rollout.episode import Episode
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import load
from marl.scenario.schema import Scenario
from marl.search.evaluation import SearchEvaluation
from marl.search.evaluators import RolloutOrCriticEvaluator
from marl.search.mcts import LeafEvaluation, SearchGenerator, SearchLeaf, run_searches_in_parallel, search
from marl.search.play import SearchPlayer, SearchRoles
from marl.search.positions import SearchPosition
from marl.search.settings import SearchSettings
from marl.training.placement import simulator_from_engines

SCENARIOS = ROOT / "scenarios"
SIMULATIONS = 1000
PLAY = SearchSettings(simulations=400, repeats=4, prior="uniform")
BY_POLICY = SearchSettings(simulations=150, repeats=4)
TRAINED = SearchSettings(simulations=400, prior_temperature=4.0)
SHARP = SearchSettings(simulations=400)
EXPLORATIONS = (2.0, 5.0, 15.0)
"""Weights of exploration of OpenSpiel's search, in chips: of its own tests, and for payoffs of up to 13 chips."""
HIDDEN = SearchSettings(simulations=200, temperature=1.0)
SPEED, SPEED_SEARCHES = SearchSettings(simulations=100, prior="uniform"), 8
SPEED_GAMES: dict[str, TextGameConfig] = {
    "tic_tac_toe": TicTacToeConfig(openings=0.0),
    "connect_four": ConnectFourConfig(),
    "openspiel tic_tac_toe": OpenSpielConfig(name="tic_tac_toe"),
    "openspiel connect_four": OpenSpielConfig(name="connect_four"),
}
REBUILT = {
    **{"tic_tac_toe": 3836, "connect_four": 1931},
    **{"openspiel tic_tac_toe": 2039, "openspiel connect_four": 959},
}
"""Game -> simulations a CPU second of commit ccb2bf5e with the same settings, before copies by `clone` and
`random_returns`: median of three measurements on the machine of the result."""

MODEL_SPEED = SearchSettings(simulations=100)
MODEL_GAMES = {"tic_tac_toe": (1, 16, 64), "connect_four": (16,)}
"""Game -> numbers of games side by side; whole games of 64 of connect four would take minutes each time."""
WITH_A_MODEL = {"tic_tac_toe": 430, "connect_four": 107}
"""Game -> simulations a second that a user reported for `--search` at commit ccb2bf5e, without saying how they were
measured."""


class Stopwatch(Evaluator):
    """The evaluator of both searches, and the CPU seconds and calls that it took."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def __call__(self, leaves: Sequence[SearchLeaf]) -> list[LeafEvaluation]:
        began = time.process_time()
        evaluations = [LeafEvaluation(self._prior(len(leaf.position.moves)), (0.0, 0.0)) for leaf in leaves]
        self.seconds, self.calls = self.seconds + time.process_time() - began, self.calls + len(leaves)
        return evaluations

    def evaluate(self, state: Any) -> Any:
        self.calls += 1
        return np.zeros(2)

    def prior(self, state: Any) -> Any:
        began = time.process_time()
        actions = state.legal_actions()
        answer = list(zip(actions, self._prior(len(actions)), strict=True))
        self.seconds += time.process_time() - began
        return answer

    def _prior(self, many: int) -> list[float]:
        return [1 / many] * many


def ours(watch: Stopwatch) -> None:
    game = TicTacToeConfig().build()
    game.reset(0, {"board": EMPTY})
    settings = SearchSettings(simulations=SIMULATIONS, prior="uniform")
    run_searches_in_parallel([search(SearchPosition(game.copy(0)), settings, random.Random(0))], watch)


def theirs(watch: Stopwatch) -> None:
    game = pyspiel.load_game("tic_tac_toe")
    generator = np.random.RandomState(0)
    bot = MCTSBot(game, 1.25, SIMULATIONS, watch, solve=False, random_state=generator, child_selection_fn=_puct)
    bot.mcts_search(game.new_initial_state())


def _puct(node: Any, parent_visits: int, exploration: float) -> float:
    return node.puct_value(parent_visits, exploration)


def cost(repeats: int) -> dict[str, Any]:
    """Return CPU microseconds of a simulation, in turns, so that other work on the machine is the same for both."""
    driver: dict[str, list[float]] = {"ours": [], "open_spiel": []}
    for _ in range(repeats):
        for name, run in (("ours", ours), ("open_spiel", theirs)):
            driver[name].append(_driver_us(run))
    ratios = [a / b for a, b in zip(driver["ours"], driver["open_spiel"], strict=True)]
    return {
        "driver_us": {name: spread(values, 1) for name, values in driver.items()},
        "ours_over_open_spiel": spread(ratios, 2),
    }


def _driver_us(run: Callable[[Stopwatch], None]) -> float:
    watch, began = Stopwatch(), time.process_time()
    run(watch)
    return (time.process_time() - began - watch.seconds) / SIMULATIONS * 1e6


def with_a_model(simulator: RolloutSimulator, scenario: Scenario, games: int, repeats: int) -> dict[str, float]:
    """Return simulations a CPU second with the tiny model's prior, new positions of all games in one batch."""
    settings, rates, fresh = SearchSettings(simulations=64), [], []
    for repeat in range(repeats):
        deals = [Deal(f"{repeat}.{i}", "g", i, scenario.seats, "eval", options={"board": EMPTY}) for i in range(games)]
        episodes = [Episode(scenario.game.build(), deal, simulator.casting) for deal in deals]
        for episode in episodes:
            episode.take_new_requests()
        player = SearchPlayer(simulator, settings, SearchRoles(["player"], scenario.seats))
        before, began = simulator.tokens["eval"], time.process_time()
        player.search_next_moves(episodes)
        rates.append(games * settings.simulations / (time.process_time() - began))
        fresh.append((simulator.tokens["eval"] - before) / (games * settings.simulations))
    return {"simulations_per_cpu_s": round(statistics.median(rates)), "tokens_per_simulation": round(fresh[-1], 2)}


def draws(policies: EvaluatedPolicies, games: int, settings: SearchSettings | None) -> dict[str, float]:
    """Return how often a policy draws against minimax and loses to it, with 95 % intervals, seats balanced."""
    scenario = policies.scenario
    opponents = OpponentPlayers.from_scripted_player(scenario, "minimax")
    results = play_match(
        scenario,
        policies.load_simulator(),
        opponents,
        episodes=games,
        seed=0,
        search=SearchEvaluation(settings) if settings else None,
    )
    figures = results.metrics("minimax")
    wanted = [f"minimax/{kind}{bound}" for kind in ("draw", "loss") for bound in ("", "_low", "_high")]
    return {name: round(figures[name], 4) for name in wanted}


def hidden(policy: ScriptedConfig, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the exact NashConv of a policy in Kuhn poker, without search and with it, by the seed of the search."""
    figures: dict[str, Any] = {"with_search": []}
    for seed in seeds:
        scenario = marl.load(SCENARIOS / "kuhn_self_play.yaml", [f"schedule.seed={seed}"])
        simulator = simulator_from_engines(scenario, {"actor": policy.build(None)})
        figures["with_search"].append(
            round(exact_search_metrics(scenario, simulator, SearchEvaluation(HIDDEN))["eval/nashconv"], 4)
        )
        tree = build_game_tree(scenario.game, simulator.casting, scenario.seats)
        figures["without"] = round(move_probability_metrics(tree, [], simulator)["eval/nashconv"], 4)
    return figures


def nashconv_of_search(game: str, settings: SearchSettings, seed: int) -> float:
    """Return the exact NashConv of a search with `settings` whose policy knows nothing."""
    scenario = marl.load(SCENARIOS / f"{game}_self_play.yaml", [f"schedule.seed={seed}"])
    simulator = simulator_from_engines(scenario, {"actor": Random().build(None)})
    return exact_search_metrics(scenario, simulator, SearchEvaluation(settings))["eval/nashconv"]


def nashconv_of_open_spiel(game_name: str, simulations: int, exploration: float, seed: int) -> float:
    """Return the exact NashConv of the visits of OpenSpiel's search, with an equal budget in each information state."""
    game = pyspiel.load_game(game_name)
    table = TabularPolicy(game)
    visits, rollout = pyspiel.ISMCTSFinalPolicyType.NORMALIZED_VISIT_COUNT, pyspiel.RandomRolloutEvaluator(1, seed)
    bot = pyspiel.ISMCTSBot(seed, rollout, exploration, simulations, -1, visits)
    for state in table.states:
        policy = dict(bot.get_policy(state))
        row = table.state_lookup[state.information_state_string()]
        table.action_probability_array[row] = [policy.get(action, 0.0) for action in range(game.num_distinct_actions())]
    return float(nash_conv(game, table))  # type: ignore[arg-type]  # a number unless asked for details


def hidden_search(chosen: Namespace) -> None:
    """Measure the NashConv of searches in Kuhn and Leduc poker by their number of simulations."""
    seeds, figures = range(3), dict[str, Any]()
    for game, budgets in (("kuhn", (100, 1000, 10_000)), ("leduc", (100, 1000))):
        for simulations in budgets:
            row: dict[str, Any] = {}
            for kind in ("ismcts", "pimc"):
                began = time.process_time()
                fields = {"simulations": simulations, "temperature": 1.0, "prior": "uniform"}
                settings = SearchSettings.model_validate({**fields, "hidden_information": kind})
                row[kind] = spread([nashconv_of_search(game, settings, seed) for seed in seeds], 3)
                row[f"{kind}_cpu_seconds"] = round(time.process_time() - began, 1)
            by_exploration: dict[float, list[float]] = {}
            for weight in EXPLORATIONS:
                measured = [nashconv_of_open_spiel(f"{game}_poker", simulations, weight, seed) for seed in seeds]
                by_exploration[weight] = measured
            best = min(EXPLORATIONS, key=lambda weight: statistics.fmean(by_exploration[weight]))
            row |= {"open_spiel": spread(by_exploration[best], 3), "open_spiel_exploration": best}
            figures[f"{game}/{simulations}"] = row
    report(figures, chosen.out, seeds=list(seeds), explorations=EXPLORATIONS)


def speed(chosen: Namespace) -> None:
    """Measure simulations a CPU second of searches that ask no model, and of searches by a tiny model's prior."""
    rates: dict[str, list[float]] = {name: [] for name in SPEED_GAMES}
    for _ in range(chosen.repeats):
        for name, config in SPEED_GAMES.items():
            rates[name].append(simulations_per_cpu_second(config))
    figures: dict[str, Any] = {name: {"per_cpu_s": spread(values, 0)} for name, values in rates.items()}
    for name, before in REBUILT.items():
        figures[name] |= {"rebuilt_per_cpu_s": before, "ratio": round(statistics.median(rates[name]) / before, 1)}
    figures["with_a_model"] = {}
    for game, numbers_of_games in MODEL_GAMES.items():
        for games in numbers_of_games:
            figures["with_a_model"][f"{game}/{games}"] = speed_with_a_model(game, games, chosen.repeats)
    settings = {"search": SPEED.model_dump(mode="json"), "model_search": MODEL_SPEED.model_dump(mode="json")}
    report(figures, chosen.out, seeds=[0], searches=SPEED_SEARCHES, **settings)


def speed_with_a_model(game: str, games: int, repeats: int) -> dict[str, Any]:
    """Return simulations a CPU second with a tiny model's prior: of the first move, and of whole games by search."""
    with silent():
        scenario = marl.load(SCENARIOS / f"{game}_self_play.yaml", ["game.openings=0"])
        simulator = untrained_simulator(scenario)
    tune_garbage_collection(serves_programs=False)  # as `marl eval --search` does
    first_moves, whole_games, scored = list[float](), list[float](), list[float]()
    for repeat in range(repeats + 1):
        names = [f"{repeat}.{index}" for index in range(games)]
        deals = [Deal(name, "g", index, scenario.seats, "eval") for index, name in enumerate(names)]
        episodes = [Episode(scenario.game.build(), deal, simulator.casting) for deal in deals]
        # Each measurement has a new player, whose scores of prompts begin empty.
        players = [SearchPlayer(simulator, MODEL_SPEED, SearchRoles(["player"], scenario.seats)) for _ in range(2)]
        times, tokens = [time.process_time()], simulator.tokens["eval"]
        players[0].search_next_moves(episodes)
        times.append(time.process_time())
        scored.append((simulator.tokens["eval"] - tokens) / (games * MODEL_SPEED.simulations))
        players[1].play(deals)
        times.append(time.process_time())
        first_moves.append(len(players[0].results) * MODEL_SPEED.simulations / (times[1] - times[0]))
        whole_games.append(len(players[1].results) * MODEL_SPEED.simulations / (times[2] - times[1]))
    before = WITH_A_MODEL[game]
    return {
        # The first repetition warms up the libraries and the tokenizer.
        "first_move_per_cpu_s": spread(first_moves[1:], 0),
        "whole_games_per_cpu_s": spread(whole_games[1:], 0),
        "first_move_scored_tokens": round(statistics.median(scored[1:]), 2),
        "before_per_s": before,
        "ratio_first_move": round(statistics.median(first_moves[1:]) / before, 1),
        "ratio_whole_games": round(statistics.median(whole_games[1:]) / before, 1),
    }


def simulations_per_cpu_second(config: TextGameConfig) -> float:
    """Return the simulations a CPU second of `SPEED_SEARCHES` searches side by side, each from a start of the game."""
    searches: list[SearchGenerator] = []
    for seed in range(SPEED_SEARCHES):
        game: Any = config.build()
        game.reset(seed)
        searches.append(search(SearchPosition(game), SPEED, random.Random(seed)))
    began = time.process_time()
    run_searches_in_parallel(searches, RolloutOrCriticEvaluator(SPEED))
    return SPEED_SEARCHES * SPEED.simulations / (time.process_time() - began)


def tic_tac_toe(chosen: Namespace) -> None:
    """Measure how often a run's policy draws against minimax, alone and with search."""
    with silent():
        run = empty_board(policies_of_run(chosen.run, (), None, best=False))
        figures = {
            "policy": draws(run, 4 * chosen.games, None),
            "policy_with_search": draws(run, chosen.games, TRAINED),
            "policy_with_search_sharp_prior": draws(run, chosen.games, SHARP),
            "cpu_seconds": round(time.process_time(), 1),
        }
    report(figures, chosen.out, seeds=[0], games=chosen.games, search=TRAINED.model_dump(mode="json"))


def empty_board(policies: EvaluatedPolicies) -> EvaluatedPolicies:
    """Return policies whose games begin with the empty board."""
    game = policies.scenario.game.model_copy(update={"openings": 0.0})

    def simulator() -> RolloutSimulator:
        table = policies.load_simulator()
        table.games = {"": game}  # those of the run begin with its openings
        return table

    return replace(policies, scenario=policies.scenario.model_copy(update={"game": game}), load_simulator=simulator)


def connect_four(chosen: Namespace) -> None:
    """Measure a policy of connect four, alone and with search, against strong players."""
    opponents: dict[str, EngineConfig] = {
        "alpha_beta_6": ConnectFourAlphaBeta(depth=6),
        "perfect": ConnectFourAlphaBeta(depth=None),
        "mcts_1000": Mcts(),
    }
    searches = {"policy": None} | {
        f"search_{many}": SearchSettings(simulations=many, prior="policy" if chosen.run else "uniform")
        for many in chosen.simulations
    }
    with silent():
        policies = empty_board(policies_of_run(chosen.run, (), None, best=False) if chosen.run else _random_four())
        figures: dict[str, Any] = {}
        for opponent, engine in opponents.items():
            for name, search_settings in searches.items():
                began = time.process_time()
                results = met(policies, opponent, engine, chosen.games, search_settings)
                figures[f"{name}/{opponent}"] = {**results, "cpu_seconds": round(time.process_time() - began, 1)}
    board = {"rows": 4, "columns": 5, "policy": chosen.run.name if chosen.run else "random"}
    report(figures, chosen.out, seeds=[0], games=chosen.games, **board)


def _random_four() -> EvaluatedPolicies:
    players = "policies={actor: {engine: {kind: random}}}"
    scenario = load(SCENARIOS / "connect_four_self_play.yaml", [players], to_train=False)
    simulator = untrained_simulator(scenario)
    return EvaluatedPolicies(scenario, None, lambda: simulator)


def met(
    policies: EvaluatedPolicies, name: str, engine: EngineConfig, games: int, settings: SearchSettings | None
) -> dict[str, float]:
    """Return how often policies win, draw and lose against a player in the other seat, with 95 % intervals."""
    scenario = policies.scenario
    roles = {agent: scenario.roles[role].model_copy(update={"policy": name}) for agent, role in scenario.seats.items()}
    results = play_match(
        scenario,
        policies.load_simulator(),
        OpponentPlayers(roles, {name: engine}),
        episodes=games,
        seed=0,
        search=SearchEvaluation(settings) if settings else None,
    )
    figures = results.metrics(name)
    wanted = [f"{kind}{bound}" for kind in ("win", "draw", "loss") for bound in ("", "_low", "_high")]
    return {each: round(figures[f"{name}/{each}"], 4) for each in wanted}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("measured", nargs="?", choices=list(MEASUREMENTS), default="cost")
    options.add_argument("--games", type=int)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--run", type=Path)
    options.add_argument("--simulations", type=int, nargs="+", default=[100, 400])
    chosen = options.parse_args()
    measure, usual_games = MEASUREMENTS[chosen.measured]
    chosen.games = chosen.games or usual_games
    if chosen.measured == "tic_tac_toe" and chosen.run is None:
        options.error("tic_tac_toe: --run RUN names the trained policy, such as one of tests/bench/expert_iteration.py")
    measure(chosen)


def cost_and_play(chosen: Namespace) -> None:
    """Measure what a simulation costs, and what search adds to policies that know nothing, or to a run's."""
    scenario = marl.load(SCENARIOS / "tic_tac_toe_self_play.yaml", ["game.openings=0"])
    with silent():
        simulator = untrained_simulator(scenario)
        start = EvaluatedPolicies(scenario, None, lambda: simulator)
        play = {
            "untrained": draws(start, 500, None),
            "untrained_search_uniform_prior": draws(start, chosen.games, PLAY),
        }
        if chosen.run:
            run = policies_of_run(chosen.run, (), None, best=False)
            play |= {"trained": draws(run, 1000, None), "trained_search": draws(run, chosen.games, BY_POLICY)}
        figures = {
            **cost(chosen.repeats),
            "with_a_model": {n: with_a_model(simulator, scenario, n, 1) for n in (1, 8, 32)},
            "play": play,
            "kuhn_poker": {"random": hidden(Random(), range(5)), "equilibrium": hidden(KuhnEquilibrium(), range(5))},
        }
    play_settings = {"uniform_prior": PLAY.model_dump(mode="json"), "policy_prior": BY_POLICY.model_dump(mode="json")}
    settings = {"play": play_settings, "hidden": HIDDEN.model_dump(mode="json"), "games": chosen.games}
    report(figures, chosen.out, seeds=[0], simulations=SIMULATIONS, **settings)


MEASUREMENTS = {
    "cost": (cost_and_play, 50),
    "tic_tac_toe": (tic_tac_toe, 100),
    "connect_four": (connect_four, 20),
    "hidden": (hidden_search, 0),
    "speed": (speed, 0),
}
"""Name -> (measurement, default number of games)."""

if __name__ == "__main__":
    main()
