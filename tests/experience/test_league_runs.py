"""Real leagues: who speaks in an episode, what is learnt from, what is in memory, what a killed run goes on with."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load

import marl
from marl.core.graph import Trajectory
from marl.core.types import Completion, Metrics, Turn
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.settings import Transformers
from marl.models.pretrained import PretrainedSource
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from tests.support.league_scenarios import league, with_exploiter
from tests.support.run_processes import (
    RunWorkspace,
    SignalTrigger,
    contents,
    metric_lines,
    outcome,
    tiny_model,
    train_to_end,
)

POOL = "league/actor"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A league that nothing happened to."""
    return train_to_end(tmp_path_factory.mktemp("league"), league())


@pytest.fixture(scope="module")
def exploited(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A league with an exploiter that nothing happened to."""
    return train_to_end(tmp_path_factory.mktemp("exploited"), with_exploiter())


def episodes(desk: RunWorkspace) -> Iterator[Trajectory]:
    home = RunFolder(desk.run)
    return (trajectory for step in home.recorded_steps() for trajectory in home.load_trajectories(step))


def opponent(trajectory: Trajectory) -> str | None:
    return trajectory.deal.policies.get("opponent")


def score(source: PretrainedSource, turn: Turn) -> float:
    """The log-probability of a recorded answer under the weights in a folder, asked alone."""
    engine = Transformers().build(source)
    engine.submit(0, replace(turn.request, policy="actor", forced=turn.completion.text))
    (_, answer), *_ = engine.step(0.0)
    assert isinstance(answer, Completion)
    return math.fsum(answer.logprobs)


def test_every_group_has_one_opponent_and_groups_are_divided_by_weight(run: RunWorkspace) -> None:
    by_group: dict[str, set[str | None]] = {}
    for trajectory in episodes(run):
        by_group.setdefault(trajectory.deal.group, set()).add(opponent(trajectory))
        seats = set(trajectory.deal.seats.values())
        assert seats == ({"player"} if opponent(trajectory) is None else {"player", "opponent"})
    assert all(len(names) == 1 for names in by_group.values())
    met = [names.pop() for names in by_group.values()]
    assert met.count(None) == met.count("random") == 12  # of 6 steps of 8 groups, a quarter each
    assert {name for name in met if name and "@" in name} == {f"actor@{step:06d}" for step in (0, 2, 4)}


def test_both_take_both_seats(run: RunWorkspace) -> None:
    seats = {(opponent(t), agent) for t in episodes(run) for agent, role in t.deal.seats.items() if role == "opponent"}
    for name in ("random", "actor@000000", "actor@000004"):
        assert {(name, "player_0"), (name, "player_1")} <= seats


def test_a_member_of_the_pool_speaks_with_the_weights_that_it_had(run: RunWorkspace) -> None:
    said = [(opponent(t), turn) for t in episodes(run) for turn in t.turns if turn.role == "opponent"]
    for version in (0, 4):
        source = PretrainedSource("actor", str(run.run / POOL / f"{version:06d}"))
        clear = [t for name, t in said if name == f"actor@{version:06d}" and t.completion.text == f"[{t.action}]"]
        for turn in clear[:3]:
            assert turn.completion.versions == (version, version)
            assert score(source, turn) == pytest.approx(math.fsum(turn.completion.logprobs), abs=1e-4)
        assert len(clear) > 2


def test_a_later_member_is_another_one(run: RunWorkspace) -> None:
    first, last = (contents(run.run, f"{POOL}/{version:06d}") for version in (0, 6))
    assert [*first.values()] != [*last.values()]


def test_only_what_players_say_is_learnt_from(run: RunWorkspace) -> None:
    lines = [json.loads(line) for line in metric_lines(run.run)]
    for step, line in enumerate(lines[1:], 1):
        turns = [turn for t in RunFolder(run.run).load_trajectories(step) for turn in t.turns]
        assert line["policy/actor/samples"] == sum(turn.role == "player" for turn in turns)
        assert line["league/pool"] == 1 + (step - 1) // 2


def test_figures_of_the_league(run: RunWorkspace) -> None:
    last = json.loads(metric_lines(run.run)[-1])
    assert last["league/actor/share/self"] + last["league/actor/share/random"] == 0.5
    assert 0 < last["league/actor/win_rate_least"] <= last["league/actor/win_rate"] < 1
    assert 0 < last["league/actor/entropy"] <= math.log(3)
    assert last["league/loads"] in (2, 3)  # members that were drawn


def test_one_spare_engine_holds_the_pool(run: RunWorkspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(run.path / "cache"))
    before, most = samplers(), [0]
    schedule = run.scenario["schedule"] | {"steps": 5}

    def count(step: int, metrics: Metrics) -> None:
        most.append(samplers() - before)

    marl.train(validate(run.scenario | {"schedule": schedule}), tmp_path / "run", on_step=count)
    assert max(most) == 1  # built after the run's own, which the collector has stopped to look at


def samplers() -> int:
    """Number of engines with a model in this process."""
    gc.collect()
    return sum(isinstance(thing, TransformersEngine) for thing in gc.get_objects())


def test_an_exploiter_begins_anew_and_what_it_was_joins_the_pool(exploited: RunWorkspace) -> None:
    last = json.loads(metric_lines(exploited.run)[-1])
    assert last["league/exploiter/resets"] == 2  # before the last step; the third follows it
    kept = sorted(path.name for path in (exploited.run / "league/exploiter").iterdir())
    assert kept == ["000002", "000004", "000006", "start"]
    home = exploited.run / "checkpoints" / "000006"
    start = (exploited.run / "league/exploiter/start/state.safetensors").read_bytes()
    began, now = load(start), load((home / "state/state.safetensors").read_bytes())
    weights = [name for name in began if name.startswith("/model/")]
    assert weights
    assert all(now[f"/learners/exploiter{name}"].equal(began[name]) for name in weights)
    against = {opponent(t) for t in episodes(exploited) if "exploiter" in t.deal.seats.values()}
    assert against == {"actor"}


def test_members_of_the_pool_play_each_other_once_for_the_meta_strategy(exploited: RunWorkspace) -> None:
    lines = [json.loads(line) for line in metric_lines(exploited.run)[1:]]
    # Two more members after every second step: 1, 3 and 5 of them make 0, 3 and 10 pairs of 4 games.
    assert [line["league/matches"] for line in lines] == [0, 0, 12, 0, 28, 0]


KILLS = [
    SignalTrigger("call", "PolicySnapshots.remove_versions_except", 1),
    SignalTrigger("os.rename", "league/actor/.000002", 1),
    SignalTrigger("call", "EarlierWeightsEnginePool.release_slot", 2),
    SignalTrigger("call", "RunWeightArchive.reset_to_initial_state", 1),
    SignalTrigger("call", "LeagueExperience.gather", 4),
    SignalTrigger("call", "RunWeightArchive.reset_to_initial_state", 1),
    SignalTrigger("call", "LeagueExperience.on_policies_updated", 1),
    SignalTrigger("open", "manifest.json", 1),
]


@pytest.mark.slow
def test_a_league_killed_again_and_again_is_the_league_that_was_not(exploited: RunWorkspace, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(exploited.path / "cache")
    desk = RunWorkspace(tmp_path, exploited.scenario)
    assert [desk.train("--resume", "auto", kill=kill) for kill in KILLS] == [-9] * len(KILLS), desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(exploited.run)
    assert contents(desk.run, "league") == contents(exploited.run, "league")


def test_a_league_that_is_killed_goes_on_as_the_one_that_was_not(run: RunWorkspace, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(run.path / "cache")
    desk = RunWorkspace(tmp_path, run.scenario)
    assert (
        desk.train(kill=SignalTrigger("call", "PolicySnapshots.remove_versions_except", 3)) == -9
    )  # at the end of step 4, before its checkpoint
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(run.run)
    assert contents(desk.run, "league") == contents(run.run, "league")


@pytest.mark.slow
def test_several_simulators_load_the_same_members(run: RunWorkspace, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(run.path / "cache")
    desk = train_to_end(tmp_path, run.scenario | {"cluster": {"kind": "local", "simulators": 2}})
    first, second = (next(iter(episodes(each))) for each in (run, desk))
    assert first.deal == second.deal
    assert {opponent(t) for t in episodes(desk)} == {opponent(t) for t in episodes(run)}


@pytest.mark.slow
def test_adapters_of_the_pool_are_on_the_base_of_the_engine_and_a_killed_run_goes_on_exactly(tmp_path: Path) -> None:
    adapter = {"kind": "adapter", "base": tiny_model(), "rank": 4}
    whole = train_to_end(tmp_path / "whole", league(adapter, resident=2))
    assert (whole.run / POOL / "000002" / "adapter_model.safetensors").is_file()
    assert {opponent(t) for t in episodes(whole)} >= {f"actor@{step:06d}" for step in (0, 2, 4)}
    desk = RunWorkspace(tmp_path / "desk", whole.scenario)
    desk.path.mkdir()
    (desk.path / "cache").symlink_to(whole.path / "cache")
    assert desk.train(kill=SignalTrigger("call", "EarlierWeightsAdapterPool.release_slot", 5)) == -9
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert metric_lines(desk.run) == metric_lines(whole.run)
    kept = [contents(each.run, "checkpoints", "trajectories", "league") for each in (desk, whole)]
    # An adapter's settings hold the path of its base, and manifests count the digits of times.
    first, second = (
        {n: data for n, data in files.items() if not n.endswith(("config.json", "manifest.json"))} for files in kept
    )
    assert first == second
