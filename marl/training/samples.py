"""Turn judged trajectories into samples, by policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from marl.graph import Trajectory
from marl.judging.judge import Judgement
from marl.protocols import RoleConfig
from marl.types import Advantage, End, Reading, Reward, Sample, Turn, TurnId

_NOT_JUDGED = Advantage(0.0)
_GOES_ON: End = "no"


def collect(
    trajectories: Sequence[Trajectory],
    judgement: Judgement,
    roles: Mapping[str, RoleConfig],
    readings: Mapping[TurnId, Reading],
    staleness: Callable[[Turn], int] = lambda _: 0,
) -> dict[str, list[Sample]]:
    """Return policy -> its samples.

    Left out are turns of frozen roles, turns that were not judged, and turns without a model's tokens. A turn that
    several forks inherited counts once.
    """
    batches: dict[str, list[Sample]] = {role.policy: [] for role in roles.values() if role.trainable}
    seen: set[TurnId] = set()
    for trajectory in trajectories:
        last, paid = {turn.agent: turn.id for turn in trajectory.turns}, trajectory.returns
        rewards = _rewards(trajectory)
        for turn in trajectory.turns:
            role, judged = roles[turn.role], turn.id in judgement.credit
            if not role.trainable or not judged or not turn.completion.prompt_ids or turn.id in seen:
                continue
            seen.add(turn.id)
            end = trajectory.end if last[turn.agent] == turn.id else _GOES_ON
            sample = _sample(turn, trajectory.start, end, judgement, readings.get(turn.id))
            total, following = paid.get(turn.agent, 0.0), tuple(rewards.get(turn.id, ()))
            sample = replace(sample, paid=total, rewards=following, staleness=staleness(turn))
            batches[role.policy].append(sample)
    return batches


def _rewards(trajectory: Trajectory) -> dict[TurnId, list[tuple[int, float]]]:
    """Return turn -> what its agent was paid from then until its next turn, as in `Sample.rewards`."""
    payments: dict[TurnId, list[Reward]] = {}
    for reward in trajectory.rewards:
        payments.setdefault(reward.turn, []).append(reward)
    latest: dict[str, TurnId] = {}
    rewards: dict[TurnId, list[tuple[int, float]]] = {}
    for index, turn in enumerate(trajectory.turns):
        latest[turn.agent] = turn.id
        for reward in payments.get(turn.id, ()):
            if reward.agent in latest:
                rewards.setdefault(latest[reward.agent], []).append((index, reward.value))
    return rewards


def _sample(turn: Turn, start: str, end: End, judgement: Judgement, reading: Reading | None) -> Sample:
    completion = turn.completion
    return Sample(
        turn.id,
        turn.agent,
        turn.role,
        start,
        turn.nth,
        end,
        completion.prompt_ids,
        completion.token_ids,
        completion.logprobs,
        turn.request.sampling,
        completion.versions,
        judgement.earned.get(turn.id, _NOT_JUDGED).value,
        judgement.credit[turn.id],
        reading,
        finish=completion.finish,
        imposed=completion.imposed,
        targets=completion.targets,
    )
