"""The model `trained`: a policy's weights from another run, so that a scenario can build on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.errors import RunFolderError
from marl.models.adapter import Adapter
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.models.pretrained import Pretrained, TrainedPolicyRef, TransformersModelConfig
from marl.protocols import ModelConfig, ModelPreparation, ModelSource
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.checkpoint import checkpoint_steps, verify_checksums, verify_file_sizes
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario


class Trained(TransformersModelConfig, TrainedPolicyRef):
    """Weights of a policy that another run trained: a full model, or an adapter, which is trained on as an adapter.

    An adapter keeps its base model, which it can share with other policies. The steps `latest` and `best` are resolved
    when the run starts.
    """

    kind: str = "trained"
    example = TrainedPolicyRef.example

    @property
    def understands_instructions(self) -> bool:
        # The saved weights decide. If the run that saved them is gone, `unmet_requirements` reports it.
        with suppress(ValueError, RunFolderError):
            return self.with_saved_weights(self.folder(is_language_model=True)).understands_instructions
        return True

    def unmet_requirements(self) -> Iterable[str]:
        try:
            model = self.with_saved_weights(self.folder(is_language_model=True))
        except (ValueError, RunFolderError) as error:
            yield f"run: {error}"
        else:
            for problem in model.unmet_requirements():
                yield f"run: policy {self.policy!r} of {self.run}: {problem}"

    def prepare(self, context: ModelPreparation) -> ModelSource:
        try:
            folder = self.folder(is_language_model=True)
            verify_checksums(folder.parents[1], f"policies/{self.policy}/")
            model = self.with_saved_weights(folder)
        except (ValueError, RunFolderError) as error:
            raise self.source(context.policy, self.run).error_naming_policy_and_model(error) from error
        return model.prepare(context)

    def shared_base(self) -> ModelConfig | None:
        # If the run that saved the weights is gone, `unmet_requirements` and `prepare` report the error.
        with suppress(ValueError, RunFolderError):
            return self.with_saved_weights(self.folder(is_language_model=True)).shared_base()
        return None

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        options = self.model_dump(include=TransformersModelConfig.model_fields.keys() - ModelConfig.model_fields.keys())
        if (folder / ADAPTER_CONFIG).is_file():
            return Adapter.from_folder(folder, **options)
        return Pretrained(path=str(folder), **options)

    def folder(self, *, is_language_model: bool) -> Path:
        home = RunFolder(Path(self.run).expanduser())
        if not home.has_run:
            raise ValueError(f"no run in {self.run!r}; train it first: marl train SCENARIO --out {self.run}")
        scenario = _scenario_of_run(home)
        policies = scenario.policies
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
        if learners[self.policy].publishes != is_language_model:
            learnt = "a reward model" if is_language_model else "a language model"
            wanted = "one that speaks" if is_language_model else "a reward model"
            raise ValueError(f"policy {self.policy!r} of run {self.run!r} has learnt to be {learnt}, not {wanted}")
        step = self.step
        if step == "latest":
            step = home.latest_checkpoint(verify_file_sizes)[0]
        elif step == "best":
            settings = scenario.evaluate
            if settings.best_checkpoint_metric is None:
                raise ValueError(f"run {self.run!r} does not say what is best: it has no evaluate.keep_best")
            best = BestEvaluationTracker.from_rows(settings, home.rows())
            if not best.step:
                why = "has not measured it yet" if best.step is None else "was best before it had learnt anything"
                raise ValueError(f"run {self.run!r} {why} ({best.metric}); give a step, or `latest`")
            step = best.step
        if step not in (steps := checkpoint_steps(home.checkpoints)):
            names = ", ".join(f"{recorded:06d}" for recorded in steps) or "none"
            raise ValueError(f"run {self.run!r} has no checkpoint of step {step}; there are: {names}")
        verify_file_sizes(home.checkpoints / f"{step:06d}")
        return home.checkpoints / f"{step:06d}" / "policies" / self.policy


_runs_being_read: ContextVar[frozenset[Path]] = ContextVar("runs_being_read", default=frozenset())


def _scenario_of_run(run_folder: RunFolder) -> Scenario:
    """Return the scenario of a run, whose policies can in turn be those of other runs.

    Raises:
        ValueError: if the scenario is invalid, or the run is trained from itself.
        RunFolderError: if the scenario is read through a link that leads out of the run's folder.
    """
    path = run_folder.path.resolve()
    if path in _runs_being_read.get():
        raise ValueError(f"run {str(run_folder.path)!r} is trained from itself")
    token = _runs_being_read.set(_runs_being_read.get() | {path})
    try:
        scenario = _scenario_or_error(path, (path / "scenario.yaml").stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{path}: no run here: {error}") from error
    finally:
        _runs_being_read.reset(token)
    if not isinstance(scenario, Scenario):
        raise scenario
    return scenario


@lru_cache(maxsize=256)
def _scenario_or_error(run: Path, _modified: int) -> Scenario | ValueError | RunFolderError:
    # A chain of runs would be read once for every path through their policies without this cache.
    try:
        return RunFolder(run).scenario()
    except (ValueError, RunFolderError) as error:
        return error
