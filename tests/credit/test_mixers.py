"""VDN and QMIX against what is known of small games, and what they are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.state import load_state, save_state
from marl.core.types import Fork, Reading, TurnId
from marl.credit.assign.value_decomposition import Qmix, ValueDecompositionAssign, Vdn
from marl.credit.mixing.decomposition import DecompositionRule
from marl.credit.mixing.networks import RoundBatch
from marl.games.matrix_games import MatrixConfig, TwoStepConfig
from marl.models.mixers import QmixMixer, VdnMixer
from marl.protocols import Evidence, GameConfig
from tests.support.enumerated_rollouts import all_rollouts, exhaustive_evidence, team_return
from tests.support.handmade_episodes import make_episode
from tests.support.handmade_episodes import make_evidence as by_hand
from tests.support.small_games import CircleConfig, FunctionEngine, make_deal, make_simulator, random_move

SEEDS = range(5)
MIXERS: list[type[ValueDecompositionAssign]] = [Vdn, Qmix]
# All courses in one minibatch; fewer and longer steps than pymarl's 4,000 with RMSprop at 5e-4.
FIT = {"updates": 300, "target_every": 25, "memory": 1}


def fitted(kind: Any, game: GameConfig, seed: int, **settings: Any) -> tuple[DecompositionRule, Evidence]:
    part = kind(features="text", common="mean", **{"fit": FIT, "rest": "drop", **settings}).build()
    assert isinstance(part, DecompositionRule)
    evidence = exhaustive_evidence(game, seed)
    part(evidence)
    return part, evidence


def legal_move_utilities(part: DecompositionRule, evidence: Evidence) -> dict[TurnId, dict[str, float]]:
    """Turn -> move -> Q of that move in its place."""
    fitted, played = part.get_or_create_networks(evidence), part.rounds_of_all_teams(evidence)
    record, turns = fitted.encoder(played, evidence.readings, options=True)
    with torch.no_grad():
        q = fitted.networks.legal_move_utilities(RoundBatch(record))[record.turns >= 0].tolist()
    return {
        turns[place].id: dict(zip(turns[place].request.options or (), values, strict=False))
        for place, values in zip(record.turns[record.turns >= 0].tolist(), q, strict=True)
    }


def greedy(part: DecompositionRule, evidence: Evidence) -> float:
    """What is paid if every agent makes the move that its own utility prefers."""
    utilities = legal_move_utilities(part, evidence)

    def preferred(course: Trajectory) -> bool:
        return all(max(of := utilities[turn.id], key=of.__getitem__) == turn.action for turn in course.turns)

    [course] = filter(preferred, evidence.trajectories)
    return team_return(course)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "reached"), [(Vdn, 7.0), (Qmix, 8.0)])
def test_in_the_two_step_game_vdn_ends_at_7_and_qmix_at_8(kind: Any, reached: float, seed: int) -> None:
    assert greedy(*fitted(kind, TwoStepConfig(), seed, targets="max", gamma=0.99)) == reached


def test_vdn_values_the_two_step_game_as_its_additive_projection_does() -> None:
    fit = FIT | {"updates": 500, "lr": 1e-2}
    part, evidence = fitted(Vdn, TwoStepConfig(), 0, targets="max", gamma=0.99, fit=fit)
    utilities = legal_move_utilities(part, evidence)
    first, second = {}, {}
    for course in evidence.trajectories:
        here = [utilities[turn.id][turn.action or ""] for turn in course.turns]
        moves = "".join(turn.action or "" for turn in course.turns)
        first[moves[0]] = sum(here[:2])
        if moves[0] == "b":
            second[moves[2:]] = sum(here[2:])
    assert second == pytest.approx({"aa": -1.5, "ab": 2.5, "ba": 2.5, "bb": 6.5}, abs=0.1)
    assert first == pytest.approx({"a": 6.93, "b": 6.43}, abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize(("preset", "reached"), [("climbing", 5.0), ("qtran", 0.0), ("penalty", 2.0)])
def test_where_a_monotonic_mix_cannot_tell_what_pays_both_settle_for_less(
    preset: str, reached: float, kind: Any, seed: int
) -> None:
    game = MatrixConfig(table=preset)
    # Slow enough for QMIX to stay where pymarl's does. With longer steps it leaves the additive fit of the climbing
    # game for a better one in some seeds, whose best move pays 6.
    assert greedy(*fitted(kind, game, seed, fit=FIT | {"updates": 400, "lr": 1e-3})) == reached
    assert max(map(team_return, all_rollouts(game))) > reached


@pytest.mark.parametrize("preset", ["qmix_2b", "climbing", "additive"])
def test_vdn_fits_the_additive_least_squares_projection(preset: str) -> None:
    game = MatrixConfig(table=preset)
    part, evidence = fitted(Vdn, game, 0, fit=FIT | {"lr": 1e-2})
    cells = game.build().cells
    rows, columns = cells.shape
    design = np.array([[*np.eye(rows)[i], *np.eye(columns)[j]] for i in range(rows) for j in range(columns)])
    projection = design @ np.linalg.lstsq(design, cells.ravel(), rcond=None)[0]
    utilities = legal_move_utilities(part, evidence)
    sums = [sum(utilities[t.id][t.action or ""] for t in course.turns) for course in evidence.trajectories]
    assert sums == pytest.approx(projection, abs=0.02 * np.ptp(cells))
    # A turn is worth what its move adds to the mean over its agent's moves, which do not depend on the others'.
    credit = part(evidence)
    for course, row in zip(evidence.trajectories, design, strict=True):
        i, j = row.nonzero()[0]
        wanted = [cells[i].mean() - cells.mean(), cells[:, j - rows].mean() - cells.mean()]
        assert [credit[t.id].value for t in course.turns] == pytest.approx(wanted, abs=0.05 * np.ptp(cells))


def test_q_tot_of_qmix_never_falls_when_a_utility_rises() -> None:
    torch.manual_seed(0)
    mixer, state = QmixMixer(4, 10, 8, 16), 3 * torch.randn(500, 10)
    q = (3 * torch.randn(500, 4)).requires_grad_()
    [slopes] = torch.autograd.grad(mixer(q, state).sum(), q)
    assert float(slopes.min()) >= 0
    assert float(slopes.max()) > 0
    with torch.no_grad():
        mixer, state, q = mixer.double(), state.double(), q.double()
        for agent in range(4):
            higher = q + 0.01 * torch.eye(4)[agent]
            rise = mixer(higher, state) - mixer(q, state)
            assert float(rise.min()) >= 0
            assert rise / 0.01 == pytest.approx(slopes[:, agent], rel=0.1, abs=1e-2)


@pytest.mark.parametrize("mixer", [VdnMixer(), QmixMixer(3, 5, 4, 8)])
def test_a_marginal_is_what_q_tot_loses_without_the_utility(mixer: VdnMixer | QmixMixer) -> None:
    q, v, state = torch.randn(20, 3), torch.randn(20, 3), torch.randn(20, 5)
    q[:5, 1] = v[:5, 1] = 0  # nobody at that seat
    marginals = mixer.counterfactual_q_differences(q, v, state)
    for agent in range(3):
        without = q.clone()
        without[:, agent] = v[:, agent]
        assert torch.allclose(marginals[:, agent], mixer(q, state) - mixer(without, state), atol=1e-5)
    assert not marginals[:5, 1].any()


# --- free text --------------------------------------------------------------------------------------------------------


def pairs(step: int = 0, many: int = 64) -> list[Trajectory]:
    """At once, `a` says one of two things, on which all depends, and `b` one of two, on which nothing does."""
    episodes = []
    for i in range(many):
        t = make_episode(f"{step}.{i}", "ab", [("a", float(i % 2), 1)], start=f"{step}")
        t.reads = {turn.id: {} for turn in t.turns}
        texts = [("left", "right")[i % 2], ("up", "down")[i // 2 % 2]]
        t.turns = [replace(u, completion=replace(u.completion, text=x)) for u, x in zip(t.turns, texts, strict=True)]
        episodes.append(t)
    return episodes


def readings(episodes: list[Trajectory], agents: str = "ab", size: int = 6) -> dict[Any, Reading]:
    """States that tell what was said, in a way of their own for each agent."""
    index = {"left": 0, "right": 1, "up": 2, "down": 3}
    return {
        turn.id: Reading((), hidden=torch.stack([torch.ones(size), torch.eye(size)[index[turn.completion.text]]]))
        for t in episodes
        for turn in t.turns
        if turn.agent in agents
    }


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("read", ["", "ab", "a"], ids=["texts", "states", "states_of_one"])
def test_a_turn_on_which_nothing_depends_earns_next_to_nothing(kind: Any, read: str) -> None:
    episodes = pairs()
    part = kind(fit={"updates": 200, "lr": 1e-2}).build()
    assert part.needed_reading_fields == {"hidden"}
    credit = part(Evidence(episodes, "a_game", readings(episodes, read)))
    for t in episodes:
        a, b = (credit[turn.id].value for turn in t.turns)
        assert a == pytest.approx(sum(t.returns.values()) - 0.5, abs=0.1)
        assert abs(b) < 0.1
    assert part.metrics()[f"credit/{kind.__name__.lower()}/explained"] > 0.95


@pytest.mark.parametrize("kind", MIXERS)
def test_a_round_without_some_of_the_agents_is_mixed_of_the_others(kind: Any) -> None:
    game = CircleConfig(rounds=3)
    played = make_simulator(game, FunctionEngine(random_move)).play([make_deal(f"{i}", game, i) for i in range(40)])
    assert {len(t.turns) for t in played} > {3, 6}
    credit = kind(features="text").build()(Evidence(played, "circle"))
    assert set(credit) == {turn.id for t in played for turn in t.turns}
    assert np.isfinite([worth.value for worth in credit.values()]).all()


def test_teams_are_judged_by_what_they_are_paid_themselves() -> None:
    episodes = pairs()
    for t in episodes:
        t.rewards += [type(t.rewards[0])("b", -reward.value, reward.turn) for reward in t.rewards]
    fit: Any = {"updates": 200, "lr": 1e-2}
    together = Vdn(rest="drop", fit=fit).build()(by_hand(*episodes))
    apart = Vdn(rest="drop", fit=fit, teams=(("a",), ("b",))).build()(by_hand(*episodes))
    won = [t for t in episodes if t.returns["a"]]
    assert np.mean([together[t.turns[0].id].value for t in won]) == pytest.approx(0, abs=0.02)
    assert np.mean([apart[t.turns[0].id].value for t in won]) == pytest.approx(0.5, abs=0.1)


def test_seats_that_answer_by_rule_earn_nothing() -> None:
    t = make_episode("e", "abc", [("a", 1.0, 2)], seats={"a": "x", "b": "x", "c": "check"})
    credit = Qmix().build()(Evidence([t], "a_game", rule_based_roles=frozenset({"check"})))
    assert set(credit) == {turn.id for turn in t.turns[:2]}


def test_an_inherited_turn_is_judged_where_it_was_said() -> None:
    game = CircleConfig(rounds=2)
    simulator = make_simulator(game, FunctionEngine(random_move))
    [past] = simulator.play([make_deal("e", game, 3)])
    courses = [past, *simulator.play_forks([Fork(past, 1, n=3)])[0]]
    part = Qmix(features="text", rounds="turns", rest="drop").build()
    assert isinstance(part, DecompositionRule)
    credit = part(Evidence(courses, "circle"))
    alone = []
    for course in courses:
        evidence = Evidence([course], "circle")
        record, turns = part.get_or_create_networks(evidence).encode_rounds(
            part.rounds_of_all_teams(evidence), evidence
        )
        marginals = part.credit_by_seat(part.get_or_create_networks(evidence), evidence, record, turns)
        alone.append(float(marginals[0, 0]))
    assert len(set(alone)) > 1
    assert credit[past.turns[0].id].value == pytest.approx(alone[0], abs=1e-5)


# --- what goes on from step to step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_restart_changes_no_bit(kind: Any, optimizer: str, tmp_path: Path) -> None:
    steps = [pairs(step, 40) for step in range(4)]
    settings = kind(lam=0.5, fit={"batch": 16, "memory": 2, "target_every": 3, "updates": 7, "optimizer": optimizer})
    # The second step shows turns of a kind that the first had not; the last is judged after a restart.
    seen = [Evidence(s, "a_game", readings(s, "a" if i else ""), seed=5) for i, s in enumerate(steps)]
    whole_run, before, after = settings.build(), settings.build(), settings.build()
    judged = [whole_run(evidence) for evidence in seen]
    for evidence in seen[:3]:
        before(evidence)
    save_state(tmp_path, before.state_dict())
    after.load_state_dict(load_state(tmp_path))
    assert after(seen[3]) == judged[3]
    assert after.metrics() == whole_run.metrics()
    save_state(tmp_path / "after", after.state_dict())
    save_state(tmp_path / "whole", whole_run.state_dict())
    for file in ("state.json", "state.safetensors"):
        assert (tmp_path / "after" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    part = Qmix().build()
    assert part.state_dict() == {}
    part.load_state_dict({})
    assert part(by_hand()) == {}
    assert part.metrics() == {}


def test_random_numbers_are_its_own_and_follow_from_the_seed() -> None:
    before = torch.random.get_rng_state()
    fit: Any = {"batch": 16}
    judged = [Qmix(fit=fit).build()(Evidence(pairs(), "a_game", seed=seed)) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert judged[0] == judged[1] != judged[2]


def test_older_steps_are_replayed_and_then_forgotten() -> None:
    fit: Any = {"memory": 2}
    part = Vdn(fit=fit).build()
    for step in range(4):
        part(by_hand(*pairs(step, 8)))
    [*records] = part.state_dict()["fitter"]["memory"]
    assert [len(record["reward"]) for record in records] == [8, 8]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_the_best_moves_can_only_be_asked_for_where_moves_are_listed_and_texts_are_read() -> None:
    with pytest.raises(ValidationError, match=r"targets: 'max' .* choices: features: text, or targets: returns"):
        Vdn(targets="max")
    with pytest.raises(ValidationError, match=r"lam: 0\.5 is of returns, and targets are 'max'; leave it out"):
        Qmix(targets="max", features="text", lam=0.5)
    with pytest.raises(ValueError, match=r"targets: 'max' .* role 'player' may say any text \(turn .*\); choices: ret"):
        Vdn(targets="max", features="text").build()(by_hand(*pairs()))


def test_who_was_not_at_the_table_cannot_sit_down_later() -> None:
    part = Vdn().build()
    part(by_hand(*pairs()))
    with pytest.raises(ValueError, match=r"turn .*: 'c' as 'player' was not at the table before; agents: a, b; roles"):
        part(by_hand(make_episode("e", "abc")))
