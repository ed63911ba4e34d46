"""The pool of starts: neither too easy nor too hard, found again after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.state import load_state, save_state
from marl.core.types import Deal
from marl.experience.start_pool import Curriculum, StartPool, StartPoolSampler
from marl.protocols import Simulator
from marl.rollout.simulator import RolloutSimulator
from tests.support.difficulty_game import DifficultyGameConfig, answer_by_difficulty
from tests.support.small_games import FunctionEngine, make_simulator


def drill(**settings: Any) -> RolloutSimulator:
    return make_simulator(DifficultyGameConfig(**settings), FunctionEngine(answer_by_difficulty))


def deals(step: int, groups: int = 16, size: int = 8) -> list[Deal]:
    names = [f"{step}.{group}" for group in range(groups)]
    return [Deal(f"{n}.{i}", n, hash_to_seed("deal", n), {"solver": "player"}) for n in names for i in range(size)]


def run(pool: StartPoolSampler, simulator: Simulator, steps: Sequence[int]) -> list[list[Trajectory]]:
    return [pool.gather(step, deals, simulator) for step in steps]


def replayed(played: Sequence[Trajectory], step: int) -> dict[str, Trajectory]:
    """Groups that did not start as they were dealt: their first episode."""
    dealt = {deal.group: deal.seed for deal in deals(step)}
    return {t.deal.group: t for t in reversed(played) if t.deal.seed != dealt[t.deal.group] or t.deal.options}


def test_starts_within_the_window_are_played_again_and_others_are_not() -> None:
    pool = StartPoolSampler(StartPool(keep=(0.3, 0.7), momentum=0.9))
    played = run(pool, drill(), range(12))
    again = [t for step, episodes in enumerate(played) for t in replayed(episodes, step).values()]
    assert not replayed(played[0], 0)
    assert len(again) > 30
    # Solved with probability 1/3 to 2/3: the questions 3 to 6, 0.4 of what is dealt. Noise lets others in at times.
    assert sum(t.start in [f"number {n}" for n in (3, 4, 5, 6)] for t in again) > 0.6 * len(again)
    assert not any(t.start in ("number 0", "number 9") for t in again)


def test_groups_stay_together_and_no_start_is_taken_twice_in_a_step() -> None:
    pool = StartPoolSampler(StartPool(replay=1.0))
    for step, played in enumerate(run(pool, drill(), range(6))):
        groups: dict[str, set[tuple[int, str]]] = {}
        for trajectory in played:
            groups.setdefault(trajectory.deal.group, set()).add((trajectory.deal.seed, trajectory.start))
        assert all(len(starts) == 1 for starts in groups.values())
        starts = [t.start for t in replayed(played, step).values()]
        assert len(starts) == len(set(starts))
        assert [t.id for t in played] == [deal.episode for deal in deals(step)]


def test_about_the_asked_share_of_groups_is_replayed() -> None:
    pool = StartPoolSampler(StartPool(replay=0.25, keep=(0.0, 1.0)))
    simulator = drill()
    pool.gather(0, deals, simulator)
    shares = []
    for step in range(1, 40):
        pool.gather(step, deals, simulator)
        shares.append(pool.metrics()["pool/replayed"])
    assert 0.18 < sum(shares) / len(shares) < 0.32


def test_what_is_for_evaluation_is_dealt_as_it_is() -> None:
    pool = StartPoolSampler(StartPool(replay=1.0, keep=(0.0, 1.0), curriculum=Curriculum()))
    pool.gather(0, deals, drill())
    starts = [replace(deal, purpose="eval") for deal in deals(1)]
    before = pool.state_dict()["entries"]
    assert [t.deal for t in pool.gather(0, lambda _: starts, drill())] == starts
    assert pool.state_dict()["entries"] == before


def test_success_is_an_average_that_forgets() -> None:
    pool = StartPoolSampler(StartPool(momentum=0.75, keep=(0.0, 1.0), replay=1.0))
    problem = {"problem": {"key": "9"}}
    pool.load_state_dict({"entries": {"x": entry(5, problem, 0.8)}, "step": 3, "open": 1.0})
    pool.gather(0, lambda _: deals(4, groups=1), drill())
    (item,) = pool.state_dict()["entries"].values()
    assert item == {"seed": 5, "options": problem, "played": 4, "success": pytest.approx(0.75 * 0.8), "game": ""}


def entry(seed: int, options: Any, success: float | None, played: int = 0) -> dict[str, Any]:
    return {"seed": seed, "options": options, "played": played, "success": success}


def test_a_start_that_becomes_too_easy_leaves() -> None:
    pool = StartPoolSampler(StartPool(momentum=0.5, replay=1.0))
    easy = {"problem": {"key": "0"}}
    pool.load_state_dict({"entries": {"number 0": entry(5, easy, 0.4)}, "step": 0, "open": 1.0})
    sizes = []
    for step in (1, 2):
        pool.gather(step, lambda number: deals(number, groups=1), drill())
        sizes.append(pool.metrics()["pool/size"])
    assert sizes == [1.0, 0.0]


def test_posed_problems_are_tried_once_each_and_kept_if_they_fit() -> None:
    pool = StartPoolSampler(StartPool(replay=1.0, keep=(0.2, 0.8)))
    first, second = run(pool, drill(poses=True), (0, 1))
    posed = {f"number {int(t.start.split()[1]) + 10}" for t in first}
    attempted = [t.start for t in replayed(second, 1).values() if int(t.start.split()[1]) >= 10]
    assert attempted
    assert len(attempted) == len(set(attempted))
    assert set(attempted) <= posed
    names = list(pool.state_dict()["entries"])
    assert len(names) == len(set(names))
    untested = [name for name, item in pool.state_dict()["entries"].items() if item["success"] is None]
    assert pool.metrics()["pool/untested"] == len(untested)
    assert all(name.startswith("untested") for name in untested)


def test_a_problem_posed_again_is_not_a_second_one() -> None:
    pool = StartPoolSampler(StartPool(replay=0.0, keep=(0.5, 0.5)))
    run(pool, drill(poses=True), range(4))
    keys = [item["options"]["problem"]["key"] for item in pool.state_dict()["entries"].values() if item["options"]]
    assert sorted(keys) == sorted(set(keys))
    assert len(keys) <= 10


def test_the_pool_holds_no_more_than_its_size_and_the_oldest_go_first() -> None:
    pool = StartPoolSampler(StartPool(size=3, keep=(0.0, 1.0), replay=0.0))
    old = {f"number {n}": entry(n, {"problem": {"key": str(n)}}, n / 20, played=n) for n in range(11, 14)}
    pool.load_state_dict({"entries": old, "step": 20, "open": 1.0})
    (first, *_) = pool.gather(0, lambda _: deals(0, groups=1), drill())
    assert list(pool.state_dict()["entries"]) == ["number 12", "number 13", first.start]


def test_the_curriculum_opens_more_when_fresh_starts_succeed() -> None:
    pool = StartPoolSampler(StartPool(replay=0.3, curriculum=Curriculum(start=0.2, raise_at=0.6, by=0.2)))
    shares, simulator = [], drill()
    for step in range(8):
        played = pool.gather(step, deals, simulator)
        shares.append(pool.metrics()["pool/open"])
        fresh = [t for t in played if t.deal.options and t.deal.options["open"] == shares[-1]]
        assert all(int(t.start.split()[1]) < 10 * shares[-1] for t in fresh)
    # Success with the first k questions open is 1 - (k - 1) / 18 on average: always more than 0.6 up to k = 6.
    assert shares[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert shares == sorted(shares)


def test_without_a_curriculum_games_get_no_option_that_they_may_not_know() -> None:
    played = StartPoolSampler(StartPool()).gather(0, deals, drill())
    assert all(t.deal.options is None for t in played)


def test_a_pool_that_was_saved_goes_on_exactly(tmp_path: Path) -> None:
    settings = StartPool(keep=(0.1, 0.9), size=12, curriculum=Curriculum(start=0.5, raise_at=0.4))
    straight, left = StartPoolSampler(settings), StartPoolSampler(settings)
    run(straight, drill(poses=True), range(3))
    run(left, drill(poses=True), range(3))
    save_state(tmp_path / "state", left.state_dict())
    resumed = StartPoolSampler(settings)
    resumed.load_state_dict(load_state(tmp_path / "state"))
    assert resumed.state_dict() == straight.state_dict()
    assert run(resumed, drill(poses=True), range(3, 7)) == run(straight, drill(poses=True), range(3, 7))
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.metrics() == straight.metrics()


def test_a_snapshot_does_not_change_when_play_goes_on() -> None:
    pool = StartPoolSampler(StartPool())
    pool.gather(0, deals, drill())
    before = pool.state_dict()
    text = str(before)
    pool.gather(1, deals, drill())
    assert str(before) == text


def test_metrics_say_how_the_pool_stands() -> None:
    pool = StartPoolSampler(StartPool(replay=1.0, keep=(0.2, 0.8)))
    pool.gather(0, deals, drill())
    metrics = pool.metrics()
    tested = [item["success"] for item in pool.state_dict()["entries"].values()]
    assert metrics["pool/size"] == len(tested)
    assert metrics["pool/success"] == pytest.approx(sum(tested) / len(tested))
    assert metrics["pool/replayed"] == metrics["pool/untested"] == 0
    assert "pool/open" not in metrics


def test_an_unknown_measure_names_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"experience\.success: the game has no measure 'succes'; did you mean 'success'"
    ):
        StartPoolSampler(StartPool(success="succes")).gather(0, lambda _: deals(0, groups=1), drill())


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keep: \[0\.8, 0\.2\] is no range"):
        StartPool(keep=(0.8, 0.2))
