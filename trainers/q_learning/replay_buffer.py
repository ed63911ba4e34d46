"""Replay buffer of recent episodes, sampled uniformly; its checkpoint state is plain tensors."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, get_args

import torch

from marl.core.types import EpisodeEnd
from marl.trainers.q_learning.transitions import JointEpisode, TurnWithFollowingRewards

_ENDS: tuple[EpisodeEnd, ...] = get_args(EpisodeEnd)
_INTEGER_TABLES = ("prompts", "turns", "lengths", "ids", "facts", "payments", "paid_at")
"""Names of the integer tensors in the buffer's state, in the order of their creation."""


class ReplayBuffer:
    """Buffer of the newest `capacity` episodes."""

    def __init__(self, capacity: int) -> None:
        self._episodes: deque[JointEpisode] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._episodes)

    def add(self, episodes: Iterable[JointEpisode]) -> None:
        """Add `episodes`; beyond the capacity, the oldest episodes are dropped."""
        self._episodes.extend(episodes)

    def sample_episodes(self, count: int, seed: int) -> list[JointEpisode]:
        """Return `count` different episodes, sampled uniformly."""
        return [self._episodes[index] for index in random.Random(seed).sample(range(len(self)), count)]

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes as a fixed number of tensors, however many episodes there are."""
        agents = sorted(set().union(*[episode.agents for episode in self._episodes]))
        integers: dict[str, list[int]] = {name: [] for name in _INTEGER_TABLES}
        rewards: list[float] = []
        for episode in self._episodes:
            integers["prompts"].append(len(episode.prompts))
            integers["turns"].append(len(episode.turns))
            integers["lengths"] += map(len, episode.prompts)
            integers["ids"] += chain.from_iterable(episode.prompts)
            for turn in episode.turns:
                integers["facts"] += (turn.index, agents.index(turn.agent), turn.turn_number, turn.prompt_index)
                integers["facts"] += (turn.decision_index, turn.action, _ENDS.index(turn.end))
                integers["payments"].append(len(turn.rewards))
                for paid_at, reward in turn.rewards:
                    integers["paid_at"].append(paid_at)
                    rewards.append(reward)
        tables = {name: torch.tensor(numbers, dtype=torch.int64) for name, numbers in integers.items()}
        return {"agents": agents, **tables, "paid": torch.tensor(rewards, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the episodes of a saved state, at most the newest `capacity` of them."""
        ids, lengths = iter(state["ids"].tolist()), iter(state["lengths"].tolist())
        payments = iter(list(zip(state["paid_at"].tolist(), state["paid"].tolist(), strict=True)))
        # `facts` has 7 numbers for each turn, episode after episode.
        played: list[TurnWithFollowingRewards] = []
        for facts, count in zip(state["facts"].view(-1, 7).tolist(), state["payments"].tolist(), strict=True):
            index, agent, nth, prompt, decision, action, end = facts
            rewards = tuple(islice(payments, count))
            played.append(
                TurnWithFollowingRewards(
                    index, state["agents"][agent], nth, prompt, decision, action, _ENDS[end], rewards
                )
            )
        turns = iter(played)
        self._episodes.clear()
        for prompt_count, turn_count in zip(state["prompts"].tolist(), state["turns"].tolist(), strict=True):
            prompts = tuple([tuple(islice(ids, length)) for length in islice(lengths, prompt_count)])
            self._episodes.append(JointEpisode(prompts, tuple(islice(turns, turn_count))))
