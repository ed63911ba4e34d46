"""The loop of every learner: merge, split, accumulate, check, step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl.protocols import Brief
from marl.types import Metrics, Reading, Sample, Turn
from trainers.batches import Batch, chosen_logprobs, collate, read_whole, vocabulary_logprobs
from trainers.losses import Totals, masked_sum, row_scale
from trainers.meter import Meter, Pass
from trainers.numerics import check_inputs, gradient_error, loss_error
from trainers.objective import Objective
from trainers.optimizer import Optimizer
from trainers.plans import Planner
from trainers.rows import Row, distribution
from trainers.schedules import learning_rate
from trainers.weights import named_tensors, restore, snapshot

if TYPE_CHECKING:
    from trainers.settings import Optimisation

LOGPROBS = frozenset({"logprobs"})


class Learner:
    """Weights that learn from samples. What it minimises is its objective's business."""

    def __init__(self, settings: Optimisation, brief: Brief, model: Any, objective: Objective) -> None:
        self.settings, self.brief, self.model, self.objective = settings, brief, model.train(), objective
        self.needs = objective.needs
        self.device: torch.device = next(model.parameters()).device
        self.updates = 0
        self._minibatch = 0
        """How many minibatches of the update under way are done; not 0 in the state of one that failed."""
        self._skip = 0
        """How many the next update leaves out: those done when the state was taken that was loaded."""
        self._plan = Planner(model, settings.micro_tokens, settings.share_prompts)
        self._optimizer = Optimizer(model, settings)

    @torch.no_grad()
    def read(self, turns: Sequence[Turn], wanted: frozenset[str] = LOGPROBS) -> list[Reading]:
        """Log-probabilities of the completions' tokens under their sampling distribution; `hidden`: the last layer's
        states [2, H], float32, at the last token of the prompt and of the completion. Equal turns are read once."""
        rows = {_identity(row): row for turn in reversed(turns) if (row := _turn_row(turn)).token_ids}
        self.model.eval()
        found = dict(self._readings(list(reversed(rows.values())), "hidden" in wanted))
        self.model.train()
        return [found.get(_identity(_turn_row(turn)), Reading(())) for turn in turns]

    def _readings(self, rows: list[Row], hidden: bool) -> Iterator[tuple[Any, Reading]]:
        for chunk, batch in self._plan.whole(rows) if hidden else self._plan.batches(rows):
            ends: Iterable[Any] = repeat(None)
            if hidden:
                logprobs_NV, ends = read_whole(self.model, batch)
            else:
                logprobs_NV = vocabulary_logprobs(self.model, batch)
            values = chosen_logprobs(logprobs_NV, batch).tolist()
            for row, value, end in zip(chunk, values, ends, strict=False):
                yield _identity(row), Reading(tuple(value[: len(row.token_ids)]), hidden=end)

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once. Without any, nothing changes but the count of updates."""
        lr = learning_rate(self.settings, self.updates, self.brief.steps)
        meter = Meter(self.objective.stats)
        self._minibatch, self._skip = self._skip, 0
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
        self.objective.finish(self.updates, self.model)
        return {"lr": lr, "samples": float(len(samples)), **meter.metrics()}

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Named tensors, tied ones once. They are the learner's own: copy them before its next update."""
        return named_tensors(self.model)

    def save(self, folder: Path) -> None:
        """A Hugging Face folder: weights in safetensors, settings, tokenizer. Of an adapter, a PEFT folder."""
        self.model.save_pretrained(folder)
        self.brief.source.tokenizer().save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, beside its samples."""
        return {
            "updates": self.updates,
            "minibatch": self._minibatch,
            "model": snapshot(dict(self.publish())),
            "optimizer": self._optimizer.state_dict(),
            "objective": self.objective.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.updates, self._skip = int(state["updates"]), int(state["minibatch"])
        self._minibatch = self._skip
        restore(dict(self.publish()), state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])

    def _minibatches(self, samples: Sequence[Sample], rng: random.Random) -> Iterator[Sequence[Sample]]:
        # Samples are dealt out before they are merged, so that merging does not change who learns with whom.
        pieces = self.settings.minibatches
        for _ in range(self.settings.epochs):
            order = list(samples)
            if pieces > 1:
                rng.shuffle(order)
            yield from (order[piece::pieces] for piece in range(pieces))

    def _step(self, rows: list[Row], lr: float) -> Pass:
        check_inputs(self.brief.policy, rows)
        totals = Totals(sum(r.count for r in rows), sum(r.count * len(r.token_ids) for r in rows))
        ordered, losses, policy, stats = [], [], [], []
        for chunk, batch in self._plan.batches(rows):
            loss_B, policy_B, stats_S = self._losses(batch, totals)
            loss_B.sum().backward()
            ordered += chunk
            losses.append(loss_B.detach())
            policy.append(policy_B.detach())
            stats.append(stats_S)
        norm = self._optimizer.clip()
        loss_B = torch.cat(losses)
        loss, policy_loss, grad_norm, good = torch.stack(
            [loss_B.sum(), torch.cat(policy).sum(), norm, (loss_B.sum() + norm).isfinite()]
        ).tolist()
        if not good:
            self._blame(ordered, loss_B, totals)
        self._optimizer.step(lr)
        means = {"loss": loss, "policy_loss": policy_loss, "grad_norm": grad_norm}
        return Pass(means, torch.stack(stats).sum(0), totals.tokens, len(rows))

    def _losses(self, batch: Batch, totals: Totals) -> tuple[Tensor, Tensor, Tensor]:
        """Each row's share [B] of the minibatch's loss and of its policy part; sums over tokens of the statistics."""
        terms = self.objective.terms(self.model, batch, self.updates)
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        policy_B = loss_B = scale_B * masked_sum(terms.policy_BT, batch.mask_BT)
        if terms.penalty_BT is not None:
            loss_B = policy_B + scale_B * batch.counts_B * masked_sum(terms.penalty_BT, batch.mask_BT)
        with torch.no_grad():
            weights_BT = batch.mask_BT * batch.counts_B[:, None]
            stats_S = (torch.stack(terms.stats) * weights_BT).sum((1, 2))
        return loss_B, policy_B, stats_S

    def _blame(self, rows: list[Row], loss_B: Tensor, totals: Totals) -> None:
        self._optimizer.forget()
        if not bool(loss_B.sum().isfinite()):
            raise loss_error(self.brief.policy, rows, loss_B.tolist())

        def loss_of(row: Row) -> Tensor:
            return self._losses(collate([row], self.device), totals)[0].sum()

        raise gradient_error(self.brief.policy, rows, loss_of, self._optimizer.parameters)


def _turn_row(turn: Turn) -> Row:
    return Row(turn.completion.prompt_ids, turn.completion.token_ids, turn.request.sampling)


def _identity(row: Row) -> Any:
    return row.prompt_ids, row.token_ids, distribution(row.sampling)
