"""Small leagues on Kuhn poker, real runs with real tiny models."""

from __future__ import annotations

from typing import Any

from tests.support.run_processes import kuhn_scenario, tiny_model

LEAGUE = "marl.experience.league.settings:League"
LEARNER = {"kind": "grpo", "lr": 3e-3}
EXPLOITER = {"kind": "player", "policy": "exploiter", "sampling": {"max_tokens": 6}}


def league(model: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """A league of one player, `actor`, whose weights join the pool after every second update."""
    player = {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}
    main = {"opponents": {"self": 1, "pool": 2, "random": 1}, "every": 2}
    return kuhn_scenario(
        seats={"player_0": "player", "player_1": "opponent"},
        roles={"player": player, "opponent": player | {"trainable": False}},
        policies={"actor": {"model": model or tiny_model(), "learner": LEARNER}},
        experience={"kind": LEAGUE, "players": {"player": main}} | settings,
        schedule={"steps": 6, "groups": 8, "group_size": 4, "rotate_seats": True, "threads": 1},
        evaluate={"every": 3, "nashconv": True},
        checkpoint={"every": 2, "trajectories": 1.0},
    )


def with_exploiter(**settings: Any) -> dict[str, Any]:
    """The same with an exploiter of the actor, which begins anew after every second update, and a Nash of the pool."""
    scenario = league(**settings)
    scenario["roles"]["exploiter"] = EXPLOITER
    scenario["policies"]["exploiter"] = {"model": tiny_model(1), "learner": LEARNER}
    scenario["experience"] |= {
        "resident": 2,
        "matches": 4,
        "players": {
            "player": {"opponents": {"self": 1, "pool": 2}, "by": "psro", "every": 2, "share": 2},
            "exploiter": {"opponents": {"actor": 1}, "every": None, "reset": {"every": 2}},
        },
    }
    return scenario
