"""Learner of Q-networks: a replay buffer of episodes, gradient steps on sampled episodes, a target network."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor, nn

from marl.core.errors import NonFiniteError
from marl.core.seeds import hash_to_seed
from marl.core.types import Metrics, Reading, Sample, Turn
from marl.models.q_network import QNetworkSource, save_q_network
from marl.models.q_network_modules import QNetwork
from marl.protocols import LearnerBuildArguments
from marl.trainers.learner import TooFewSamples
from marl.trainers.optim.optimizer import copy_tensors_with_equal_names, cpu_copy, scheduled_lr
from marl.trainers.q_learning.options import QLearningOptions
from marl.trainers.q_learning.replay_buffer import ReplayBuffer
from marl.trainers.q_learning.td_learning import (
    IndependentTransitionValue,
    QmixRoundValue,
    ReplayBatch,
    VdnRoundValue,
    collate_replay_batch,
    target_values_of_greedy_moves,
    td_loss,
    td_targets,
)
from marl.trainers.q_learning.transitions import (
    JointEpisode,
    Transition,
    joint_episodes,
    round_transitions,
    turn_transitions,
)

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/epsilon | share | moves that are drawn at random until the next update (`q_learning`)
policy/POLICY/replay | episodes | in the replay buffer (`q_learning`)
policy/POLICY/td_error | reward | mean absolute temporal difference of the drawn transitions (`q_learning`)
policy/POLICY/value | reward | mean value of the drawn transitions, with the moves that were made (`q_learning`)
"""


class JointNetwork(nn.Module):
    """Per-agent Q-network, and the mixer that combines the values of a round's actions into Q_tot."""

    def __init__(self, agent: QNetwork, joint: IndependentTransitionValue | VdnRoundValue | QmixRoundValue) -> None:
        super().__init__()
        self.agent, self.joint = agent, joint

    def action_values(self, batch: ReplayBatch) -> Tensor:
        """Return [N, A], the value of each action at each turn."""
        return self.agent(batch.sequences)[batch.prompt_index_N, batch.decision_index_N]

    def joint_values_of_transitions(self, values_N: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M], the joint values of transitions, from the values [N] of their turns' actions."""
        return self.joint(batch.values_by_seat(values_N), batch)


class QLearner:
    """Learner of a Q-network by temporal differences on replayed episodes."""

    needed_reading_fields: frozenset[str] = frozenset()

    def __init__(self, settings: QLearningOptions, context: LearnerBuildArguments) -> None:
        self.settings, self.context = settings, context
        self.source = cast(QNetworkSource, context.source)
        self.replay = ReplayBuffer(settings.replay)
        self.updates = self.steps = 0
        """Number of updates, and of gradient steps, so far."""
        self.changes = 0
        """Number of changes of the learner's state; incremented before each change."""
        self._seats: dict[str, int] = {agent: index for index, agent in enumerate(context.agents)}
        """Agent -> its index in the mixer's input; fixed by the scenario or else by the first update, because the
        mixer's size depends on it."""
        self._create_networks_and_optimizer()

    def _create_networks_and_optimizer(self) -> None:
        """Create online network, target network and optimizer for the agents in `_seats`, with initial weights."""
        self.online, self.target = self._initial_joint_network(), self._initial_joint_network()
        self._optimizer = torch.optim.Adam(self.online.parameters(), self.settings.lr)

    def _initial_joint_network(self) -> JointNetwork:
        """Return a network with the initial weights; equal at each call with the same seats."""
        settings, agent = self.settings, self.source.model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash_to_seed(self.context.seed, "mixer") >> 1)
            if settings.mixer == "qmix" and self._seats:
                return JointNetwork(agent, QmixRoundValue(len(self._seats), self.source.settings, settings))
            return JointNetwork(agent, VdnRoundValue() if settings.mixer == "vdn" else IndependentTransitionValue())

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        """Return an empty reading for each turn: a Q-network has no log-probabilities of tokens."""
        return [Reading(()) for _ in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Add the episodes of `samples` to the replay buffer; take gradient steps if it holds enough episodes.

        Raises:
            NonFiniteError: if a loss or gradient is not finite.
            ValueError: if an agent has no seat in the mixer: without `context.agents`, an agent that was absent in the
                first update.
        """
        self.changes += 1
        episodes = joint_episodes(samples)
        agents = sorted(set().union(*[episode.agents for episode in episodes]))
        if self.settings.mixer != "none" and agents:
            if not self._seats:
                self._seats = dict(zip(agents, range(len(agents)), strict=True))
                self._create_networks_and_optimizer()
            if new := sorted(set(agents) - self._seats.keys()):
                raise ValueError(
                    f"policy {self.context.policy!r}: mixer {self.settings.mixer!r} has no place for {new[0]!r}, who "
                    f"was not there in its first update; it has {', '.join(self._seats)}"
                )
        self.replay.add(episodes)
        if not self.updates:
            self._warn_of_too_few_episodes(len(episodes))
        ready = len(self.replay) >= self.settings.batch
        lr = scheduled_lr(self.settings, self.updates, self.context.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        steps = [self._gradient_step() for _ in range(self.settings.updates)] if ready else []
        self.updates += 1
        epsilon = self.settings.exploration.exploration_rate_after(self.updates - 1)
        for network in (self.online.agent, self.target.agent):
            network.epsilon.fill_(epsilon)
        figures = {name: fmean(step[name] for step in steps) for name in (steps[0] if steps else ())}
        counts = {"samples": float(len(samples)), "replay": float(len(self.replay)), "epsilon": epsilon}
        return {"lr": lr, **counts, **figures}

    def _warn_of_too_few_episodes(self, count: int) -> None:
        """Warn if all updates of the run, with `count` episodes each, do not fill a batch."""
        expected, batch = count * self.context.steps, self.settings.batch
        if 0 < expected < batch:
            warnings.warn(
                f"policy {self.context.policy!r}: learner.batch: {batch} episodes, but at {count} an update this run "
                f"has only {expected}, so nothing is learned; choose a smaller batch or more steps",
                TooFewSamples,
                stacklevel=3,
            )

    def _gradient_step(self) -> Metrics:
        """Take one gradient step on episodes sampled from the replay buffer; return its metrics."""
        settings, tokenizer = self.settings, self.online.agent.tokenizer
        drawn: list[tuple[JointEpisode, list[Transition]]] = []
        for episode in self.replay.sample_episodes(
            settings.batch, hash_to_seed(self.context.seed, "replay", self.steps)
        ):
            if settings.mixer == "none":
                drawn.append((episode, turn_transitions(episode)))
            else:
                drawn.append((episode, round_transitions(episode, self._seats, settings.common)))
        batch = collate_replay_batch(drawn, tokenizer, len(self.source.settings.actions))
        values_NA = self.online.action_values(batch)
        values_M = self.online.joint_values_of_transitions(values_NA.gather(1, batch.action_N[:, None])[:, 0], batch)
        targets_M = batch.reward_M
        if bool((batch.next_index_M >= 0).any()):
            with torch.no_grad():
                target_NA = self.target.action_values(batch)
                ranking_NA = values_NA if settings.double else target_NA
                next_N = target_values_of_greedy_moves(target_NA, ranking_NA, batch.legal_NA)
                targets_M = td_targets(batch, self.target.joint_values_of_transitions(next_N, batch), settings.gamma)
        has_target_M = batch.has_target_M if settings.terminal else batch.has_target_M & (batch.next_index_M >= 0)
        loss = td_loss(values_M, targets_M, has_target_M, settings)
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

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the online network's tensors and its epsilon by name. Copy them before the next update changes them."""
        return iter(self.online.agent.state_dict().items())

    def save(self, folder: Path) -> None:
        """Write the online network as a folder that `model: {kind: q_network, path: FOLDER}` loads."""
        save_q_network(self.online.agent, self.source.settings, folder)

    def state_dict(self) -> dict[str, Any]:
        """Return the state on which the next update depends, apart from its samples."""
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
        """Restore a state returned by `state_dict`.

        Raises:
            ValueError: if its tensors do not fit these settings.
        """
        self._seats = dict(zip(state["seats"], range(len(state["seats"])), strict=True))
        self._create_networks_and_optimizer()
        copy_tensors_with_equal_names(self.online.state_dict(), state["online"])
        copy_tensors_with_equal_names(self.target.state_dict(), state["target"])
        moments = {int(index): cpu_copy(values) for index, values in state["optimizer"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.replay.load_state_dict(state["replay"])
        self.updates, self.steps = int(state["updates"]), int(state["steps"])
