"""The communication game over evidence that is dealt out: who is told what, who speaks, and what it is all worth."""

import math
import random
import re
from itertools import chain, combinations
from statistics import fmean
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from marl.core.graph import Trajectory
from marl.core.types import Deal, Problem
from marl.engines.scripted import Always, Random, ScriptedConfig
from marl.games.communication import CommunicationConfig, CommunicationGame
from marl.games.communication_graph import COMMUNICATION_ACTIONS, build_communication_graph, speaking_order
from marl.games.communication_optimum import PerfectSpeakerTeam
from marl.games.split_evidence import EvidenceInParts
from marl.games.tasks.arithmetic import ArithmeticTask
from marl.games.tasks.records import RecordsTask
from marl.roles.answering import PlayerRole
from marl.scenario.load import load
from tests.support.paths import ROOT, SCENARIOS
from tests.support.small_games import make_simulator

README = ROOT / "games" / "README.md"


def config(records: int = 3, **settings: Any) -> CommunicationConfig:
    task = RecordsTask(records=records, train=200, held_out=60)
    chosen = {"agents": records, "rounds": 1, "evidence": "split", "controllers": True, "answer": "respondent"}
    return CommunicationConfig.model_validate({"task": task, "cost": 0.5, "budget": 12, **chosen, **settings})


def asking(asked: str, *needs: str) -> Problem:
    """A question about the records a1, b2, c3, d4."""
    parts = {name: f"{name}{place + 1}" for place, name in enumerate("abcd")}
    answer = " ".join(parts[name] for name in needs)
    facts = {"evidence": {"parts": parts, "needs": list(needs), "respondent": asked}}
    return Problem(f"{asked} : {answer}", f"{asked} asks for {' '.join(needs)}", answer, facts=facts)


def begun(problem: Problem, *choices: str, **settings: Any) -> CommunicationGame:
    """The game of four on a problem, after these choices."""
    game = config(4, **settings).build()
    game.reset(0, {"problem": {field: getattr(problem, field) for field in ("key", "question", "answer", "facts")}})
    for choice in choices:
        game.step(choice)
    return game


def played_perfectly(game: CommunicationGame) -> list[tuple[str, str]]:
    """Who says what, until the next choice or the end."""
    said = []
    while not any(game.terminations.values()) and game.infos[game.agent_selection]["legal"] is None:
        speaker = game.agent_selection
        [utterance] = game.infos[speaker]["examples"]
        said.append((speaker, utterance))
        game.step(utterance)
    return said


# --- who is told what, and who speaks ------------------------------------------------------------------------------


def test_a_speaker_is_told_its_own_record_and_a_controller_no_record_at_all() -> None:
    game = begun(asking("c", "a", "c"))
    assert game.observe("speaker_2")["text"] == "c asks for a c . speaker_2 . round 1 of 1 . you hold c3 . choose " + (
        " ".join(f"[{action}]" for action in COMMUNICATION_ACTIONS)
    )
    assert " . speaker_2 holds c . choose" in game.observe("controller_2")["text"]
    texts = [game.observe(agent)["text"] + game.information_state(agent) for agent in game.edge_choosing_agents]
    assert not [text for text in texts for record in ("a1", "b2", "c3", "d4") if record in text]


def test_all_controllers_choose_at_once_and_then_speakers_in_the_order_of_the_graph() -> None:
    game = begun(asking("a", "a", "b", "c"))
    assert game.infos["controller_0"]["together"] == tuple(f"controller_{place}" for place in range(4))
    game = begun(asking("a", "a", "b", "c"), "query", "query", "alone", "alone")  # 2 -> 1 -> 0; 3 on no edge
    assert played_perfectly(game) == [("speaker_2", "c3"), ("speaker_1", "b2 c3"), ("speaker_0", "a1 b2 c3")]
    # said: 1 + 2 + 3; heard: 1 + 2
    assert game.episode_measures().measures["words"] == 9
    assert game.rewards == pytest.approx(dict.fromkeys(game.seats, 1 - 0.5 * 9 / 12))
    assert game.reward_causes["speaker_3", "accuracy"] == "answer of speaker_0 against the right one"


def test_who_is_on_no_edge_is_silent_unless_it_has_to_answer() -> None:
    assert played_perfectly(begun(asking("d", "b", "d"), *["alone"] * 4)) == [("speaker_3", "d4")]
    everybody = begun(asking("d", "b", "d"), *["alone"] * 4, answer="majority")
    assert [speaker for speaker, _ in played_perfectly(everybody)] == list(everybody.speakers)


def test_a_perfect_speaker_knows_what_it_was_really_told() -> None:
    game = begun(asking("b", "a", "b", "c"), "verify", "alone", "alone", "alone")
    game.step("a9 I suppose")
    assert game.infos["speaker_1"]["examples"] == ("b2",), "a9 is no record"
    game = begun(asking("b", "a", "b", "c"), "verify", "alone", "alone", "alone")
    game.step("it is a1 and c3")
    assert game.infos["speaker_1"]["examples"] == ("a1 b2 c3",)


def test_in_a_second_round_a_controller_reads_what_its_speaker_said_and_heard() -> None:
    game = begun(asking("a", "a", "b"), "query", "alone", "alone", "alone", rounds=2)
    assert played_perfectly(game) == [("speaker_1", "b2"), ("speaker_0", "a1 b2")]
    assert game.heard_agents("controller_0") == ("controller_0", "speaker_0", "speaker_1")
    assert game.heard_agents("controller_2") == ("controller_2", "speaker_2")
    assert game.infos["controller_0"]["state"].endswith("controller_0 : query . speaker_0 : a1 b2 . speaker_1 : b2")
    for _ in range(4):
        game.step("alone")
    assert played_perfectly(game) == [("speaker_0", "a1 b2")], "it remembers"


def test_with_whole_evidence_everybody_knows_all() -> None:
    game = begun(asking("a", "a", "b"), *["alone"] * 4, evidence="whole")
    assert game.observe("speaker_0")["text"].endswith("you hold a1 b2 c3 d4 . answer")
    assert played_perfectly(game) == [("speaker_0", "a1 b2")]


# --- exact values --------------------------------------------------------------------------------------------------


def all_questions(names: str) -> list[Problem]:
    """Each question about these records, so often that 1, 2, ... needed records are equally likely."""
    n, problems = len(names), []
    for asked in names:
        others = [name for name in names if name != asked]
        for size in range(n):
            subsets = list(combinations(others, size))
            problems += [asking(asked, *sorted((asked, *s))) for s in subsets] * (math.factorial(n - 1) // len(subsets))
    return problems


def test_what_three_can_reach_is_what_one_works_out_by_hand() -> None:
    trio = tuple(f"speaker_{place}" for place in range(3))
    problems = [without_d(problem) for problem in all_questions("abc")]
    figures = PerfectSpeakerTeam(
        trio, True, lambda correct, words: correct - words / 24
    ).mean_outcomes_of_decision_rules(problems)
    # One record: its holder says it. Two: the other says it, is heard, and both are said. Three: 2 + 2 + 3.
    assert figures["best_choices"] == pytest.approx((1 - (1 + 4 + 7) / 3 / 24, 1.0, 4.0, 1.0))
    assert figures["alone"] == pytest.approx((1 / 3 - 1 / 24, 1 / 3, 1.0, 0.0))
    # Any other constant makes a line or a full order of the three: its last knows all, its second two records, its
    # first one. Right are 6 + 3 + 2 of 18 questions.
    for action in COMMUNICATION_ACTIONS[1:]:
        assert figures[action].success == pytest.approx(11 / 18)
    # Which of the lines it is does not matter, where all questions are asked alike.
    assert figures["best_constant"] == pytest.approx(figures["verify"])
    assert figures["broadcast"].edges == 3
    assert figures["query"].edges == 2
    assert figures["best_choices"].value > max(figures[action].value for action in COMMUNICATION_ACTIONS) + 0.4


def test_what_noise_costs_two_speakers_is_what_one_works_out_by_hand() -> None:
    noisy = PerfectSpeakerTeam(("speaker_0", "speaker_1"), True, lambda correct, words: correct - words / 30, 0.1)
    parts = {"a": "a1", "b": "b2"}
    facts = {"evidence": {"parts": parts, "needs": ["a", "b"], "respondent": "a"}}
    outcome = noisy.mean_outcomes_of_decision_rules([Problem("", "", "a1 b2", facts=facts)])["best_choices"]
    # Neither `b2` (.9) nor a word of the answer (.9) may be lost. Said and heard: 1 + 1 words, which `none` has, too;
    # and the answer's two, or one if either speaker loses a word.
    words = 2 + 0.81 * 2 + 0.19 * 1
    assert outcome == pytest.approx((0.81 - words / 30, 0.81, words, 1.0))


def test_problems_with_equal_numbers_of_words_but_other_repetitions_have_outcomes_of_their_own() -> None:
    def problem(a: str, b: str, c: str) -> Problem:
        evidence = {"parts": {"a": a, "b": b, "c": c}, "needs": ["a", "b", "c"], "respondent": "b"}
        return Problem("", "", f"{a} {b} {c}", facts={"evidence": evidence})

    def success(team: PerfectSpeakerTeam, asked: Problem) -> float:
        return team.outcome_by_joint_action(asked)["alone", "query"].success

    noisy = PerfectSpeakerTeam(("speaker_0", "speaker_1"), True, lambda correct, words: float(correct), 0.5)
    # speaker_0 says a and c without one of four words, and speaker_1 answers without one of its words.
    # With equal words in the middle, `x y z` still quotes `x y` and `y z`: half of the losses do no harm.
    assert success(noisy, problem("p q", "b", "r s")) == pytest.approx(0.5 * 0.5)
    assert success(noisy, problem("x y", "b", "y z")) == pytest.approx((0.5 + 0.5 / 2) * 0.5)


def test_under_noise_the_enumeration_is_what_the_game_pays_on_average() -> None:
    settings = config(4, noise=0.3)
    choices = ("query", "debate", "alone", "broadcast")
    game = settings.build()
    game.reset(0, {"split": "held_out", "index": 3})
    expected = settings.perfect_speaker_team.outcome_by_joint_action(game.dealt_problem)[choices]
    rewards = []
    for seed in range(4000):
        game.reset(seed, {"split": "held_out", "index": 3})
        for choice in choices:
            game.step(choice)
        played_perfectly(game)
        rewards.append(game.rewards["speaker_0"])
    # Rewards lie between -.5 and 1, so their mean over 4,000 episodes has a standard error of at most .012.
    assert fmean(rewards) == pytest.approx(expected.value, abs=4 * 0.012)


def without_d(problem: Problem) -> Problem:
    evidence = problem.facts["evidence"]
    parts = {name: text for name, text in evidence["parts"].items() if name != "d"}
    return Problem(problem.key, problem.question, problem.answer, facts={"evidence": {**evidence, "parts": parts}})


@pytest.mark.parametrize("records", [2, 3, 4])
def test_the_enumeration_is_what_the_game_pays(records: int) -> None:
    settings, rng = config(records), random.Random(records)
    game = settings.build()
    for index in range(60):
        game.reset(0, {"split": "held_out", "index": index})
        choices = tuple(rng.choice(COMMUNICATION_ACTIONS) for _ in range(records))
        for choice in choices:
            game.step(choice)
        played_perfectly(game)
        earned = settings.perfect_speaker_team.outcome_by_joint_action(game.dealt_problem)[choices]
        measures = game.episode_measures().measures
        assert earned == pytest.approx(
            (game.rewards["speaker_0"], *(measures[m] for m in ("success", "words", "edges")))
        )


@pytest.mark.parametrize("records", [3, 4, 5])
def test_each_joint_choice_is_worth_what_playing_its_graph_from_scratch_pays(records: int) -> None:
    settings = config(records)
    for index in range(2):
        problem = settings.task_problems.problem("held_out", index)
        evidence = EvidenceInParts.from_problem(problem)
        outcomes = settings.perfect_speaker_team.outcome_by_joint_action(problem)
        assert len(outcomes) == len(COMMUNICATION_ACTIONS) ** records
        for choices, outcome in outcomes.items():
            assert outcome == pytest.approx(_outcome_from_scratch(settings, evidence, choices, problem.answer))
        best_choices = settings.perfect_speaker_team.best_joint_action(problem)
        assert best_choices == max(outcomes, key=lambda choices: outcomes[choices].value)


def _outcome_from_scratch(
    settings: CommunicationConfig, evidence: EvidenceInParts, choices: tuple[str, ...], answer: str
) -> tuple[float, float, float, float]:
    """(reward, success, words, edges) of one joint choice, without anything kept from other choices."""
    graph = build_communication_graph(dict(zip(settings.speakers, choices, strict=True)))
    respondent, utterances, words = evidence.agent_that_must_answer(settings.speakers), dict[str, str](), 0
    for speaker in chain.from_iterable(speaking_order(graph, (respondent,))):
        heard = [utterances[agent] for agent in graph.predecessors(speaker)]
        parts = evidence.part_names_dealt_to(speaker, settings.speakers, True)
        utterances[speaker] = evidence.perfect_utterance(parts, heard, answer)
        words += sum(len(text.split()) for text in (utterances[speaker], *heard))
    correct = utterances[respondent] == answer
    return settings.reward_of_each_agent(correct, words), float(correct), words, graph.number_of_edges()


@pytest.mark.slow
def test_the_best_choices_of_six_for_two_records_are_those_that_one_works_out_by_hand() -> None:
    # The holder of the second record says it, the asker hears it and says both: 1 + 1 + 2 words. A holder two places
    # away can only be heard through the agent between them, who hears the record and repeats it: 2 words more.
    settings = config(6, cost=1.0, budget=30)
    words = []
    for distance in range(1, 6):
        needs = ["a", "abcdef"[distance]]
        parts = {name: f"{name}{index}" for index, name in enumerate("abcdef")}
        facts = {"evidence": {"parts": parts, "needs": needs, "respondent": "a"}}
        problem = Problem(f"a {needs}", "", " ".join(parts[name] for name in needs), facts=facts)
        outcome = settings.perfect_speaker_team.mean_outcomes_of_decision_rules([problem])["best_choices"]
        assert outcome.success == 1.0
        words.append(outcome.words)
    assert words == [4, 6, 4, 6, 4]


def held_out(
    settings: CommunicationConfig, choosing: ScriptedConfig, prompt: str = "{{ observation }}"
) -> list[Trajectory]:
    """The held-out problems, with perfect speakers."""
    roles = {"controller": PlayerRole(policy="controller"), "speaker": PlayerRole(policy="speaker", prompt=prompt)}
    engines = {"controller": choosing.build(None), "speaker": Random().build(None)}
    starts = enumerate(settings.held_out_reset_options(60))
    deals = [Deal(f"e{i}", f"e{i}", i, settings.default_role_of_agent(), "eval", options=start) for i, start in starts]
    return make_simulator(settings, engines, **roles).play(deals)


def test_exported_players_earn_their_exact_values() -> None:
    settings = config(3)
    exact, players = settings.outcome_by_decision_rule(), settings.reference_players()
    for name, rule in {
        "best_choices": "best_choices",
        **{f"always_{action}": action for action in COMMUNICATION_ACTIONS},
    }.items():
        player = players[name]
        assert isinstance(player, ScriptedConfig)
        played = held_out(settings, player)
        success, words = (sum(t.findings.measures[m] for t in played) / 60 for m in ("success", "words"))
        value = sum(trajectory.returns["controller_1"] for trajectory in played) / 60
        assert (value, success, words) == pytest.approx(exact[rule][:3])


def test_the_table_in_the_readme_is_exact() -> None:
    exact = {
        f"always_{name}" if name in COMMUNICATION_ACTIONS else name: row
        for name, row in _shipped().outcome_by_decision_rule().items()
    }
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert [name for name, *_ in rows] == [*exact]
    for name, value, success, words in rows:
        assert (float(value), float(success), float(words)) == pytest.approx(exact[name][:3], abs=0.005)


def _shipped() -> CommunicationConfig:
    game = load(SCENARIOS / "evidence_sharing.yaml").game
    assert isinstance(game, CommunicationConfig)
    return game


def test_what_cannot_be_enumerated_is_refused_and_not_exported() -> None:
    assert "best_choices" not in config(3, rounds=2).reference_players()
    with pytest.raises(ValueError, match=r"rounds: 2, .* are not enumerated; choices: agents: 2 to 6, rounds: 1"):
        config(3, rounds=2).outcome_by_decision_rule()


# --- noise -----------------------------------------------------------------------------------------------------------


def test_a_speaker_with_full_noise_loses_exactly_one_word_of_each_utterance() -> None:
    # The holder of a says `none` for its single word; the holder of c then knows only its own record, which it loses.
    game = begun(asking("c", "a", "c"), "alone", "alone", "aggregate", "alone", noise=1.0)
    said = dict(played_perfectly(game))
    assert (said["speaker_0"], said["speaker_2"]) == ("none", "none")
    # Asked for its record alone, it needs nobody, and loses it all the same.
    assert played_perfectly(begun(asking("c", "c"), *["alone"] * 4, noise=1.0)) == [("speaker_2", "none")]


def test_noise_is_as_frequent_as_it_says_and_the_same_for_the_same_deal() -> None:
    settings = config(2, noise=0.25)
    game, lost = settings.build(), list[str]()
    for seed in range(400):
        said = []
        for _ in range(2):
            game.reset(seed, {"split": "train", "index": 0})
            game.step("alone")
            game.step("alone")
            said += played_perfectly(game)[:1]
        assert said[0] == said[1]
        lost += [said[0][1]] if said[0][1] == "none" else []
    # A binomial share of 400 draws at 1/4 has a standard deviation of .022.
    assert 0.25 - 4 * 0.022 < len(lost) / 400 < 0.25 + 4 * 0.022


def test_noise_without_evidence_is_refused() -> None:
    settings = CommunicationConfig(task=ArithmeticTask(), noise=0.1)
    [message] = settings.seating_conflicts({})
    assert message.startswith("task: problem ")
    assert "has no fact 'evidence'" in message


# --- settings, PettingZoo ------------------------------------------------------------------------------------------


def test_prompts_of_speakers_hold_what_the_graph_lets_them_hear_and_nothing_else() -> None:
    prompt = "{{ observation }}{% for turn in heard %} ; {{ turn.agent }} {{ turn.move }}{% endfor %}"
    played = held_out(config(3), Always(move="verify"), prompt)
    for trajectory in played:
        said = {turn.agent: turn for turn in trajectory.turns}
        for listener, speakers in {"speaker_0": [], "speaker_1": ["speaker_0"], "speaker_2": ["speaker_1"]}.items():
            heard = [part.split(" ", 1) for part in said[listener].request.messages[-1].content.split(" ; ")[1:]]
            assert heard == [[speaker, said[speaker].action] for speaker in speakers]


def test_the_edges_of_a_speaker_lead_from_what_it_heard_and_from_the_controllers_that_let_it_in() -> None:
    prompt = "{{ observation }}{% for turn in heard %} ; {{ turn.agent }} {{ turn.move }}{% endfor %}"
    found = set()
    for trajectory in held_out(config(3, rounds=2), Always(move="verify"), prompt):
        name = {turn.id: f"{turn.agent} {turn.nth}" for turn in trajectory.turns}
        edges = trajectory.graph.edges(data="kinds")
        found |= {(name[u], name[v], " ".join(kinds)) for u, v, kinds in edges if name[v].startswith("speaker_2")}
        # In the second round a controller is told what its speaker said.
        assert {(name[u], " ".join(kinds)) for u, v, kinds in edges if name[v] == "controller_2 1"} == {
            ("speaker_2 0", "told")
        }
    assert found == {
        ("controller_1 0", "speaker_2 0", "gated"),
        ("speaker_1 0", "speaker_2 0", "heard"),
        ("controller_1 1", "speaker_2 1", "gated"),
        ("speaker_1 1", "speaker_2 1", "heard"),
        ("speaker_2 0", "speaker_2 1", "self"),
    }


def test_evidence_that_a_task_does_not_have_is_a_conflict() -> None:
    settings = CommunicationConfig.model_validate({"task": ArithmeticTask(train=20, held_out=5), "evidence": "split"})
    [message] = settings.seating_conflicts({})
    assert "has no fact 'evidence' that could be dealt out; it has value, numbers" in message
    assert list(config(3).seating_conflicts({})) == []


@pytest.mark.parametrize(("field", "value"), [("needs", ["a", "x"]), ("respondent", "x")])
def test_evidence_that_names_no_part_is_refused(field: str, value: object) -> None:
    evidence = {"parts": {"a": "a1", "b": "b2"}, "needs": ["a"], "respondent": "a"}
    with pytest.raises(ValueError, match=f"{field}: no part 'x'; choices: a, b"):
        EvidenceInParts.model_validate(evidence | {field: value})


def test_needs_beyond_the_records_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs: \[1, 4\] is no range; choices: .* <= 3"):
        RecordsTask(records=3, needs=(1, 4))
    assert {len(RecordsTask(needs=(2, 2)).build().problem("train", i).answer.split()) for i in range(50)} == {2}


class Obliging(CommunicationGame):
    """Takes any text for a choice, so that random text goes all the way."""

    def step(self, action: str | None) -> None:
        choosing = action is not None and self._legal
        super().step(COMMUNICATION_ACTIONS[len(action) % len(COMMUNICATION_ACTIONS)] if choosing and action else action)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_game_with_controllers_passes_pettingzoos_own_tests() -> None:
    build = lambda: Obliging(config(4, rounds=2))  # noqa: E731
    api_test(build(), num_cycles=200)
    seed_test(build, num_cycles=60)
