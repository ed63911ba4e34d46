"""The model `trained`: a policy's weights from another run, so that a scenario can build on it."""

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


class Trained(TransformersModelConfig, TrainedPolicyRef):
    """Weights of a policy that another run trained: a full model, or an adapter, which is trained on as an adapter.

    An adapter keeps the base model that it was trained on, and shares it with other policies. The steps `latest` and
    `best` are looked up at the start.
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
        # A run is readable after the run that it continued is gone; `unmet_requirements` and `prepare` report that.
        with suppress(ValueError, FolderError):
            return self.with_saved_weights(self.folder(publishes=True)).shared_base()
        return None

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        options = self.model_dump(include=TransformersModelConfig.model_fields.keys() - ModelConfig.model_fields.keys())
        if (folder / ADAPTER_CONFIG).is_file():
            return Adapter.from_folder(folder, **options)
        return Pretrained(path=str(folder), **options)

    def folder(self, *, publishes: bool) -> Path:
        home = RunFolder(Path(self.run).expanduser())
        if not home.has_run:
            raise ValueError(f"no run in {self.run!r}; train it first: marl train SCENARIO --out {self.run}")
        policies = home.scenario().policies
        learners = {name: policy.learner for name, policy in policies.items() if policy.learner}
        if self.policy not in learners:
            frozen = ""
            if self.policy in policies:
                policy = policies[self.policy]
                kind = policy.model.kind if policy.model else policy.engine.kind
                frozen = f", which stays as it is there (no learner; {kind})"
            raise ValueError(
                f"run {self.run!r} trains no policy {self.policy!r}{frozen}; {choices_hint(self.policy, learners)}"
            )
        if learners[self.policy].publishes != publishes:
            learnt = "a reward model" if publishes else "a language model"
            wanted = "one that speaks" if publishes else "a reward model"
            raise ValueError(f"policy {self.policy!r} of run {self.run!r} has learnt to be {learnt}, not {wanted}")
        step = self._resolve_step(home)
        if step not in (steps := checkpoint_steps(home.checkpoints)):
            names = ", ".join(f"{recorded:06d}" for recorded in steps) or "none"
            raise ValueError(f"run {self.run!r} has no checkpoint of step {step}; there are: {names}")
        verify_sizes(home.checkpoints / f"{step:06d}")
        return home.checkpoints / f"{step:06d}" / "policies" / self.policy

    def _resolve_step(self, home: RunFolder) -> int:
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
