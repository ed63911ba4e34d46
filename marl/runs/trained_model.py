"""The model `trained`: weights that another run has learnt, so that scenarios can build on each other's runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from marl.config import nearest
from marl.errors import FolderError
from marl.models.hf_folder import check_folder
from marl.models.pretrained import HeldModel, PretrainedSource, TrainedPolicy
from marl.protocols import ModelContext
from marl.runs.best_checkpoint import Best
from marl.runs.checkpoint import inspect, steps, verify
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario


class Trained(HeldModel, TrainedPolicy):
    """Weights that a policy of another run has learnt, all of them. `latest` and `best` are looked up at the start."""

    kind: str = "trained"

    def missing(self) -> Iterable[str]:
        try:
            check_folder(self.folder(publishes=True))
        except (ValueError, FolderError) as error:
            yield str(error)

    def prepare(self, context: ModelContext) -> PretrainedSource:
        try:
            folder = self.folder(publishes=True)
            check_folder(folder)
            verify(folder.parents[1], f"policies/{self.policy}/")
        except (ValueError, FolderError) as error:
            raise self.source(context.policy, self.run).fault(error) from error
        return self.source(context.policy, folder)

    def folder(self, *, publishes: bool) -> Path:
        home = RunFolder(Path(self.run).expanduser())
        if not home.started:
            raise ValueError(f"no run in {self.run!r}; train it first: marl train SCENARIO --out {self.run}")
        self._check_policy(home.scenario(), publishes)
        step = self._step(home)
        if step not in (have := steps(home.checkpoints)):
            known = ", ".join(f"{each:06d}" for each in have) or "none"
            raise ValueError(f"run {self.run!r} has no checkpoint of step {self.step!r}; there are: {known}")
        inspect(home.checkpoints / f"{step:06d}")
        return home.checkpoints / f"{step:06d}" / "policies" / self.policy

    def _check_policy(self, scenario: Scenario, publishes: bool) -> None:
        known = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
        if self.policy not in known:
            raise ValueError(f"run {self.run!r} trains no policy {self.policy!r}; {nearest(self.policy, known)}")
        if known[self.policy].publishes != publishes:
            learnt, wanted = (
                ("a reward model", "one that speaks") if publishes else ("a language model", "a reward model")
            )
            raise ValueError(f"policy {self.policy!r} of run {self.run!r} has learnt to be {learnt}, not {wanted}")

    def _step(self, home: RunFolder) -> int:
        if isinstance(self.step, int):
            return self.step
        if self.step == "latest":
            return home.latest(inspect)[0]
        settings = home.scenario().evaluate
        if settings.best_by is None:
            raise ValueError(f"run {self.run!r} does not say what is best: it has no evaluate.keep_best")
        return Best.of(settings, home.rows()).step or 0
