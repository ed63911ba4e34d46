"""The parts of a run, built once from its scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Metrics, Reading, Sample, TokenFigures, Turn, TurnId, Usage
from marl.credit_stage.records import CreditRecord, with_token_statistics
from marl.credit_stage.stage import CreditStage, StepCredit
from marl.protocols import CountsChanges, Evidence, Experience, ReportsTokens, Simulator, TracksPolicyUpdates
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.training.critic import LearnerCritic
from marl.training.game_mix import GameMix
from marl.training.placement import Learners
from marl.training.samples import collect_samples
from marl.training.staleness import Staleness
from marl.training.update_schedule import UpdateSchedule


@dataclass
class Run:
    """The parts of a run. `marl.training.loop` passes data through them in one direction."""

    scenario: Scenario
    simulator: BaseSimulator
    learners: Learners
    credit_stage: CreditStage
    experience: Experience
    step: int = 0
    """Number of completed steps."""
    versions: dict[str, int] = field(init=False)
    """Policy -> step of its latest published weights."""
    update_schedule: UpdateSchedule = field(init=False)
    game_mix: GameMix = field(init=False)
    staleness: Staleness = field(init=False)

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.learners, 0)
        self.simulator.critic = LearnerCritic(self.scenario, self.learners)
        self.update_schedule = UpdateSchedule(self.scenario.policies)
        self.game_mix = GameMix(self.scenario)
        self.staleness = Staleness(self.learners, self.scenario.roles, self.scenario.experience.max_steps_ahead)
        self._seats = {game: view.seats for game, view in self.scenario.by_game().items()}

    def deals(self, step: int) -> list[Deal]:
        """Return the deals of a step. The deals of a group share a seed, so that their episodes start alike."""
        schedule = self.scenario.schedule
        deals: list[Deal] = []
        for group, (game, rotation) in enumerate(self.game_mix(step)):
            seats = self._seats[game]
            roles = list(seats.values())
            shift = rotation % len(seats) if schedule.rotate_seats else 0
            rotated = dict(zip(seats, roles[shift:] + roles[:shift], strict=True))
            name = f"{step:06d}.{group}"
            seed = seed_of(schedule.seed, "deal", name)
            deals += [Deal(f"{name}.{i}", name, seed, rotated, game=game) for i in range(schedule.group_size)]
        return deals

    def deals_ahead(self, step: int) -> list[Deal]:
        """Return the deals of a step, or none after the run's last step: no experience need play them ahead."""
        return self.deals(step) if step < self.scenario.schedule.steps else []

    def read(
        self, trajectories: Sequence[Trajectory], credit_needs: frozenset[str] | None = None
    ) -> dict[TurnId, Reading]:
        """Return turn -> reading by its policy's learner, for every turn that credit or the learner needs one of.

        Args:
            credit_needs: fields of `Reading` that the credit stage needs (default: the needs of the run's own stage).
        """
        needs = self.credit_stage.needs if credit_needs is None else credit_needs
        fields: dict[str, frozenset[str]] = {}
        for policy, learner in self.learners.items():
            settings = self.scenario.policies[policy].learner
            readable = settings.readable if settings else frozenset[str]()
            if policy_fields := (needs & readable) | learner.needs:
                fields[policy] = policy_fields
        if not fields:
            return {}
        # Keyed by id: a turn that several forks inherited is read once.
        sampled: dict[TurnId, Turn] = {}
        for trajectory in trajectories:
            sampled |= {turn.id: turn for turn in trajectory.turns if turn.completion.prompt_ids}
        turns: dict[str, list[Turn]] = {policy: [] for policy in fields}
        for turn in sampled.values():
            role = self.scenario.roles[turn.role]
            if role.trainable and role.policy in turns:
                turns[role.policy].append(turn)
        self.simulator.sleep()
        ids = [turn.id for policy_turns in turns.values() for turn in policy_turns]
        return dict(zip(ids, self.learners.read(turns, fields), strict=True))

    def evidence(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Evidence:
        """Return the input of the run's credit stage."""
        return make_evidence(self.scenario, trajectories, readings, self.simulator)

    def assign_credit(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> StepCredit:
        """Return the credit of a step. Its metric `credit/tokens` counts the tokens that credit sampled or scored."""
        tokens_before = self.simulator.tokens["credit"]
        step_credit = self.credit_stage(self.evidence(trajectories, readings))
        step_credit.metrics["credit/tokens"] = float(self.simulator.tokens["credit"] - tokens_before)
        self.simulator.forget_branches(trajectories)
        return step_credit

    def samples(
        self, trajectories: Sequence[Trajectory], step_credit: StepCredit, readings: Mapping[TurnId, Reading]
    ) -> dict[str, list[Sample]]:
        """Return policy -> samples of this step."""
        return collect_samples(
            trajectories, step_credit, self.scenario.roles, readings, lambda turn: self.staleness(turn, self.step)
        )

    def step_metrics(self, trajectories: Sequence[Trajectory]) -> Metrics:
        """Return the step's metrics of experience, staleness and engines. The call ends the simulator's step."""
        turns = (turn for trajectory in trajectories for turn in trajectory.turns)
        return self.experience.metrics() | self.staleness.metrics(turns, self.step) | self.simulator.end_step()

    def credit_record(
        self, step_credit: StepCredit, trajectories: Sequence[Trajectory], tokens: Mapping[TurnId, TokenFigures]
    ) -> CreditRecord:
        """Return the credit record of a step, with the update's figures of single tokens in `tokens`."""
        policy_of = {name: role.policy for name, role in self.scenario.roles.items()}
        return with_token_statistics(step_credit.to_record(trajectories, policy_of), trajectories, tokens)

    def update(
        self, samples: Mapping[str, Sequence[Sample]], tokens: dict[TurnId, TokenFigures] | None = None
    ) -> Metrics:
        """Update the policies in `samples` together, and return their metrics as `policy/NAME/...`.

        Args:
            samples: policy -> samples to learn from.
            tokens: dict to fill with figures of the samples' tokens, or None if they are not recorded.
        """
        self.simulator.sleep()
        for policy in samples:
            if isinstance(learner := self.learners[policy], ReportsTokens):
                learner.token_figures = tokens
        metrics: Metrics = {}
        for policy, figures in self.learners.update(samples).items():
            metrics |= {f"policy/{policy}/{name}": value for name, value in figures.items()}
        return metrics

    def publish(self, policy: str, version: int) -> None:
        """Load a learner's weights into the engine of its policy, unless the learner publishes none."""
        learner = self.scenario.policies[policy].learner
        if learner is None or not learner.publishes:
            return
        self.versions[policy] = version
        self.staleness.record_publish(policy, version)
        self.simulator.load_weights(policy, self.learners[policy].publish(), version)

    def publish_all(self, policies: Collection[str], version: int) -> None:
        """Publish the weights of updated policies at the end of a step, and inform the experience."""
        for policy in policies:
            self.publish(policy, version)
        if isinstance(self.experience, TracksPolicyUpdates):
            self.experience.policies_updated(policies, version)

    def save_policies(self, folder: Path) -> None:
        """Write one Hugging Face folder for each policy with a learner."""
        for policy, learner in self.learners.items():
            learner.save(folder / policy)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": {policy: learner.state_dict() for policy, learner in self.learners.items()},
            "credit": self.credit_stage.state_dict(),
            "pace": self.update_schedule.state_dict(),
            "versions": dict(self.versions),
            # Usage is no part of a snapshot: restoring one does not refund calls to a paid endpoint.
            "spent": {policy: asdict(usage) for policy, usage in self.simulator.usage.items()},
            **self._play_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.credit_stage.load_state_dict(state["credit"])
        self.update_schedule.load_state_dict(state["pace"])
        self._restore_play_state(state)
        self.simulator.restore_usage({policy: Usage(**usage) for policy, usage in state["spent"].items()})
        for policy, learner in self.learners.items():
            learner.load_state_dict(state["learners"][policy])
            self.publish(policy, state["versions"][policy])

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the present state of the run, except for the learners."""
        play = self._play_state()
        # The state dict may share objects with the stage; the copy keeps later steps from changing the snapshot.
        credit = deepcopy(self.credit_stage.state_dict())
        restore_schedule = self.update_schedule.snapshot()

        def restore() -> None:
            self._restore_play_state(play)
            self.credit_stage.load_state_dict(credit)
            restore_schedule()

        return restore

    @property
    def update_counts(self) -> dict[str, int] | None:
        """Return policy -> number of changes of its learner's state, or None if some learner does not count them."""
        counts: dict[str, int] = {}
        for policy, learner in self.learners.items():
            if not isinstance(learner, CountsChanges):
                return None
            counts[policy] = learner.changes
        return counts

    def _play_state(self) -> dict[str, Any]:
        """Return the part of the state that play changes: the experience and the simulator's counters."""
        return {
            "experience": self.experience.state_dict(),
            "tokens": dict(self.simulator.tokens),
            "dropped": self.simulator.dropped,
            "unjudged": self.simulator.unverified,
        }

    def _restore_play_state(self, state: Mapping[str, Any]) -> None:
        self.experience.load_state_dict(state["experience"])
        self.simulator.tokens.clear()
        self.simulator.tokens.update(state["tokens"])
        self.simulator.dropped = state["dropped"]
        self.simulator.unverified = state["unjudged"]


def make_evidence(
    scenario: Scenario,
    trajectories: Sequence[Trajectory],
    readings: Mapping[TurnId, Reading],
    simulator: Simulator | None,
) -> Evidence:
    """Return the input of a credit stage for the trajectories of one step."""
    # With several games the credit stage handles one game at a time, and fills in the game's name itself.
    game = scenario.game.kind if scenario.game else ""
    return Evidence(trajectories, game, readings, simulator, scenario.rule_roles, scenario.schedule.seed)
