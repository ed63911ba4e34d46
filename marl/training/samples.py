"""Training samples, which are made from credited turns and grouped by policy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence

from marl.core.graph import Trajectory
from marl.core.types import Advantage, JudgedText, Reading, Sample, Turn, TurnId
from marl.credit_stage.stage import StepCredit
from marl.protocols import JudgingRoleConfig, RoleConfig

_NOTHING_EARNED = Advantage(0.0)


def collect_samples(
    trajectories: Sequence[Trajectory],
    step_credit: StepCredit,
    roles: Mapping[str, RoleConfig],
    readings: Mapping[TurnId, Reading],
    staleness: Callable[[Turn], int] | None = None,
    text_policies: Collection[str] = (),
) -> dict[str, list[Sample]]:
    """Return policy -> training samples, one for each turn with credit and tokens, in a role that learns.

    A turn that several forks inherited becomes one sample. The samples of `text_policies` need no tokens, and hold the
    texts of prompt, answer and scores. `staleness` returns that of a turn (default: no turn is stale).
    """
    policy_of_role = {name: role.policy for name, role in roles.items() if role.trainable}
    batches: dict[str, list[Sample]] = {policy: [] for policy in policy_of_role.values()}
    trainable = set(policy_of_role)
    # A turn leaves this dictionary as soon as it is a sample, so that no turn becomes two.
    uncollected = dict(step_credit.credit)
    for trajectory in trajectories:
        replaced = trajectory.deal.policies
        trained = trainable.difference(replaced) if replaced else trainable
        turn_indices = _turn_indices_by_agent(trajectory)
        returns, rewards = trajectory.returns, _rewards_until_next_turn(trajectory, turn_indices)
        for index, turn in enumerate(trajectory.turns):
            if turn.role not in trained:
                continue
            completion, policy = turn.completion, policy_of_role[turn.role]
            reads_texts = policy in text_policies
            if not completion.prompt_ids and not reads_texts:
                continue
            advantage = uncollected.pop(turn.id, None)
            if advantage is None:
                continue
            # Positional arguments, in the order of the fields: keywords would make this call a third slower.
            sample = Sample(
                turn.id,
                turn.agent,
                turn.role,
                trajectory.start,
                turn.nth,
                trajectory.end if turn_indices[turn.agent][-1] == index else "no",
                completion.prompt_ids,
                completion.token_ids,
                completion.logprobs,
                turn.request.sampling,
                completion.versions,
                step_credit.earned.get(turn.id, _NOTHING_EARNED).value,
                advantage,
                readings.get(turn.id),
                returns.get(turn.agent, 0.0),
                completion.finish,
                completion.imposed,
                completion.segments,
                tuple(rewards[index]) if index in rewards else (),
                completion.targets,
                staleness(turn) if staleness else 0,
                _judged_text(trajectory, turn, roles) if reads_texts else None,
            )
            batches[policy].append(sample)
    return batches


def _judged_text(trajectory: Trajectory, turn: Turn, roles: Mapping[str, RoleConfig]) -> JudgedText:
    """Return prompt and answer of `turn` with its agent's rewards, and with the verdicts that read the turn."""
    scores: list[str] = []
    for reward in trajectory.rewards:
        if reward.agent == turn.agent:
            scores.append(f"{reward.name}: {reward.value:g}" + (f" ({reward.cause})" if reward.cause else ""))
    readers = set(trajectory.graph.succ[turn.id])
    for reader in trajectory.turns:
        role = roles.get(reader.role)
        if reader.id in readers and role and (role.hears_thoughts or isinstance(role, JudgingRoleConfig)):
            scores.append(f"{reader.role}: {reader.completion.text}")
    return JudgedText(turn.request.messages, turn.completion.text, tuple(scores))


def _turn_indices_by_agent(trajectory: Trajectory) -> dict[str, list[int]]:
    """Return agent -> indices in the episode of its turns, in playing order."""
    indices: dict[str, list[int]] = {}
    for index, turn in enumerate(trajectory.turns):
        indices.setdefault(turn.agent, []).append(index)
    return indices


def _rewards_until_next_turn(
    trajectory: Trajectory, turn_indices: Mapping[str, Sequence[int]]
) -> dict[int, list[tuple[int, float]]]:
    """Return index of a turn -> (index of the turn after which it is paid, reward), for rewards before its agent's next
    turn.

    `turn_indices` maps an agent to the indices of its turns.
    """
    following: dict[int, list[tuple[int, float]]] = {}
    for reward in trajectory.rewards:
        _, paid_after = reward.turn
        indices = turn_indices.get(reward.agent, ())
        earlier = bisect_right(indices, paid_after)
        # A reward before the agent's first turn cannot follow from a decision of this agent.
        if earlier:
            following.setdefault(indices[earlier - 1], []).append((paid_after, reward.value))
    return following
