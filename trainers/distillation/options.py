"""Settings of distillation: a teacher's term in a loss, and all fields of the learner `distillation`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from marl.core.config import Config, Sampling, list_choices
from marl.trainers.optim.memory_estimate import ANCHOR_LOGIT_TABLES
from marl.trainers.optim.settings import GradientLearnerConfig, ScheduleShape


class TeacherSettings(Config):
    """Teacher of a policy, and the divergence of the policy (student) from it, at the student's own tokens."""

    teacher: str | dict[str, str]
    """Policy whose weights teach, or role -> policy that teaches the turns of this role. A teacher has a model with the
    student's tokenizer and no learner. Its weights are loaded beside the student's; it needs no role of its own."""
    beta: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Divergence, as in GKD (2306.13649): 1 is the reverse KL(student ‖ teacher), 0 the forward KL(teacher ‖ student);
    between them is the generalised Jensen-Shannon divergence with this weight of the teacher in the mixture."""
    top_k: PositiveInt | None = None
    """Compute the divergence over the teacher's `top_k` most probable tokens and one class of all other tokens, a lower
    bound of the whole divergence. None: over the whole vocabulary."""

    @property
    def teacher_fields(self) -> dict[str, str]:
        """Field (`teacher`, or `teacher.ROLE`) -> policy that teaches."""
        if isinstance(self.teacher, str):
            return {"teacher": self.teacher}
        return {f"teacher.{role}": policy for role, policy in self.teacher.items()}

    @property
    def teachers(self) -> tuple[str, ...]:
        """Policies that teach, each named once."""
        return tuple(dict.fromkeys(self.teacher_fields.values()))

    def teacher_of_role(self, role: str) -> str:
        """Return the policy that teaches the turns of `role`."""
        return self.teacher if isinstance(self.teacher, str) else self.teacher[role]

    def role_errors(self, roles: Collection[str]) -> Iterator[str]:
        """Yield an error, with its field first, for each of the student's `roles` without a teacher, and for each
        unknown role."""
        if isinstance(self.teacher, str):
            return
        for role in roles:
            if role not in self.teacher:
                yield f"teacher.{role}: missing; role {role!r} trains this policy, so it needs a teacher, too"
        for role in self.teacher:
            if role not in roles:
                yield f"teacher.{role}: no role {role!r} trains this policy; {list_choices(roles, role)}"

    def vocabulary_errors(self, size: int) -> Iterator[str]:
        """Yield an error, with its field first, if `top_k` is not smaller than a vocabulary of `size` tokens."""
        if self.top_k is not None and self.top_k >= size:
            yield (
                f"top_k: {self.top_k} leaves out none of the vocabulary's {size} tokens, so it would be the whole "
                f"divergence; choices: 1 to {size - 1}, or none: the whole vocabulary"
            )


class TeacherTerm(TeacherSettings):
    """Term of a loss: `coefficient` times the divergence from a teacher (nats a token)."""

    example = "teacher: large, coefficient: 0.1"
    coefficient: NonNegativeFloat = 1.0
    """Factor of the divergence in the loss."""
    final: NonNegativeFloat | None = None
    """Coefficient at the run's last update (default: `coefficient`)."""
    schedule: ScheduleShape = "linear"
    """Schedule from `coefficient` to `final`."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.final is None and self.schedule != "linear":
            raise ValueError(f"schedule={self.schedule!r} has no effect without final; give one, or remove it")
        if not self.coefficient and not self.final:
            raise ValueError(f"coefficient={self.coefficient} leaves the teacher out; give more, or remove the term")
        return self


class TaughtLearnerConfig(GradientLearnerConfig):
    """Settings of a learner whose loss may have a teacher's term."""

    distill: TeacherTerm | None = None
    """Divergence from a teacher as a further term of the loss (nats a token), aggregated like the loss. Distributions
    have the temperature at which the learner reads its samples. None: no teacher."""

    @property
    def taught_by(self) -> Mapping[str, str]:
        fields = self.distill.teacher_fields if self.distill else {}
        return {f"distill.{field}": policy for field, policy in fields.items()}

    @property
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        return ("distill",) if self.distill else ()

    def role_conflicts(self, roles: Collection[str]) -> Iterator[str]:
        for error in self.distill.role_errors(roles) if self.distill else ():
            yield f"distill.{error}"

    def vocabulary_conflicts(self, size: int) -> Iterator[str]:
        for error in self.distill.vocabulary_errors(size) if self.distill else ():
            yield f"distill.{error}"

    @property
    def logit_table_count(self) -> float:
        return super().logit_table_count + ANCHOR_LOGIT_TABLES * (self.distill is not None)


class DistillationOptions(TeacherSettings, GradientLearnerConfig):
    """Settings of the learner `distillation`."""

    example = "teacher: large, lr: 1.0e-5"
    off_policy: ClassVar[bool] = True

    @property
    def trains_on_advantages(self) -> bool:
        """False: the loss depends on the teacher alone, not on rewards."""
        return False

    @property
    def taught_by(self) -> Mapping[str, str]:
        return self.teacher_fields

    def role_conflicts(self, roles: Collection[str]) -> Iterator[str]:
        yield from self.role_errors(roles)

    def vocabulary_conflicts(self, size: int) -> Iterator[str]:
        yield from self.vocabulary_errors(size)

    @property
    def logit_table_count(self) -> float:
        return super().logit_table_count + ANCHOR_LOGIT_TABLES

    def supports(self, sampling: Sampling) -> bool:
        """Return True: the divergence at a token does not depend on how the token was sampled."""
        return True
