"""Settings of reward models, which score turns or take a seat of a game. Light: no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Discriminator, PositiveInt, Tag

from marl.core.config import Config
from marl.models.hf_folder import check_folder
from marl.models.pretrained import Dtype, TrainedPolicyRef
from marl.protocols import Engine, EngineConfig, ModelSource


def _path_kind(path: object) -> str:
    # Without a tag, pydantic would report the errors of both alternatives.
    return "folder" if isinstance(path, str) else "run"


class RewardModelSettings(Config):
    """A trained reward model: a Hugging Face folder with a sequence classifier and its own tokenizer.

    The model reads the speaker's conversation, with the completion as the assistant's last message, in the model's chat
    template (joined by newlines if the model has none). With 1 label the reward is the logit, with 2 the probability of
    label 1. Weights are read from safetensors only, and code shipped with a model is never run.
    """

    example = "path: models/reward"
    path: Annotated[Annotated[str, Tag("folder")] | Annotated[TrainedPolicyRef, Tag("run")], Discriminator(_path_kind)]
    """A folder; or the policy of an earlier run whose learner is `reward_model`, `{run: runs/x, policy: y}`."""
    dtype: Dtype = "float32"
    """Precision of the weights."""
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    max_tokens: PositiveInt = 2048
    """Maximum number of tokens of a text; longer texts lose their beginning."""
    micro_tokens: PositiveInt = 16384
    """Padded tokens in one forward pass."""

    def folder(self) -> Path:
        """Return the folder with the weights.

        Raises:
            ValueError: if the run or the checkpoint does not exist.
        """
        return Path(self.path).expanduser() if isinstance(self.path, str) else self.path.folder(publishes=False)

    def problems(self) -> Iterable[str]:
        """Yield a message for each problem of the folder."""
        try:
            check_folder(self.folder())
        except ValueError as error:
            yield f"path: {self.path!r} {error}" if isinstance(self.path, str) else f"path: {error}"


class RewardModelConfig(RewardModelSettings, EngineConfig):
    """Scores the conversation passed on by a `rater`, with a frozen reward model: `{"scores": {reward: score}}`."""

    kind: str = "reward_model"
    is_rule_based: ClassVar[bool] = True
    token_level: ClassVar[bool] = False
    name: str = "reward"
    """Name of the score, as in `scores: [reward]` of a team's stage."""

    def unmet_requirements(self) -> Iterable[str]:
        return self.problems()

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.reward_model.engine import RewardModelEngine

        return RewardModelEngine(self, self.name)
