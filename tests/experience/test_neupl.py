"""A one-model population (NeuPL): who meets whom, who learns, and whether one model becomes several players."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.commands.eval.exploitability import measure_exploitability, tabulate_strategy
from marl.commands.eval.players import read_roster
from marl.core.graph import Trajectory
from marl.experience.league.matchmaking import interaction_graph
from marl.experience.league.neupl_settings import OneModelPopulation
from marl.runs.populations import read_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from tests.support.command_line import run_marl
from tests.support.league_scenarios import league
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, train_to_end

NEUPL = "marl.experience.league.neupl_settings:OneModelPopulation"
MEMBERS = ["rock", "first", "second"]
MEMBER = {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}


def population(**settings: Any) -> dict[str, Any]:
    """Rock-paper-scissors by a population whose first member always shows rock."""
    learner = {"kind": "grpo", "lr": 5e-3, "magnet": {"coefficient": 0.2}}
    model = {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": {"steps": 80, "episodes": 128, "lr": 2e-2}}
    return {
        "game": {"kind": "repeated_matrix", "table": "rock_paper_scissors"},
        "seats": {"player_0": "second", "player_1": "second"},
        "roles": {
            "rock": {"kind": "player", "policy": "rock"},
            "first": MEMBER | {"prompt": "first {{ observation }}"},
            "second": MEMBER | {"prompt": "second {{ observation }}"},
        },
        "policies": {
            "rock": {"engine": {"kind": "always", "move": "rock"}},
            "actor": {"model": model, "learner": learner},
        },
        "credit": {"baseline": {"kind": "group", "std": False}},
        "experience": {"kind": NEUPL, "members": MEMBERS} | settings,
        "schedule": {"steps": 60, "groups": 6, "group_size": 8, "threads": 1},
        "evaluate": {"every": 30, "nashconv": True},
        "checkpoint": {"every": 30, "trajectories": 1.0},
    }


def short(**settings: Any) -> dict[str, Any]:
    """The same for a few steps, in which the second member joins after three, and payoffs are measured."""
    scenario = population(matches=4, every=4, grow=3, **settings)
    scenario["schedule"] |= {"steps": 6, "groups": 4, "group_size": 4}
    scenario["checkpoint"] |= {"every": 2}
    return scenario


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """Each member learns against the member just before it."""
    return train_to_end(tmp_path_factory.mktemp("chain"), population(by="latest"))


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    return train_to_end(tmp_path_factory.mktemp("growing"), short())


def episodes(desk: RunWorkspace, step: int) -> Iterator[Trajectory]:
    return iter(RunFolder(desk.run).load_trajectories(step))


def learner_and_opponent(trajectory: Trajectory) -> tuple[str, str]:
    """The role that learns in an episode, and the role that it meets."""
    (opponent,) = trajectory.deal.policies or {"rock": "rock"}
    (learner,) = {*trajectory.deal.seats.values()} - {opponent}
    return learner, opponent


def test_a_member_meets_earlier_members_by_the_equilibrium_of_their_payoffs() -> None:
    # 1 beats 0 by 1, 2 beats 1 by 1, 0 beats 2 by 2. Worked out by hand: in this cycle a member's probability is in
    # proportion to the stakes between the other two.
    payoffs = [[0, -1, 2, 0], [1, 0, -1, 0], [-2, 1, 0, 0], [9, 9, 9, 0]]
    rows = {rule: interaction_graph(rule, payoffs) for rule in ("uniform", "latest", "psro", "rectified")}  # type: ignore[arg-type]
    for graph in rows.values():
        assert graph[:2] == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert [rows[rule][2] for rule in ("uniform", "latest")] == [[0.5, 0.5, 0, 0], [0, 1, 0, 0]]
    assert rows["psro"][2] == pytest.approx([0, 1, 0, 0])
    assert rows["psro"][3] == pytest.approx([1 / 4, 1 / 2, 1 / 4, 0])
    # The member before the last, 2, loses to 0.
    assert rows["rectified"][3] == pytest.approx([0, 2 / 3, 1 / 3, 0])


def test_two_members_of_one_model_learn_to_play_differently(
    chain: RunWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(chain.path / "cache"))
    roster = read_roster([f"{chain.run}@pool"])
    moves: list[str] = []
    for entrant in roster.entrants:
        _, strategy = tabulate_strategy(roster.scenario, entrant)
        for probabilities in strategy.values():
            likeliest = max(probabilities, key=probabilities.__getitem__)
            assert probabilities[likeliest] > 0.6, probabilities
            moves.append(likeliest)
    # In both seats the first member beats rock, and the second member beats the first.
    assert moves == ["paper", "paper", "scissors", "scissors"]


def test_only_the_learning_member_is_trained_and_all_play_with_the_newest_weights(chain: RunWorkspace) -> None:
    for step, line in enumerate(map(json.loads, metric_lines(chain.run)[1:]), 1):
        pairs, seats, turns = set[tuple[str, str]](), set[str](), 0
        for trajectory in episodes(chain, step):
            learner, opponent = learner_and_opponent(trajectory)
            pairs.add((learner, opponent))
            seats |= {agent for agent, role in trajectory.deal.seats.items() if role == learner}
            turns += sum(turn.role == learner for turn in trajectory.turns)
            for turn in trajectory.turns:
                assert turn.role == "rock" or {*turn.completion.versions} == {step - 1}
        assert pairs == {("first", "rock"), ("second", "first")}
        assert seats == {f"player_{(step - 1) % 2}"}
        assert line["policy/actor/samples"] == turns > 40
        assert line["neupl/matches"] == 0


def test_members_join_one_by_one_and_payoffs_are_measured_when_one_joins(growing: RunWorkspace) -> None:
    lines = [json.loads(line) for line in metric_lines(growing.run)[1:]]
    assert [line["neupl/members"] for line in lines] == [1, 1, 1, 2, 2, 2]
    # One pair at the start, two new pairs at step 3, and all three pairs anew at step 4; 4 episodes each.
    assert [line["neupl/matches"] for line in lines] == [4, 0, 0, 8, 12, 0]
    met = [{learner_and_opponent(trajectory) for trajectory in episodes(growing, step)} for step in (3, 4)]
    assert met[0] == {("first", "rock")}
    assert {learner for learner, _ in met[1]} == {"first", "second"}


@pytest.mark.slow
def test_a_killed_run_goes_on_with_equal_bits(growing: RunWorkspace, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(growing.path / "cache")
    desk = RunWorkspace(tmp_path, growing.scenario)
    # The sixth call is in the last step: the run goes on from the checkpoint after four steps, amid measurements.
    assert desk.train(kill=SignalTrigger("call", "OneModelPopulationExperience.gather", 6)) == -9
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(growing.run)


def test_the_population_is_a_player_with_a_role_for_each_member(
    growing: RunWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(growing.path / "cache"))
    pool, meta = (read_population(f"{growing.run}@{name}") for name in ("pool", "meta"))
    assert [(member.role, member.weight) for member in pool] == [("first", 0.5), ("second", 0.5)]
    assert {member.folder for member in pool} == {growing.run / "checkpoints/000006/policies/actor"}
    assert sum(member.weight for member in meta) == pytest.approx(1)
    results = measure_exploitability(read_roster([f"{growing.run}@meta"]))
    assert results[f"{growing.run}@meta"].weights["player_0"] == pytest.approx([member.weight for member in meta])
    # The scenario's seats hold the last member, whose NashConv the run has measured itself.
    last = list(RunFolder(growing.run).rows())[-1]["eval/nashconv"]
    assert results[f"{pool[1].folder}:second"].nashconv == pytest.approx(last, abs=1e-6)
    status, _, complaint = run_marl(monkeypatch, capsys, "export", f"{growing.run}@pool", "--out", tmp_path / "pool")
    assert status == 0, complaint
    rows = json.loads((tmp_path / "pool/population.json").read_text())["members"]
    assert [(row["folder"], row["role"]) for row in rows] == [("actor-000006", "first"), ("actor-000006", "second")]


def test_members_of_one_model_are_no_opponents_in_another_run(growing: RunWorkspace) -> None:
    scenario = league(populations={"guests": {"run": f"{growing.run}@pool"}})
    scenario["game"] = growing.scenario["game"]
    scenario["experience"]["players"]["player"]["opponents"] = {"self": 1, "guests": 1}
    with pytest.raises(ScenarioError, match=r"guests\.run: .*@pool: its members are prompts of one model"):
        build(validate(scenario))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"members": ["rock", "first", "secnd"]}, "members: no role 'secnd'; did you mean 'second'"),
        ({"members": ["rock", "first", "first"]}, "members: 'first' stands 2 times"),
        ({"members": ["first", "second"]}, "members: the first, 'first', has no earlier member to learn against"),
        ({"members": ["rock", "scissors", "first"]}, "members: 'scissors' does not learn; choices: first, second"),
        ({"members": ["rock", "first", "double"]}, "members: 'first' and 'double' have equal prompts"),
        ({"members": ["rock", "first", "other"]}, "members: 'first' and 'other' have the policies actor and other"),
        ({"members": ["rock"]}, "members: must have at least 2, has 1"),
        ({"by": "pfsp"}, "by: .*'pfsp'"),
    ],
)
def test_members_that_are_no_population_are_named(settings: dict[str, Any], says: str) -> None:
    scenario = population(**settings)
    scenario["roles"] |= {
        "scissors": scenario["roles"]["rock"],
        "double": scenario["roles"]["first"],
        "other": scenario["roles"]["second"] | {"policy": "other"},
    }
    if "other" in settings.get("members", ()):
        scenario["policies"]["other"] = scenario["policies"]["actor"]
    for name in scenario["roles"].keys() - {"second", *settings.get("members", MEMBERS)}:
        del scenario["roles"][name]
    with pytest.raises(ScenarioError, match=says):
        validate(scenario)


def test_a_game_without_equal_and_opposite_payoffs_needs_another_rule() -> None:
    scenario = population()
    scenario["game"]["table"] = "stag_hunt"
    scenario["policies"]["rock"]["engine"]["move"] = "stag"
    with pytest.raises(ScenarioError, match="by: 'psro' needs a zero-sum game, which 'repeated_matrix' is not"):
        validate(scenario)
    scenario["experience"] |= {"by": "uniform"}
    experience = validate(scenario).experience
    assert isinstance(experience, OneModelPopulation)
    assert not experience.needs_payoffs
