"""Settings of reward models, which score turns or sit at a seat of a game. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, PositiveInt, Tag

from marl.core.config import Config
from marl.models.hf_folder import check_model_folder
from marl.models.pretrained import Dtype, TrainedPolicyRef
from marl.protocols import Engine, EngineConfig, ModelSource


class RewardModelSettings(Config):
    """Settings of a trained reward model: a Hugging Face folder with a sequence classifier and its own tokenizer.

    The model reads the speaker's conversation, with the completion as the assistant's last message, in the model's chat
    template (joined by newlines if the model has none). With 1 label the reward is the logit, with 2 the probability of
    label 1. Weights are read from safetensors only, and code shipped with a model is never run.
    """

    example = "path: models/reward"
    # The tags tell pydantic which alternative is meant; otherwise it would report the errors of both.
    path: Annotated[
        Annotated[str, Tag("folder")] | Annotated[TrainedPolicyRef, Tag("run")],
        Discriminator(lambda path: "folder" if isinstance(path, str) else "run"),
    ]
    """Folder of the model; or the policy of an earlier run with learner `reward_model`: `{run: runs/x, policy: y}`."""
    dtype: Dtype = "float32"
    """Precision of the weights."""
    device: str = "auto"
    """Torch device of the model. `auto` is `cuda` if there is a GPU, else `cpu`."""
    max_tokens: PositiveInt = 2048
    """Maximum number of tokens of a scored text. Longer texts lose their beginning."""
    micro_tokens: PositiveInt = 16384
    """Maximum number of tokens in one forward pass, padding included."""

    def model_folder(self) -> Path:
        """Return the folder with the reward model's weights.

        Raises:
            ValueError: if the run or the checkpoint does not exist.
        """
        return Path(self.path).expanduser() if isinstance(self.path, str) else self.path.folder(is_language_model=False)


class RewardModelConfig(RewardModelSettings, EngineConfig):
    """Scores a conversation by a frozen reward model, at a seat with role `rater`: `{"scores": {reward: score}}`."""

    kind: str = "reward_model"
    is_rule_based: ClassVar[bool] = True
    token_level: ClassVar[bool] = False
    name: str = "reward"
    """Name of the score, as in `scores: [reward]` of a team's stage."""
    level: Literal["turn", "segment"] = "turn"
    """Scored parts of a conversation's last message. `turn`: the message. `segment`: each of its segments, as a list of
    scores: a process reward model, read at the last token of each segment. A message without segments has one score."""

    @property
    def needs_segments(self) -> bool:
        return self.level == "segment"

    def unmet_requirements(self) -> Iterable[str]:
        try:
            check_model_folder(self.model_folder())
        except ValueError as error:
            yield f"path: {self.path!r} {error}" if isinstance(self.path, str) else f"path: {error}"

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.reward_model.engine import RewardModelEngine

        return RewardModelEngine(self)
