"""The loop of every gradient learner: merge, split, accumulate, check, step; and readings of turns without learning."""

import random
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl.core.errors import NonFiniteError, Notice
from marl.core.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId
from marl.models.lora import save_adapter
from marl.models.sharding import full_tensor
from marl.protocols import LearnerContext
from marl.trainers.batching.aggregation import MinibatchTotals
from marl.trainers.batching.batches import Batch, collate
from marl.trainers.batching.planner import BatchPlan, BatchPlanner
from marl.trainers.batching.rows import Row, count_totals, group_by_unit, rows_of_rank, sampling_distribution
from marl.trainers.forward.fidelity_gate import FidelityGate
from marl.trainers.forward.model_inputs import enable_checkpointing_and_compile
from marl.trainers.forward.token_outputs import find_logit_transform, token_outputs
from marl.trainers.objective import Objective
from marl.trainers.optim import update_metrics
from marl.trainers.optim.optimizer import Optimizer, copy_into, cpu_copy, learned_tensors, scheduled_lr
from marl.trainers.optim.settings import GradientLearnerConfig

LOGPROBS_ONLY = frozenset({"logprobs"})
END_STATE_FIELDS = frozenset({"hidden", "values"})
"""Fields of `Reading` computed from states at the ends of texts: `next_value` is the value after the last token."""


class TooFewSamples(Notice):
    """An update has fewer samples than minibatches, so some minibatches are empty."""


class GradientLearner:
    """Weights that learn from samples by gradient descent on an objective."""

    def __init__(
        self, settings: GradientLearnerConfig, context: LearnerContext, model: Any, objective: Objective
    ) -> None:
        if not objective.supports_packing:
            settings = settings.model_copy(update={"packing": "padded"})
        self.settings, self.context, self.model, self.objective = settings, context, model.train(), objective
        self.device: torch.device = next(model.parameters()).device
        self._is_adapter: bool = model._hf_peft_config_loaded
        self.updates = 0
        self.changes = 0
        """Number of changes to the state that `state_dict` returns; incremented before each change."""
        self._minibatch = 0
        """Completed minibatches of the current update; not 0 in the state of an update that failed."""
        self._skip = 0
        """Minibatches that the next update skips: the completed minibatches of the loaded state."""
        self.token_figures: dict[TurnId, TokenFigures] | None = None
        """Filled by the next update, unless it is None or the objective has no figures of tokens. With several
        processes, rank 0 gathers the figures of all."""
        self._warned = False
        """True once the warning about too few samples was shown."""
        if model.get_output_embeddings() is not None:
            find_logit_transform(model)
        enable_checkpointing_and_compile(model, settings)
        self._collective = context.data_parallel
        # Sharding replaces parameters, so it comes before the optimizer collects them.
        for module in (model, *objective.modules.values()):
            self._collective.shard(module)
        self._layout: str | None = None
        """Layout of the update's first minibatch, used for all: they are alike, and comparing layouts takes time."""
        self._figure_count = len(objective.token_stat_names) + len(objective.loss_term_names) + 1
        self._planner = BatchPlanner(model, settings.micro_tokens, settings.packing)
        fidelity = settings.fidelity
        self._gate = FidelityGate(fidelity, context.policy, model, self._planner) if fidelity else None
        self._optimizer = Optimizer(model, objective.modules, settings, objective.lr_scale)

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Reading` to read before the next update; log-probabilities where a fidelity check is due."""
        due = self._gate is not None and self._gate.due(self.updates)
        return self.objective.needs | (LOGPROBS_ONLY if due else frozenset())

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once. Without samples, only the count of updates changes.

        Raises:
            NonFiniteError: if a loss, a gradient or a log-probability that was read is not finite.
            SamplerMismatch: if the sampler's log-probabilities are too far from the learner's.
        """
        fidelity_figures = self._gate.check(samples, self.updates) if self._gate else {}
        lr = scheduled_lr(self.settings, self.updates, self.context.steps)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        steps: list[update_metrics.StepMetrics] = []
        self._minibatch, self._skip, self._layout = self._skip, 0, None
        self.objective.before_update(self.updates)
        # Seeded by the number of the update, so that a resumed run draws the same minibatches and dropout masks.
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
        if self.token_figures is not None:
            for rank_figures in self._collective.gather(self.token_figures):
                self.token_figures |= rank_figures
        figures = update_metrics.update_metrics(steps, self.objective.loss_term_names, self.objective.token_stat_names)
        memory = update_metrics.memory_metrics(self.device)
        metrics = {"lr": lr, "samples": float(len(samples)), **fidelity_figures, **figures, **memory}
        return metrics | self.objective.after_update(self.updates, self.model, metrics)

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield named tensors, tied tensors once; of an adapter, the adapter's tensors alone.

        The tensors are the learner's own: copy them before its next update. With sharded weights, every process must
        consume the whole iterator.
        """
        return ((name, full_tensor(tensor)) for name, tensor in self._tensors())

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights in safetensors, settings, tokenizer. Of an adapter, a PEFT folder.

        All processes that learn these weights together must call this; rank 0 writes.
        """
        rank, full_state = self._collective.rank, None
        if self._collective.is_sharded:
            full_state = {name: tensor.cpu() for name, tensor in self.publish() if rank == 0}
        if rank:
            return
        if self._is_adapter:
            save_adapter(self.model, folder, full_state)
        else:
            self.model.save_pretrained(folder, state_dict=full_state)
        self.context.source.tokenizer().save_pretrained(folder)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        return learned_tensors(self.model, frozen=not self._is_adapter)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the next update, except for its samples."""
        return {
            "updates": self.updates,
            "minibatch": self._minibatch,
            "model": cpu_copy(dict(self._tensors())),
            "modules": {name: cpu_copy(dict(learned_tensors(m))) for name, m in self.objective.modules.items()},
            "optimizer": self._optimizer.state_dict(),
            "objective": self.objective.state_dict(),
            "fidelity": self._gate.state_dict() if self._gate else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`; after a failed update, the next update skips its completed minibatches."""
        self.updates, self._skip = int(state["updates"]), int(state["minibatch"])
        self._minibatch = self._skip
        copy_into(dict(self._tensors()), state["model"])
        for name, module in self.objective.modules.items():
            copy_into(dict(learned_tensors(module)), state["modules"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self._gate:
            self._gate.load_state_dict(state["fidelity"])

    def _minibatches(self, samples: Sequence[Sample], rng: random.Random) -> Iterator[Sequence[Sample]]:
        # Samples are dealt out before they are merged, so that merging does not change which minibatch they are in.
        count, units = self.settings.minibatches, self.objective.sample_units(samples)
        if len(units) < count and units and not self._warned:
            self._warned = True
            warnings.warn(
                f"policy {self.context.policy!r}: learner.minibatches: {count}, but update {self.updates + 1} has "
                f"{len(units)} to deal out (samples, pairs or episodes), so it makes as many optimizer steps; this is "
                "said once. Choose fewer minibatches, or more episodes a step",
                TooFewSamples,
                stacklevel=2,
            )
        for _ in range(self.settings.epochs):
            order = list(units)
            if count > 1:
                rng.shuffle(order)
            for index in range(count):
                yield list(chain.from_iterable(order[index::count]))

    def _step(self, rows: list[Row], lr: float) -> update_metrics.StepMetrics:
        """Take an optimizer step on `rows`; return its figures."""
        update_metrics.check_finite(self.context.policy, rows)
        totals, metrics = count_totals(rows), update_metrics.StepMetrics(len(rows), self._zeros(self._figure_count))
        ordered: list[Row] = []
        losses: list[Tensor] = []
        plan = self._plan(rows, self._layout)
        self._layout = plan.layout
        for chunk, batch in self._passes(plan, rows):
            terms = self.objective.terms(self.model, batch, totals)
            if not chunk:
                # Sharded weights need a backward pass in every process, here one whose gradient is 0.
                (0 * terms.loss_B.sum()).backward()
                continue
            terms.loss_B.sum().backward()
            ordered += chunk
            losses.append(terms.loss_B.detach())
            # Later passes over the samples come after steps of the optimizer.
            if self.token_figures is not None and terms.token_figures and self._minibatch < self.settings.minibatches:
                add_token_figures(self.token_figures, chunk, terms.token_figures)
            metrics.add(terms, batch)
        loss = torch.cat(losses).sum().double() if losses else self._zeros()
        self._collective.all_reduce_sum([loss, metrics.sums_S])
        self._optimizer.all_reduce_gradients(self._collective)
        norm = self._optimizer.clip()
        # One copy to the host for all figures: each copy waits for the GPU.
        metrics.loss, metrics.grad_norm, finite = torch.stack([loss, norm, (loss + norm).isfinite()]).tolist()
        if not finite:
            raise self._non_finite(rows, ordered, losses, totals)
        self.changes += 1
        self._optimizer.step(lr)
        return metrics

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _plan(self, rows: Sequence[Row], layout: str | None = None, *, ends: bool = False) -> BatchPlan:
        """Return this process's share of `rows` in batches."""
        share = rows_of_rank(rows, self._collective.rank, self._collective.world_size)
        return self._planner.plan(share, layout, ends=ends)

    def _passes(self, plan: BatchPlan, rows: Sequence[Row], *, ends: bool = False) -> Iterator[tuple[list[Row], Batch]]:
        """Yield the batches of `plan`.

        Where all processes must make equally many passes, idle passes follow: their list of rows is empty, and their
        batch is of rows of some process.
        """
        passes = len(plan.batches)
        max_passes = self._collective.all_reduce_max(passes) if self._collective.is_sharded else passes
        yield from self._planner.collate_plan(plan)
        for _ in range(passes, max_passes):
            idle = self._planner.plan(group_by_unit(rows)[0], "padded", ends=ends)
            for _, batch in self._planner.collate_plan(idle):
                yield [], batch

    def _non_finite(
        self, rows: list[Row], ordered: Sequence[Row], losses: Sequence[Tensor], totals: MinibatchTotals
    ) -> NonFiniteError:
        """Return an error naming the samples to blame, the same in all processes.

        `losses` are those of this process's rows, in the order `ordered`.
        """

        def norm_of(unit: list[Row]) -> float:
            self._optimizer.zero_grad()
            self.objective.terms(self.model, collate(unit, self.device), totals).loss_B.sum().backward()
            return float(self._optimizer.clip())

        index_of = {id(row): index for index, row in enumerate(rows)}
        losses_R = self._zeros(len(rows))
        losses_R[[index_of[id(row)] for row in ordered]] = torch.cat([self._zeros(0), *losses])
        self._collective.all_reduce_sum([losses_R])
        quantity, bad_rows = update_metrics.find_non_finite_rows(rows, losses_R.tolist(), norm_of)
        self._optimizer.zero_grad()
        return NonFiniteError(self.context.policy, quantity, [sample for row in bad_rows for sample in row.samples])

    @torch.no_grad()
    def read(self, turns: Sequence[Turn], wanted: frozenset[str] = LOGPROBS_ONLY) -> list[Reading]:
        """Return a reading of each turn with the current weights; an empty reading of a turn without tokens.

        `logprobs`: log-probabilities of the completions' tokens under their sampling distribution. `hidden`: the last
        layer's states [2, H], float32, at the last token of the prompt and of the completion. Other fields in `wanted`
        are read by the objective. With several processes, each reads its share, and rank 0 alone returns the readings.
        """
        distinct: dict[Hashable, Row] = {}
        for turn in reversed(turns):
            row = _turn_row(turn)
            if row.token_ids:
                distinct[_row_key(row)] = row
        # In the order of last occurrences: another order would make other batches, hence other bits.
        rows = list(reversed(distinct.values()))
        training = self.model.training
        self.model.eval()
        readings: dict[Hashable, Reading] = {}
        ends = bool(wanted & END_STATE_FIELDS)
        for chunk, batch in self._passes(self._plan(rows, ends=ends), rows, ends=ends):
            outputs = token_outputs(self.model, batch)
            fields: dict[str, Any] = {"logprobs": outputs.logprobs_BT.tolist()}
            if "hidden" in wanted and outputs.states.ends_B2H is not None:
                fields["hidden"] = outputs.states.ends_B2H.float().cpu()
            for name, tensor in self.objective.read(outputs, batch, wanted).items():
                fields[name] = tensor.tolist()
            for index, row in enumerate(chunk):
                reading: dict[str, Any] = {}
                for name, values in fields.items():
                    value = values[index]
                    # Lists are numbers of tokens, padded to the longest row of the batch.
                    reading[name] = tuple(value[: len(row.token_ids)]) if isinstance(value, list) else value
                readings[_row_key(row)] = Reading(**reading)
        self.model.train(training)
        gathered = self._collective.gather(readings)
        if not gathered:
            return []
        all_readings: dict[Hashable, Reading] = {}
        for rank_readings in gathered:
            all_readings |= rank_readings
        return [all_readings.get(_row_key(_turn_row(turn)), Reading(())) for turn in turns]


def add_token_figures(
    figures: dict[TurnId, TokenFigures], rows: Sequence[Row], tokens_BT: tuple[Tensor, Tensor]
) -> None:
    """Add to `figures` the figures of the samples of `rows`; figures of an earlier pass are not replaced."""
    logprobs, entropies = (tensor_BT.tolist() for tensor_BT in tokens_BT)
    for index, row in enumerate(rows):
        count = len(row.token_ids)
        row_figures = TokenFigures(tuple(logprobs[index][:count]), tuple(entropies[index][:count]))
        for sample in row.samples:
            figures.setdefault(sample.id, row_figures)


def _turn_row(turn: Turn) -> Row:
    return Row(turn.completion.prompt_ids, turn.completion.token_ids, turn.request.sampling)


def _row_key(row: Row) -> Hashable:
    return row.prompt_ids, row.token_ids, sampling_distribution(row.sampling)
