"""The working parts of a run, built once from its scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from marl.graph import Trajectory
from marl.judging.by_game import GamesJudge
from marl.judging.judge import Judgement
from marl.judging.records import StepRecord, with_token_figures
from marl.protocols import CountsChanges, Evidence, Experience, FollowsLearning, ReportsTokens, Simulator
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.training.critic import LearnersCritic
from marl.training.mix import GameMix
from marl.training.placement import Learners
from marl.training.samples import collect
from marl.training.staleness import Staleness
from marl.training.update_schedule import UpdateSchedule
from marl.types import Deal, Metrics, Reading, Sample, TokenFigures, Turn, TurnId, Usage


@dataclass
class Run:
    """The working parts of a run. Data travels through them one way, see `marl.training.loop`."""

    scenario: Scenario
    simulator: BaseSimulator
    learners: Learners
    judge: GamesJudge
    experience: Experience
    step: int = 0
    """Steps done."""
    versions: dict[str, int] = field(init=False)
    update_schedule: UpdateSchedule = field(init=False)
    mix: GameMix = field(init=False)
    staleness: Staleness = field(init=False)

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.learners, 0)
        self.simulator.critic = LearnersCritic(self.scenario, self.learners)
        self.update_schedule = UpdateSchedule(self.scenario.policies)
        self.mix = GameMix(self.scenario)
        self.staleness = Staleness(self.learners, self.scenario.roles, self.scenario.experience.ahead)
        self._seats_of = {name: view.seats for name, view in self.scenario.by_game().items()}

    def deals(self, step: int) -> list[Deal]:
        """Return the starts of a step: groups share a seed, so their episodes begin alike."""
        schedule = self.scenario.schedule
        deals = []
        for group, (game, turn) in enumerate(self.mix(step)):
            name = f"{step:06d}.{group}"
            seed, seats = seed_of(schedule.seed, "deal", name), self._seats(game, turn)
            deals += [Deal(f"{name}.{i}", name, seed, seats, game=game) for i in range(schedule.group_size)]
        return deals

    def planned(self, step: int) -> list[Deal]:
        """Return the starts of a step; none after the run's last one, which nobody need play ahead."""
        return self.deals(step) if step < self.scenario.schedule.steps else []

    def _seats(self, game: str, rotation: int) -> dict[str, str]:
        seats = self._seats_of[game]
        shift = rotation % len(seats) if self.scenario.schedule.rotate_seats else 0
        roles = list(seats.values())
        return dict(zip(seats, roles[shift:] + roles[:shift], strict=True))

    def read(self, trajectories: Sequence[Trajectory]) -> dict[TurnId, Reading]:
        """Return one reading of each learner's own turns, if credit or the learner asks for any."""
        roles = self.scenario.roles
        # By id: a turn that several forks inherited is read once.
        sampled = {t.id: t for trajectory in trajectories for t in trajectory.turns if t.completion.prompt_ids}
        wanted: dict[str, frozenset[str]] = {}
        turns: dict[str, list[Turn]] = {}
        for name, learner in self.learners.items():
            if fields := (self.judge.needs & self._readable(name)) | learner.needs:
                wanted[name] = fields
                turns[name] = [t for t in sampled.values() if roles[t.role].policy == name and roles[t.role].trainable]
        if turns:
            self.simulator.sleep()
        ids = [turn.id for name in turns for turn in turns[name]]
        return dict(zip(ids, self.learners.read(turns, wanted), strict=True))

    def _readable(self, policy: str) -> frozenset[str]:
        learner = self.scenario.policies[policy].learner
        return learner.readable if learner else frozenset()

    def evidence(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Evidence:
        """Return everything that credit may look at."""
        return make_evidence(self.scenario, trajectories, readings, self.simulator)

    def judged(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Judgement:
        """Return the judgement of a step; `credit/tokens` are the tokens that credit itself had sampled or scored."""
        before = self.simulator.tokens["credit"]
        judgement = self.judge(self.evidence(trajectories, readings))
        judgement.metrics["credit/tokens"] = float(self.simulator.tokens["credit"] - before)
        self.simulator.release(trajectories)
        return judgement

    def samples(
        self, trajectories: Sequence[Trajectory], judgement: Judgement, readings: Mapping[TurnId, Reading]
    ) -> dict[str, list[Sample]]:
        """Return policy -> its samples of this step."""
        return collect(
            trajectories, judgement, self.scenario.roles, readings, lambda turn: self.staleness(turn, self.step)
        )

    def figures(self, trajectories: Sequence[Trajectory]) -> Metrics:
        """Return figures of the experience in this step, of the engines, and of how stale turns are."""
        turns = (turn for trajectory in trajectories for turn in trajectory.turns)
        return self.experience.metrics() | self.staleness.metrics(turns, self.step) | self.simulator.end_step()

    def record(
        self, judgement: Judgement, trajectories: Sequence[Trajectory], tokens: Mapping[TurnId, TokenFigures]
    ) -> StepRecord:
        """Return why each turn got its advantage, with what the update computed of single tokens."""
        record = judgement.record(trajectories, {name: role.policy for name, role in self.scenario.roles.items()})
        return with_token_figures(record, trajectories, tokens)

    def update(
        self, samples: Mapping[str, Sequence[Sample]], tokens: dict[TurnId, TokenFigures] | None = None
    ) -> Metrics:
        """Update policies as a group; return their figures as `policy/NAME/...`.

        `tokens`: filled with figures of the samples' tokens, by learners that report them; None: not wanted.
        """
        self.simulator.sleep()
        for name in samples:
            if isinstance(learner := self.learners[name], ReportsTokens):
                learner.token_figures = tokens
        figures = self.learners.update(samples)
        return {f"policy/{name}/{key}": value for name in figures for key, value in figures[name].items()}

    def publish(self, name: str, version: int) -> None:
        """Hand a learner's new weights to the engine that samples with them, if one does."""
        learner = self.scenario.policies[name].learner
        if learner is None or not learner.publishes:
            return
        self.versions[name] = version
        self.staleness.publish(name, version)
        self.simulator.load_weights(name, self.learners[name].publish(), version)

    def publish_all(self, policies: Collection[str], version: int) -> None:
        """Publish what these policies have learnt by the end of a step, and tell the experience."""
        for name in policies:
            self.publish(name, version)
        if isinstance(self.experience, FollowsLearning):
            self.experience.learnt(policies, version)

    def save_policies(self, folder: Path) -> None:
        """Write one Hugging Face folder per policy that learns."""
        for name, learner in self.learners.items():
            learner.save(folder / name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": {name: learner.state_dict() for name, learner in self.learners.items()},
            "judge": self.judge.state_dict(),
            "pace": self.update_schedule.state_dict(),
            "versions": dict(self.versions),
            # Not part of what a snapshot takes back: money that was spent stays spent.
            "spent": {name: asdict(usage) for name, usage in self.simulator.spent.items()},
            **self._play_state(),
        }

    def snapshot(self) -> Callable[[], None]:
        """Return a function that takes back all that has changed since, but what learners have learnt."""
        play, judge, waiting = self._play_state(), deepcopy(self.judge.state_dict()), self.update_schedule.snapshot()

        def restore() -> None:
            self._restore_play_state(play)
            self.judge.load_state_dict(judge)
            waiting()

        return restore

    @property
    def changes(self) -> dict[str, int] | None:
        """Return policy -> number of changes of what its learner has learnt; None if a learner does not count them."""
        counting = {name: learner for name, learner in self.learners.items() if isinstance(learner, CountsChanges)}
        return {name: each.changes for name, each in counting.items()} if len(counting) == len(self.learners) else None

    def _play_state(self) -> dict[str, Any]:
        """Return the part of the state that play changes: experience, and what was counted."""
        return {
            "experience": self.experience.state_dict(),
            "tokens": dict(self.simulator.tokens),
            "dropped": self.simulator.dropped,
            "unjudged": self.simulator.unjudged,
        }

    def _restore_play_state(self, state: Mapping[str, Any]) -> None:
        self.experience.load_state_dict(state["experience"])
        self.simulator.tokens.clear()
        self.simulator.tokens.update(state["tokens"])
        self.simulator.dropped = state["dropped"]
        self.simulator.unjudged = state.get("unjudged", 0)  # older versions did not count them

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.judge.load_state_dict(state["judge"])
        self.update_schedule.load_state_dict(state["pace"])
        self._restore_play_state(state)
        self.simulator.restore_spent({name: Usage(**usage) for name, usage in state["spent"].items()})
        for name, learner in self.learners.items():
            learner.load_state_dict(state["learners"][name])
            self.publish(name, state["versions"][name])


def make_evidence(
    scenario: Scenario,
    trajectories: Sequence[Trajectory],
    readings: Mapping[TurnId, Reading],
    simulator: Simulator | None,
) -> Evidence:
    """Return everything that credit may look at."""
    # Of several games each is judged alone, and put in here by `GamesJudge`.
    game = scenario.game.kind if scenario.game else ""
    return Evidence(trajectories, game, readings, simulator, scenario.rule_roles, scenario.schedule.seed)
