"""Frozen teacher models of a policy, the rows that each teaches, and the divergence of the policy from them.

Shape suffixes: N = tokens, V = vocabulary, K = the teacher's most probable tokens and one class of all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.protocols import ModelSource
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.distillation.options import TeacherSettings, TeacherTerm
from marl.trainers.forward.attention import reason_packing_is_unsupported, supports_kv_cache
from marl.trainers.forward.divergences import exact_kl
from marl.trainers.forward.token_outputs import DivergenceFunction, find_logit_transform
from marl.trainers.optim.anchors import scheduled_kl_coefficient

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/kl_teacher | nats a token | divergence of the policy from its teacher (`distillation`, `distill`): by
    default KL(policy ‖ teacher); with other `beta` or `top_k`, the divergence that they name
"""

TEACHER = "teacher"
"""Name of the divergence among anchors, and of the rows' scalar that holds the index of their teacher."""


class Teachers:
    """Frozen models that teach one policy. Every row has one teacher, that of its samples' role."""

    def __init__(
        self, settings: TeacherSettings, sources: Mapping[str, ModelSource], student: nn.Module, steps: int = 1
    ) -> None:
        self._settings, self._steps = settings, steps
        self._models: list[nn.Module] = []
        device = next(student.parameters()).device
        for policy in settings.teachers:
            model = sources[policy].model().to(device).eval().requires_grad_(False)
            find_logit_transform(model)
            self._models.append(model)
        self.divergence: DivergenceFunction = partial(teacher_divergence, beta=settings.beta, top_k=settings.top_k)

    @property
    def support_packing(self) -> bool:
        """True if all teachers can read packed sequences and continue cached prompts."""
        return all(not reason_packing_is_unsupported(model) and supports_kv_cache(model) for model in self._models)

    def index_of_sample(self, sample: Sample) -> int:
        """Return the index of the teacher of the sample's role. Samples of different teachers must not be merged."""
        return self._settings.teachers.index(self._settings.teacher_of_role(sample.role))

    def add_index(self, rows: Sequence[BatchRow]) -> list[BatchRow]:
        """Return `rows` with the scalar `teacher`: the index of the row's teacher."""
        indexed: list[BatchRow] = []
        for row in rows:
            scalars = {**row.scalars, TEACHER: float(self.index_of_sample(row.samples[0]))}
            indexed.append(replace(row, scalars=scalars))
        return indexed

    def coefficient(self, update_index: int) -> float:
        """Return the factor of the divergence in the loss of the update `update_index` (from 0)."""
        if not isinstance(self._settings, TeacherTerm):
            return 1.0
        return scheduled_kl_coefficient(self._settings, update_index, self._steps)

    def model_of_batch(self, batch: Batch) -> nn.Module:
        """Return the model that teaches the batch, whose rows have the same teacher (`Objective.forward_key`)."""
        return self._models[int(batch.scalars[TEACHER][0])]


def teacher_divergence(
    student_logprobs_NV: Tensor, teacher_logprobs_NV: Tensor, beta: float = 1.0, top_k: int | None = None
) -> Tensor:
    """Return [N], the divergence of the student's distribution from the teacher's, in nats.

    Models of one family may pad their vocabularies to different sizes. Both distributions are then renormalised to
    the tokens that both have.
    """
    sizes = student_logprobs_NV.shape[-1], teacher_logprobs_NV.shape[-1]
    if sizes[0] != sizes[1]:
        student_logprobs_NV = student_logprobs_NV[..., : min(sizes)].log_softmax(-1)
        teacher_logprobs_NV = teacher_logprobs_NV[..., : min(sizes)].log_softmax(-1)
    if top_k is not None and top_k < min(sizes):
        best_NK = teacher_logprobs_NV.topk(top_k).indices
        student_logprobs_NV = _with_class_of_other_tokens(student_logprobs_NV, best_NK)
        teacher_logprobs_NV = _with_class_of_other_tokens(teacher_logprobs_NV, best_NK)
    return generalized_jensen_shannon(student_logprobs_NV, teacher_logprobs_NV, beta)


def generalized_jensen_shannon(student_logprobs_NV: Tensor, teacher_logprobs_NV: Tensor, beta: float) -> Tensor:
    """Return [N], beta KL(teacher ‖ M) + (1 - beta) KL(student ‖ M), M = beta teacher + (1 - beta) student (GKD,
    2306.13649, equation 1).

    At beta = 0 and 1, where this is 0, return its limits after division by beta and by 1 - beta, as GKD does:
    KL(teacher ‖ student) and KL(student ‖ teacher).
    """
    if beta == 0:
        return exact_kl(teacher_logprobs_NV, student_logprobs_NV)
    if beta == 1:
        return exact_kl(student_logprobs_NV, teacher_logprobs_NV)
    weights = student_logprobs_NV.new_tensor([beta, 1 - beta]).log()
    mixture_NV = torch.logaddexp(teacher_logprobs_NV + weights[0], student_logprobs_NV + weights[1])
    return beta * exact_kl(teacher_logprobs_NV, mixture_NV) + (1 - beta) * exact_kl(student_logprobs_NV, mixture_NV)


def _with_class_of_other_tokens(logprobs_NV: Tensor, best_NK: Tensor) -> Tensor:
    """Return [N, K + 1], log-probabilities of the tokens `best_NK`, then of all other tokens together."""
    others_N1 = logprobs_NV.scatter(-1, best_NK, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logprobs_NV.gather(-1, best_NK), others_N1], dim=-1)
