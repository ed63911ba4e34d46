"""Settings of reward models: of a part that scores turns, and of a seat at the table. Light: no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Discriminator, PositiveInt, Tag

from marl.config import Config
from marl.models.hf_folder import check_folder
from marl.models.pretrained import Dtype
from marl.models.trained import TrainedPolicy
from marl.protocols import EngineConfig

if TYPE_CHECKING:
    from marl.protocols import Engine, Source


def _which(path: object) -> str:
    return "folder" if isinstance(path, str) else "run"


class RewardModel(Config):
    """A trained reward model: a Hugging Face folder with a sequence classifier and its own tokenizer.

    It reads the conversation as the speaker saw it, with what was said as the assistant's last message, in the words of
    its own chat template (without one, joined by newlines). With 1 label the reward is its logit, with 2 the
    probability of label 1. Weights are read from safetensors only, and code that comes with a model is never run.
    """

    path: Annotated[Annotated[str, Tag("folder")] | Annotated[TrainedPolicy, Tag("run")], Discriminator(_which)]
    """A folder; or the policy of an earlier run whose learner was `reward_model` (`{run: runs/x, policy: y}`)."""
    dtype: Dtype = "float32"
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    max_tokens: PositiveInt = 2048
    """A longer text loses its beginning."""
    micro_tokens: PositiveInt = 16384
    """Padded tokens in one forward pass."""

    def folder(self) -> Path:
        """Where its weights are.

        Raises:
            ValueError: if the run or its checkpoint is not there.
        """
        return Path(self.path).expanduser() if isinstance(self.path, str) else self.path.folder(speaks=False)

    def faults(self) -> Iterable[str]:
        """What is wrong with the folder."""
        try:
            check_folder(self.folder())
        except ValueError as error:
            yield f"path: {self.path!r} {error}" if isinstance(self.path, str) else f"path: {error}"


class RewardSeat(RewardModel, EngineConfig):
    """A trained reward model rates what a `rater` heard: `{"scores": {reward: score}}`. It is not trained here."""

    kind: str = "reward_model"
    rule_bound: ClassVar[bool] = True
    token_level: ClassVar[bool] = False
    name: str = "reward"
    """What the score is called, as in `scores: [reward]` of a team's stage."""

    def missing(self) -> Iterable[str]:
        return self.faults()

    def build(self, source: Source | None) -> Engine:
        from marl.engines.reward_model.engine import RatingEngine

        return RatingEngine(self)
