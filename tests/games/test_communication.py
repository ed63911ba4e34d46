"""The communication game: from choices to a graph, from the graph to who hears whom, and what it pays."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

import networkx as nx
import pytest
from pettingzoo.test import api_test, seed_test

from marl.core.graph import Trajectory
from marl.core.types import Deal, Problem, Request, TurnId
from marl.engines.scripted import Random
from marl.games.base import reset_and_play
from marl.games.communication import CommunicationConfig, CommunicationGame
from marl.games.communication_graph import COMMUNICATION_ACTIONS, build_communication_graph, requested_edges
from marl.protocols import Split, TaskConfig, TaskProblems
from marl.roles.answering import PlayerRole
from tests.support.small_games import FunctionEngine, make_simulator

FOUR = ("agent_0", "agent_1", "agent_2", "agent_3")


class Doubles(TaskConfig):
    """Twice a number; the last three are held out."""

    kind: str = "doubles"

    def build(self) -> TaskProblems:
        return Doubler()


class Doubler:
    def problem_count(self, split: Split) -> int:
        return 7 if split == "train" else 3

    def problem(self, split: Split, index: int) -> Problem:
        n = index if split == "train" else 7 + index
        return Problem(f"2x{n}", f"2 * {n}", str(2 * n), (str(2 * n + 1), str(2 * n + 2)))

    def parse_posed_problem(self, text: str) -> Problem | None:
        return None


def config(**settings: object) -> CommunicationConfig:
    return CommunicationConfig.model_validate({"task": Doubles(), **settings})


def edges(*actions: str) -> set[tuple[int, int]]:
    """(speaker, listener) by place, after a joint choice."""
    graph = build_communication_graph({f"agent_{place}": action for place, action in enumerate(actions)})
    assert nx.is_directed_acyclic_graph(graph)
    return {(int(speaker[-1]), int(listener[-1])) for speaker, listener in graph.edges}


def advanced(game: CommunicationGame, *moves: str, index: int = 2) -> CommunicationGame:
    """The game of problem `index`, after these moves."""
    game.reset(0, {"index": index})
    for move in moves:
        game.step(move)
    return game


# --- choices -> graph ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("alone", set()),
        ("broadcast", {(1, 2), (1, 3), (1, 0)}),
        ("query", {(2, 1)}),
        ("aggregate", {(2, 1), (3, 1), (0, 1)}),
        ("verify", {(1, 2)}),
        ("debate", {(1, 3)}),
    ],
)
def test_each_action_adds_its_own_edges(action: str, expected: set[tuple[int, int]]) -> None:
    assert edges("alone", action, "alone", "alone") == expected


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        # all alike: earlier agents get their wishes, what would close a cycle is left out
        (("broadcast",) * 3, {(0, 1), (0, 2), (1, 2)}),
        (("aggregate",) * 3, {(1, 0), (2, 0), (2, 1)}),
        (("query",) * 3, {(1, 0), (2, 1)}),
        (("verify",) * 3, {(0, 1), (1, 2)}),
        (("debate",) * 4, {(0, 2), (1, 3)}),
        (("debate",) * 3, {(0, 1), (1, 2), (0, 2)}),
        # two wish the same edge, or opposite ones
        (("verify", "query", "alone"), {(0, 1), (2, 1)}),
        (("query", "verify", "alone"), {(1, 0), (1, 2)}),
        (("query", "broadcast", "alone"), {(1, 0), (1, 2)}),
        (("alone", "broadcast", "aggregate"), {(1, 2), (1, 0), (0, 2)}),
        # a debate goes the other way when the first way would close a cycle
        (("query", "query", "debate", "alone"), {(1, 0), (2, 1), (2, 0)}),
        (("verify", "verify", "debate", "alone"), {(0, 1), (1, 2), (0, 2)}),
        # two agents are one another's next and opposite
        (("debate", "debate"), {(0, 1)}),
        (("query", "query"), {(1, 0)}),
        (("alone", "debate"), {(1, 0)}),
    ],
)
def test_joint_choices_worked_out_by_hand(actions: Sequence[str], expected: set[tuple[int, int]]) -> None:
    assert edges(*actions) == expected


def test_every_joint_choice_grants_each_wish_that_closes_no_cycle() -> None:
    for actions in product(COMMUNICATION_ACTIONS, repeat=4):
        choices: dict[str, str] = dict(zip(FOUR, actions, strict=True))
        graph = build_communication_graph(choices)
        wished = {edge for agent, action in choices.items() for edge in requested_edges(agent, action, FOUR)}
        assert nx.is_directed_acyclic_graph(graph)
        assert list(graph) == list(FOUR)
        assert set(graph.edges) <= wished
        for edge in wished - set(graph.edges):
            fuller = nx.DiGraph(graph.edges)
            fuller.add_edge(*edge)
            assert not nx.is_directed_acyclic_graph(fuller)


@pytest.mark.parametrize(
    ("actions", "gates"),
    [
        (("alone",) * 3, [(), (), ()]),
        (("alone", "query", "alone"), [(), (1,), (1,)]),
        # 0 -> 1 -> 2; what 2 asked for would have closed the cycle, so it let nobody in
        (("verify",) * 3, [(0,), (0, 1), (1,)]),
        # both 0 and 1 asked that 0 hears 1
        (("query", "broadcast", "alone"), [(0, 1), (0, 1), (1,)]),
    ],
)
def test_a_choice_lets_in_those_on_the_edges_that_it_asked_for(
    actions: Sequence[str], gates: list[tuple[int, ...]]
) -> None:
    game = config(agents=3, illegal={"retry": 1}).build()
    assert [advanced(game, *actions).step_indices_that_decided_turn(agent) for agent in game.seats] == gates
    later = [tuple(step + 1 for step in steps) for steps in gates]
    assert [
        advanced(game, "no choice", *actions).step_indices_that_decided_turn(agent) for agent in game.seats
    ] == later
    assert advanced(game, *actions, "4", "4", "4").step_indices_that_decided_turn("agent_0") == (), (
        "choices of the next round are free"
    )


# --- the order of play -----------------------------------------------------------------------------------------------


def stages(game: CommunicationGame) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(kind, agents) of each stage as it begins; answers are given in turn."""
    while not any(game.terminations.values()):
        first = game.infos[game.agent_selection]
        yield ("answer" if first["legal"] is None else "choose"), first["together"]
        for agent in first["together"]:
            assert game.agent_selection == agent
            info = game.infos[agent]
            assert (info["legal"], info["hears"]) == (first["legal"], game.heard_agents(agent))
            game.step("4" if info["legal"] is None else PLAN[agent])


PLAN = {"agent_0": "query", "agent_1": "alone", "agent_2": "verify", "agent_3": "alone"}
"""1 -> 0, 2 -> 3"""


def test_all_choose_at_once_and_those_at_one_depth_answer_at_once() -> None:
    game = advanced(config(agents=4, rounds=2).build())
    first = [("choose", FOUR), ("answer", ("agent_1", "agent_2")), ("answer", ("agent_0", "agent_3"))]
    assert list(stages(game)) == first * 2


def test_an_agent_hears_its_predecessors_and_nobody_else() -> None:
    game = advanced(config(agents=3).build(), "aggregate", "alone", "alone")
    assert [game.heard_agents(agent) for agent in game.seats] == [game.seats, ("agent_1",), ("agent_2",)]
    game = advanced(game, "aggregate", "alone")
    assert [game.heard_agents(agent) for agent in game.seats] == [("agent_0",), ("agent_1",), ("agent_2",)]


def test_what_an_agent_has_not_heard_is_not_in_its_state_or_observation() -> None:
    game = advanced(config(agents=3).build(), "alone", "query", "broadcast", "22")
    # agent_2 is heard by both others; agent_0 hears nobody else
    assert game.agent_selection == "agent_0"
    game.step("33")
    assert game.infos["agent_1"]["state"] == "2 * 2 . agent_1 : query . agent_2 : broadcast , 22"
    game.step("44")
    assert game.observe("agent_0")["text"].startswith("2 * 2 . agent_0 . round 2 of 2 . you said 33 . choose [alone]")
    for move in ("alone", "query", "alone"):
        game.step(move)
    assert game.information_state("agent_0") == "2 * 2 . agent_0 : alone , 33 , alone . agent_2 : broadcast , 22"


def test_older_turns_are_heard_with_the_first_that_may_be() -> None:
    game = advanced(config(agents=2).build(), *("alone", "alone", "1", "3"), *("query", "alone", "5"))
    assert game.agent_selection == "agent_0"
    assert game.infos["agent_0"]["state"].endswith("agent_1 : alone , 3 , alone , 5")


# --- played by agents ------------------------------------------------------------------------------------------------


def speaker(**settings: object) -> PlayerRole:
    prompt = "{{ observation }}{% for turn in heard %} {{ turn.agent }} : {{ turn.text }}{% endfor %}"
    return PlayerRole.model_validate({"policy": "actor", "prompt": prompt, **settings})


def plays(settings: CommunicationConfig, voice: FunctionEngine, episodes: int = 1) -> list[Trajectory]:
    deals = [Deal(f"e{i}", "g", i, settings.default_role_of_agent()) for i in range(episodes)]
    return make_simulator(settings, voice, speaker=speaker()).play(deals)


def anything(request: Request) -> str:
    answers = [*(request.options or {}).values()] or request.examples
    return answers[request.seed % len(answers)]


def reads(trajectory: Trajectory) -> dict[tuple[TurnId, TurnId], set[str]]:
    """The edges that the choices imply, and in which ways.

    `self`: each prompt shows one's own latest answer. `heard`: of each predecessor what was not read before. `gated`:
    whoever asked for an edge of the graph let those on it speak, hear or be heard.
    """
    turns = {agent: [turn for turn in trajectory.turns if turn.agent == agent] for agent in trajectory.deal.seats}
    kinds: dict[tuple[TurnId, TurnId], set[str]] = defaultdict(set)
    read: Counter[tuple[str, str]] = Counter()
    for choosing in range(0, len(turns["agent_0"]), 2):
        choices = {agent: mine[choosing].action or "" for agent, mine in turns.items()}
        graph, answering = build_communication_graph(choices), choosing + 1
        for mine in turns.values():
            for now in (choosing, answering) if choosing else ():
                kinds[mine[choosing - 1].id, mine[now].id].add("self")
        for chooser, action in choices.items():
            granted = [edge for edge in requested_edges(chooser, action, tuple(choices)) if graph.has_edge(*edge)]
            for agent in {agent for edge in granted for agent in edge}:
                kinds[turns[chooser][choosing].id, turns[agent][answering].id].add("gated")
        for speaker, listener in graph.edges:
            fresh = turns[speaker][read[speaker, listener] : answering + 1]
            read[speaker, listener] = answering + 1
            for turn in fresh:
                kinds[turn.id, turns[listener][answering].id].add("heard")
    return dict(kinds)


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_recorded_graph_is_the_one_that_was_chosen(newest_first: bool) -> None:
    settings = config(agents=4, rounds=3)
    for trajectory in plays(settings, FunctionEngine(anything, newest_first=newest_first), 40):
        assert len(trajectory.turns) == 24
        assert {(u, v): set(kinds) for u, v, kinds in trajectory.graph.edges(data="kinds")} == reads(trajectory)
        choices = [[t.action or "" for t in trajectory.turns[place : place + 4]] for place in (0, 8, 16)]
        many = [len(edges(*joint)) for joint in choices]
        measures = trajectory.findings.measures
        assert measures["edges"] == sum(many)
        assert measures["density"] == pytest.approx(sum(many) / 18)


def test_prompts_hold_what_was_heard_and_nothing_else() -> None:
    def say(request: Request) -> str:
        text = request.messages[-1].content
        agent = text.split(" . ")[1]
        return f"[{PLAN[agent]}]" if request.options else f"[said by {agent}]"

    [trajectory] = plays(config(agents=4, rounds=1), FunctionEngine(say))
    requests = {turn.agent: turn.request.messages[-1].content for turn in trajectory.turns[4:]}
    heard = {agent: [other for other in FOUR if f"said by {other}" in text] for agent, text in requests.items()}
    assert heard == {"agent_1": [], "agent_2": [], "agent_0": ["agent_1"], "agent_3": ["agent_2"]}


def test_the_requests_of_a_stage_are_in_flight_at_once() -> None:
    open_at_once: list[int] = []

    class Counting(FunctionEngine):
        def step(self, wait_s: float) -> list:
            open_at_once.append(len(self._open))
            return super().step(wait_s)

    def say(request: Request) -> str:
        agent = request.messages[-1].content.split(" . ")[1]
        return f"[{PLAN[agent]}]" if request.options else "[4]"

    plays(config(agents=4, rounds=2), Counting(say))
    assert open_at_once == [4, 2, 2, 4, 2, 2]


def test_answers_do_not_depend_on_the_order_in_which_they_come_in() -> None:
    settings = config(agents=4, rounds=2)
    assert plays(settings, FunctionEngine(anything), 20) == plays(
        settings, FunctionEngine(anything, newest_first=True, batch=3), 20
    )


def test_turns_carry_their_problem_and_random_play_finds_the_answer_at_times() -> None:
    settings = config(agents=3, rounds=1)
    deals = [Deal(f"e{i}", "g", i, settings.default_role_of_agent()) for i in range(200)]
    trajectories = make_simulator(settings, Random().build(None), speaker=speaker()).play(deals)
    assert all(turn.problem == trajectory.start for trajectory in trajectories for turn in trajectory.turns)
    assert 0.1 < sum(t.findings.measures["success"] for t in trajectories) / 200 < 0.9


# --- rewards ---------------------------------------------------------------------------------------------------------


def test_everybody_is_paid_for_accuracy_and_for_words_said_and_heard() -> None:
    game = advanced(config(rounds=1, cost=0.1, budget=40).build(), "broadcast", "alone", "alone", "4", "4", "it is 5")
    # said: 3 choices, 1 + 1 + 3 words; heard: `broadcast` and `4`, by two
    assert game.communication_word_count() == 3 + 5 + 4
    for agent in game.seats:
        assert game.reward_components[agent] == pytest.approx({"accuracy": 1.0, "cost": -0.1 * 12 / 40})
    # the choices are one `broadcast` and two `alone`
    entropy = math.log(3) - 2 / 3 * math.log(2)
    measures = {"success": 1.0, "edges": 2.0, "density": 2 / 3, "words": 12.0, "choice_entropy": entropy}
    assert game.episode_measures().measures == pytest.approx(measures)


def test_each_round_costs_its_own_words_and_what_was_heard_late_is_paid_for_like_the_rest() -> None:
    game = advanced(config(agents=2, budget=100).build(), "alone", "alone", "4", "4 or 5")
    # said: 2 choices, 1 + 3
    assert game.reward_components["agent_1"] == pytest.approx({"cost": -0.1 * 6 / 100})
    for move in ("query", "alone", "4", "4"):
        game.step(move)
    # said in round 2: 2 choices, 1 + 1; heard: alone, 4 or 5, alone, 4
    assert game.communication_word_count() == 6 + 4 + 6
    assert game.reward_components["agent_1"] == pytest.approx({"cost": -0.1 * 10 / 100, "accuracy": 1.0})


def test_the_costs_of_all_rounds_together_are_bounded() -> None:
    game = advanced(config(agents=2, cost=0.3, budget=8).build(), "alone", "alone", "4", "4 or 5")
    assert game.rewards["agent_1"] == pytest.approx(-0.3 * 6 / 8)
    for move in ("query", "alone", "5", "4"):
        game.step(move)
    assert game.reward_components["agent_1"]["cost"] == pytest.approx(-0.3 * 2 / 8)


def test_the_price_of_talk_is_bounded() -> None:
    game = advanced(config(rounds=1, cost=0.3, budget=5).build(), *["broadcast"] * 3, "1", "1", "1")
    assert game.rewards == pytest.approx(dict.fromkeys(game.seats, -0.3))
    assert game.episode_measures().measures["success"] == 0.0


@pytest.mark.parametrize(
    ("answers", "success"),
    [
        (("4", "4", "5"), 1.0),
        (("5", "5", "4"), 0.0),
        (("4", "5", "6"), 1.0),
        (("5", "4", "6"), 0.0),
        ((" 4 ", "5", "4"), 1.0),
    ],
)
def test_the_majority_answers_and_of_several_the_first(answers: Sequence[str], success: float) -> None:
    game = advanced(config(rounds=1).build(), "alone", "alone", "alone", *answers)
    assert game.episode_measures().measures["success"] == success


def test_an_answer_that_cannot_be_read_costs_its_agent_and_ends_the_game() -> None:
    game = advanced(config(illegal={"retry": 1}).build(), "shout")
    assert game.infos["agent_0"]["attempt"] == 1
    game.step("louder")
    assert game.rewards == {"agent_0": -1.0, "agent_1": 0.0, "agent_2": 0.0}
    assert set(game.episode_measures().measures.values()) == {0.0}


# --- PettingZoo, seeds, options --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_game_passes_pettingzoos_own_tests_when_every_move_is_legal() -> None:
    class Obliging(CommunicationGame):
        """Takes any text for a choice, so that random text goes all the way."""

        def step(self, action: str | None) -> None:
            choosing = action is not None and self._legal
            super().step(
                COMMUNICATION_ACTIONS[len(action) % len(COMMUNICATION_ACTIONS)] if choosing and action else action
            )

    api_test(Obliging(config(agents=4)), num_cycles=200)
    seed_test(lambda: Obliging(config(agents=4)), num_cycles=60)


def test_the_game_is_a_function_of_seed_and_actions() -> None:
    one, other = config(agents=4).build(), config(agents=4).build()
    for seed in range(20):
        one.reset(seed)
        rng, moves = random.Random(seed), []
        while not any(one.terminations.values()):
            info = one.infos[one.agent_selection]
            moves.append(rng.choice(info["legal"] or info["examples"]))
            one.step(moves[-1])
        random.seed(seed)
        reset_and_play(other, seed, None, moves)
        assert [one.information_state(agent) for agent in one.seats] == [
            other.information_state(agent) for agent in one.seats
        ]
        assert (one.rewards, one.start_state_key(), one.episode_measures()) == (
            other.rewards,
            other.start_state_key(),
            other.episode_measures(),
        )


def test_options_choose_the_problem() -> None:
    settings = config()
    game = settings.build()
    game.reset(0, {"split": "held_out", "index": 1})
    assert (game.start_state_key(), game.infos["agent_0"]["problem"]) == ("2x8", "2x8")
    game.reset(0, {"problem": {"key": "k", "question": "what?", "answer": "that", "wrong": ["this"]}})
    assert game.start_state_key() == "k"
    for _ in range(3):
        game.step("alone")
    assert game.infos["agent_0"]["examples"] == ("that", "this")
    starts = [game.reset(seed) or game.start_state_key() for seed in range(60)]
    assert set(starts) == {f"2x{n}" for n in range(7)}
    assert settings.held_out_reset_options(2) == [{"split": "held_out", "index": 0}, {"split": "held_out", "index": 1}]
    assert len(settings.held_out_reset_options(99)) == 3
    assert settings.default_role_of_agent() == dict.fromkeys(("agent_0", "agent_1", "agent_2"), "speaker")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": 7}, "no problem 7 in split 'train', which has 7"),
        ({"index": True}, "no problem True"),
        ({"split": "held_out", "index": 3}, "has 3"),
        ({"split": "heldout"}, "did you mean 'held_out'"),
        ({"splt": "train"}, "did you mean 'split'"),
        ({"problem": {"key": "k"}}, "question"),
        ({"problem": "k"}, "Problem"),
        ({"problem": {"key": "k", "question": "q"}}, "no answer that texts can be compared with"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config().build().reset(0, options)


@pytest.mark.parametrize(
    "settings", [{"agents": 1}, {"rounds": 0}, {"budget": 0}, {"cost": -1}, {"task": {"kind": "x"}}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        config(**settings)
