"""The model `q_network`: values of a finite list of actions, small enough to be trained from nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, field_validator

from marl.models.text_encoders import HashedWords
from marl.parts import Part
from marl.protocols import ModelConfig, ModelContext, TextEncoderConfig

if TYPE_CHECKING:
    from marl.models.decisions import DecisionTokenizer
    from marl.models.q_layers import QNetwork

Q_NETWORK = "a Q-network"
"""Family of weights whose outputs are values of actions."""
SETTINGS_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


class QNetworkModel(ModelConfig):
    """Values of a finite list of actions: a graph encoder over whom the agent hears, a memory, a head for each action.

    It reads the prompt: the agent's observation, and apart from it the words of each earlier turn that it hears, which
    reach the observation by message passing. All agents that share the policy share the weights, so the prompt must say
    who decides. The memory is a GRU over the decisions in the prompt: with the role's `history: append` these are all
    of the agent in the episode, with `fresh` it is the present one alone.
    """

    kind: str = "q_network"
    example = "actions: [a, b]"
    family: ClassVar[str] = Q_NETWORK
    actions: tuple[str, ...] = Field(min_length=1)
    """All moves that the game may list, each of which has a head."""
    encoder: Annotated[TextEncoderConfig, Part("encoders", TextEncoderConfig)] = HashedWords()
    """Part that reads texts."""
    width: int = Field(64, ge=1)
    """Numbers that describe a text, and width of the layers."""
    rounds: int = Field(1, ge=1)
    """Rounds of message passing between the agent's observation and the turns that it hears. From the second on, what a
    turn says is read in the light of the observation."""
    memory: int = Field(64, ge=1)
    """Width of the memory."""
    seed: int = 0
    """Seed of the weights."""
    path: str | None = None
    """Folder of weights that a run has saved. Null: random ones, and random play until something is learnt."""

    @field_validator("actions")
    @classmethod
    def _differ(cls, actions: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [action for action in actions if actions.count(action) > 1]:
            raise ValueError(f"{twice[0]!r} is listed twice; list each action once")
        return actions

    @property
    def knows_language(self) -> bool:
        return False

    def missing(self) -> Iterable[str]:
        if self.path is not None and (problem := _fault(Path(self.path).expanduser())):
            yield f"path: {self.path!r}: {problem}"
        yield from (f"encoder.{problem}" for problem in self.encoder.missing())

    def prepare(self, context: ModelContext) -> QNetworkSource:
        for problem in self.missing():
            raise ValueError(f"policy {context.policy!r}: model.{problem}")
        prepared = self.model_copy(update={"encoder": self.encoder.prepare(context)})
        return QNetworkSource(context.policy, prepared)

    def saved(self, folder: Path) -> Self:
        return self.model_copy(update={"path": str(folder)})


def _fault(folder: Path) -> str | None:
    """Return what is wrong with a folder of saved weights; None if nothing is."""
    if not folder.is_dir():
        return "there is no such folder"
    absent = [name for name in (SETTINGS_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
    return f"is no folder of a Q-network: it has no {', '.join(absent)}" if absent else None


@dataclass(frozen=True, slots=True)
class QNetworkSource:
    """A Q-network and its way of reading prompts."""

    policy: str = field(compare=False)
    """The policy that uses it, for error messages."""
    settings: QNetworkModel

    @property
    def path(self) -> str:
        """Return the folder of saved weights, or a name for those that are made."""
        return self.settings.path or self.settings.kind

    @property
    def dtype(self) -> str:
        """Return the type in which weights are held."""
        return "float32"

    @property
    def adapter(self) -> None:
        """Return None: all weights are the policy's own."""

    def model(self) -> QNetwork:
        """Return a new network in eval mode, equal to every other one from here.

        Raises:
            ValueError: naming the policy, if saved weights do not fit.
        """
        import torch

        from marl.models.q_layers import QNetwork
        from marl.models.weights import copy_weights

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            network = QNetwork(self.settings)
        if self.settings.path is not None:
            try:
                copy_weights(network, Path(self.settings.path).expanduser())
            except ValueError as error:
                raise ValueError(f"policy {self.policy!r}: model.path: {error}") from error
        return network.eval()

    def tokenizer(self) -> DecisionTokenizer:
        """Return the way in which prompts become numbers."""
        return self.model().tokenizer


def save_network(network: QNetwork, settings: QNetworkModel, folder: Path) -> None:
    """Write weights and settings of a network, which then plays greedily wherever it is loaded."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {**network.state_dict(), "epsilon": torch.zeros(())}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS_FILE)
    described = {"model_type": settings.kind, **settings.model_dump(mode="json", exclude={"path"})}
    (folder / SETTINGS_FILE).write_text(json.dumps(described, indent=2) + "\n")
