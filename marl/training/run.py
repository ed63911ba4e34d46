"""A run: simulator, learners, credit stage and experience, which are built once from a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from marl.core.graph import Trajectory
from marl.core.seeds import episode_name_for_seeding, hash_to_seed
from marl.core.types import Deal, Metrics, Reading, Sample, Turn, TurnId
from marl.core.usage import RemoteUsage
from marl.credit_stage.stage import CreditStage, StepCredit
from marl.evaluation.trials import ScenarioInstructionTrials
from marl.protocols import (
    CountsStateChanges,
    Evidence,
    Experience,
    LearnsByTrials,
    ReportsTokenStatistics,
    Simulator,
    TokenLogprobsAndEntropies,
)
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.training.critic import LearnerCritic
from marl.training.game_mix import GameMix
from marl.training.placement import Learners
from marl.training.samples import collect_samples
from marl.training.staleness import StalenessTracker
from marl.training.update_schedule import UpdateSchedule

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/tokens | tokens | sampled or scored by credit itself in the step (counterfactuals, greedy episodes,
    `compare`)
"""


@dataclass
class Run:
    """Simulator, learners, credit stage and experience of a run; the training loop passes data from one to the next."""

    scenario: Scenario
    simulator: BaseSimulator
    learners: Learners
    credit_stage: CreditStage
    experience: Experience
    step: int = 0
    """Number of completed steps."""
    versions: dict[str, int] = field(init=False)
    """Policy -> number of completed steps when its latest weights were published."""
    update_schedule: UpdateSchedule = field(init=False)
    game_mix: GameMix = field(init=False)
    staleness: StalenessTracker = field(init=False)
    _unpublished: set[str] = field(init=False, default_factory=set)
    """Policies whose newest weights have not reached their engines."""

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.learners, 0)
        self.simulator.critic = LearnerCritic(self.scenario, self.learners)
        self.update_schedule = UpdateSchedule(self.scenario.policies)
        self.game_mix = GameMix(self.scenario)
        self.staleness = StalenessTracker(
            self.learners, self.scenario.roles, self.scenario.experience.max_steps_played_ahead
        )
        for policy, learner in self.learners.items():
            if isinstance(learner, LearnsByTrials):
                learner.trials = ScenarioInstructionTrials(
                    self.scenario, self.simulator, policy, partial(self._describe_other_players, policy)
                )
        self._seats = {game: view.seats for game, view in self.scenario.scenario_by_game().items()}

    def deals(self, step: int) -> list[Deal]:
        """Return the deals of `step`. Deals of a group share a seed, so that their episodes start alike."""
        schedule = self.scenario.schedule
        deals: list[Deal] = []
        # Deals share their seats, since a step has thousands of deals, and few ways to seat the roles.
        seats_by_rotation: dict[tuple[str, int], dict[str, str]] = {}
        for group, (game, rotation) in enumerate(self.game_mix(step)):
            seats = self._seats[game]
            shift = rotation % len(seats) if schedule.rotate_seats else 0
            rotated = seats_by_rotation.get((game, shift))
            if rotated is None:
                roles = list(seats.values())
                rotated = dict(zip(seats, roles[shift:] + roles[:shift], strict=True))
                seats_by_rotation[game, shift] = rotated
            # Steps count from 0 here only; names, metrics and files count from 1.
            name = f"{step + 1:06d}.{group}"
            seed = hash_to_seed(schedule.seed, "deal", episode_name_for_seeding(name))
            for member in range(schedule.group_size):
                deals.append(Deal(f"{name}.{member}", name, seed, rotated, game=game))
        return deals

    def deals_of_step_if_scheduled(self, step: int) -> list[Deal]:
        """Return the deals of `step`, or none after the run's last step, so that no experience plays beyond it."""
        return self.deals(step) if step < self.scenario.schedule.steps else []

    def read(
        self, trajectories: Sequence[Trajectory], credit_fields: frozenset[str] | None = None
    ) -> dict[TurnId, Reading]:
        """Return turn -> reading by the learner of its policy, for all turns whose reading credit or learner needs.

        Args:
            credit_fields: fields of `Reading` that the credit stage needs (default: the needs of the run's own stage).
        """
        needs = self.credit_stage.needed_reading_fields if credit_fields is None else credit_fields
        fields: dict[str, frozenset[str]] = {}
        for policy, learner in self.learners.items():
            settings = self.scenario.policies[policy].learner
            readable = settings.computable_reading_fields if settings else frozenset[str]()
            if policy_fields := (needs & readable) | learner.needed_reading_fields:
                fields[policy] = policy_fields
        if not fields:
            return {}
        # Keys are turn ids, so that a turn which several forks inherited is read once.
        sampled: dict[TurnId, Turn] = {}
        for turn in chain.from_iterable(trajectory.turns for trajectory in trajectories):
            if turn.completion.prompt_ids:
                sampled[turn.id] = turn
        # The order of `fields` decides the order of readings: policy by policy.
        turns: dict[str, list[Turn]] = {policy: [] for policy in fields}
        for turn in sampled.values():
            role = self.scenario.roles[turn.role]
            if role.trainable and role.policy in turns:
                turns[role.policy].append(turn)
        self.simulator.put_engines_to_sleep()
        ids = [turn.id for turn in chain.from_iterable(turns.values())]
        return dict(zip(ids, self.learners.read(turns, fields), strict=True))

    def evidence(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Evidence:
        """Return the evidence for the run's credit stage: trajectories, readings and the simulator."""
        return make_evidence(self.scenario, trajectories, readings, self.simulator)

    def assign_credit(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> StepCredit:
        """Return the credit of a step, with the metric `credit/tokens`: tokens that credit sampled or scored."""
        tokens_before = self.simulator.tokens["credit"]
        step_credit = self.credit_stage(self.evidence(trajectories, readings))
        step_credit.metrics["credit/tokens"] = float(self.simulator.tokens["credit"] - tokens_before)
        self.simulator.fork_names.restart_fork_numbering(trajectories)
        return step_credit

    def samples(
        self, trajectories: Sequence[Trajectory], step_credit: StepCredit, readings: Mapping[TurnId, Reading]
    ) -> dict[str, list[Sample]]:
        """Return policy -> training samples of the current step."""
        text_policies: list[str] = []
        for name, policy in self.scenario.policies.items():
            if policy.learner and not policy.learner.trains_weights:
                text_policies.append(name)
        return collect_samples(
            trajectories,
            step_credit,
            self.scenario.roles,
            readings,
            (lambda turn: self.staleness(turn, self.step)) if self.staleness.allowed else None,
            text_policies,
        )

    def update(
        self,
        samples: Mapping[str, Sequence[Sample]],
        token_figures: dict[TurnId, TokenLogprobsAndEntropies] | None = None,
    ) -> Metrics:
        """Update the policies in `samples` together, and return their metrics as `policy/NAME/...`.

        Args:
            samples: policy -> samples to learn from.
            token_figures: dict that learners fill with figures of single tokens, or None if the step is not recorded.
        """
        self.simulator.put_engines_to_sleep()
        for policy in samples:
            if isinstance(learner := self.learners[policy], ReportsTokenStatistics):
                learner.token_figures = token_figures
        metrics: Metrics = {}
        for policy, figures in self.learners.update(samples).items():
            metrics |= {f"policy/{policy}/{name}": value for name, value in figures.items()}
        return metrics

    def schedule_publication(self, policy: str, version: int) -> None:
        """Let `publish` load the weights of `policy`'s learner into the policy's engine, if the learner publishes."""
        learner = self.scenario.policies[policy].learner
        if learner is None or not learner.publishes:
            return
        self.versions[policy] = version
        self._unpublished.add(policy)

    def publish(self) -> None:
        """Load the weights of all policies with a scheduled publication into their engines, and play with the newest
        learned instructions.

        Raises:
            EngineError: if an engine fails. Its policy and those after it stay scheduled, for another call.
        """
        for policy in sorted(self._unpublished):
            version = self.versions[policy]
            self.simulator.load_weights(policy, self.learners[policy].publish(), version)
            self.staleness.record_published_version(policy, version)
            self._unpublished.remove(policy)
        for learner in self.learners.values():
            if isinstance(learner, LearnsByTrials):
                self.simulator.casting.instructions.update(learner.instructions)

    def _describe_other_players(self, policy: str) -> str:
        """Return the versions of all weights, and the instructions of all roles that learn them by other policies."""
        others: dict[str, str] = {}
        for name, learner in self.learners.items():
            if name != policy and isinstance(learner, LearnsByTrials):
                others |= learner.instructions
        trained = {name: version for name, version in self.versions.items() if version}
        return str(hash_to_seed(trained, sorted(others.items())))

    def save_policies(self, folder: Path) -> None:
        """Write one Hugging Face folder into `folder` for each policy with a learner."""
        for policy, learner in self.learners.items():
            learner.save(folder / policy)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": {policy: learner.state_dict() for policy, learner in self.learners.items()},
            "credit": self.credit_stage.state_dict(),
            "pace": self.update_schedule.state_dict(),
            "versions": dict(self.versions),
            # `spent` is not part of a snapshot, because restoring one refunds no calls to a paid endpoint.
            "spent": {policy: asdict(usage) for policy, usage in self.simulator.usage_by_policy.items()},
            **self._experience_and_simulator_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.credit_stage.load_state_dict(state["credit"])
        self.update_schedule.load_state_dict(state["pace"])
        self._restore_experience_and_simulator_state(state)
        self.simulator.restore_usage({policy: RemoteUsage(**usage) for policy, usage in state["spent"].items()})
        for policy, learner in self.learners.items():
            learner.load_state_dict(state["learners"][policy])
            self.schedule_publication(policy, state["versions"][policy])
        self.publish()

    def make_state_restorer(self) -> Callable[[], None]:
        """Return a function that restores the current state of the run, except the learners' state."""
        play = self._experience_and_simulator_state()
        # The credit stage may change the objects in its state dict later, so they are copied.
        credit = deepcopy(self.credit_stage.state_dict())
        restore_schedule = self.update_schedule.make_state_restorer()

        def restore() -> None:
            self._restore_experience_and_simulator_state(play)
            self.credit_stage.load_state_dict(credit)
            restore_schedule()

        return restore

    def learner_state_change_counts(self) -> dict[str, int] | None:
        """Return policy -> number of changes of its learner's state, or None if a learner counts no changes."""
        counts: dict[str, int] = {}
        for policy, learner in self.learners.items():
            if not isinstance(learner, CountsStateChanges):
                return None
            counts[policy] = learner.changes
        return counts

    def _experience_and_simulator_state(self) -> dict[str, Any]:
        """Return the state that play changes: the experience's state, and the simulator's counters."""
        return {
            "experience": self.experience.state_dict(),
            "tokens": dict(self.simulator.tokens),
            "dropped": self.simulator.drops.count,
            "unjudged": self.simulator.unverified,
        }

    def _restore_experience_and_simulator_state(self, state: Mapping[str, Any]) -> None:
        self.experience.load_state_dict(state["experience"])
        self.simulator.tokens.clear()
        self.simulator.tokens.update(state["tokens"])
        self.simulator.drops.count = state["dropped"]
        self.simulator.unverified = state["unjudged"]


def make_evidence(
    scenario: Scenario,
    trajectories: Sequence[Trajectory],
    readings: Mapping[TurnId, Reading],
    simulator: Simulator | None,
) -> Evidence:
    """Return the evidence for a credit stage: the trajectories of one step, their readings and a simulator."""
    # With several games the name is "": the credit stage sets it for each game.
    game = scenario.game.kind if scenario.game else ""
    return Evidence(trajectories, game, readings, simulator, scenario.rule_based_roles, scenario.schedule.seed)
