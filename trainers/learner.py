"""The loop of every learner: merge, split, accumulate, check, step; and readings of turns without learning."""

from __future__ import annotations

import random
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl.errors import NonFinite, Notice
from marl.models.sharding import whole
from marl.protocols import LearnerContext
from marl.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId
from trainers.batching.batches import Batch, collate
from trainers.batching.planner import BatchPlan, BatchPlanner
from trainers.batching.rows import Row, distribution, totals_of, units_of
from trainers.batching.shares import share_of
from trainers.forward.model_inputs import prepare_layers
from trainers.forward.token_outputs import fit_head, token_outputs
from trainers.losses.aggregation import Totals
from trainers.objectives.objective import Objective
from trainers.optim import diagnostics
from trainers.optim.optimizer import Optimizer, learning_rate, named_tensors, restore, snapshot
from trainers.sampler_check import FidelityGate

if TYPE_CHECKING:
    from trainers.settings.optimisation import Optimisation

LOGPROBS = frozenset({"logprobs"})
ENDS = frozenset({"hidden", "values"})
"""Fields of `Reading` that need states at the ends of texts: `next_value` is that after the last token."""


class FewSamples(Notice):
    """An update has fewer samples than minibatches: some of these are left out."""


class GradientLearner:
    """Weights that learn from samples by gradient descent on an objective."""

    def __init__(self, settings: Optimisation, context: LearnerContext, model: Any, objective: Objective) -> None:
        self.settings, self.context, self.model, self.objective = settings, context, model.train(), objective
        self.device: torch.device = next(model.parameters()).device
        self._is_adapter: bool = model._hf_peft_config_loaded
        self.updates = 0
        self.changes = 0
        """Number of changes of what `state_dict` returns; raised before each."""
        self._minibatch = 0
        """Minibatches of the current update that are done; not 0 in the state of one that failed."""
        self._skip = 0
        """Minibatches that the next update leaves out: those done when the loaded state was taken."""
        self.token_figures: dict[TurnId, TokenFigures] | None = None
        """Filled by the next update, if it is not None and the objective knows them; of several processes, rank 0 has
        those of all."""
        self._warned = False
        """True once it was said that there are too few samples for all minibatches."""
        if model.get_output_embeddings() is not None:
            fit_head(model)
        prepare_layers(model, settings)
        self._collective = context.collective
        for module in (model, *objective.modules().values()):
            self._collective.shard(module)
        self._layout: str | None = None
        """Layout of the update's first minibatch, used for all: they are alike, and comparing layouts takes time."""
        self._figures = len(objective.stats) + len(objective.parts) + 1
        self._planner = BatchPlanner(model, settings.micro_tokens, settings.packing)
        fidelity = settings.fidelity
        self._gate = FidelityGate(fidelity, context.policy, model, self._planner) if fidelity else None
        self._optimizer = Optimizer(model, objective.modules(), settings, objective.lr_scale)

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` to read before the next update; log-probabilities where fidelity is due."""
        due = self._gate is not None and self._gate.due(self.updates)
        return self.objective.needs | (LOGPROBS if due else frozenset())

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once. Without any, nothing changes but the count of updates.

        Raises:
            NonFinite: if a loss, a gradient or a log-probability that was read is not finite.
            Unfaithful: if the sampler's log-probabilities are too far from those that were read.
        """
        faithful = self._gate.check(samples, self.updates) if self._gate else {}
        lr = learning_rate(self.settings, self.updates, self.context.steps)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        steps: list[diagnostics.StepMetrics] = []
        self._minibatch, self._skip, self._layout = self._skip, 0, None
        self.objective.start(self.updates)
        seed = f"{self.context.seed}/{self.context.policy}/{self.updates}"
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(random.Random(seed).getrandbits(63) + self._collective.rank)
            for minibatch in islice(self._minibatches(samples, random.Random(seed)), self._minibatch, None):
                if rows := self.objective.rows(minibatch):
                    steps.append(self._step(rows, lr))
                self.changes += 1
                self._minibatch += 1
        self.changes += 1
        self._minibatch = 0
        self.updates += 1
        self._gather_token_figures()
        figures = diagnostics.update_metrics(steps, self.objective.parts, self.objective.stats)
        memory = diagnostics.memory_metrics(self.device)
        metrics = {"lr": lr, "samples": float(len(samples)), **faithful, **figures, **memory}
        return metrics | self.objective.finish(self.updates, self.model, metrics)

    def _gather_token_figures(self) -> None:
        if self.token_figures is not None:
            for share in self._collective.gather(self.token_figures):
                self.token_figures |= share

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield named tensors, tied ones once; of an adapter, the adapter's alone. They are the learner's own: copy
        them before its next update. Of sharded weights, every process must take them all."""
        return ((name, whole(tensor)) for name, tensor in self._tensors())

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights in safetensors, settings, tokenizer. Of an adapter, a PEFT folder.

        All processes that learn these weights together take part; one of them writes.
        """
        rank, whole_state = self._collective.rank, None
        if self._collective.sharded:
            whole_state = {name: tensor.cpu() for name, tensor in self.publish() if rank == 0}
        if rank:
            return
        if self._is_adapter:
            from marl.models.lora import save_adapter

            save_adapter(self.model, folder, whole_state)
        else:
            self.model.save_pretrained(folder, state_dict=whole_state)
        self.context.source.tokenizer().save_pretrained(folder)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        return named_tensors(self.model, frozen=not self._is_adapter)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, except for its samples."""
        return {
            "updates": self.updates,
            "minibatch": self._minibatch,
            "model": snapshot(dict(self._tensors())),
            "modules": {name: snapshot(dict(named_tensors(m))) for name, m in self.objective.modules().items()},
            "optimizer": self._optimizer.state_dict(),
            "objective": self.objective.state_dict(),
            "fidelity": self._gate.state_dict() if self._gate else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.updates, self._skip = int(state["updates"]), int(state["minibatch"])
        self._minibatch = self._skip
        restore(dict(self._tensors()), state["model"])
        for name, module in self.objective.modules().items():
            restore(dict(named_tensors(module)), state["modules"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self._gate:
            self._gate.load_state_dict(state["fidelity"])

    def _minibatches(self, samples: Sequence[Sample], rng: random.Random) -> Iterator[Sequence[Sample]]:
        # Samples are dealt out before they are merged, so that merging does not change which minibatch they are in.
        pieces, units = self.settings.minibatches, self.objective.sample_units(samples)
        if len(units) < pieces and units and not self._warned:
            self._warned = True
            warnings.warn(
                f"policy {self.context.policy!r}: learner.minibatches: {pieces}, but update {self.updates + 1} has "
                f"{len(units)} to deal out (samples, pairs or episodes), so it makes as many optimizer steps; this is "
                "said once. Choose fewer minibatches, or more episodes a step",
                FewSamples,
                stacklevel=2,
            )
        for _ in range(self.settings.epochs):
            order = list(units)
            if pieces > 1:
                rng.shuffle(order)
            yield from ([one for unit in order[piece::pieces] for one in unit] for piece in range(pieces))

    def _step(self, rows: list[Row], lr: float) -> diagnostics.StepMetrics:
        diagnostics.check_finite(self.context.policy, rows)
        totals, metrics = totals_of(rows), diagnostics.StepMetrics(len(rows), self._zeros(self._figures))
        ordered: list[Row] = []
        losses: list[Tensor] = []
        plan = self._plan(rows, self._layout)
        self._layout = plan.name
        for chunk, batch in self._passes(plan, rows):
            terms = self.objective.terms(self.model, batch, totals)
            if not chunk:
                (0 * terms.loss_B.sum()).backward()
                continue
            terms.loss_B.sum().backward()
            ordered += chunk
            losses.append(terms.loss_B.detach())
            # Later passes over the samples come after steps of the optimizer.
            if self.token_figures is not None and terms.tokens and self._minibatch < self.settings.minibatches:
                add_token_figures(self.token_figures, chunk, terms.tokens)
            metrics.add(terms, batch)
        loss = torch.cat(losses).sum().double() if losses else self._zeros()
        self._collective.add_up([loss, metrics.sums_S])
        self._optimizer.add_up(self._collective)
        norm = self._optimizer.clip()
        figures = torch.stack([loss, norm, (loss + norm).isfinite()]).tolist()
        metrics.loss, metrics.grad_norm, finite = figures
        if not finite:
            raise self._non_finite(rows, self._losses_of(rows, ordered, losses), totals)
        self.changes += 1
        self._optimizer.step(lr)
        return metrics

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _plan(self, rows: Sequence[Row], layout: str | None = None, *, ends: bool = False) -> BatchPlan:
        """Return this process's share of the rows in batches."""
        return self._planner.plan(share_of(rows, self._collective.rank, self._collective.size), layout, ends=ends)

    def _passes(self, plan: BatchPlan, rows: Sequence[Row], *, ends: bool = False) -> Iterator[tuple[list[Row], Batch]]:
        """Yield the batches of a plan. Where all processes must make as many passes, idle ones follow, whose list of
        rows is empty and whose batch is of rows that some process has."""
        passes = len(plan.batches)
        most = self._collective.most(passes) if self._collective.sharded else passes
        yield from self._planner.collate(plan)
        for _ in range(passes, most):
            idle = self._planner.plan(units_of(rows)[0], "padded", ends=ends)
            yield from (([], batch) for _, batch in self._planner.collate(idle))

    def _losses_of(self, rows: Sequence[Row], ordered: Sequence[Row], losses: Sequence[Tensor]) -> list[float]:
        """Return the loss of each row; `losses` are those of this process's rows, as they were `ordered`."""
        places = {id(row): place for place, row in enumerate(rows)}
        losses_R = self._zeros(len(rows))
        losses_R[[places[id(row)] for row in ordered]] = torch.cat([self._zeros(0), *losses])
        self._collective.add_up([losses_R])
        return losses_R.tolist()

    def _non_finite(self, rows: list[Row], losses: Sequence[float], totals: Totals) -> NonFinite:
        """Return the error that names the samples to blame, the same in all processes."""

        def norm_of(unit: list[Row]) -> float:
            self._optimizer.zero_grad()
            self.objective.terms(self.model, collate(unit, self.device), totals).loss_B.sum().backward()
            return float(self._optimizer.clip())

        what, bad = diagnostics.find_non_finite(rows, losses, norm_of)
        self._optimizer.zero_grad()
        return NonFinite(self.context.policy, what, [sample for row in bad for sample in row.samples])

    @torch.no_grad()
    def read(self, turns: Sequence[Turn], wanted: frozenset[str] = LOGPROBS) -> list[Reading]:
        """Return a reading of each turn with the weights as they are; an empty one of a turn without tokens.

        `logprobs`: of the completions' tokens under their sampling distribution. `hidden`: the last layer's states
        [2, H], float32, at the last token of the prompt and of the completion. All other fields the objective reads.
        Of several processes, each reads its share, and rank 0 alone returns the readings.
        """
        distinct = {_row_key(row): row for turn in reversed(turns) if (row := _turn_row(turn)).token_ids}
        rows = list(reversed(distinct.values()))
        training = self.model.training
        self.model.eval()
        readings: dict[Hashable, Reading] = {}
        ends = bool(wanted & ENDS)
        for chunk, batch in self._passes(self._plan(rows, ends=ends), rows, ends=ends):
            readings |= self._read_batch(chunk, batch, wanted)
        self.model.train(training)
        gathered = self._collective.gather(readings)
        everything = {key: reading for readings in gathered for key, reading in readings.items()}
        return [everything.get(_row_key(_turn_row(turn)), Reading(())) for turn in turns] if gathered else []

    def _read_batch(self, chunk: Sequence[Row], batch: Batch, wanted: frozenset[str]) -> dict[Hashable, Reading]:
        outputs = token_outputs(self.model, batch)
        fields: dict[str, Any] = {"logprobs": outputs.logprobs_BT.tolist()}
        if "hidden" in wanted and outputs.states.ends_B2H is not None:
            fields["hidden"] = outputs.states.ends_B2H.float().cpu()
        fields |= {name: t.tolist() for name, t in self.objective.read(outputs, batch, wanted).items()}
        readings: dict[Hashable, Reading] = {}
        for index, row in enumerate(chunk):
            reading = {name: values[index] for name, values in fields.items()}
            padded = {name: values for name, values in reading.items() if isinstance(values, list)}
            reading |= {name: tuple(values[: len(row.token_ids)]) for name, values in padded.items()}
            readings[_row_key(row)] = Reading(**reading)
        return readings


def add_token_figures(
    figures: dict[TurnId, TokenFigures], rows: Sequence[Row], tokens_BT: tuple[Tensor, Tensor]
) -> None:
    """Add the figures of the samples of these rows; those of an earlier pass stay."""
    logprobs, entropies = (tensor_BT.tolist() for tensor_BT in tokens_BT)
    for index, row in enumerate(rows):
        count = len(row.token_ids)
        of_row = TokenFigures(tuple(logprobs[index][:count]), tuple(entropies[index][:count]))
        for sample in row.samples:
            figures.setdefault(sample.id, of_row)


def _turn_row(turn: Turn) -> Row:
    return Row(turn.completion.prompt_ids, turn.completion.token_ids, turn.request.sampling)


def _row_key(row: Row) -> Hashable:
    return row.prompt_ids, row.token_ids, distribution(row.sampling)
