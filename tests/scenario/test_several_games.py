"""Scenarios with `games`: what is refused, and the scenario of each game."""

from typing import Any

import pytest

from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from tests.support.two_game_scenarios import SEATS, untrained_two_games

NIM = {"game": {"kind": "nim"}, "seats": SEATS}
KUHN = {"game": {"kind": "kuhn_poker"}, "seats": SEATS}


def problems(**changes: Any) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        validate(untrained_two_games(**changes), "mine.yaml")
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


BOTH = "games: game 'nim' is given as well; give `game` and `seats`, or `games` alone"
SEATED = f"seats: {SEATS}, but each of several games has seats of its own; give them as games.NAME.seats"
PATIENT = {"by": "learning_progress"}
PLAN = {"steps": 2, "groups": 6, "group_size": 2}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"game": {"kind": "nim"}}, BOTH),
    "seats": ({"seats": SEATS}, SEATED),
    "no_game": ({"games": {}}, "game: missing; it must be given, or `games` for several"),
    "role": (
        {"games": {"nim": {**NIM, "seats": {**SEATS, "player_1": "plaier"}}}},
        "games.nim.seats.player_1: no role 'plaier'; did you mean 'player'? choices: player",
    ),
    "seat": (
        {"games": {"nim": {**NIM, "seats": {"player_0": "player"}}}},
        "games.nim.seats.player_1: missing: game 'nim' has the agents player_0, player_1",
    ),
    "nashconv": (
        {
            "games": {
                "nim": NIM,
                "ox": {"game": {"kind": "tic_tac_toe"}, "seats": SEATS, "evaluate": {"nashconv": True}},
            }
        },
        "games.ox.evaluate.nashconv: game 'tic_tac_toe' does not export its deals; measure `against` instead",
    ),
    "against": (
        {"games": {"kuhn": KUHN, "nim": NIM}, "evaluate": {"against": {"nash": 5}}},
        "evaluate.against.nash: no such opponent in game 'nim'; choices: minimax, random",
    ),
    "best": (
        {"games": {"nim": NIM}, "evaluate": {"optimal": True, "keep_best": "eval/optimal"}},
        "evaluate.keep_best: nothing measures 'eval/optimal'; did you mean 'eval/nim/optimal'? "
        "choices: eval/nim/legal_mass, eval/nim/optimal",
    ),
    "name": (
        {"games": {"held_out": NIM}},
        "games.held_out: 'held_out' is a part of metrics' names (eval/held_out/...); choose another",
    ),
    "weight": (
        {"games": {"nim": NIM, "kuhn": {**KUHN, "weight": 1e-5}}},
        "games.kuhn.weight: 1e-05 is less than 0.0001 of all weights; give more",
    ),
    "weights": (
        {"games": {"nim": {**NIM, "weight": 0}, "kuhn": {**KUHN, "weight": 0}}},
        "games.nim.weight: 0, like those of all games, so training has none to play; raise one",
    ),
    "negative": (
        {"games": {"nim": NIM, "kuhn": {**KUHN, "weight": -1}}},
        "games.kuhn.weight: must be at least 0.0 (got -1)",
    ),
    "progress": (
        {"games": {"nim": NIM}, "schedule": {**PLAN, "mix": PATIENT}},
        "games.nim.progress: missing; schedule.mix asks for it, such as episode/measure/success; evaluated choices: "
        "eval/random/draw, eval/random/loss, eval/random/mean, eval/random/player_0/draw, eval/random/player_0/loss, "
        "eval/random/player_0/mean, eval/random/player_0/win, eval/random/player_1/draw, eval/random/player_1/loss, "
        "eval/random/player_1/mean, eval/random/player_1/win, eval/random/win",
    ),
    "no_effect": (
        {"schedule": {**PLAN, "mix": {"alpha": 0.5}}},
        "schedule.mix: alpha and floor have no effect on by: weights; use by: learning_progress, or leave them",
    ),
    "rotation": (
        {"schedule": {**PLAN, "rotate_seats": True}},
        "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it",
    ),
}


@pytest.mark.parametrize(("changes", "message"), [*WRONG.values()], ids=[*WRONG])
def test_what_does_not_fit_names_the_game_and_its_field(changes: dict[str, Any], message: str) -> None:
    assert problems(**changes) == [message]


def test_a_policy_that_learns_in_games_of_weight_zero_alone_is_refused() -> None:
    data = untrained_two_games()
    policies = {**data["policies"], "other": data["policies"]["actor"]}
    roles = {**data["roles"], "guest": {**data["roles"]["player"], "policy": "other"}}
    games = {"nim": NIM, "kuhn": {**KUHN, "seats": dict.fromkeys(SEATS, "guest"), "weight": 0}}
    with pytest.raises(ScenarioError, match=r"policies\.other\.learner: all its roles are in games of weight 0"):
        validate(data | {"games": games, "roles": roles, "policies": policies})


def test_a_mix_by_progress_needs_several_games() -> None:
    data = untrained_two_games() | {
        "game": {"kind": "nim"},
        "seats": SEATS,
        "schedule": {**PLAN, "mix": "learning_progress"},
    }
    del data["games"]
    with pytest.raises(ScenarioError, match=r"schedule\.mix: 'learning_progress' divides starts among several games"):
        validate(data)


def test_every_game_is_a_scenario_with_its_own_seats_roles_and_measures() -> None:
    roles = {name: {"kind": "player", "policy": "actor"} for name in ("player", "bluffer")}
    games = {"nim": NIM, "kuhn": {**KUHN, "seats": dict.fromkeys(SEATS, "bluffer"), "evaluate": {"nashconv": True}}}
    whole = validate(untrained_two_games(games=games, roles=roles))
    views = whole.scenario_by_game()
    assert {name: (view.game.kind, [*view.roles]) for name, view in views.items()} == {
        "nim": ("nim", ["player"]),
        "kuhn": ("kuhn_poker", ["bluffer"]),
    }
    assert (views["nim"].evaluate.against, views["nim"].evaluate.nashconv) == ({"random": 4}, False)
    assert (views["kuhn"].evaluate.against, views["kuhn"].evaluate.nashconv) == ({}, True)
    assert Scenario.model_validate(whole.model_dump(mode="json")) == whole


def test_a_scenario_with_one_game_is_its_own_view() -> None:
    data = untrained_two_games() | {"game": {"kind": "nim"}, "seats": SEATS}
    del data["games"]
    whole = validate(data)
    assert whole.scenario_by_game() == {"": whole}
