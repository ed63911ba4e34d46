"""Recorded play of several games in one run: run folders, files, roles of other names, orders, and what survives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import Deal, Sampling
from marl.experience.recorded import RecordedEpisodes
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import ScenarioError, validate
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, tiny_model, train_to_end
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

KUHN, NIM = KuhnPokerConfig(), NimConfig()
LEARNERS: dict[str, dict[str, Any]] = {
    "awr": {"kind": "awr", "lr": 3e-3, "loss": {"kind": "awr", "beta": 0.3}},
    "sft": {"kind": "sft", "lr": 3e-3, "keep": {"at_least": 0.5}},
    "dpo": {"kind": "dpo", "lr": 3e-3, "pairs": "episodes"},
}


def record(path: Path, game: GameConfig, starts: int, size: int = 2) -> list[Trajectory]:
    """Episodes of random moves, `size` from each start."""
    deals = [
        Deal(f"{path.stem} {start}.{nth}", f"{start}", start, make_deal("", game).seats)
        for start in range(starts)
        for nth in range(size)
    ]
    played = make_simulator(game, FunctionEngine(random_move)).play(deals)
    write_trajectories(path, played)
    return played


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, Any]:
    """A run's folder of Nim, two files of Kuhn poker."""
    for step in (1, 2):
        record(tmp_path / "nim" / "trajectories" / f"{step:06d}.jsonl.zst", NIM, 6)
    for name in ("a", "b"):
        record(tmp_path / f"{name}.jsonl.zst", KUHN, 4)
    kuhn = {"path": [str(tmp_path / "a.jsonl.zst"), str(tmp_path / "b.jsonl.zst")]}
    return {"kind": "recorded", "games": {"nim": {"run": str(tmp_path / "nim")}, "kuhn": kuhn}}


def learning(learner: str, experience: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One model that reads any text learns from what was recorded."""
    credit = {"assign": {"kind": "gae", "lam": 0.95}, "baseline": "none"} if learner == "awr" else {}
    return {
        "game": {"kind": "nim"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
        "policies": {"actor": {"model": tiny_model(vocabulary="bytes", warm_up=None), "learner": LEARNERS[learner]}},
        "credit": credit,
        "experience": experience,
        "schedule": {"steps": 4, "groups": 5, "group_size": 2, "threads": 1},
        "checkpoint": {"every": 2},
        "alarms": None,
    } | more


def taken(settings: dict[str, Any], count: int, simulator: RolloutSimulator) -> list[Trajectory]:
    experience = RecordedEpisodes.model_validate(settings).build()
    return experience.gather(0, lambda _: [make_deal(f"{i}", NIM) for i in range(count)], simulator)


def scorer() -> RolloutSimulator:
    return make_simulator(NIM, FunctionEngine(lambda request: request.forced or ""))


def test_all_files_are_taken_and_equal_starts_of_two_games_are_no_peers(recorded: dict[str, Any]) -> None:
    episodes = taken(recorded, 40, scorer())
    assert [t.start.partition(":")[0] for t in episodes] == ["nim"] * 24 + ["kuhn"] * 16
    assert Counter(episodes[0].start == t.start for t in episodes)[True] >= 2
    assert [t.deal.game for t in episodes] == ["nim"] * 24 + ["kuhn"] * 16  # so that each is judged by its own rules
    plain = RecordedEpisodes.model_validate({"path": recorded["games"]["kuhn"]["path"][0]})
    assert taken(plain.model_dump(), 2, scorer())[0].start in {t.start.removeprefix("kuhn: ") for t in episodes[24:]}


def test_a_shuffle_mixes_games_anew_in_each_pass_and_keeps_starts_together(recorded: dict[str, Any]) -> None:
    settings = RecordedEpisodes.model_validate(recorded | {"shuffle": True})
    experience, simulator = settings.build(), scorer()
    passes = [
        [
            (t.start, [turn.completion.text for turn in t.turns])
            for t in experience.gather(step, lambda _: [make_deal(f"{i}", NIM) for i in range(40)], simulator)
        ]
        for step in range(2)
    ]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1])
    assert all(first[0] == second[0] for first, second in zip(passes[0][::2], passes[0][1::2], strict=True))
    assert {start.partition(":")[0] for start, _ in passes[0][:20]} == {"nim", "kuhn"}
    assert experience.metrics() == {"recorded/epochs": 2.0}
    with pytest.raises(ValueError, match="40 episodes are recorded, but 39 were when the state was saved"):
        experience.load_state_dict({"next": 3, "episodes": 39})


def test_a_recorded_role_may_have_another_name_here(recorded: dict[str, Any], tmp_path: Path) -> None:
    here = make_simulator(NIM, FunctionEngine(lambda request: request.forced or ""), gambler=PlayerRole(policy="actor"))
    settings = {"path": recorded["games"]["kuhn"]["path"], "roles": {"player": "gambler"}}
    episodes = taken(settings, 3, here)
    assert {turn.role for t in episodes for turn in t.turns} == {"gambler"}
    assert {role for t in episodes for role in t.deal.seats.values()} == {"gambler"}


def test_learners_see_the_sampling_that_turns_were_scored_with_not_that_of_the_recording(tmp_path: Path) -> None:
    file, warm = tmp_path / "nim.jsonl.zst", Sampling(temperature=0.5, top_p=0.9)
    speaker = FunctionEngine(random_move)
    played = make_simulator(NIM, speaker, player=PlayerRole(policy="actor", sampling=warm)).play([make_deal("0", NIM)])
    write_trajectories(file, played)
    plain = Sampling(max_tokens=7)
    here = make_simulator(NIM, speaker, player=PlayerRole(policy="actor", sampling=plain))
    [episode] = taken({"path": file}, 1, here)
    assert [turn.request.sampling for turn in played[0].turns] == [warm] * len(played[0].turns)
    assert [turn.request.sampling for turn in episode.turns] == [plain] * len(episode.turns)


@pytest.mark.parametrize("learner", LEARNERS)
def test_one_model_learns_from_both_games(learner: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    scenario = validate(learning(learner, recorded | {"shuffle": True}))
    assert marl.train(scenario, tmp_path / "run")
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert metrics.count('"policy/actor/loss"') == 4
    assert '"recorded/epochs": 1.0' in metrics
    told = list(credit_notes(scenario))
    assert any("nothing is known of the log-probabilities" in note for note in told) == (learner == "awr")
    assert not any("without a correction" in note for note in told)


def test_learners_that_take_recorded_words_for_their_own_are_named(recorded: dict[str, Any]) -> None:
    policies = {"actor": {"model": tiny_model(), "learner": {"kind": "grpo"}}}
    told = list(credit_notes(validate(learning("sft", recorded, policies=policies))))
    assert told[-1] == (
        "policies.actor.learner: 'grpo' learns from 'recorded' as if its policy had said all of it, without a "
        "correction; learners that are meant for it: awr, dpo, sft"
    )


def test_what_is_missing_is_named_with_its_game(recorded: dict[str, Any], tmp_path: Path) -> None:
    games = {"nim": {"path": str(tmp_path / "no.zst")}, "kuhn": {}}
    with pytest.raises(ScenarioError) as caught:
        marl.load(learning("sft", {"kind": "recorded", "games": games, "path": "x"}))
    text = str(caught.value)
    assert f"experience.games.nim.path: no such file: {tmp_path / 'no.zst'}" in text
    assert "experience.games.kuhn.path: missing; give a run's folder, or files; not both" in text
    assert "experience.games: beside run, path or roles" in text


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly_in_the_middle_of_a_shuffled_pass(
    recorded: dict[str, Any], tmp_path: Path
) -> None:
    scenario = learning("awr", recorded | {"shuffle": True})
    whole = train_to_end(tmp_path / "whole", scenario, ["--trust"])
    desk = RunWorkspace(tmp_path / "resumed", scenario)
    assert desk.train("--trust", kill=SignalTrigger("open", "metrics.jsonl", 4)) == -9, desk.take_output()
    assert desk.train("--trust", "--resume", "auto") == 0, desk.take_output()
    assert metric_lines(desk.run) == metric_lines(whole.run)
    assert outcome(desk.run) == outcome(whole.run)
