"""Settings of the model `q_network`: a small network that estimates the values of a finite list of actions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from marl.core.config import DistinctValues
from marl.core.plugins import PluginField
from marl.models.decision_prompts import DecisionTokenizer
from marl.models.text_encoders import HashedWords
from marl.protocols import ModelConfig, ModelPreparation, TextEncoderConfig

Q_NETWORK = "a Q-network"
"""Name of the model family that outputs values of actions instead of text."""
SETTINGS_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


class QNetworkModel(ModelConfig):
    """Q-network with a graph encoder of heard turns, a recurrent memory, and one output for each action.

    The network reads the agent's observation and the words of each heard turn, which reach the observation by message
    passing. All agents of the policy share the weights, so the prompt must say which agent decides. The memory is a GRU
    over the decisions in the prompt: all of the agent's decisions in the episode with the role's `history: append`, the
    present decision alone with `fresh`.
    """

    kind: str = "q_network"
    example = "actions: [a, b]"
    family: ClassVar[str] = Q_NETWORK
    actions: DistinctValues[str] = Field(min_length=1)
    """All moves that the game may list. Each move has one output."""
    encoder: Annotated[TextEncoderConfig, PluginField("encoders", TextEncoderConfig)] = HashedWords()
    """Encoder that maps the texts that the network reads to vectors."""
    width: int = Field(default=64, ge=1)
    """Width of the network's layers, and of the vector of a text."""
    rounds: int = Field(default=1, ge=1)
    """Rounds of message passing between the agent's observation and the heard turns. From the second round on, a turn's
    vector depends on the observation too."""
    memory: int = Field(default=64, ge=1)
    """Width of the recurrent memory."""
    seed: int = 0
    """Seed of the initial weights."""
    path: str | None = None
    """Folder of weights saved by a run. Null: random weights, with random play until training begins."""

    @property
    def understands_instructions(self) -> bool:
        return False

    def unmet_requirements(self) -> Iterable[str]:
        if self.path is not None:
            folder = Path(self.path).expanduser()
            absent = [name for name in (SETTINGS_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
            if not folder.is_dir():
                yield f"path: {self.path!r}: there is no such folder"
            elif absent:
                yield f"path: {self.path!r}: is no folder of a Q-network: it has no {', '.join(absent)}"
        for problem in self.encoder.unmet_requirements():
            yield f"encoder.{problem}"

    def prepare(self, context: ModelPreparation) -> QNetworkSource:
        for problem in self.unmet_requirements():
            raise ValueError(f"policy {context.policy!r}: model.{problem}")
        prepared = self.model_copy(update={"encoder": self.encoder.prepare(context)})
        return QNetworkSource(context.policy, prepared)

    def with_saved_weights(self, folder: Path) -> Self:
        return self.model_copy(update={"path": str(folder)})


@dataclass(frozen=True, slots=True)
class QNetworkSource:
    """Source of a Q-network and its tokenizer, for engines and learners."""

    policy: str = field(compare=False)
    """Name of the policy that uses the network, for error messages."""
    settings: QNetworkModel

    @property
    def path(self) -> str:
        """Folder of saved weights, or the model's kind if the weights are new."""
        return self.settings.path or self.settings.kind

    @property
    def dtype(self) -> str:
        """Dtype of the weights."""
        return "float32"

    @property
    def adapter(self) -> None:
        """None, because a Q-network has no adapter."""

    def model(self) -> Any:
        """Return a new `QNetwork` in eval mode. All networks of one source have equal weights.

        Raises:
            ValueError: with the name of the policy, if saved weights do not fit.
        """
        # torch is imported late, because `marl check` reads the settings without it.
        import torch

        from marl.models.q_network_modules import QNetwork
        from marl.models.weights import overwrite_model_weights

        settings = self.settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            network = QNetwork(settings.actions, settings.encoder, settings.width, settings.rounds, settings.memory)
        if settings.path is not None:
            try:
                overwrite_model_weights(network, Path(settings.path).expanduser())
            except ValueError as error:
                raise ValueError(f"policy {self.policy!r}: model.path: {error}") from error
        return network.eval()

    def tokenizer(self) -> DecisionTokenizer:
        """Return the tokenizer of the network, which encodes requests as prompts of numbers."""
        return self.model().tokenizer


def save_q_network(network: Any, settings: QNetworkModel, folder: Path) -> None:
    """Write the weights and `settings` of a `QNetwork` to `folder`, with epsilon 0 for greedy play."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # A loaded network plays greedily, as exploration belongs to training.
    weights = {**network.state_dict(), "epsilon": network.epsilon.new_zeros(())}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS_FILE)
    described = {"model_type": settings.kind, **settings.model_dump(mode="json", exclude={"path"})}
    (folder / SETTINGS_FILE).write_text(json.dumps(described, indent=2) + "\n")
