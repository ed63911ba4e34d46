"""Settings of reward models, as a scorer of turns and as a seat of a game. Light: no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Discriminator, PositiveInt, Tag

from marl.config import Config
from marl.models.hf_folder import check_folder
from marl.models.pretrained import Dtype, TrainedPolicy
from marl.protocols import EngineConfig

if TYPE_CHECKING:
    from marl.protocols import Engine, ModelSource


def _path_kind(path: object) -> str:
    return "folder" if isinstance(path, str) else "run"


class RewardModelSettings(Config):
    """A trained reward model: a Hugging Face folder with a sequence classifier and its own tokenizer.

    It reads the speaker's conversation with the completion as the assistant's last message, in its own chat template
    (without one, joined by newlines). With 1 label the reward is its logit, with 2 the probability of label 1. Weights
    are read from safetensors only, and code that comes with a model is never run.
    """

    example = "path: models/reward"
    path: Annotated[Annotated[str, Tag("folder")] | Annotated[TrainedPolicy, Tag("run")], Discriminator(_path_kind)]
    """A folder; or the policy of an earlier run whose learner is `reward_model`, `{run: runs/x, policy: y}`."""
    dtype: Dtype = "float32"
    """Precision of the weights."""
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    max_tokens: PositiveInt = 2048
    """Most tokens of a text; a longer one loses its beginning."""
    micro_tokens: PositiveInt = 16384
    """Padded tokens in one forward pass."""

    def folder(self) -> Path:
        """Return the folder with its weights.

        Raises:
            ValueError: if the run or its checkpoint is not there.
        """
        return Path(self.path).expanduser() if isinstance(self.path, str) else self.path.folder(publishes=False)

    def faults(self) -> Iterable[str]:
        """Yield what is wrong with the folder."""
        try:
            check_folder(self.folder())
        except ValueError as error:
            yield f"path: {self.path!r} {error}" if isinstance(self.path, str) else f"path: {error}"


class RewardSeat(RewardModelSettings, EngineConfig):
    """Scores the conversation that a `rater` passes on by a frozen reward model: `{"scores": {reward: score}}`."""

    kind: str = "reward_model"
    rule_bound: ClassVar[bool] = True
    token_level: ClassVar[bool] = False
    name: str = "reward"
    """Name of the score, as in `scores: [reward]` of a team's stage."""

    def missing(self) -> Iterable[str]:
        return self.faults()

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.reward_model.engine import RatingEngine

        return RatingEngine(self)
