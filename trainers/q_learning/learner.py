"""Learner of Q-networks: a replay buffer of episodes, gradient steps on drawn episodes, a target network."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor, nn

from marl.core.errors import NonFiniteError
from marl.core.seeds import seed_of
from marl.core.types import Metrics, Reading, Sample, Turn
from marl.models.q_network import QNetworkSource, save_network
from marl.models.q_network_modules import QNetwork
from marl.protocols import LearnerContext
from marl.trainers.optim.optimizer import copy_into, cpu_copy
from marl.trainers.q_learning.options import QLearningOptions
from marl.trainers.q_learning.replay_buffer import ReplayBuffer
from marl.trainers.q_learning.td_learning import (
    IndependentValue,
    QmixValue,
    ReplayBatch,
    VdnValue,
    greedy_values,
    replay_batch,
    td_loss,
    td_targets,
)
from marl.trainers.q_learning.transitions import (
    JointEpisode,
    Transition,
    joint_episodes,
    joint_transitions,
    single_transitions,
)


class JointNetwork(nn.Module):
    """Per-agent Q-network, and the joint value that mixes the values of a round's turns."""

    def __init__(self, agent: QNetwork, joint: IndependentValue | VdnValue | QmixValue) -> None:
        super().__init__()
        self.agent, self.joint = agent, joint

    def action_values(self, batch: ReplayBatch) -> Tensor:
        """Return [N, A]."""
        return self.agent(batch.sequences)[batch.prompt_index_N, batch.decision_index_N]

    def total(self, values_N: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M], the values of transitions, from the values [N] of turns."""
        return self.joint(batch.seats(values_N), batch)


class QLearner:
    """A Q-network that learns from replayed episodes."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: QLearningOptions, context: LearnerContext) -> None:
        self.settings, self.context = settings, context
        self.source = cast(QNetworkSource, context.source)
        self.replay = ReplayBuffer(settings.replay)
        self.updates = self.steps = 0
        """Updates and gradient steps done."""
        self.changes = 0
        """Number of changes to the state that `state_dict` returns; incremented before each change."""
        self._seats: dict[str, int] = {}
        """Agent -> its seat in the mixer; fixed by the first episodes, because the number of seats sizes the mixer."""
        self._make_networks()

    def _make_networks(self) -> None:
        """Make the networks for the agents in `_seats`, with their initial weights."""
        self.online, self.target = self._network(), self._network()
        self._optimizer = torch.optim.Adam(self.online.parameters(), self.settings.lr)

    def _network(self) -> JointNetwork:
        settings, agent = self.settings, self.source.model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.context.seed, "mixer") >> 1)
            if settings.mixer == "qmix" and self._seats:
                return JointNetwork(agent, QmixValue(len(self._seats), self.source.settings, settings))
            return JointNetwork(agent, VdnValue() if settings.mixer == "vdn" else IndependentValue())

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return empty readings: a Q-network has no log-probabilities of tokens."""
        return [Reading(()) for _ in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Add the episodes of `samples` to the replay buffer, and learn from drawn ones if there are enough.

        Raises:
            NonFiniteError: if a loss or gradient is not finite.
            ValueError: if an agent that was absent in the first update has no seat in the mixer.
        """
        self.changes += 1
        episodes = joint_episodes(samples)
        agents = sorted({turn.agent for episode in episodes for turn in episode.turns})
        if self.settings.mixer != "none" and agents:
            if not self._seats:
                self._seats = {agent: seat for seat, agent in enumerate(agents)}
                self._make_networks()
            if new := [agent for agent in agents if agent not in self._seats]:
                raise ValueError(
                    f"policy {self.context.policy!r}: mixer {self.settings.mixer!r} has no place for {new[0]!r}, who "
                    f"was not there in its first update; it has {', '.join(self._seats)}"
                )
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

    def _step(self) -> Metrics:
        """Take a gradient step on drawn episodes; return its figures."""
        settings, tokenizer = self.settings, self.online.agent.tokenizer
        drawn: list[tuple[JointEpisode, list[Transition]]] = []
        for episode in self.replay.draw(settings.batch, seed_of(self.context.seed, "replay", self.steps)):
            if settings.mixer == "none":
                drawn.append((episode, single_transitions(episode)))
            else:
                drawn.append((episode, joint_transitions(episode, self._seats, settings.common)))
        batch = replay_batch(drawn, tokenizer, len(self.source.settings.actions))
        values_NA = self.online.action_values(batch)
        values_M = self.online.total(values_NA.gather(1, batch.action_N[:, None])[:, 0], batch)
        targets_M = self._targets(batch, values_NA.detach())
        has_target_M = batch.has_target_M if settings.terminal else batch.has_target_M & (batch.next_index_M >= 0)
        loss = td_loss(values_M, targets_M, has_target_M, settings.loss)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.online.parameters(), settings.max_norm)
        if not bool((loss.detach() + norm).isfinite()):
            raise NonFiniteError(self.context.policy, "gradient" if bool(loss.isfinite()) else "loss", ())
        self.changes += 1
        self._optimizer.step()
        self.steps += 1
        if self.steps % settings.target_every == 0:
            with torch.no_grad():
                for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
                    target.lerp_(online, settings.tau)
        error_M = torch.where(has_target_M, values_M.detach() - targets_M, 0.0).abs()
        mean_error = error_M.sum() / has_target_M.sum().clamp(min=1)
        figures = (loss.detach(), norm, mean_error, values_M.detach().mean())
        return dict(zip(("loss", "grad_norm", "td_error", "value"), torch.stack(figures).tolist(), strict=True))

    @torch.no_grad()
    def _targets(self, batch: ReplayBatch, online_NA: Tensor) -> Tensor:
        if not bool((batch.next_index_M >= 0).any()):
            return batch.reward_M
        target_NA = self.target.action_values(batch)
        chooser_NA = online_NA if self.settings.double else target_NA
        next_N = greedy_values(target_NA, chooser_NA, batch.legal_NA)
        return td_targets(batch, self.target.total(next_N, batch), self.settings.gamma)

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Return the network's tensors and its epsilon. They are the learner's own: copy them before an update."""
        return iter(self.online.agent.state_dict().items())

    def save(self, folder: Path) -> None:
        """Write a folder for `model: {kind: q_network, path: FOLDER}`."""
        save_network(self.online.agent, self.source.settings, folder)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the next update, except for its samples."""
        moments = self._optimizer.state_dict()["state"]
        return {
            "updates": self.updates,
            "steps": self.steps,
            "seats": list(self._seats),
            "online": cpu_copy(self.online.state_dict()),
            "target": cpu_copy(self.target.state_dict()),
            "optimizer": {str(index): cpu_copy(values) for index, values in moments.items()},
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ValueError: if its tensors do not fit these settings.
        """
        self._seats = {agent: seat for seat, agent in enumerate(state["seats"])}
        self._make_networks()
        copy_into(self.online.state_dict(), state["online"])
        copy_into(self.target.state_dict(), state["target"])
        moments = {int(index): cpu_copy(values) for index, values in state["optimizer"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.replay.load_state_dict(state["replay"])
        self.updates, self.steps = int(state["updates"]), int(state["steps"])
