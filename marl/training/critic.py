"""The critic of a run: values of its learners, in the game's rewards."""

from __future__ import annotations

from collections.abc import Sequence

from marl.protocols import LearnerConfig
from marl.scenario.schema import Scenario
from marl.training.placement import Learners
from marl.types import Turn

VALUES = frozenset({"values"})


class LearnersCritic:
    """The `Critic` of learners, which read values as they are trained: of rewards times credit's `scale`."""

    def __init__(self, scenario: Scenario, learners: Learners) -> None:
        self._scenario, self._learners = scenario, learners

    def __call__(self, turns: Sequence[Turn]) -> list[float]:
        places: dict[str, list[int]] = {}
        for place, turn in enumerate(turns):
            places.setdefault(self._policy_of(turn), []).append(place)
        turns_of = {policy: [turns[place] for place in known] for policy, known in places.items()}
        readings = self._learners.read(turns_of, dict.fromkeys(turns_of, VALUES)) if turns_of else []
        ordered = [place for known in places.values() for place in known]
        values = [0.0] * len(turns)
        for place, reading in zip(ordered, readings, strict=True):
            assert reading.values, "a learner with a critic reads values of every turn with tokens"
            values[place] = reading.values[0] / self._scale_of(turns[place])
        return values

    def _policy_of(self, turn: Turn) -> str:
        """Return the policy of a turn.

        Raises:
            ValueError: if its learner has no critic.
        """
        policies, policy = self._scenario.policies, self._scenario.roles[turn.role].policy
        critics = [name for name in self._learners if (settings := policies[name].learner) and _has_critic(settings)]
        if policy not in critics:
            raise ValueError(
                f"search: values: 'critic', but policy {policy!r} of role {turn.role!r} has no learner with a critic; "
                f"policies with one: {', '.join(critics) or 'none'}; choices: values: rollouts"
            )
        return policy

    def _scale_of(self, turn: Turn) -> float:
        """Return the factor by which credit multiplied the rewards that a turn's critic learnt from."""
        credit = self._scenario.credit
        return credit.roles[turn.role].scale if turn.role in credit.roles else credit.scale


def _has_critic(settings: LearnerConfig) -> bool:
    return settings.readable >= VALUES
