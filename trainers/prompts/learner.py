"""Learner of instructions: searches among proposed instructions by play, and keeps all versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from marl.core.spending import SpendingLimit
from marl.core.types import Metrics, Reading, Sample, Turn
from marl.protocols import InstructionTrials, LearnerBuildArguments
from marl.protocols.learning import VERSIONS_FILE
from marl.trainers.prompts.options import PromptOptions
from marl.trainers.prompts.search import InstructionSearch, SearchSetup
from marl.trainers.prompts.versions import PromptVersion

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/version | number | of the instructions in use, from 0 (`prompt`)
policy/POLICY/mean_score | reward | mean score of the instructions in use on the starts of the trials (`prompt`)
policy/POLICY/gain | reward | mean gain of the last candidate over the incumbent, on starts on which it was not chosen;
    only if a candidate came so far (`prompt`)
policy/POLICY/dropped | candidates | proposals of the search that could not be played, or were known (`prompt`)
policy/POLICY/trials | episodes | played by all searches so far (`prompt`)
policy/POLICY/search_tokens | tokens | sampled by all searches so far, proposals included (`prompt`)
policy/POLICY/search_cost | cost | of all searches so far, as counted by `price` (`prompt`)
"""


class PromptLearner:
    """Learner (protocols `Learner` and `LearnsByTrials`) of the instructions of a policy's roles."""

    needed_reading_fields: frozenset[str] = frozenset()

    def __init__(self, settings: PromptOptions, context: LearnerBuildArguments) -> None:
        self.settings, self.context = settings, context
        self.trials: InstructionTrials | None = None
        self.changes = 0
        """Number of changes of the learner's state; incremented before each change."""
        first = {name: role.learnable_instructions or "" for name, role in context.roles.items()}
        self.versions = [PromptVersion(0, None, 0, "", first, "initial")]
        self.incumbent, self.searches, self.trial_count = 0, 0, 0
        """Number of the version in use, of searches so far, and of episodes that the searches played."""
        self.limit = SpendingLimit(settings.budget.tokens or float("inf"), settings.budget.cost or float("inf"))
        self.players = ""
        """`InstructionTrials.players` when the incumbent's scores were measured."""

    @property
    def instructions(self) -> Mapping[str, str]:
        return self.versions[self.incumbent].instructions

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        """Return an empty reading for each turn: this learner reads no tokens."""
        return [Reading(()) for _ in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Search for better instructions after the judged turns `samples`. Without turns, or after the budget was
        reached, nothing is searched."""
        trials, search = self.trials, None
        assert trials is not None, "the run connects the learner to play before its first update"
        turns = [sample for sample in samples if sample.judged is not None]
        if turns and not self.limit.reached:
            # The search works on copies, so that a search that is broken off changes nothing.
            setup = SearchSetup(self.settings, self.context, trials, replace(self.limit))
            versions = [replace(version, scores=[*version.scores]) for version in self.versions]
            if trials.players != self.players:
                versions[self.incumbent].scores = []
            search = InstructionSearch(setup, versions, self.incumbent, self.searches + 1)
            search.run(turns)
            self.changes += 1
            self.versions, self.incumbent, self.limit = search.versions, search.incumbent, setup.limit
            # A version that was adopted has played all starts with the present players, too.
            self.players, self.searches = trials.players, self.searches + 1
            self.trial_count += search.episodes
        return self._metrics(search, len(turns))

    def _metrics(self, search: InstructionSearch | None, turn_count: int) -> Metrics:
        metrics: Metrics = {"samples": float(turn_count), "version": float(self.incumbent)}
        score = self.versions[self.incumbent].mean_score
        if score is not None:
            metrics["mean_score"] = score
        if search:
            tried = [version for version in self.versions if version.search == self.searches]
            metrics["dropped"] = float(sum(version.status == "dropped" for version in tried))
            gains = [version.gain[1] for version in tried if version.gain]
            metrics |= {"gain": gains[0]} if gains else {}
        spent = {"search_tokens": float(self.limit.spent_tokens), "search_cost": self.limit.spent_cost}
        return metrics | {"trials": float(self.trial_count), **spent}

    def publish(self) -> Path:
        """Raise an error, because this learner has instructions instead of weights."""
        raise ValueError(f"policy {self.context.policy!r}: the learner 'prompt' trains no weights")

    def save(self, folder: Path) -> None:
        """Write all versions with their differences from their parents to `folder`, as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        for version in self.versions:
            diff = [] if version.parent is None else version.diff(self.versions[version.parent])
            rows.append({**asdict(version), "diff": diff})
        record = {"incumbent": self.incumbent, "proposer": self.settings.proposer, "versions": rows}
        (folder / VERSIONS_FILE).write_text(json.dumps(record, indent=1, ensure_ascii=False))

    def state_dict(self) -> dict[str, Any]:
        return {
            "versions": [asdict(version) for version in self.versions],
            "incumbent": self.incumbent,
            "searches": self.searches,
            "trials": self.trial_count,
            "players": self.players,
            "spent": [self.limit.spent_tokens, self.limit.spent_cost, self.limit.reached],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.changes += 1
        self.versions = TypeAdapter(list[PromptVersion]).validate_python(state["versions"])
        self.incumbent, self.searches = state["incumbent"], state["searches"]
        self.trial_count, self.players = state["trials"], state["players"]
        self.limit.spent_tokens, self.limit.spent_cost, self.limit.reached = state["spent"]
