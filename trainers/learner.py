"""Update loop of all gradient learners, from samples to optimizer steps, and readings of turns by a learner's model."""

import math
import random
import time
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl.core.errors import NonFiniteError, UserNotice
from marl.core.types import Metrics, Reading, Sample, Turn, TurnId
from marl.models.lora import save_adapter
from marl.models.sharding import full_tensor
from marl.protocols import LearnerBuildArguments, TokenLogprobsAndEntropies
from marl.trainers.batching.aggregation import MinibatchTotals
from marl.trainers.batching.batches import Batch, collate
from marl.trainers.batching.planner import BatchPlan, BatchPlanner
from marl.trainers.batching.rows import (
    BatchRow,
    count_minibatch_totals,
    group_by_unit,
    rows_of_data_parallel_rank,
    temperature_top_p_and_top_k,
)
from marl.trainers.forward.fidelity_gate import FidelityGate
from marl.trainers.forward.model_inputs import enable_checkpointing_and_compile
from marl.trainers.forward.token_outputs import find_logit_transform, token_outputs
from marl.trainers.objective import Objective
from marl.trainers.optim import update_metrics
from marl.trainers.optim.optimizer import (
    Optimizer,
    copy_tensors_with_equal_names,
    cpu_copy,
    named_trained_tensors,
    scheduled_lr,
)
from marl.trainers.optim.peak_flops import device_peak_flops
from marl.trainers.optim.settings import GradientLearnerConfig

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/samples | turns | turns that the update learned from
policy/POLICY/lr | number | learning rate of the update
policy/POLICY/loss | nats or loss | whole loss of an optimizer step, mean over optimizer steps
policy/POLICY/grad_norm | number | gradient norm before clipping, mean over optimizer steps
"""

LOGPROBS_ONLY = frozenset({"logprobs"})
END_STATE_FIELDS = frozenset({"hidden", "values"})
"""Fields of `Reading` that need the hidden state at a completion's last token, which log-probabilities do not need."""


class TooFewSamples(UserNotice):
    """An update has fewer samples than minibatches, or a run has fewer episodes than a batch of replayed ones."""


class GradientLearner:
    """Learner that updates a model's weights by gradient descent on an objective."""

    def __init__(
        self, settings: GradientLearnerConfig, context: LearnerBuildArguments, model: Any, objective: Objective
    ) -> None:
        if not objective.supports_packing:
            settings = settings.model_copy(update={"packing": "padded"})
        self.settings, self.context, self.model, self.objective = settings, context, model.train(), objective
        self.device: torch.device = next(model.parameters()).device
        self._is_adapter: bool = model._hf_peft_config_loaded
        self.updates = 0
        self.changes = 0
        """Number of changes of the learner's state; incremented before each change, to recognise an outdated copy."""
        self._minibatch = 0
        """Number of completed minibatches of the current update; above 0 in the state of an update that failed."""
        self._skip = 0
        """Number of minibatches that the next update skips, because a failed update had completed them."""
        self.token_figures: dict[TurnId, TokenLogprobsAndEntropies] | None = None
        """Turn -> its tokens' log-probabilities and entropies, filled by the next update. None: not recorded. Rank 0
        gathers the figures of all ranks."""
        self._warned = False
        """True after the warning about too few samples, which is shown once."""
        if model.get_output_embeddings() is not None:
            find_logit_transform(model)
        enable_checkpointing_and_compile(model, settings)
        self._collective = context.data_parallel
        # Sharding replaces the parameters, so the optimizer is built afterwards.
        for module in (model, *objective.modules.values()):
            self._collective.shard_weights(module)
        self._layout: str | None = None
        """Layout of the first minibatch of an update. The other minibatches use the same, as comparing takes time."""
        self._figure_count = len(objective.token_stat_names) + len(objective.loss_term_names) + 1
        self._planner = BatchPlanner(model, settings.micro_tokens, settings.packing)
        fidelity = settings.fidelity
        self._gate = FidelityGate(fidelity, context.policy, model, self._planner) if fidelity else None
        self._optimizer = Optimizer(model, objective.modules, settings, objective.lr_scale)
        self._peak_flops = device_peak_flops(self.device)
        self._update_flops = 0.0
        """FLOPs of the current update's forward and backward passes; counted if the peak of the device is known."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Fields of `Reading` to read before the next update, with log-probabilities if a fidelity check is due."""
        if self._gate is not None and self._gate.is_check_due(self.updates):
            return self.objective.needed_reading_fields | LOGPROBS_ONLY
        return self.objective.needed_reading_fields

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights on `samples`. Without samples, only the count of updates changes.

        Raises:
            NonFiniteError: if a loss, a gradient, a reward that ranks samples or a log-probability is not finite.
            SamplerLogprobMismatchError: if the sampler's log-probabilities are too far from the learner's.
        """
        started, self._update_flops = time.perf_counter(), 0.0
        fidelity_figures = self._gate.check_sampler_fidelity(samples, self.updates) if self._gate else {}
        lr = scheduled_lr(self.settings, self.updates, self.context.steps)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        steps: list[update_metrics.StepMetrics] = []
        # A resumed update goes on with weights that have moved already.
        has_moved = self._skip > 0
        self._minibatch, self._skip, self._layout = self._skip, 0, None
        self.objective.prepare_update(self.updates)
        # The seed depends on the update's number, so a resumed run draws equal minibatches and dropout masks.
        seed = f"{self.context.seed}/{self.context.policy}/{self.updates}"
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(random.Random(seed).getrandbits(63) + self._collective.rank)
            for minibatch in islice(self._minibatches(samples, random.Random(seed)), self._minibatch, None):
                if rows := self.objective.rows(minibatch):
                    steps.append(self._optimizer_step(rows, lr, has_moved or bool(steps)))
                    if steps[-1].ends_update:
                        break
                self.changes += 1
                self._minibatch += 1
        self.changes += 1
        self._minibatch = 0
        self.updates += 1
        if self.token_figures is not None:
            for rank_figures in self._collective.gather(self.token_figures):
                self.token_figures |= rank_figures
        figures = update_metrics.mean_step_metrics(
            steps, self.objective.loss_term_names, self.objective.token_stat_names
        )
        metrics = {"lr": lr, "samples": float(len(samples)), **fidelity_figures, **figures}
        # On a CPU, only the peak memory since the process started is known, which would differ in a resumed run.
        if self.device.type == "cuda":
            metrics["memory_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        if self._peak_flops:
            torch.cuda.synchronize(self.device)
            metrics["mfu"] = self._update_flops / (time.perf_counter() - started) / self._peak_flops
        return metrics | self.objective.finish_update(self.updates, self.model, metrics)

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's tensors by name, or the adapter's alone; tied tensors are yielded once.

        The tensors are the learner's own: copy them before its next update. With sharded weights, every process must
        consume the whole iterator.
        """
        if self._is_adapter:
            # Play waits meanwhile, and a walk through the modules of a model would take milliseconds.
            for name, parameter in self._optimizer.trained_model_parameters():
                yield name, full_tensor(parameter.detach())
            return
        for name, tensor in named_trained_tensors(self.model, include_frozen=True):
            yield name, full_tensor(tensor)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with weights, settings and tokenizer, or a PEFT folder if the model is an
        adapter.

        Every process of a data-parallel group must call this method; rank 0 writes.
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state on which the next update depends, apart from its samples.

        With sharded weights, it has this process's rows of each sharded tensor, as `TensorShard`s.
        """
        modules: dict[str, Any] = {}
        for name, module in self.objective.modules.items():
            modules[name] = cpu_copy(dict(named_trained_tensors(module)))
        return {
            "updates": self.updates,
            "minibatch": self._minibatch,
            "model": cpu_copy(dict(named_trained_tensors(self.model, include_frozen=not self._is_adapter))),
            "modules": modules,
            "optimizer": self._optimizer.state_dict(),
            "objective": self.objective.state_dict(),
            "fidelity": self._gate.state_dict() if self._gate else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `state_dict`, or joined from the shares of any number of processes. In the state
        of a failed update, the next update skips the minibatches that the failed update completed."""
        self.updates, self._skip = int(state["updates"]), int(state["minibatch"])
        self._minibatch = self._skip
        copy_tensors_with_equal_names(
            dict(named_trained_tensors(self.model, include_frozen=not self._is_adapter)), state["model"]
        )
        for name, module in self.objective.modules.items():
            copy_tensors_with_equal_names(dict(named_trained_tensors(module)), state["modules"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self._gate:
            self._gate.load_state_dict(state["fidelity"])

    def _minibatches(self, samples: Sequence[Sample], rng: random.Random) -> Iterator[Sequence[Sample]]:
        if self.objective.ranks_by_reward:
            update_metrics.check_finite_rewards(self.context.policy, samples)
        # Samples are assigned to minibatches before merging, so that merging cannot change the assignment.
        count, units = self.settings.minibatches, self.objective.indivisible_sample_groups(samples)
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

    def _optimizer_step(self, rows: list[BatchRow], lr: float, may_end_update: bool) -> update_metrics.StepMetrics:
        """Take one optimizer step on the rows of a minibatch; return its metrics. `may_end_update`: the objective's
        `step_limit` applies."""
        update_metrics.check_finite(self.context.policy, rows)
        totals = count_minibatch_totals(rows)
        metrics = update_metrics.StepMetrics(len(rows), self._float64_zeros_on_device(self._figure_count))
        ordered: list[BatchRow] = []
        losses: list[Tensor] = []
        own_rows = rows_of_data_parallel_rank(rows, self._collective.rank, self._collective.world_size)
        if self._peak_flops:
            self._update_flops += self._planner.update_flops(own_rows)
        for chunk, batch in self._batches_with_idle_passes(self._plan_by_forward_key(own_rows), rows):
            terms = self.objective.forward_loss(self.model, batch, totals)
            if not chunk:
                # Sharded weights need a backward pass in every process; this one has gradient 0.
                (0 * terms.loss_B.sum()).backward()
                continue
            terms.loss_B.sum().backward()
            ordered += chunk
            losses.append(terms.loss_B.detach())
            # Token figures come from the first epoch alone, because later epochs have other weights.
            if self.token_figures is not None and terms.token_figures and self._minibatch < self.settings.minibatches:
                logprobs, entropies = (figure_BT.tolist() for figure_BT in terms.token_figures)
                for index, row in enumerate(chunk):
                    count = len(row.token_ids)
                    figures = TokenLogprobsAndEntropies(tuple(logprobs[index][:count]), tuple(entropies[index][:count]))
                    for sample in row.samples:
                        self.token_figures.setdefault(sample.id, figures)
            metrics.add_forward_pass(terms, batch)
        loss = torch.cat(losses).sum().double() if losses else self._float64_zeros_on_device()
        self._collective.all_reduce_sum([loss, metrics.sums_S])
        self._optimizer.all_reduce_gradients(self._collective)
        norm = self._optimizer.clip_gradients()
        # All figures go to the host in one copy, because each copy waits for the GPU.
        metrics.loss, metrics.grad_norm, finite = torch.stack([loss, norm, (loss + norm).isfinite()]).tolist()
        if not finite:
            raise self._error_naming_non_finite_samples(rows, ordered, losses, totals)
        if self.objective.step_limit is not None and may_end_update:
            name, limit = self.objective.step_limit
            stat_sum, tokens = metrics.sums_S[[self.objective.token_stat_names.index(name), -1]].tolist()
            metrics.ends_update = stat_sum > limit * tokens
        self.changes += 1
        if metrics.ends_update:
            self._optimizer.zero_grad()
        else:
            self._optimizer.step(lr)
        return metrics

    def _plan_by_forward_key(self, rows: Sequence[BatchRow]) -> BatchPlan:
        """Return a plan of `rows` in which a micro-batch holds rows of one forward key only."""
        groups: dict[Hashable, list[BatchRow]] = {}
        for row in rows:
            groups.setdefault(self.objective.forward_key(row), []).append(row)
        plan = BatchPlan(self._layout or "padded", [])
        for group in groups.values():
            group_plan = self._planner.plan_micro_batches(group, self._layout)
            self._layout = group_plan.layout
            plan = BatchPlan(group_plan.layout, plan.batches + group_plan.batches)
        return plan

    def _float64_zeros_on_device(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _batches_with_idle_passes(
        self, plan: BatchPlan, rows: Sequence[BatchRow], *, with_end_states: bool = False
    ) -> Iterator[tuple[list[BatchRow], Batch]]:
        """Yield each batch of `plan` with its rows.

        Sharded weights need equally many passes in every process. A process with fewer batches adds idle passes, with
        an empty list of rows and a batch of other rows.
        """
        passes = len(plan.batches)
        max_passes = self._collective.all_reduce_max(passes) if self._collective.is_sharded else passes
        yield from self._planner.collate_plan(plan)
        for _ in range(passes, max_passes):
            idle = self._planner.plan_micro_batches(group_by_unit(rows)[0], "padded", with_end_states=with_end_states)
            for _, batch in self._planner.collate_plan(idle):
                yield [], batch

    def _error_naming_non_finite_samples(
        self, rows: list[BatchRow], ordered: Sequence[BatchRow], losses: Sequence[Tensor], totals: MinibatchTotals
    ) -> NonFiniteError:
        """Return the error that names the samples whose loss or gradient is not finite.

        All processes that train the weights together return the same error. `rows`: all rows of the minibatch;
        `losses`: the losses of this process's rows, in the order of `ordered`.
        """
        index_of = {id(row): index for index, row in enumerate(rows)}
        losses_R = self._float64_zeros_on_device(len(rows))
        losses_R[[index_of[id(row)] for row in ordered]] = torch.cat([self._float64_zeros_on_device(0), *losses])
        self._collective.all_reduce_sum([losses_R])
        quantity = "gradient" if bool(losses_R.sum().isfinite()) else "loss"
        bad_rows: list[BatchRow] = []
        if quantity == "loss":
            for row, is_finite in zip(rows, losses_R.isfinite().tolist(), strict=True):
                if not is_finite:
                    bad_rows.append(row)
        else:
            # If all losses are finite, some gradient is not; finding it takes a backward pass for each unit.
            for unit in group_by_unit(rows):
                self._optimizer.zero_grad()
                self.objective.forward_loss(self.model, collate(unit, self.device), totals).loss_B.sum().backward()
                if not math.isfinite(float(self._optimizer.clip_gradients())):
                    bad_rows += unit
            self._optimizer.zero_grad()
        bad_samples = chain.from_iterable(row.samples for row in bad_rows)
        return NonFiniteError(self.context.policy, quantity, list(bad_samples))

    @torch.no_grad()
    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str] = LOGPROBS_ONLY) -> list[Reading]:
        """Return the current model's reading of each turn, with the fields `reading_fields`; empty for turns without
        tokens.

        `logprobs`: log-probabilities of the completion's tokens under their sampling distribution. `hidden`: the last
        layer's states [2, H], float32, at the last token of prompt and completion. The objective reads other fields.
        With several processes, each reads its share, and rank 0 alone returns readings.
        """
        turn_rows = [
            BatchRow(turn.completion.prompt_ids, turn.completion.token_ids, turn.request.sampling) for turn in turns
        ]
        distinct: dict[Hashable, BatchRow] = {}
        for row in reversed(turn_rows):
            if row.token_ids:
                distinct[_key_of_rows_with_equal_readings(row)] = row
        # Rows stay in the order of their last occurrence: another order gives other batches, and so other bits.
        rows = list(reversed(distinct.values()))
        training = self.model.training
        self.model.eval()
        readings: dict[Hashable, Reading] = {}
        with_end_states = bool(reading_fields & END_STATE_FIELDS)
        own_rows = rows_of_data_parallel_rank(rows, self._collective.rank, self._collective.world_size)
        plan = self._planner.plan_micro_batches(own_rows, with_end_states=with_end_states)
        for chunk, batch in self._batches_with_idle_passes(plan, rows, with_end_states=with_end_states):
            outputs = token_outputs(self.model, batch)
            fields: dict[str, Any] = {"logprobs": outputs.logprobs_BT.tolist()}
            if "hidden" in reading_fields and outputs.states.ends_B2H is not None:
                fields["hidden"] = outputs.states.ends_B2H.float().cpu()
            for name, tensor in self.objective.read(outputs, batch, reading_fields).items():
                fields[name] = tensor.tolist()
            for index, row in enumerate(chunk):
                reading: dict[str, Any] = {}
                for name, values in fields.items():
                    value = values[index]
                    # A list has one number per token, padded to the longest row of the batch.
                    reading[name] = tuple(value[: len(row.token_ids)]) if isinstance(value, list) else value
                readings[_key_of_rows_with_equal_readings(row)] = Reading(**reading)
        self.model.train(training)
        gathered = self._collective.gather(readings)
        if not gathered:
            return []
        all_readings: dict[Hashable, Reading] = {}
        for rank_readings in gathered:
            all_readings |= rank_readings
        return [all_readings.get(_key_of_rows_with_equal_readings(row), Reading(())) for row in turn_rows]


def _key_of_rows_with_equal_readings(row: BatchRow) -> Hashable:
    """Return a key that is equal for rows with equal readings."""
    return row.prompt_ids, row.token_ids, temperature_top_p_and_top_k(row.sampling)
