"""Settings of the learner of instructions; the code that uses them is not imported here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from marl.core.config import Config, Sampling, choices_hint
from marl.protocols import LearnerConfig, LearnerSurroundings
from marl.protocols.learning import VERSIONS_FILE
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload


class PromptBudget(Config):
    """Limit of what all searches of a run may spend, on proposals and on the play of candidates. It is never exceeded:
    a request that might exceed it is not sent, and the run goes on without further searches."""

    example = "tokens: 2.0e+6"
    tokens: PositiveFloat | None = None
    """Maximum number of sampled tokens (default: no limit). A request reserves its `max_tokens`."""
    cost: PositiveFloat | None = None
    """Maximum cost, in the currency of the engines' `price` (default: no limit)."""


class PromptOptions(LearnerConfig):
    """Fields of `prompt`: who proposes instructions, and how candidates are compared."""

    example = "proposer: writer"
    trains_weights: ClassVar[bool] = False
    publishes: ClassVar[bool] = False
    off_policy: ClassVar[bool] = True
    readable_fields: ClassVar[frozenset[str]] = frozenset()
    proposer: str
    """Policy that writes new instructions. It needs no role, and should be a model that follows instructions."""
    candidates: PositiveInt = 8
    """Number of new instructions that the proposer writes in a search. There is one search in each update."""
    trials: int = Field(default=64, ge=2)
    """Maximum number of training starts on which the last candidate of a search meets the incumbent. All searches of
    a run use the same starts. Other candidates are dropped after fewer starts (successive halving)."""
    budget: PromptBudget = PromptBudget()
    """Limit of tokens and cost of all searches together."""
    max_tokens: PositiveInt = 1024
    """Maximum number of tokens of a proposal."""
    temperature: float = Field(default=1.0, ge=0, le=100)
    """Sampling temperature of the proposer."""

    def supports(self, sampling: Sampling) -> bool:
        return True

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        return ()

    def policies_without_role(self) -> Iterable[str]:
        return (self.proposer,)

    def saved_instructions(self, folder: Path) -> Mapping[str, str]:
        record = json.loads((folder / VERSIONS_FILE).read_text())
        return record["versions"][record["incumbent"]]["instructions"]

    def scenario_conflicts(self, surroundings: LearnerSurroundings) -> Iterable[str]:
        engines, name = surroundings.engines, surroundings.policy
        others = sorted(engines.keys() - {name})
        if self.proposer == name:
            yield f"proposer: {self.proposer!r} would rewrite its own instructions; {choices_hint('', others)}"
        elif self.proposer not in engines:
            yield f"proposer: no policy {self.proposer!r}; {choices_hint(self.proposer, others)}"
        elif engines[self.proposer].is_rule_based or engines[self.proposer].runs_programs:
            kind = engines[self.proposer].kind
            yield f"proposer: engine {kind!r} of policies.{self.proposer} writes no text; {choices_hint('', others)}"
        for role_name, role in surroundings.roles.items():
            if role.learnable_instructions is None:
                yield (
                    f"kind: 'prompt', but roles.{role_name} of kind {role.kind!r} has no instructions to improve; set "
                    "its trainable: false, or give it another policy"
                )
        limits = self.budget.model_dump(exclude_none=True)
        if limits and surroundings.has_cluster:
            yield f"budget: {limits}, but several simulators of a `cluster` cannot keep it together; remove one of them"
        if self.budget.cost is not None and not any(engine.counts_cost for engine in engines.values()):
            yield (
                f"budget.cost: {self.budget.cost:g}, but no engine names a `price`; give it to the engine of kind "
                "'openai', or limit budget.tokens"
            )
        for field in surroundings.exact_measures:
            yield f"kind: 'prompt', but {field} reads prompts with the first instructions; measure by play instead"
