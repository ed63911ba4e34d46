"""Critics: what states are worth.

Shape suffixes: B = rows, N = completion tokens of all rows in one line, H = hidden, X = any. Values are in the units of
rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.protocols import Brief
from trainers.batching.batches import Batch
from trainers.forward.checkpointing import apply_modes
from trainers.forward.model_inputs import States, drops_out, obstacle, states
from trainers.losses.aggregation import widened

if TYPE_CHECKING:
    from marl.models.pretrained import Pretrained
    from trainers.settings import Ppo


class Critic(nn.Module):
    """A linear value head on last hidden states: the policy's own, or those of a body of its own.

    It begins with zeros, so that the first advantages are what was earned, and the first gradients leave the states
    below alone.
    """

    def __init__(self, model: Any, body: Any | None = None, *, detach: bool = False) -> None:
        """`model` is the policy, whose states are read unless there is a `body`."""
        super().__init__()
        embeddings = (model if body is None else body).get_output_embeddings().weight
        # At least float32, as the loss is.
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, device=embeddings.device, dtype=kind)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.body, self._detach = body, detach
        if body is not None:
            # It never speaks: what is as large as its vocabulary would only take up memory.
            body.set_output_embeddings(nn.Identity())
        self.train()

    def forward(self, states_XH: Tensor) -> Tensor:
        """[X] values of states."""
        return self.head(widened(states_XH)).squeeze(-1)

    def before(self, own: States, batch: Batch) -> Tensor:
        """[B, T] value of the state before each completion token; `own` are the policy's states of the batch."""
        seen_NH = self._seen(own, batch).said_NH
        return batch.spread(self(seen_NH.detach() if self._detach else seen_NH))

    @torch.no_grad()
    def read(self, own: States, batch: Batch) -> dict[str, Tensor]:
        """`values` [B, T] and `next_value` [B] of a batch that is laid out with its ends; without dropout."""
        self.eval()
        found = self._seen(own, batch)
        self.train()
        assert found.ends_B2H is not None
        return {"values": batch.spread(self(found.said_NH)), "next_value": self(found.ends_B2H[:, 1])}

    def _seen(self, own: States, batch: Batch) -> States:
        return own if self.body is None else states(self.body, batch.texts)


def critic_of(settings: Ppo, brief: Brief, model: Any) -> Critic:
    """The critic of a policy, whose model is `model`; a body of its own is run as the policy is."""
    chosen = settings.critic
    if chosen.where == "trunk":
        return Critic(model, detach=chosen.detach)
    body = brief.source.model() if chosen.model is None else _other(chosen.model, brief)
    apply_modes(body, settings)
    return Critic(model, body)


def reads_lines(critic: Critic) -> bool:
    """Whether its body, if it has one, can read several texts in a line, and once what they begin with alike."""
    return critic.body is None or not (obstacle(critic.body) or drops_out(critic.body))


def _other(settings: Pretrained, brief: Brief) -> Any:
    """Other weights than the policy's.

    Raises:
        ValueError: if they read other tokens.
    """
    checkpoint = settings.checkpoint(brief.policy, settings.path, trust_remote_code=settings.trust_remote_code)
    if checkpoint.tokenizer().get_vocab() != brief.source.tokenizer().get_vocab():
        raise ValueError(
            f"policy {brief.policy!r}: critic.model: {settings.path!r} has another tokenizer than the policy; "
            "choices: a model with the same one, or none: the policy's own weights"
        )
    return checkpoint.model()
