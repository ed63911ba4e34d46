"""Training samples, which are made from credited turns and grouped by policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from marl.core.graph import Trajectory
from marl.core.types import Advantage, JudgedText, Reading, Reward, Sample, Turn, TurnId
from marl.credit_stage.stage import StepCredit
from marl.protocols import JudgingRoleConfig, RoleConfig

_NOTHING_EARNED = Advantage(0.0)


def collect_samples(
    trajectories: Sequence[Trajectory],
    step_credit: StepCredit,
    roles: Mapping[str, RoleConfig],
    readings: Mapping[TurnId, Reading],
    staleness: Callable[[Turn], int] = lambda _: 0,
    text_policies: Collection[str] = (),
) -> dict[str, list[Sample]]:
    """Return policy -> training samples, one for each turn with credit and tokens, in a role that learns.

    A turn that several forks inherited becomes one sample. The samples of `text_policies` need no tokens, and hold the
    texts of prompt, answer and scores.
    """
    batches: dict[str, list[Sample]] = {role.policy: [] for role in roles.values() if role.trainable}
    seen: set[TurnId] = set()
    for trajectory in trajectories:
        last_turns = {turn.agent: turn.id for turn in trajectory.turns}
        returns, rewards = trajectory.returns, _rewards_until_next_turn(trajectory)
        for turn in trajectory.turns:
            role, completion = roles[turn.role], turn.completion
            is_credited = turn.id in step_credit.credit
            reads_texts = role.policy in text_policies
            has_input = bool(completion.prompt_ids) or reads_texts
            is_trained = role.trainable and turn.role not in trajectory.deal.policies
            if not is_trained or not is_credited or not has_input or turn.id in seen:
                continue
            seen.add(turn.id)
            sample = Sample(
                turn.id,
                turn.agent,
                turn.role,
                trajectory.start,
                turn.nth,
                trajectory.end if last_turns[turn.agent] == turn.id else "no",
                completion.prompt_ids,
                completion.token_ids,
                completion.logprobs,
                turn.request.sampling,
                completion.versions,
                step_credit.earned.get(turn.id, _NOTHING_EARNED).value,
                step_credit.credit[turn.id],
                readings.get(turn.id),
                finish=completion.finish,
                imposed=completion.imposed,
                segments=completion.segments,
                targets=completion.targets,
                paid=returns.get(turn.agent, 0.0),
                rewards=tuple(rewards.get(turn.id, ())),
                staleness=staleness(turn),
                judged=_judged_text(trajectory, turn, roles) if reads_texts else None,
            )
            batches[role.policy].append(sample)
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


def _rewards_until_next_turn(trajectory: Trajectory) -> dict[TurnId, list[tuple[int, float]]]:
    """Return turn -> (index of the turn after which it is paid, reward), for rewards before its agent's next turn."""
    rewards_by_turn: dict[TurnId, list[Reward]] = {}
    for reward in trajectory.rewards:
        rewards_by_turn.setdefault(reward.turn, []).append(reward)
    latest: dict[str, TurnId] = {}
    following: dict[TurnId, list[tuple[int, float]]] = {}
    for index, turn in enumerate(trajectory.turns):
        latest[turn.agent] = turn.id
        for reward in rewards_by_turn.get(turn.id, ()):
            # A reward before the agent's first turn cannot follow from a decision of this agent.
            if reward.agent in latest:
                following.setdefault(latest[reward.agent], []).append((index, reward.value))
    return following
