"""Networks that are fitted online to what teams are paid: recent steps, a target copy, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from credit.mixing.networks import Batch, Networks
from credit.mixing.record import Kind, Record, join
from credit.mixing.targets import Targets
from marl.seeds import seed_of

if TYPE_CHECKING:
    from credit.assign.value_decomposition import Fit

N = TypeVar("N", bound=Networks)


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Random numbers of torch that depend on `parts`; its own go on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(*parts) >> 1)
        yield


class Fitter(Generic[N]):
    """Fits networks to the rounds of recent steps, each time a step is added."""

    def __init__(self, settings: Fit, networks: N, rule: Callable[[Record, N, N], Targets]) -> None:
        """`rule`: of a record, the networks and their target copy, what rounds are fitted to."""
        self.settings, self._rule = settings, rule
        self.online, self.target = networks, deepcopy(networks)
        self.memory: list[Record] = []
        self.steps = self.updates = 0
        """Steps of the run that were added; gradient steps."""
        self._moments: dict[str, Any] = {}
        """The optimizer's, by parameter."""

    def grow(self, kinds: Sequence[Kind], seed: int) -> None:
        """Understand these kinds as well, with weights that depend on `seed` and the kind alone."""
        for kind in kinds:
            for networks in (self.online, self.target):
                with seeded(seed, "mixing", *kind):
                    networks.grow(kind)

    def add(self, record: Record, seed: int) -> float:
        """Remember a step, and fit; the mean loss of the gradient steps."""
        fit = self.settings
        self.memory = [*self.memory, record][-fit.memory :]
        whole = join(self.memory)
        # Made anew from its moments each time, since the networks may have grown.
        descent, losses = Descent(fit, self.online, self._moments), []
        targets = None
        for rounds in islice(self._minibatches(len(whole.reward), seed), fit.updates):
            targets = targets or self._targets(whole)
            losses.append(descent(self.online.loss(Batch(whole, rounds), targets(rounds))))
            self.updates += 1
            if self.updates % fit.target_every == 0:
                self.target.load_state_dict(self.online.state_dict())
                targets = None
        self._moments, self.steps = descent.moments(), self.steps + 1
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def explained(self, record: Record) -> float | None:
        """1 - Var(target - Q_tot) / Var(target) over the rounds of `record`; None if all targets are equal."""
        targets = self._targets(record)(torch.arange(len(record.reward)))
        spread = float(targets.var(correction=0))
        error = targets - self.online.total(Batch(record))
        return 1 - float(error.var(correction=0)) / spread if spread > 0 else None

    def _targets(self, record: Record) -> Targets:
        return self._rule(record, self.online, self.target)

    def _minibatches(self, count: int, seed: int) -> Iterator[Tensor]:
        """Parts of all rounds in a random order, again and again; if one part holds all, in their own order."""
        generator = torch.Generator().manual_seed(seed_of(seed, "mixing", "minibatches", self.steps) >> 1)
        parts = -(-count // self.settings.batch)
        while True:
            order = torch.randperm(count, generator=generator) if parts > 1 else torch.arange(count)
            yield from order.tensor_split(parts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "online": _copied(self.online),
            "target": _copied(self.target),
            "moments": {name: dict(kept) for name, kept in self._moments.items()},
            "memory": [record.state_dict() for record in self.memory],
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; the networks must understand its kinds already."""
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self._moments = {name: dict(kept) for name, kept in state["moments"].items()}
        self.memory = [Record.of(record) for record in state["memory"]]
        self.steps, self.updates = int(state["steps"]), int(state["updates"])


def _copied(networks: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in networks.state_dict().items()}


class Descent:
    """Adam, or RMSprop as in pymarl, with the gradient's norm limited."""

    def __init__(self, fit: Fit, networks: nn.Module, moments: Mapping[str, Any]) -> None:
        """`moments`: of the parameters that were stepped before; others start anew."""
        self._named = dict(networks.named_parameters())
        self._max_norm = fit.max_norm
        parameters = list(self._named.values())
        if fit.optimizer == "adam":
            self._optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=fit.lr, fused=True)
        else:
            self._optimizer = torch.optim.RMSprop(parameters, lr=fit.lr, alpha=0.99, eps=1e-5)
        indexed = {i: dict(moments[name]) for i, name in enumerate(self._named) if name in moments}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": indexed, "param_groups": groups})

    def __call__(self, loss: Tensor) -> Tensor:
        """One step; the loss before it."""
        loss.backward()
        nn.utils.clip_grad_norm_(self._named.values(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def moments(self) -> dict[str, Any]:
        """Parameter -> its moments and step count, copied."""
        names, state = list(self._named), self._optimizer.state_dict()["state"]
        return {names[i]: {key: value.clone() for key, value in kept.items()} for i, kept in state.items()}
