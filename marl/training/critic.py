"""Value estimates of the critics of a run's learners, in units of the game's rewards."""

from __future__ import annotations

from collections.abc import Sequence

from marl.core.types import Turn
from marl.scenario.schema import Scenario
from marl.training.placement import Learners

VALUES = frozenset({"values"})
"""Field of `Reading` that only learners with a critic can compute."""


class LearnerCritic:
    """Critic (protocol `Critic`) that asks the learner of each turn's policy for values.

    A learner's critic is trained on rewards times the credit rule's `scale`, so its values are divided by `scale`.
    """

    def __init__(self, scenario: Scenario, learners: Learners) -> None:
        self._scenario, self._learners = scenario, learners

    def __call__(self, turns: Sequence[Turn]) -> list[float]:
        """Return the value estimate of the prompt of each turn, in the order of `turns`.

        Raises:
            ValueError: if the learner of a turn's policy has no critic.
        """
        if not turns:
            return []
        critics: list[str] = []
        for name in self._learners:
            settings = self._scenario.policies[name].learner
            if settings and settings.computable_reading_fields >= VALUES:
                critics.append(name)
        indices: dict[str, list[int]] = {}
        for index, turn in enumerate(turns):
            policy = self._scenario.roles[turn.role].policy
            if policy not in critics:
                raise ValueError(
                    f"search: values: 'critic', but policy {policy!r} of role {turn.role!r} has no learner with a "
                    f"critic; policies with one: {', '.join(critics) or 'none'}; choices: values: rollouts"
                )
            indices.setdefault(policy, []).append(index)
        turns_by_policy: dict[str, list[Turn]] = {}
        ordered: list[int] = []
        for policy, policy_indices in indices.items():
            turns_by_policy[policy] = [turns[index] for index in policy_indices]
            ordered += policy_indices
        readings = self._learners.read(turns_by_policy, dict.fromkeys(turns_by_policy, VALUES))
        credit = self._scenario.credit
        values = [0.0] * len(turns)
        for index, reading in zip(ordered, readings, strict=True):
            assert reading.values, "a learner with a critic reads values of every turn with tokens"
            values[index] = reading.values[0] / credit.roles.get(turns[index].role, credit).scale
        return values
