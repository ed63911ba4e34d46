"""The loop of every learner: merge, split, accumulate, check, step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl.protocols import Brief
from marl.types import Metrics, Reading, Sample, Turn
from trainers.batching.batches import collate
from trainers.batching.planner import Planner
from trainers.batching.rows import Row, totals_of
from trainers.forward.checkpointing import apply_modes
from trainers.forward.head import fit_head
from trainers.forward.reader import LOGPROBS, Reader
from trainers.losses.aggregation import Totals
from trainers.objectives.objective import Objective
from trainers.optim.meter import Meter, Pass
from trainers.optim.numerics import check_inputs, gradient_error, loss_error
from trainers.optim.optimizer import Optimizer
from trainers.optim.peak_memory import PeakMemory
from trainers.optim.schedules import learning_rate
from trainers.optim.weights import named_tensors, restore, save_weights, snapshot
from trainers.sampler_check.gate import Gate

if TYPE_CHECKING:
    from trainers.settings import Optimisation


class Learner:
    """Weights that learn from samples. What it minimises is its objective's business."""

    def __init__(self, settings: Optimisation, brief: Brief, model: Any, objective: Objective) -> None:
        self.settings, self.brief, self.model, self.objective = settings, brief, model.train(), objective
        self.device: torch.device = next(model.parameters()).device
        self.updates = 0
        self._minibatch = 0
        """How many minibatches of the update under way are done; not 0 in the state of one that failed."""
        self._skip = 0
        """How many the next update leaves out: those done when the state was taken that was loaded."""
        if model.get_output_embeddings() is not None:
            fit_head(model)
        apply_modes(model, settings)
        self._layout: str | None = None
        """That of the update's first minibatch serves all: they are alike, and to compare layouts takes time."""
        self._plan = Planner(model, settings.micro_tokens, settings.packing)
        self._reader = Reader(model, objective, self._plan)
        self._gate = Gate(settings.fidelity, brief.policy, model, self._plan) if settings.fidelity else None
        self._optimizer = Optimizer(model, objective.modules(), settings, objective.lr_scale)

    @property
    def needs(self) -> frozenset[str]:
        """What must be read of turns before the next update; their log-probabilities where fidelity is due."""
        due = self._gate is not None and self._gate.due(self.updates)
        return self.objective.needs | (LOGPROBS if due else frozenset())

    def read(self, turns: Sequence[Turn], wanted: frozenset[str] = LOGPROBS) -> list[Reading]:
        """What the model says of turns, see `Reader`."""
        return self._reader(turns, wanted)

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once. Without any, nothing changes but the count of updates.

        Raises:
            NonFinite: if a loss or a gradient is not finite, or a log-probability that was read.
            Unfaithful: if the sampler's log-probabilities are too far from those that were read.
        """
        faithful = self._gate.check(samples, self.updates) if self._gate else {}
        lr = learning_rate(self.settings, self.updates, self.brief.steps)
        meter, memory = Meter(self.objective.parts, self.objective.stats), PeakMemory(self.device)
        self._minibatch, self._skip, self._layout = self._skip, 0, None
        self.objective.start(self.updates)
        seed = f"{self.brief.seed}/{self.brief.policy}/{self.updates}"
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(random.Random(seed).getrandbits(63))
            for minibatch in islice(self._minibatches(samples, random.Random(seed)), self._minibatch, None):
                rows = self.objective.rows(minibatch)
                if rows:
                    meter.add(self._step(rows, lr))
                self._minibatch += 1
        self._minibatch = 0
        self.updates += 1
        metrics = {"lr": lr, "samples": float(len(samples)), **faithful, **meter.metrics(), **memory.metrics()}
        return metrics | self.objective.finish(self.updates, self.model, metrics)

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Named tensors, tied ones once. They are the learner's own: copy them before its next update."""
        return named_tensors(self.model)

    def save(self, folder: Path) -> None:
        """A Hugging Face folder: weights in safetensors, settings, tokenizer. Of an adapter, a PEFT folder."""
        save_weights(self.model, folder)
        self.brief.source.tokenizer().save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, beside its samples."""
        return {
            "updates": self.updates,
            "minibatch": self._minibatch,
            "model": snapshot(dict(self.publish())),
            "modules": {name: snapshot(dict(named_tensors(m))) for name, m in self.objective.modules().items()},
            "optimizer": self._optimizer.state_dict(),
            "objective": self.objective.state_dict(),
            "fidelity": self._gate.state_dict() if self._gate else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.updates, self._skip = int(state["updates"]), int(state["minibatch"])
        self._minibatch = self._skip
        restore(dict(self.publish()), state["model"])
        for name, module in self.objective.modules().items():
            restore(dict(named_tensors(module)), state["modules"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self._gate:
            self._gate.load_state_dict(state["fidelity"])

    def _minibatches(self, samples: Sequence[Sample], rng: random.Random) -> Iterator[Sequence[Sample]]:
        # Samples are dealt out before they are merged, so that merging does not change who learns with whom.
        pieces, together = self.settings.minibatches, self.objective.together(samples)
        for _ in range(self.settings.epochs):
            order = list(together)
            if pieces > 1:
                rng.shuffle(order)
            yield from ([one for part in order[piece::pieces] for one in part] for piece in range(pieces))

    def _step(self, rows: list[Row], lr: float) -> Pass:
        check_inputs(self.brief.policy, rows)
        totals, found = totals_of(rows), Pass(len(rows))
        ordered: list[Row] = []
        losses: list[Tensor] = []
        plan = self._plan.laid(rows, self._layout)
        self._layout = plan.name
        for chunk, batch in self._plan.collated(plan):
            terms = self.objective.terms(self.model, batch, totals)
            terms.loss_B.sum().backward()
            ordered += chunk
            losses.append(terms.loss_B.detach())
            found.add(terms, batch)
        norm = self._optimizer.clip()
        loss_B = torch.cat(losses)
        loss, grad_norm, good = torch.stack([loss_B.sum(), norm, (loss_B.sum() + norm).isfinite()]).tolist()
        if not good:
            self._blame(ordered, loss_B, totals)
        self._optimizer.step(lr)
        found.means |= {"loss": loss, "grad_norm": grad_norm}
        return found

    def _blame(self, rows: list[Row], loss_B: Tensor, totals: Totals) -> None:
        self._optimizer.forget()
        if not bool(loss_B.sum().isfinite()):
            raise loss_error(self.brief.policy, rows, loss_B.tolist())

        def loss_of(rows: list[Row]) -> Tensor:
            return self.objective.terms(self.model, collate(rows, self.device), totals).loss_B.sum()

        raise gradient_error(self.brief.policy, rows, loss_of, self._optimizer.parameters)
