"""Searches for instructions on priced endpoints: their cost, by the endpoint's own count, never exceeds its limit."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.cluster.placement import open_placement
from marl.core.spending import SpendingLimit
from marl.evaluation.trials import ScenarioInstructionTrials
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training.placement import simulator_from_engines
from marl.training.session import NewOrResumedRunStart, train_in_folder
from tests.support.misbehaving_servers import Act, Server, chat, replies_with_bytes
from tests.support.openai_clients import build_endpoint

MAX_TOKENS = 5
PRICE = {"prompt": 0, "completion": 1e6}
"""A token that is sampled costs 1, so that costs are whole numbers; prompts cost nothing."""


class BillingServer(Server):
    """Endpoint that bills each sampled token, of broken answers too. Its models are `follower` and `writer`."""

    def __init__(self, *, is_broken_at_first: bool = False) -> None:
        """With `is_broken_at_first`, the first answer to a prompt has no choices, and the request is sent again."""
        super().__init__([])
        self.is_broken_at_first = is_broken_at_first
        self.bills: dict[str, list[int]] = {"follower": [], "writer": []}
        """Model -> cost of each answer."""

    def act(self, body: dict[str, Any], headers: dict[str, str]) -> Act:
        with self._lock:
            is_new = body not in self.bodies
            self.bodies.append(body)
            # Answers take 1 to all of the tokens that they may take, in turn.
            cost = 1 + len(self.bodies) % body["max_tokens"]
            self.bills[body["model"]].append(cost)
        usage = {"prompt_tokens": 7, "completion_tokens": cost}
        if self.is_broken_at_first and is_new:
            return replies_with_bytes(json.dumps({"choices": [], "usage": usage}).encode())
        return replies_with_bytes(chat(self._say(body), usage=(7, cost)))

    def _say(self, body: dict[str, Any]) -> str:
        if body["model"] == "writer":
            return f"<instructions>{'Play b.' if body['seed'] % 2 else 'Play a.'}</instructions>"
        return "[b] [call]" if "Play b" in body["messages"][0]["content"] else "[a] [check]"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[BillingServer]:
    with BillingServer(is_broken_at_first=getattr(request, "param", False)) as open_:
        threading.Thread(target=open_.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield open_
        open_.shutdown()


def endpoint(server: Server, model: str) -> dict[str, Any]:
    quick = {"timeout_s": 10, "retries": 1, "backoff_s": 0.001, "key_env": None, "price": PRICE}
    return {"kind": "openai", "base_url": server.url, "model": model, **quick}


@pytest.mark.parametrize("server", [False, True], indirect=True, ids=["whole", "broken at first"])
@pytest.mark.parametrize("limited", ["cost", "tokens"])
@pytest.mark.parametrize("most", [9, 10, 47, 100_000])
def test_trials_never_take_more_than_their_limit_even_if_answers_have_to_be_asked_for_again(
    server: BillingServer, limited: str, most: int
) -> None:
    player = {"kind": "player", "policy": "follower", "sampling": {"max_tokens": MAX_TOKENS}}
    given = {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": player},
        "policies": {"follower": {"engine": endpoint(server, "follower")}},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    scenario = validate(given, "test", to_train=False)
    engine = build_endpoint(server, **endpoint(server, "follower"))
    simulator = simulator_from_engines(scenario, {"follower": engine})
    limit = SpendingLimit(cost=most) if limited == "cost" else SpendingLimit(tokens=most)
    scores = ScenarioInstructionTrials(scenario, simulator, "follower", str).play({}, range(12), limit)
    billed = sum(server.bills["follower"])
    assert billed <= limit.spent_cost == limit.spent_tokens <= most
    # A broken answer counts as the most that it may have taken; the limit is then above the bill.
    assert server.is_broken_at_first or billed == limit.spent_cost
    assert limit.reached == (None in scores) == (most < 1000)
    # A request reserves all tokens of both of its attempts: a limit below that pays for none.
    assert bool(billed) == (most >= 2 * MAX_TOKENS)


def run_with_limit(server: Server, cost: float, run: Path) -> dict[str, float]:
    """Train with a limit on the searches; return the metrics of the last step.

    One agent plays at random; the other one is paid 2 more for move b, and learns its instructions.
    """
    player = {"kind": "player", "sampling": {"max_tokens": MAX_TOKENS}}
    learner = {"kind": "prompt", "proposer": "writer", "candidates": 4, "trials": 16, "max_tokens": MAX_TOKENS}
    given = {
        "game": {"kind": "matrix", "table": [[1, 3], [0, 2]]},
        "seats": {"agent_0": "player", "agent_1": "follower"},
        "roles": {
            "player": player | {"policy": "chance"},
            "follower": player | {"policy": "follower", "instructions": "Play."},
        },
        "policies": {
            "chance": {"engine": {"kind": "random"}},
            "follower": {"engine": endpoint(server, "follower"), "learner": learner | {"budget": {"cost": cost}}},
            "writer": {"engine": endpoint(server, "writer")},
        },
        "schedule": {"steps": 2, "groups": 4, "group_size": 2, "threads": 1},
        "checkpoint": {"every": 2},
    }
    scenario = validate(given, "test")
    with open_placement(scenario) as placement:
        assert train_in_folder(scenario, run, NewOrResumedRunStart(), [], placement=placement)
    return list(RunFolder(run).rows())[-1]


@pytest.mark.parametrize("cost", [39, 60, 100_000])
def test_a_run_searches_as_long_as_its_limit_allows_and_plays_on_afterwards(
    server: BillingServer, cost: int, tmp_path: Path
) -> None:
    last = run_with_limit(server, cost, tmp_path / "run")
    spent = last["policy/follower/search_cost"]
    assert 0 < spent <= cost
    # What the endpoint billed is the cost of the searches and that of all other play.
    played = last["policy/follower/total_cost"] + last["policy/writer/total_cost"]
    assert played == sum(server.bills["follower"]) + sum(server.bills["writer"])
    assert sum(server.bills["writer"]) <= spent
    assert (last["policy/follower/version"] > 0) == (cost > 1000)
    assert ("policy/follower/dropped" in last) == (cost > 1000)
