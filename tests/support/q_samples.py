"""Requests, turns and scenarios for Q-networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl.core.config import Sampling
from marl.core.types import Advantage, EpisodeEnd, Message, Request, Sample, SpanFromEarlierTurn, TurnId
from marl.models.q_network import QNetworkModel, QNetworkSource
from marl.models.text_encoders import HashedWords
from marl.protocols import LearnerBuildArguments

ACTIONS = ("left", "right", "stay")


def network(**settings: Any) -> QNetworkSource:
    """The source of a small network."""
    small = {"actions": ACTIONS, "width": 8, "memory": 6, "encoder": HashedWords(buckets=64)}
    return QNetworkSource("actor", QNetworkModel(**(small | settings)))


def request(text: str, moves: Sequence[str] = ACTIONS, **more: Any) -> Request:
    """A question with listed moves."""
    options = {move: f"[{move}]" for move in moves}
    return Request("actor", (Message("user", text),), Sampling(), options=options, **more)


def heard(source: int, begin: int, end: int, kind: Any = "heard") -> SpanFromEarlierTurn:
    """A mark in the first message."""
    return SpanFromEarlierTurn(("e", source), kind, 0, begin, end)


def context(source: QNetworkSource, seed: int = 0) -> LearnerBuildArguments:
    """What a learner gets."""
    return LearnerBuildArguments("actor", source, 100, seed)


def sample(
    turn: TurnId, agent: str, nth: int, prompt: Sequence[int], action: int, end: EpisodeEnd = "no", rewards: Any = ()
) -> Sample:
    """A turn as the learner sees it."""
    return Sample(
        turn, agent, "player", "start", nth, end, tuple(prompt), (action,), (0.0,), Sampling(), (0, 0), 0.0,
        Advantage(0.0), rewards=tuple(rewards),
    )  # fmt: skip


def scenario(game: dict[str, Any], actions: Sequence[str], steps: int, seed: int = 0, **learner: Any) -> dict[str, Any]:
    """A run in which one network speaks for all agents of a game; import paths, as a plug-in would have them."""
    encoder = {"kind": "marl.models.text_encoders:HashedWords", "buckets": 256}
    model = {"kind": "marl.models.q_network:QNetworkModel", "actions": list(actions), "width": 32, "memory": 32}
    learning = {"kind": "marl.trainers.q_learning.settings:QLearning", "target_every": 50, "updates": 2} | learner
    return {
        "game": game,
        "seats": dict.fromkeys(("agent_0", "agent_1"), "player"),
        "roles": {"player": {"kind": "player", "policy": "actor"}},
        "policies": {
            "actor": {
                "model": model | {"encoder": encoder, "seed": seed},
                "engine": {"kind": "marl.engines.epsilon_greedy.settings:EpsilonGreedy"},
                "learner": learning,
            }
        },
        "credit": {"baseline": {"kind": "none"}},
        "schedule": {"steps": steps, "groups": 1, "group_size": 8, "threads": 1, "seed": seed},
        "evaluate": {"every": steps, "nashconv": True},
        "alarms": None,
    }
