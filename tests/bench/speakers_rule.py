"""The best decision rule of the communication game for speakers that err, by enumeration of all graphs.

    python tests/bench/speakers_rule.py RUN [RUN ...] [--choose 400] [--episodes 200] [--out FILE]

The rule `best_choices` of `communication.py` is the best one for perfect speakers, which never lose a record. For
language models, which do, a graph with more words can be better. Here the speakers of a run, which take their likeliest
tokens, play every graph that is worth playing. The rule takes for each question the graph with the highest mean reward
on `--choose` problems with held-out questions, since controllers read the question and not the records. It is then
played on the `--episodes` problems of `communication.py`, which are other ones.

`best`: this rule. `perfect`: the best rule for perfect speakers, played by these speakers, which is the row
`best_choices` of `communication.py`. `return`: reward of each agent; `words`: spoken and heard; figures are [lower
bound, mean, upper bound] at 95 %. Only for games of one round with controllers and a respondent, and for speakers
whose prompt is that of `agent_q_mix_unseen.yaml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt
from _bench import parser, report, silent
from communication import game_of

from marl.commands.eval.evaluate import policies_of_run
from marl.core.statistics import confidence_interval, normal_interval
from marl.core.types import Completion, Message, Request
from marl.games.communication import CommunicationConfig
from marl.games.communication_graph import Edge, build_communication_graph, speaking_order
from marl.games.communication_optimum import SpeakersOfGraph
from marl.games.split_evidence import EvidenceInParts, normalize_spaces
from marl.protocols import Engine, RoleConfig
from marl.text.word_count import count_words

Heard = tuple[tuple[str, str], ...]
"""(speaker, its utterance), in playing order."""
GraphEdges = frozenset[Edge]


class Asked(NamedTuple):
    """Turn of a speaker whose utterance depends on what it heard."""

    speaker: str
    heard: Heard


Outcome = tuple[float, float, float]
"""(reward of each agent, 1 for a right answer or 0, words spoken and heard)"""
REFUSED: Outcome = (-1.0, 0.0, 0.0)
"""Outcome of a graph in which the game refuses an utterance: an illegal move costs 1."""


class Speakers:
    """The speakers of a run, which say the likeliest utterance after each prompt."""

    def __init__(self, engine: Engine, role: RoleConfig) -> None:
        self._engine, self._role = engine, role

    def utterances(self, prompts: Sequence[str]) -> list[str]:
        """Return the utterance after each of `prompts`, "" for one that the game refuses."""
        sampling = self._role.sampling.model_copy(update={"temperature": 0.0})
        for ticket, prompt in enumerate(prompts):
            self._engine.submit(ticket, Request(self._role.policy, (Message("user", prompt),), sampling))
        said: dict[int, str] = {}
        while len(said) < len(prompts):
            for ticket, answer in self._engine.step(1.0):
                if not isinstance(answer, Completion):
                    raise SystemExit(f"no utterance after {prompts[ticket]!r}: {answer}")
                said[ticket] = normalize_spaces(self._role.parse(answer.text, None) or "")
        return [said[ticket] for ticket in range(len(prompts))]


class PlayedProblem:
    """A held-out problem, with all utterances to which the graphs of interest lead."""

    def __init__(self, game: CommunicationConfig, index: int) -> None:
        self._game, played = game, game.build()
        played.reset(0, {"split": "held_out", "index": index})
        self.problem = played.dealt_problem
        self.respondent = EvidenceInParts.from_problem(self.problem).agent_that_must_answer(game.speakers)
        for _ in game.edge_choosing_agents:
            played.step("aggregate")
        self._observations = {agent: str(played.describe_observation(agent)) for agent in game.speakers}
        self.said: dict[Asked, str] = {}

    def prompt(self, asked: Asked) -> str:
        """Return the prompt of a speaker of `agent_q_mix_unseen.yaml`."""
        return self._observations[asked.speaker] + "".join([f" . {agent} said {text}" for agent, text in asked.heard])

    def play(self, turns: SpeakersOfGraph) -> Outcome | Asked:
        """Return the outcome of a graph, or the first turn whose utterance is not known yet."""
        utterances: dict[str, str] = {}
        words = 0
        for speaker, predecessors in turns:
            heard = tuple([(agent, text) for agent, text in utterances.items() if agent in predecessors])
            asked = Asked(speaker, heard)
            if asked not in self.said:
                return asked
            utterances[speaker] = said = self.said[asked]
            if not said:
                return REFUSED
            words += count_words(said) + sum([count_words(text) for _, text in heard])
        correct = utterances[self.respondent] == normalize_spaces(self.problem.answer)
        return self._game.reward_of_each_agent(correct, words), float(correct), float(words)


class Graphs:
    """All graphs that the controllers can choose."""

    def __init__(self, game: CommunicationConfig) -> None:
        self._game, self._edges_by_choice = game, dict[tuple[str, ...], GraphEdges]()
        self._turns: dict[GraphEdges, SpeakersOfGraph] = {}
        for choice in game.perfect_speaker_team.outcome_by_joint_action(game.task_problems.problem("held_out", 0)):
            graph = build_communication_graph(dict(zip(game.speakers, choice, strict=True)))
            edges = self._edges_by_choice[choice] = frozenset(graph.edges)
            order = chain.from_iterable(speaking_order(graph, ()))
            self._turns.setdefault(edges, tuple((agent, tuple(graph.predecessors(agent))) for agent in order))

    def best_of_perfect_speakers(self, played: PlayedProblem) -> GraphEdges:
        return self._edges_by_choice[self._game.perfect_speaker_team.best_joint_action(played.problem)]

    def worth_playing(self, played: PlayedProblem) -> list[GraphEdges]:
        """Return the graph without edges, and those with which perfect speakers succeed.

        A graph is left out if all its speakers whose words cannot reach the respondent can be silent instead.
        """
        kept: dict[GraphEdges, None] = {frozenset(): None}
        outcomes = self._game.perfect_speaker_team.outcome_by_joint_action(played.problem)
        for choice, outcome in outcomes.items():
            edges = self._edges_by_choice[choice]
            if outcome.success and edges not in kept:
                graph = nx.DiGraph(list(edges))
                graph.add_node(played.respondent)
                needed = nx.ancestors(graph, played.respondent) | {played.respondent}
                shorter = frozenset(edge for edge in edges if edge[1] in needed)
                kept[shorter if shorter in self._turns else edges] = None
        return list(kept)

    def turns(self, edges: GraphEdges, respondent: str) -> SpeakersOfGraph:
        """Return the turns with a graph. The respondent speaks even without an edge."""
        turns = self._turns[edges]
        return turns if any(agent == respondent for agent, _ in turns) else (*turns, (respondent, ()))


def play_all(
    problems: Sequence[PlayedProblem], turns_of: Sequence[Sequence[SpeakersOfGraph]], speakers: Speakers
) -> list[npt.NDArray[np.float64]]:
    """Return for each problem the outcomes of its graphs, [graph, field of `Outcome`].

    All utterances that are missing are sampled together, so there is one batch for each depth of a graph.
    """
    while True:
        tables = [[played.play(turns) for turns in graphs] for played, graphs in zip(problems, turns_of, strict=True)]
        prompts: dict[tuple[int, Asked], str] = {}
        for number, (played, outcomes) in enumerate(zip(problems, tables, strict=True)):
            prompts |= {(number, asked): played.prompt(asked) for asked in outcomes if isinstance(asked, Asked)}
        if not prompts:
            return [np.array(outcomes) for outcomes in tables]
        texts = list(dict.fromkeys(prompts.values()))
        said = dict(zip(texts, speakers.utterances(texts), strict=True))
        for (number, asked), prompt in prompts.items():
            problems[number].said[asked] = said[prompt]


def best_graph_by_question(
    problems: Sequence[PlayedProblem], graphs: Graphs, speakers: Speakers
) -> Mapping[str, GraphEdges]:
    """Return question -> graph with the highest mean reward on `problems`, and of equal ones that with fewest words."""
    problems_of: defaultdict[str, list[PlayedProblem]] = defaultdict(list)
    for played in problems:
        problems_of[played.problem.question].append(played)
    best: dict[str, GraphEdges] = {}
    for question, same in problems_of.items():
        candidates = graphs.worth_playing(same[0])
        turns = [graphs.turns(edges, same[0].respondent) for edges in candidates]
        means = np.mean(play_all(same, [turns] * len(same), speakers), axis=0)
        best[question] = candidates[np.lexsort((means[:, 2], -means[:, 0].round(9)))[0]]
    return best


def figures_of_run(run: Path, choose: int, episodes: int) -> dict[str, Any]:
    policies = policies_of_run(run, (), None, best=False)
    game = game_of(policies)
    role = policies.scenario.roles[policies.scenario.seats[game.speakers[0]]]
    speakers, graphs = Speakers(policies.load_simulator().engines[role.policy], role), Graphs(game)
    problems = [PlayedProblem(game, index) for index in range(episodes)]
    best = best_graph_by_question(_other_problems(game, choose, problems), graphs, speakers)
    if unknown := {played.problem.question for played in problems}.difference(best):
        raise SystemExit(f"--choose: {choose} problems do not contain the question {min(unknown)!r}; choose more")
    rules = {
        "best": [best[played.problem.question] for played in problems],
        "perfect": [graphs.best_of_perfect_speakers(played) for played in problems],
    }
    figures: dict[str, Any] = {"questions": len(best)}
    for name, chosen in rules.items():
        turns_of = [[graphs.turns(edges, played.respondent)] for edges, played in zip(chosen, problems, strict=True)]
        value, success, words = np.concatenate(play_all(problems, turns_of, speakers)).T.tolist()
        bounds = {
            "success": confidence_interval(success),
            "words": normal_interval(words),
            "return": normal_interval(value),
        }
        figures[name] = {measure: [round(bound, 4) for bound in each] for measure, each in bounds.items()}
    return figures


def _other_problems(game: CommunicationConfig, count: int, problems: Sequence[PlayedProblem]) -> list[PlayedProblem]:
    """Return `count` further problems with held-out questions, none of them in `problems`."""
    total = len(problems) + count
    # A new game is made, because a copy would keep the problems that the game has drawn already.
    settings = {name: getattr(game, name) for name in game.model_fields_set}
    settings["task"] = game.task.model_copy(update={"held_out": total})
    larger = CommunicationConfig.model_validate(settings)
    keys = {played.problem.key for played in problems}
    return [played for played in (PlayedProblem(larger, i) for i in range(total)) if played.problem.key not in keys]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("runs", type=Path, nargs="+")
    arguments.add_argument("--choose", type=int, default=400, help="number of problems by which graphs are chosen")
    arguments.add_argument("--episodes", type=int, default=200, help="number of problems on which they are played")
    options = arguments.parse_args()
    with silent():
        figures = {run.name: figures_of_run(run, options.choose, options.episodes) for run in options.runs}
    seeds = [policies_of_run(run, (), None, best=False).scenario.schedule.seed for run in options.runs]
    report(figures, options.out, seeds=seeds, choose=options.choose, episodes=options.episodes)


if __name__ == "__main__":
    main()
