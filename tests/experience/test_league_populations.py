"""Populations of another run as opponents in a league, and payoffs that are refined: real runs with tiny models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.commands.eval.exploitability import measure_exploitability
from marl.commands.eval.players import read_roster
from marl.core.graph import Trajectory
from marl.experience.league.league import LeagueExperience
from marl.experience.league.results import MeanPayoffTable
from marl.experience.league.settings import League
from marl.runs.checkpoint import read_checkpoint
from marl.runs.populations import read_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from tests.support.league_scenarios import league, with_exploiter
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, train_to_end


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """The run whose members are met: its pool has the versions 0, 2, 4 and 6."""
    return train_to_end(tmp_path_factory.mktemp("other"), with_mixtures(league()))


@pytest.fixture(scope="module")
def guested(tmp_path_factory: pytest.TempPathFactory, other: RunWorkspace) -> RunWorkspace:
    """A run that meets the members of `other`."""
    path = tmp_path_factory.mktemp("guested")
    (path / "cache").symlink_to(other.path / "cache")
    return train_to_end(path, with_population(f"{other.run}@pool"))


def with_mixtures(scenario: dict[str, Any]) -> dict[str, Any]:
    """The same, with NashConv of the pool's mixtures at every evaluation."""
    return scenario | {"evaluate": scenario["evaluate"] | {"population": True}}


def with_population(spec: str, **settings: Any) -> dict[str, Any]:
    """A league whose player meets itself, its own pool by the anytime mixture, and the population `spec`."""
    scenario = league(**settings)
    player = {"opponents": {"self": 1, "pool": 1, "guests": 2}, "by": "anytime", "every": 2}
    scenario["experience"] |= {"players": {"player": player}, "populations": {"guests": {"run": spec}}}
    return scenario


def episodes(desk: RunWorkspace) -> Iterator[Trajectory]:
    home = RunFolder(desk.run)
    return (trajectory for step in home.recorded_steps() for trajectory in home.load_trajectories(step))


def test_the_mixtures_of_a_pool_are_a_curve_that_ends_at_what_marl_eval_measures(
    other: RunWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(other.path / "cache"))
    rows = [row for row in RunFolder(other.run).rows() if "eval/nashconv" in row]
    # The pool is empty before the first step.
    assert ["eval/pool/nashconv" in row for row in rows] == [False, True, True]
    for name in ("pool", "meta"):
        spec = f"{other.run}@{name}"
        assert rows[-1][f"eval/{name}/nashconv"] == pytest.approx(
            measure_exploitability(read_roster([spec]))[spec].nashconv, abs=1e-6
        )


def test_half_of_the_groups_meet_a_frozen_member_of_the_other_run(guested: RunWorkspace, other: RunWorkspace) -> None:
    members = {f"guests@{member.policy}.{member.version:06d}" for member in read_population(f"{other.run}@pool")}
    by_group = {t.deal.group: t.deal.policies.get("opponent", "") for t in episodes(guested)}
    met = [name for name in by_group.values() if name.startswith("guests@")]
    assert len(met) == len(by_group) / 2
    assert {*met} == members
    last = json.loads(metric_lines(guested.run)[-1])
    assert last["league/actor/share/guests"] == 0.5
    # Members of a population are no members of the run's own pool.
    assert last["league/pool"] == 3


def test_members_of_a_population_speak_with_their_own_weights_and_are_not_learned_from(guested: RunWorkspace) -> None:
    versions: set[tuple[str, int]] = set()
    for trajectory in episodes(guested):
        name = trajectory.deal.policies.get("opponent", "")
        for turn in trajectory.turns:
            if turn.role == "opponent" and name.startswith("guests@") and turn.completion.versions:
                versions |= {(name, version) for version in turn.completion.versions}
    assert versions
    assert all(int(name.rpartition(".")[2]) == version for name, version in versions)
    for step, line in enumerate(map(json.loads, metric_lines(guested.run)[1:]), 1):
        turns = [turn for t in RunFolder(guested.run).load_trajectories(step) for turn in t.turns]
        assert line["policy/actor/samples"] == sum(turn.role == "player" for turn in turns)


def test_an_anytime_league_plays_no_matches_and_keeps_the_mixture_of_its_last_phase(guested: RunWorkspace) -> None:
    assert {json.loads(line)["league/matches"] for line in metric_lines(guested.run)[1:]} == {0.0}
    home = RunFolder(guested.run)
    settings = home.scenario().experience
    assert isinstance(settings, League)
    state = read_checkpoint(home.checkpoints, 6)[1]["experience"]
    league_state = LeagueExperience(settings)
    league_state.load_state_dict(state)
    assert league_state.state_dict() == state
    # In its last two updates the player met the versions 0, 2 and 4; the newest member has met nobody.
    probabilities = {member.version: p for member, p in league_state.member_probabilities("player", "actor").items()}
    assert [*probabilities] == [0, 2, 4, 6]
    assert probabilities.pop(6) == 0
    assert min(probabilities.values()) > 0
    assert sum(probabilities.values()) == pytest.approx(1)
    # The mixture was moved by the results.
    assert len(set(probabilities.values())) > 1


@pytest.mark.slow
def test_a_killed_run_meets_the_same_members_again(guested: RunWorkspace, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(guested.path / "cache")
    desk = RunWorkspace(tmp_path, guested.scenario)
    assert desk.train(kill=SignalTrigger("call", "PolicySnapshots.remove_versions_except", 3)) == -9
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(guested.run)


def test_a_population_that_is_none_is_refused_before_weights_are_loaded(
    whole: RunWorkspace, other: RunWorkspace, tmp_path: Path
) -> None:
    for spec, problem in (
        (str(other.run), r"names no population; choices: RUN@pool, RUN@meta"),
        (f"{tmp_path}/none@pool", r"populations.guests.run: .*none@pool: no such run"),
        (f"{whole.run}@pool", r"no pool; its experience is 'rollouts', not 'league'"),
    ):
        with pytest.raises(ScenarioError, match=problem):
            build(validate(with_population(spec)))
    scenario = with_population(f"{other.run}@pool")
    scenario["experience"]["populations"]["random"] = {"run": f"{other.run}@pool"}
    with pytest.raises(ScenarioError, match=r"populations\.random: another opponent has this name"):
        validate(scenario)
    del scenario["experience"]["populations"]
    with pytest.raises(ScenarioError, match=r"opponents\.guests: no such opponent"):
        validate(scenario)


@pytest.mark.slow
def test_a_run_refines_the_payoffs_of_members_in_the_support(tmp_path: Path) -> None:
    desk = train_to_end(tmp_path, with_exploiter(refine=8))
    matches = [json.loads(line)["league/matches"] for line in metric_lines(desk.run)[1:]]
    # 1, 3 and 5 members make 0, 3 and 10 pairs of 4 games. In the steps between, a support of two members or more
    # plays 4 games of each of its two most uncertain pairs.
    assert [matches[step] for step in (0, 1, 2, 4)] == [0, 0, 12, 28]
    assert {matches[3], matches[5]} <= {0, 4, 8}
    assert matches[3] + matches[5] > 0
    home = RunFolder(desk.run)
    payoffs = MeanPayoffTable()
    payoffs.load_state_dict(read_checkpoint(home.checkpoints, 6)[1]["experience"]["payoffs"])
    settings = home.scenario().experience
    assert isinstance(settings, League)
    league_state = LeagueExperience(settings)
    league_state.load_state_dict(read_checkpoint(home.checkpoints, 6)[1]["experience"])
    names = [member.name for member in league_state.pool_members()]
    counts = [payoffs.games_of(row, column) for index, row in enumerate(names) for column in names[index + 1 :]]
    assert sum(counts) == sum(matches)
    assert max(counts) > 4
    # Members that joined after the last matches have no payoffs, and no place in the meta-strategy.
    newest = {member for member in league_state.pool_members() if member.version == 6}
    assert newest
    assert not newest & league_state.member_probabilities("player", "actor").keys()
