"""Whole runs with a remote teammate: they go on, or stop with a message and a checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.errors import EndpointError
from marl.core.graph import read_trajectories
from marl.core.types import Completion, CompletionFailure, Deal, Ticket
from marl.core.usage import RemoteUsage
from marl.engines.openai.settings import OpenAI
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import Engine
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, validate
from tests.support.misbehaving_servers import (
    Act,
    RequestHandler,
    Server,
    drops_connection,
    never_replies,
    replies_with_bytes,
    replies_with_text,
    serving,
)
from tests.support.paths import PLUG_IN
from tests.support.small_games import FunctionEngine, random_move

LEGAL = "[check] [call]"
"""One of them always is."""
WAIT_S = 20.0


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUG_IN)


def scenario(server: Server | str, schedule: dict[str, Any] | None = None, **engine: Any) -> dict[str, Any]:
    """Kuhn poker: a table of logits learns against the endpoint."""
    url = server if isinstance(server, str) else server.url
    quick = {"timeout_s": 0.3, "retries": 1, "backoff_s": 0.01, "key_env": None}
    return {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "pupil", "player_1": "mate"},
        "roles": {"pupil": {"kind": "player", "policy": "pupil"}, "mate": {"kind": "player", "policy": "mate"}},
        "policies": {
            "pupil": {
                "model": {"kind": "outside.softmax:TableModel"},
                "engine": {"kind": "outside.softmax:Softmax"},
                "learner": {"kind": "outside.softmax:Reinforce"},
            },
            "mate": {"engine": {"kind": "openai", "base_url": url, "model": "m", **quick, **engine}},
        },
        "credit": {"baseline": {"kind": "none"}},
        "schedule": {"steps": 3, "groups": 4, "group_size": 1, "threads": 1, **(schedule or {})},
        "evaluate": {"against": {}},
        "checkpoint": {"every": 50},
    }


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def after(good: int, bad: Act) -> list[Act]:
    """Return `good` legal answers, then `bad` for ever."""
    return [*[replies_with_text(LEGAL)] * good, bad]


def test_a_run_with_a_teammate_learns_records_what_it_said_and_adds_up_its_cost(tmp_path: Path) -> None:
    with serving(replies_with_text(LEGAL, usage=(10, 4))) as server:
        prices = {"prompt": 1e5, "completion": 1e6}
        assert marl.train(validate(scenario(server, price=prices)), tmp_path / "run")
        n_requests = len(server.bodies)
    steps = rows(tmp_path / "run")[1:]
    for name, each in {"cost": 5.0, "prompt_tokens": 10, "completion_tokens": 4, "tries": 1}.items():
        spent = [step[f"policy/mate/{name}"] for step in steps]
        assert sum(spent) == n_requests * each
        assert [step[f"policy/mate/total_{name}"] for step in steps] == [sum(spent[:n]) for n in (1, 2, 3)]
    [first, *_] = read_trajectories(tmp_path / "run" / "trajectories" / "000001.jsonl.zst")
    completion = next(turn.completion for turn in first.turns if turn.agent == "player_1")
    assert (completion.text, completion.usage) == (LEGAL, RemoteUsage(10, 4, 5.0, tries=1))


@pytest.mark.parametrize(
    "fault",
    [never_replies, drops_connection, replies_with_bytes(b"", 503), replies_with_bytes(b"{")],
    ids=["never", "drop", "503", "junk"],
)
def test_a_run_that_may_skip_goes_on_without_answers(fault: Act, tmp_path: Path) -> None:
    with serving(*after(2, fault)) as server:
        assert marl.train(validate(scenario(server, {"steps": 2}, on_failure="skip")), tmp_path / "run")
    last = rows(tmp_path / "run")[-1]
    assert last["role/mate/aborted"] == last["role/mate/illegal"] == 1.0
    assert (
        last["policy/mate/total_failed"] == last["policy/mate/failed"] + rows(tmp_path / "run")[1]["policy/mate/failed"]
    )


@pytest.mark.parametrize(
    "fault",
    [never_replies, drops_connection, replies_with_bytes(b"", 503), replies_with_bytes(b"{")],
    ids=["never", "drop", "503", "junk"],
)
def test_a_run_that_may_not_stops_with_a_checkpoint_and_goes_on_when_the_endpoint_is_back(
    fault: Act, tmp_path: Path
) -> None:
    mended: list[Act] = []

    def acts(visit: RequestHandler) -> None:
        (mended[0] if mended else fault)(visit)

    with serving(*after(9, acts)) as server:
        data, run = validate(scenario(server, {"steps": 6})), tmp_path / "run"
        started = time.monotonic()
        with pytest.raises(EndpointError, match=f"policy 'mate': {server.url} gave no answer in 2 tries; the last: "):
            marl.train(data, run)
        assert time.monotonic() - started < WAIT_S
        done = rows(run)[-1]["step"]
        assert done >= 1
        assert [p.name for p in (run / "checkpoints").iterdir()] == [f"{done:06d}"]
        mended.append(replies_with_text(LEGAL))
        assert marl.train(data, run, resume="auto")
    steps = rows(run)
    assert [row["step"] for row in steps] == list(range(7))
    # The step that failed was played twice, and what its first try took stays counted.
    assert steps[-1]["policy/mate/total_tries"] > sum(row.get("policy/mate/tries", 0) for row in steps)
    assert steps[-1]["policy/mate/total_failed"] >= 1


def test_a_budget_holds_across_a_resume(tmp_path: Path) -> None:
    prices = {"prompt": 0.0, "completion": 1e6}
    with serving(replies_with_text(LEGAL, usage=(1, 2))) as server:
        data = scenario(server, {"steps": 50}, price=prices, budget=300.0)
        for how in (None, "auto"):
            with pytest.raises(EndpointError, match=r"policy 'mate': \d+ of 300 are spent \(engine.budget\)"):
                marl.train(validate(data), tmp_path / "run", resume=how)
            n_requests = len(server.bodies)
            # One more may cost 256 (max_tokens).
            assert 300 - 256 < n_requests * 2 <= 300
    assert rows(tmp_path / "run")[-1]["step"] >= 1


def test_too_many_skipped_answers_end_the_run(tmp_path: Path) -> None:
    with serving(*after(3, replies_with_bytes(b"", 500))) as server:
        data = scenario(server, {"steps": 9}, on_failure="skip", max_failures=5)
        with pytest.raises(EndpointError, match=r"\d+ requests were given up so far \(engine.max_failures: 5\)"):
            marl.train(validate(data), tmp_path / "run")


def test_a_run_that_skips_answers_says_why_and_records_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(*after(3, replies_with_bytes(b"out of order", 500))) as server:
        assert marl.train(validate(scenario(server, on_failure="skip")), tmp_path / "run")
    cause = f"{server.url} gave no answer in 2 tries; the last: HTTP 500: 'out of order'"
    assert f"policy 'mate' gave no answer (aborted): {cause}" in " ".join(capsys.readouterr().out.split())
    [*played] = read_trajectories(tmp_path / "run" / "trajectories" / "000003.jsonl.zst")
    reasons = {turn.completion.reason for episode in played for turn in episode.turns if turn.agent == "player_1"}
    assert reasons == {cause}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"roles.mate.history": "append"}, r"roles\.mate\.history: 'append', but engine 'openai'.*use 'fresh'"),
        ({"evaluate.nashconv": True}, r"evaluate\.nashconv: engine 'openai' of policies\.mate cannot say how likely"),
        ({"schedule.deadline_s": 0.5}, r"schedule\.deadline_s: 0\.5 s, but policies\.mate\.engine may take 0\.9 s"),
        ({"policies.mate.learner": {"kind": "grpo"}}, r"policies\.mate\.learner: 'grpo' on a policy that cannot learn"),
    ],
)
def test_what_does_not_go_with_an_endpoint_is_refused_before_it_starts(change: dict[str, Any], why: str) -> None:
    data = scenario("http://127.0.0.1:1/v1")
    for dotted, value in change.items():
        *path, last = dotted.split(".")
        part = data
        for key in path:
            part = part[key]
        part[last] = value
    with pytest.raises(ScenarioError, match=why):
        validate(data)


# --- several engines at one table ---


class Busy(FunctionEngine):
    """Computes for a moment at every step, and has an answer every tenth time."""

    def __init__(self) -> None:
        super().__init__(random_move)
        self.steps = 0

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        self.steps += 1
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return super().step(wait_s) if self.steps % 10 == 0 else []


class Waiting(FunctionEngine):
    """Has an answer every tenth time, and keeps how long it was let sleep."""

    def __init__(self) -> None:
        super().__init__(random_move)
        self.waits: list[float] = []

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        self.waits.append(wait_s)
        return super().step(wait_s) if len(self.waits) % 10 == 0 else []


def mute(server: Server) -> Engine:
    return OpenAI(base_url=server.url, model="m", key_env=None, timeout_s=30.0).build(None)


def seated(first: Engine, second: Engine, deadline_s: float = 5.0) -> RolloutSimulator:
    """Two policies of these names, a role for each."""
    cast = RoleRequestBuilder({"first": PlayerRole(policy="first"), "second": PlayerRole(policy="second")}, 0)
    return RolloutSimulator(KuhnPokerConfig(), cast, {"first": first, "second": second}, deadline_s)


SEATS = {"player_0": "first", "player_1": "second"}
BOTH = [Deal("a", "g", 0, SEATS), Deal("b", "g", 1, {"player_0": "second", "player_1": "first"})]
"""Each of the two roles moves first in one of them."""


def test_the_deadline_names_the_address_that_is_waited_for() -> None:
    with serving(never_replies) as server:
        simulator = seated(FunctionEngine(random_move), mute(server), 0.2)
        with pytest.raises(TimeoutError, match=rf"open requests by policy: second: 2 \(of {server.url}\)$"):
            simulator.play(BOTH)


def test_an_engine_that_waits_never_sleeps_while_another_computes() -> None:
    waiting = Waiting()
    seated(Busy(), waiting).play(BOTH)
    # Where it is the only one that is asked, it may sleep as long as it likes.
    assert {wait for wait in waiting.waits if wait < 1.0} == {0.0}


def test_engines_that_only_wait_sleep_in_turns() -> None:
    one, two = Waiting(), Waiting()
    seated(one, two).play(BOTH)
    assert 0.0 < max(wait for wait in one.waits if wait < 1.0) <= 0.01


def test_two_engines_that_only_wait_take_little_of_the_processor() -> None:
    with serving(never_replies) as server, serving(never_replies) as other:
        simulator = seated(mute(server), mute(other), 0.8)
        before = time.process_time()
        with pytest.raises(TimeoutError, match=r"first: 1 \(of .*, second: 1 \(of "):
            simulator.play(BOTH)
        assert time.process_time() - before < 0.5
