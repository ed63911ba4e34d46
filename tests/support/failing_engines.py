"""An engine that refuses new weights, as an engine in a process that has died does."""

from __future__ import annotations

from marl.core.errors import EngineError
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.protocols import ModelSource, Weights


class RefusingEngineConfig(Transformers):
    """The engine of Transformers, which fails to load weights of one version."""

    kind: str = "tests.support.failing_engines:RefusingEngineConfig"
    version: int = 5
    times: int = 1
    """Number of failures."""

    def build(self, source: ModelSource | None) -> TransformersEngine:
        source = self.require_model(source)
        return RefusingEngine(FullWeights(source.model(), source), source.tokenizer(), self)


class RefusingEngine(TransformersEngine):
    def __init__(self, weights: FullWeights, tokenizer: object, settings: RefusingEngineConfig) -> None:
        super().__init__(weights, tokenizer, settings)
        self.version, self.times = settings.version, settings.times

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        if version == self.version and self.times:
            self.times -= 1
            raise EngineError(f"the engine of policy {policy!r} has died")
        super().load_weights(policy, weights, version)
