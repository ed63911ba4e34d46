"""`start` and `poll`: episodes in flight, collected as they finish, and forks that are played in another process."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import Completion, CompletionFailure, Deal, Fork, Request, Ticket
from marl.credit_stage.stage import CreditStage
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import Evidence
from marl.scenario.schema import CreditConfig
from tests.support.paths import ROOT
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

GAME = KuhnPokerConfig()


class RandomLatency(FunctionEngine):
    """Answers each request after a random number of steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(random_move)
        self._rng = random.Random(seed)
        self._due: dict[Ticket, int] = {}
        self._now = 0
        self._ready: list[tuple[Ticket, Completion | CompletionFailure]] = []
        self.most_open = 0

    def submit(self, ticket: Ticket, request: Request) -> None:
        super().submit(ticket, request)
        self._ready += super().step(0.0)
        self._due[ticket] = self._now + self._rng.randrange(1, 200)
        self.most_open = max(self.most_open, len(self._due))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        self._now += 1
        due = [answer for answer in self._ready if self._due[answer[0]] <= self._now]
        self._ready = [answer for answer in self._ready if self._due[answer[0]] > self._now]
        for ticket, _ in due:
            del self._due[ticket]
        return due

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._due.pop(ticket, None)
        self._ready = [answer for answer in self._ready if answer[0] in self._due]


def judge(trajectories: list[Trajectory]) -> dict[tuple[str, int], float]:
    rule = CreditConfig.model_validate({"assign": "outcome", "baseline": "role_average"})
    credit = CreditStage(rule)(Evidence(trajectories, GAME.kind)).credit
    return {turn: advantage.value for turn, advantage in credit.items()}


def test_a_thousand_episodes_in_flight_finish_in_any_order_and_are_judged_in_deal_order() -> None:
    deals = [make_deal(f"e{i}", GAME, i) for i in range(1000)]
    engine = RandomLatency(seed=0)
    simulator = make_simulator(GAME, engine)
    tickets = simulator.start(deals)
    finished: dict[Ticket, Trajectory] = {}
    polls = 0
    while len(finished) < len(deals):
        polls += 1
        for ticket, trajectory in simulator.poll(wait_s=0.0):
            assert trajectory is not None
            finished[ticket] = trajectory
    assert engine.most_open == 1000
    assert polls > 100, "episodes come as they finish, not all at once"
    assert list(finished) != tickets
    in_deal_order = [finished[ticket] for ticket in tickets]
    at_once = make_simulator(GAME, FunctionEngine(random_move)).play(deals)
    assert in_deal_order == at_once
    assert judge(in_deal_order) == judge(at_once)
    assert judge(list(finished.values())) != judge(at_once), "a moving average depends on the order"


def test_episodes_in_flight_do_not_disturb_a_caller_that_waits() -> None:
    simulator = make_simulator(GAME, RandomLatency(seed=1))
    tickets = simulator.start([make_deal(f"e{i}", GAME, i) for i in range(50)])
    greedy = simulator.with_greedy_decoding().play([make_deal("g", GAME)])
    [requests] = simulator.ask([greedy[0].turns[0].request])
    assert isinstance(requests, Completion)
    finished: list[Ticket] = []
    while len(finished) < 50:
        finished += [ticket for ticket, _ in simulator.poll(wait_s=0.0)]
    assert sorted(finished) == tickets
    assert simulator.poll(wait_s=10.0) == [], "nothing is in flight, so there is nothing to wait for"


def test_a_cancelled_episode_never_finishes_and_its_requests_are_taken_back() -> None:
    engine = RandomLatency(seed=2)
    simulator = make_simulator(GAME, engine)
    first, second = simulator.start([make_deal("a", GAME), make_deal("b", GAME)])
    simulator.cancel([first])
    finished: list[Ticket] = []
    while not finished:
        finished = [ticket for ticket, _ in simulator.poll(wait_s=0.0)]
    assert finished == [second]
    assert engine._due == {}


def test_the_deadline_counts_from_when_somebody_looks_for_answers() -> None:
    engine = RandomLatency(seed=3)
    simulator = make_simulator(GAME, engine)
    simulator.router.deadline_s = 0.05
    simulator.start([make_deal("e", GAME)])
    time.sleep(0.1)
    simulator.poll(wait_s=0.0)
    engine._due = dict.fromkeys(engine._due, 10**9)
    with pytest.raises(TimeoutError, match=r"within 0\.05 s .*: actor: 1 \(of RandomLatency\)$"):
        list(iter(lambda: simulator.poll(wait_s=0.01), None))


def test_rewards_are_mapped_as_episodes_finish() -> None:
    simulator = make_simulator(GAME, FunctionEngine(random_move))
    [plain] = simulator.play([make_deal("e", GAME)])
    [doubled] = simulator.play([make_deal("e", GAME)], lambda trajectory: trajectory.with_scaled_rewards(2.0))
    assert doubled.returns == {agent: 2 * value for agent, value in plain.returns.items()}
    assert doubled.turns == plain.turns
    assert [len(group) for group in simulator.play_forks([Fork(doubled, 0, n=3)])] == [3]


def test_score_only_scores() -> None:
    simulator = make_simulator(GAME, FunctionEngine(random_move))
    [played] = simulator.play([make_deal("e", GAME)])
    with pytest.raises(ValueError, match="request 0 has no `forced` text; `ask` samples one"):
        simulator.score_forced_texts([played.turns[0].request])


def test_a_deal_may_say_which_policy_speaks_for_a_role() -> None:
    engines = {"actor": FunctionEngine(random_move), "actor@000007": FunctionEngine(lambda request: "mumble")}
    simulator = make_simulator(GAME, engines)
    usual, other = simulator.play(
        [
            Deal("usual", "g", 0, make_deal("e", GAME).seats),
            Deal("other", "g", 0, make_deal("e", GAME).seats, policies={"player": "actor@000007"}),
        ]
    )
    assert None not in {turn.action for turn in usual.turns}
    assert {turn.completion.text for turn in other.turns} == {"mumble"}
    assert {request.policy for request in engines["actor@000007"].requests.values()} == {"actor"}, (
        "the engine's own name"
    )
    assert {turn.request.policy for turn in other.turns} == {"actor@000007"}, "the turn tells who spoke"


FORK = """
import sys
import time
from pathlib import Path
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.engines.scripted import Random
from marl.core.graph import read_trajectories, write_trajectories
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.core.types import Fork
from marl.roles.answering import PlayerRole
casting = RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0)
simulator = RolloutSimulator(KuhnPokerConfig(), casting, {"actor": Random().build(None)})
forks = [Fork(past, 1, n=2) for past in read_trajectories(Path(sys.argv[1]))]
write_trajectories(Path(sys.argv[2]), [course for courses in simulator.play_forks(forks) for course in courses])
"""


def test_a_trajectory_is_forked_in_another_process(tmp_path: Path) -> None:
    from marl.engines.scripted import Random

    simulator = make_simulator(GAME, Random().build(None))
    played = simulator.play([make_deal(f"e{i}", GAME, i) for i in range(5)])
    here = [course for courses in simulator.play_forks([Fork(past, 1, n=2) for past in played]) for course in courses]
    write_trajectories(tmp_path / "played.jsonl.zst", played)
    command = [sys.executable, "-c", FORK, str(tmp_path / "played.jsonl.zst"), str(tmp_path / "forked.jsonl.zst")]
    subprocess.run(command, check=True, cwd=ROOT)
    assert list(read_trajectories(tmp_path / "forked.jsonl.zst")) == here
