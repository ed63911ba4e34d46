"""The model `trained`: weights that another run has learnt, so that scenarios can build on each other's runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.errors import FolderError
from marl.models.adapter import Adapter
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.models.pretrained import Pretrained, TrainedPolicyRef, TransformersModelConfig
from marl.protocols import ModelConfig, ModelContext, ModelSource
from marl.runs.best_checkpoint import BestTracker
from marl.runs.checkpoint import checkpoint_steps, verify, verify_sizes
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import PolicyConfig, Scenario


class Trained(TransformersModelConfig, TrainedPolicyRef):
    """Weights that a policy of another run has learnt: all of a model's, or an adapter, which goes on as one.

    An adapter stands on the base that it was trained on, and shares it with others. `latest` and `best` are looked up
    at the start.
    """

    kind: str = "trained"
    example = TrainedPolicyRef.example

    def unmet_requirements(self) -> Iterable[str]:
        try:
            model = self.with_saved_weights(self.folder(publishes=True))
        except (ValueError, FolderError) as error:
            yield f"run: {error}"
        else:
            yield from (
                f"run: policy {self.policy!r} of {self.run}: {problem}" for problem in model.unmet_requirements()
            )

    def prepare(self, context: ModelContext) -> ModelSource:
        try:
            folder = self.folder(publishes=True)
            verify(folder.parents[1], f"policies/{self.policy}/")
            model = self.with_saved_weights(folder)
        except (ValueError, FolderError) as error:
            raise self.source(context.policy, self.run).error(error) from error
        return model.prepare(context)

    def shared_base(self) -> ModelConfig | None:
        # A run that went on from another is read although that is gone; `missing` and `prepare` say what is not there.
        with suppress(ValueError, FolderError):
            return self.with_saved_weights(self.folder(publishes=True)).shared_base()
        return None

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        held = self.model_dump(include=TransformersModelConfig.model_fields.keys() - ModelConfig.model_fields.keys())
        if (folder / ADAPTER_CONFIG).is_file():
            return Adapter.from_folder(folder, **held)
        return Pretrained(path=str(folder), **held)

    def folder(self, *, publishes: bool) -> Path:
        home = RunFolder(Path(self.run).expanduser())
        if not home.has_run:
            raise ValueError(f"no run in {self.run!r}; train it first: marl train SCENARIO --out {self.run}")
        self._check_policy(home.scenario(), publishes)
        step = self._step(home)
        if step not in (have := checkpoint_steps(home.checkpoints)):
            known = ", ".join(f"{each:06d}" for each in have) or "none"
            raise ValueError(f"run {self.run!r} has no checkpoint of step {step}; there are: {known}")
        verify_sizes(home.checkpoints / f"{step:06d}")
        return home.checkpoints / f"{step:06d}" / "policies" / self.policy

    def _check_policy(self, scenario: Scenario, publishes: bool) -> None:
        known = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
        if self.policy not in known:
            never = _untrained(scenario.policies[self.policy]) if self.policy in scenario.policies else ""
            raise ValueError(
                f"run {self.run!r} trains no policy {self.policy!r}{never}; {choices_hint(self.policy, known)}"
            )
        if known[self.policy].publishes != publishes:
            learnt, wanted = (
                ("a reward model", "one that speaks") if publishes else ("a language model", "a reward model")
            )
            raise ValueError(f"policy {self.policy!r} of run {self.run!r} has learnt to be {learnt}, not {wanted}")

    def _step(self, home: RunFolder) -> int:
        if isinstance(self.step, int):
            return self.step
        if self.step == "latest":
            return home.latest_checkpoint(verify_sizes)[0]
        settings = home.scenario().evaluate
        if settings.best_by is None:
            raise ValueError(f"run {self.run!r} does not say what is best: it has no evaluate.keep_best")
        best = BestTracker.from_rows(settings, home.rows())
        if not best.step:
            why = "has not measured it yet" if best.step is None else "was best before it had learnt anything"
            raise ValueError(f"run {self.run!r} {why} ({best.metric}); give a step, or `latest`")
        return best.step


def _untrained(policy: PolicyConfig) -> str:
    """Return the end of an error message: the policy is never trained, so its weights stay as they are."""
    kind = policy.model.kind if policy.model else policy.engine.kind
    return f", which stays as it is there (no learner; {kind})"
