"""Q-learning at work: episodes into the replay buffer, gradient steps on drawn ones, a target network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from marl.errors import NonFinite
from marl.models.q_network import save_network
from marl.protocols import LearnerContext
from marl.seeds import seed_of
from marl.types import Metrics, Reading, Sample, Turn
from trainers.optim.optimizer import restore, snapshot
from trainers.q_learning.episodes import JointEpisode, Transition, joint_episodes, joint_transitions, single_transitions
from trainers.q_learning.replay import ReplayBuffer
from trainers.q_learning.values import (
    MonotoneValue,
    ReplayBatch,
    SingleValue,
    SumValue,
    best_values,
    difference_loss,
    replay_batch,
    temporal_difference_targets,
)

if TYPE_CHECKING:
    from marl.models.q_layers import QNetwork
    from marl.models.q_network import QNetworkSource
    from trainers.settings.q_learning import QLearning


class JointNetwork(nn.Module):
    """Values of an agent's actions, and how those of all agents make that of a round."""

    def __init__(self, agent: QNetwork, joint: SingleValue | SumValue | MonotoneValue) -> None:
        super().__init__()
        self.agent, self.joint = agent, joint

    def action_values(self, batch: ReplayBatch) -> Tensor:
        """Return [N, A]."""
        return self.agent(batch.sequences)[batch.sequence_N, batch.place_N]

    def total(self, values_N: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M], the values of transitions from those of the turns."""
        return self.joint(batch.seats(values_N), batch)


class QLearner:
    """A Q-network that learns from replayed episodes."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: QLearning, context: LearnerContext) -> None:
        self.settings, self.context = settings, context
        self.source = cast("QNetworkSource", context.source)
        self.replay = ReplayBuffer(settings.replay)
        self.updates = self.steps = 0
        """Updates and gradient steps done."""
        self.changes = 0
        """Number of changes of what `state_dict` returns; raised before each."""
        self._seats: dict[str, int] = {}
        """Agent -> its place in the mixer; fixed when the first episodes are seen, as it decides the mixer's size."""
        self._make_networks()

    def _make_networks(self) -> None:
        """Make the networks for the agents in `_seats`, with the weights of the start."""
        self.online, self.target = self._network(), self._network()
        self._optimizer = torch.optim.Adam(self.online.parameters(), self.settings.lr)

    def _network(self) -> JointNetwork:
        settings, agent = self.settings, self.source.model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.context.seed, "mixer") >> 1)
            if settings.mixer == "qmix" and self._seats:
                return JointNetwork(agent, MonotoneValue(len(self._seats), self.source.settings, settings))
            return JointNetwork(agent, SumValue() if settings.mixer == "vdn" else SingleValue())

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return empty readings: nothing can be read of its turns."""
        return [Reading(()) for _ in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Add the episodes of `samples` to the replay buffer, and learn from drawn ones if there are enough.

        Raises:
            NonFinite: if a loss or gradient is not finite.
            ValueError: if an agent was not there before, for whom the mixer has no place.
        """
        self.changes += 1
        episodes = joint_episodes(samples)
        self._take_seats(episodes)
        self.replay.add(episodes)
        ready = len(self.replay) >= self.settings.batch
        steps = [self._step() for _ in range(self.settings.updates)] if ready else []
        self.updates += 1
        epsilon = self.settings.exploration.after(self.updates - 1)
        for network in (self.online.agent, self.target.agent):
            network.epsilon.fill_(epsilon)
        figures = {name: fmean(step[name] for step in steps) for name in (steps[0] if steps else ())}
        counts = {"samples": float(len(samples)), "replay": float(len(self.replay)), "epsilon": epsilon}
        return {"lr": self.settings.lr, **counts, **figures}

    def _take_seats(self, episodes: Sequence[JointEpisode]) -> None:
        agents = sorted({turn.agent for episode in episodes for turn in episode.turns})
        if self.settings.mixer == "none" or not agents:
            return
        if not self._seats:
            self._seats = {agent: seat for seat, agent in enumerate(agents)}
            self._make_networks()
        if new := [agent for agent in agents if agent not in self._seats]:
            raise ValueError(
                f"policy {self.context.policy!r}: mixer {self.settings.mixer!r} has no place for {new[0]!r}, who was "
                f"not there in its first update; it has {', '.join(self._seats)}"
            )

    def _split(self, episode: JointEpisode) -> list[Transition]:
        if self.settings.mixer == "none":
            return single_transitions(episode)
        return joint_transitions(episode, self._seats, self.settings.common)

    def _step(self) -> Metrics:
        """Take a gradient step on drawn episodes; return its figures."""
        settings, tokenizer = self.settings, self.online.agent.tokenizer
        drawn = self.replay.draw(settings.batch, seed_of(self.context.seed, "replay", self.steps))
        batch = replay_batch(drawn, self._split, tokenizer, len(self.source.settings.actions))
        values_NA = self.online.action_values(batch)
        values_M = self.online.total(values_NA.gather(1, batch.action_N[:, None])[:, 0], batch)
        targets_M = self._targets(batch, values_NA.detach())
        known_M = batch.known_M if settings.terminal else batch.known_M & (batch.following_M >= 0)
        loss = difference_loss(values_M, targets_M, known_M, settings.loss)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.online.parameters(), settings.max_norm)
        if not bool((loss.detach() + norm).isfinite()):
            raise NonFinite(self.context.policy, "gradient" if bool(loss.isfinite()) else "loss", ())
        self.changes += 1
        self._optimizer.step()
        self.steps += 1
        if self.steps % settings.target_every == 0:
            self._move_target()
        error_M = torch.where(known_M, values_M.detach() - targets_M, 0.0).abs()
        figures = (loss.detach(), norm, error_M.sum() / known_M.sum().clamp(min=1), values_M.detach().mean())
        return dict(zip(("loss", "grad_norm", "td_error", "value"), torch.stack(figures).tolist(), strict=True))

    @torch.no_grad()
    def _targets(self, batch: ReplayBatch, online_NA: Tensor) -> Tensor:
        if not bool((batch.following_M >= 0).any()):
            return batch.reward_M
        target_NA = self.target.action_values(batch)
        chooser_NA = online_NA if self.settings.double else target_NA
        next_N = best_values(target_NA, chooser_NA, batch.legal_NA)
        return temporal_difference_targets(batch, self.target.total(next_N, batch), self.settings.gamma)

    @torch.no_grad()
    def _move_target(self) -> None:
        for held, learnt in zip(self.target.parameters(), self.online.parameters(), strict=True):
            held.lerp_(learnt, self.settings.tau)

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Return the network's tensors and its epsilon. They are the learner's own: copy them before an update."""
        return iter(self.online.agent.state_dict().items())

    def save(self, folder: Path) -> None:
        """Write a folder for `model: {kind: q_network, path: FOLDER}`."""
        save_network(self.online.agent, self.source.settings, folder)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, except for its samples."""
        moments = self._optimizer.state_dict()["state"]
        return {
            "updates": self.updates,
            "steps": self.steps,
            "seats": list(self._seats),
            "online": snapshot(self.online.state_dict()),
            "target": snapshot(self.target.state_dict()),
            "optimizer": {str(place): snapshot(values) for place, values in moments.items()},
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ValueError: if its tensors do not fit these settings.
        """
        self._seats = {agent: seat for seat, agent in enumerate(state["seats"])}
        self._make_networks()
        restore(self.online.state_dict(), state["online"])
        restore(self.target.state_dict(), state["target"])
        moments = {int(place): snapshot(values) for place, values in state["optimizer"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.replay.load_state_dict(state["replay"])
        self.updates, self.steps = int(state["updates"]), int(state["steps"])
