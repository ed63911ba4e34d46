"""Weights that another run has learnt: so that scenarios can build on each other's output folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from marl.config import Config, nearest
from marl.models.hf_folder import check_folder
from marl.models.pretrained import Checkpoint, HeldModel
from marl.runs.best_checkpoint import Best
from marl.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


class TrainedPolicy(Config):
    """Where a run keeps the weights that one of its policies has learnt."""

    run: str
    """The run's folder."""
    policy: str
    step: PositiveInt | Literal["latest", "best"] = "latest"
    """A checkpoint: the newest whole one, the best by the run's `evaluate.keep_best`, or that of a step."""

    def folder(self, *, speaks: bool) -> Path:
        """The Hugging Face folder of a language model (`speaks`), or else of a reward model.

        Raises:
            ValueError: saying what is not there, or what it is instead.
        """
        home = RunFolder(Path(self.run).expanduser())
        if not home.started:
            raise ValueError(f"no run in {self.run!r}; train it first: marl train SCENARIO --out {self.run}")
        self._check_policy(home.scenario(), speaks)
        step = self._step(home)
        saved = home.checkpoints / f"{step:06d}" / "policies" / self.policy
        if not step or not saved.is_dir():
            have = ", ".join(p.name for p in sorted(home.checkpoints.glob("[0-9]*"))) or "none"
            raise ValueError(f"run {self.run!r} has no checkpoint of step {self.step!r}; there are: {have}")
        return saved

    def _check_policy(self, scenario: Scenario, speaks: bool) -> None:
        known = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
        if self.policy not in known:
            raise ValueError(f"run {self.run!r} trains no policy {self.policy!r}; {nearest(self.policy, known)}")
        if known[self.policy].speaks != speaks:
            what, wanted = (
                ("a language model", "a reward model") if not speaks else ("a reward model", "one that speaks")
            )
            raise ValueError(f"policy {self.policy!r} of run {self.run!r} has learnt to be {what}, not {wanted}")

    def _step(self, home: RunFolder) -> int:
        if isinstance(self.step, int):
            return self.step
        if self.step == "latest":
            return home.latest()[0]
        settings = home.scenario().evaluate
        if settings.best_by is None:
            raise ValueError(f"run {self.run!r} does not say what is best: it has no evaluate.keep_best")
        return Best.of(settings, home.rows()).step or 0


class Trained(HeldModel, TrainedPolicy):
    """What a policy of another run has learnt, full weights. `latest` and `best` are looked up when this run starts."""

    kind: str = "trained"

    def missing(self) -> Iterable[str]:
        try:
            check_folder(self.folder(speaks=True))
        except ValueError as error:
            yield str(error)

    def prepare(self, scenario: Scenario, policies: Sequence[str]) -> Checkpoint:
        try:
            folder = self.folder(speaks=True)
            check_folder(folder)
        except ValueError as error:
            raise self.checkpoint(policies[0], self.run).fault(error) from error
        return self.checkpoint(policies[0], folder)
