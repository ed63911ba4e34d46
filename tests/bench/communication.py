"""Success against the price of talk: ways to choose who hears whom, on the same held-out problems.

    python tests/bench/communication.py SCENARIO [RUN ...] [--set a.b=c ...] [--episodes 200] [--greedy] [--own]
        [--out FILE]

The choices of SCENARIO's controllers are made by each of the six constant policies (`always_alone` is no communication,
`always_broadcast` and `always_aggregate` are full ones), at random, by the best decision rule where the game knows it,
and by what the policies of the scenario and of each run make of it, as they sample (`--greedy`: their likeliest
choice). The speakers are those of the scenario or of the run.

With `--own`, everybody plays the game, the held-out problems and the speakers of the runs instead of SCENARIO's: runs
of one game and of speakers without a learner are compared in one table, every other run in a table of its own.

`return`: reward of each agent. `words`: spoken and heard, which is what is paid for. `tokens`: sampled by the models of
speakers in an episode; speakers by rule sample none. `exact`: what enumeration says of perfect speakers in one
round, on all held-out problems. Figures are [lower bound, mean, upper bound] at 95 %. Rows are sorted by `words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _bench import parser, report, silent

from marl.commands.eval.evaluate import EvaluatedPolicies, policies_of_run, policies_of_scenario
from marl.core.graph import Trajectory
from marl.core.statistics import confidence_interval, normal_interval
from marl.engines.scripted import Random
from marl.evaluation.held_out import HeldOutEvaluator
from marl.games.communication import CommunicationConfig
from marl.protocols import EngineConfig

MEASURES = ("success", "words", "edges", "choice_entropy")
Figures = dict[str, list[float]]


def game_of(policies: EvaluatedPolicies) -> CommunicationConfig:
    game = policies.scenario.game
    if not isinstance(game, CommunicationConfig) or not game.controllers:
        raise SystemExit(f"game: {game.kind!r} has no controllers; choices: communication with controllers: true")
    return game


def figures(episodes: Sequence[Trajectory], game: CommunicationConfig) -> Figures:
    """Means over episodes, with intervals."""
    columns = {name: [episode.findings.measures[name] for episode in episodes] for name in MEASURES}
    columns["return"] = [episode.returns.get(game.edge_choosing_agents[0], 0.0) for episode in episodes]
    columns["tokens"] = [float(sum(map(tokens, turns(episode, game.speakers)))) for episode in episodes]
    bounds = {
        name: confidence_interval(values) if name == "success" else normal_interval(values)
        for name, values in columns.items()
    }
    return {name: [round(bound, 4) for bound in each] for name, each in bounds.items()}


def turns(episode: Trajectory, agents: Sequence[str]) -> list[Any]:
    return [turn for turn in episode.turns if turn.agent in agents]


def tokens(turn: Any) -> int:
    """The tokens that a model sampled."""
    return len(turn.completion.token_ids) if turn.completion.prompt_ids else 0


def measured(policies: EvaluatedPolicies, players: dict[str, EngineConfig], options: Any) -> dict[str, Figures]:
    """Figures of the policies themselves (``), and with each player in the controllers' place."""
    scenario, simulator, game = policies.scenario, policies.load_simulator(), game_of(policies)
    chooser = scenario.roles[scenario.seats[game.edge_choosing_agents[0]]].policy
    casting = simulator.casting.with_greedy_decoding() if options.greedy else simulator.casting
    engines = {"": simulator.engines[chooser], **{name: player.build(None) for name, player in players.items()}}
    rows = {}
    for name, engine in engines.items():
        evaluation = HeldOutEvaluator(scenario, simulator.variant(casting, {chooser: engine}), options.episodes)
        evaluation()
        rows[name] = figures(evaluation.episodes_of_last_call, game)
    return rows


def comparison(start: EvaluatedPolicies, start_row: str, runs: Sequence[Path], options: Any) -> dict[str, Any]:
    """Return the figures of reference players on the game of `start`, of `start` itself (row `start_row`) and of
    `runs`, with the exact outcomes of decision rules, or None if they are not enumerated."""
    game = game_of(start)
    rows = measured(start, {"random": Random(), **game.reference_players()}, options)
    rows[start_row] = rows.pop("")
    for run in runs:
        rows[run.name] = measured(policies_of_run(run, (), None, best=False), {}, options)[""]
    table = dict(sorted(rows.items(), key=lambda row: row[1]["words"][1]))
    one_round = game if game.rounds == 1 else game.model_copy(update={"rounds": 1})
    exact = None
    if one_round.can_enumerate_joint_choices:
        exact = {name: each._asdict() for name, each in one_round.outcome_by_decision_rule().items()}
    return {"played": table, "exact": exact}


def runs_of_equal_games(runs: Sequence[Path]) -> list[list[Path]]:
    """Return the runs grouped by the game they play; a run whose speakers learn is a group of its own."""
    groups: dict[str, list[Path]] = {}
    for run in runs:
        policies = policies_of_run(run, (), None, best=False)
        scenario, game = policies.scenario, game_of(policies)
        speaker = scenario.policies[scenario.roles[scenario.seats[game.speakers[0]]].policy]
        key = str(run) if speaker.learner else game.model_dump_json() + speaker.model_dump_json()
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("scenario", type=Path)
    arguments.add_argument("runs", type=Path, nargs="*")
    arguments.add_argument("--set", nargs="+", default=[], help="overrides of SCENARIO")
    arguments.add_argument("--episodes", type=int, default=200)
    arguments.add_argument("--greedy", action="store_true")
    arguments.add_argument("--own", action="store_true", help="play the games of RUNs instead of SCENARIO's")
    options = arguments.parse_args()
    with silent():
        if options.own:
            tables: list[dict[str, Any]] = []
            for first, *others in runs_of_equal_games(options.runs):
                start = policies_of_run(first, (), None, best=False)
                names = [run.name for run in (first, *others)]
                tables.append({"runs": names, **comparison(start, first.name, others, options)})
            figures_of_all: dict[str, Any] = {"tables": tables}
        else:
            start = policies_of_scenario(options.scenario, options.set, None, best=False)
            figures_of_all = comparison(start, "untrained", options.runs, options)
    seeds = [policies_of_run(run, (), None, best=False).scenario.schedule.seed for run in options.runs]
    settings = {"scenario": options.scenario.name, "episodes": options.episodes, "greedy": options.greedy}
    settings |= {"set": options.set, "own": options.own}
    report(figures_of_all, options.out, seeds=seeds, **settings)


if __name__ == "__main__":
    main()
