"""One search for better instructions: proposals, successive halving, and the comparison with the incumbent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marl.core.config import Sampling
from marl.core.seeds import hash_to_seed
from marl.core.spending import SpendingLimit
from marl.core.statistics import paired_bootstrap_interval
from marl.core.types import Completion, Request, Sample
from marl.protocols import InstructionTrials, LearnerBuildArguments
from marl.protocols.roles import RoleTemplateError
from marl.trainers.prompts.options import PromptOptions
from marl.trainers.prompts.proposals import proposal_request, read_proposal
from marl.trainers.prompts.versions import PromptVersion, front_weights, rung_ends

_PARENTS = ("initial", "kept", "adopted")
"""Statuses of versions that may be changed by the proposer, if they are on the front."""


@dataclass(frozen=True, slots=True)
class SearchSetup:
    """Settings, play and limit of a search."""

    settings: PromptOptions
    context: LearnerBuildArguments
    trials: InstructionTrials
    limit: SpendingLimit


class InstructionSearch:
    """Search for instructions that are better than the incumbent's. All random numbers are hashes of its number."""

    def __init__(self, setup: SearchSetup, versions: list[PromptVersion], incumbent: int, number: int) -> None:
        """Create a search.

        Args:
            setup: settings, play and limit.
            versions: all versions so far, to which the search adds its candidates.
            incumbent: number of the version in use, which the search may change.
            number: number of the search in the run, from 1.
        """
        self.setup, self.versions, self.incumbent, self.number = setup, versions, incumbent, number
        self.episodes = 0
        """Number of episodes that the search has started."""

    def run(self, turns: Sequence[Sample]) -> None:
        """Propose candidates after the judged `turns`, compare them, and adopt the best if it is surely better."""
        survivors = self._propose(turns)
        if not survivors or self._stop_at_limit(survivors):
            return
        *rungs, start_count = rung_ends(len(survivors), self.setup.settings.trials)
        for end in rungs:
            survivors = self._play_rung(survivors, end)
            if not survivors:
                return
            survivors = self._better_half(survivors, is_last=end == rungs[-1])
            if not survivors:
                return
        (winner,) = survivors
        for end in sorted({max(rungs[-1] + 1, start_count // 2), start_count}):
            if not self._play_rung(survivors, end) or self._is_adopted(winner, rungs[-1]):
                return

    def _propose(self, turns: Sequence[Sample]) -> list[PromptVersion]:
        """Return the playable ones of the new candidates, all of which become versions."""
        settings, context = self.setup.settings, self.setup.context
        roles, seed = sorted({sample.role for sample in turns}), context.seed
        played = len(self.versions[self.incumbent].scores)
        comparable = {v.number: v.scores for v in self.versions if v.status in _PARENTS and len(v.scores) >= played}
        parents = (front_weights(comparable) if played else {}) or {self.incumbent: 1}
        sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
        requests: list[Request] = []
        origins: list[tuple[int, str]] = []
        for index in range(settings.candidates):
            random = Random(hash_to_seed(seed, "parent", self.number, index))
            (parent,) = random.choices(list(parents), list(parents.values()))
            role = roles[(self.number * settings.candidates + index) % len(roles)]
            present = self.versions[parent].instructions[role]
            of_role = [sample for sample in turns if sample.role == role]
            request_seed = hash_to_seed(seed, "proposal", self.number, index)
            requests.append(proposal_request(settings.proposer, role, present, of_role, sampling, request_seed))
            origins.append((parent, role))
        playable: list[PromptVersion] = []
        answers = self.setup.trials.ask(requests, self.setup.limit)
        for (parent, role), answer in zip(origins, answers, strict=True):
            text = answer.text if isinstance(answer, Completion) else ""
            problem = "" if isinstance(answer, Completion) else f"no answer of the proposer: {answer.reason}"
            version = self._add_version(self.versions[parent], role, text, problem)
            if version.status != "dropped":
                playable.append(version)
        return playable

    def _add_version(self, parent: PromptVersion, role: str, answer: str, problem: str) -> PromptVersion:
        """Append the version that the proposer's `answer` describes; it is dropped for a `problem`, or if it has no
        instructions that can be played."""
        proposed = read_proposal(answer)
        instructions = parent.instructions | ({role: proposed} if proposed else {})
        if not problem:
            problem = self._reason_to_drop(role, proposed, instructions)
        version = PromptVersion(len(self.versions), parent.number, self.number, role, instructions, "eliminated")
        version.answer = answer
        if problem:
            version.status, version.reason = "dropped", problem
        self.versions.append(version)
        return version

    def _reason_to_drop(self, role: str, proposed: str | None, instructions: dict[str, str]) -> str:
        if proposed is None:
            return "the answer has no instructions between the tags"
        for version in self.versions:
            # A version that was outranked on few starts may come again: as yet nothing speaks against it.
            if version.instructions == instructions and version.status != "outranked":
                return f"the same as version {version.number}"
        try:
            self.setup.context.roles[role].with_instructions(proposed)
        except ValueError as error:
            return str(error)
        return ""

    def _play_rung(self, candidates: Sequence[PromptVersion], end: int) -> list[PromptVersion]:
        """Let incumbent and candidates play the starts up to `end` that they have not played; return the candidates
        that did. If the limit is reached, none is returned."""
        self._play_up_to(self.versions[self.incumbent], end)
        remaining: list[PromptVersion] = []
        for version in candidates:
            try:
                self._play_up_to(version, end)
            except RoleTemplateError as error:
                version.status, version.reason = "dropped", str(error)
            else:
                remaining.append(version)
        return [] if self._stop_at_limit(candidates) else remaining

    def _play_up_to(self, version: PromptVersion, end: int) -> None:
        """Let `version` play the starts up to `end` that it has not played, unless the limit is reached."""
        starts = range(len(version.scores), end)
        if starts and not self.setup.limit.reached:
            version.scores += self.setup.trials.play(version.instructions, starts, self.setup.limit)
            self.episodes += len(starts)

    def _stop_at_limit(self, candidates: Sequence[PromptVersion]) -> bool:
        """Return True, and say so in `candidates`, if the limit is reached."""
        for version in candidates if self.setup.limit.reached else ():
            version.reason = "the budget was reached"
        return self.setup.limit.reached

    def _better_half(self, candidates: Sequence[PromptVersion], *, is_last: bool) -> list[PromptVersion]:
        """Return the half of the candidates with the higher gains; of equal candidates, the earlier one.

        Candidates that lose so far are left out, and at the last of these rungs also those that gain nothing. Earlier
        rungs are too short for that: they may lack the very starts on which a candidate is better.
        """
        ranked = sorted(candidates, key=self._mean_gain, reverse=True)
        better: list[PromptVersion] = []
        for rank, version in enumerate(ranked):
            gain, played = self._mean_gain(version), f"after {len(version.scores)} starts"
            if gain < 0 or (is_last and gain == 0):
                version.reason = f"not better than version {self.incumbent} {played}"
            elif rank >= math.ceil(len(ranked) / 2):
                version.status, version.reason = "outranked", f"behind others of its search {played}"
            else:
                better.append(version)
        return better

    def _mean_gain(self, version: PromptVersion) -> float:
        """Return the mean gain over the incumbent; -inf if no start has two outcomes."""
        before, after = self._paired_scores(version, 0)
        return (math.fsum(after) - math.fsum(before)) / len(after) if after else -math.inf

    def _paired_scores(self, version: PromptVersion, first_start: int) -> tuple[list[float], list[float]]:
        """Return the scores of incumbent and `version` on the starts on which both have an outcome."""
        before: list[float] = []
        after: list[float] = []
        for old, new in list(zip(self.versions[self.incumbent].scores, version.scores, strict=False))[first_start:]:
            if old is not None and new is not None:
                before.append(old)
                after.append(new)
        return before, after

    def _is_adopted(self, winner: PromptVersion, first_start: int) -> bool:
        """Adopt `winner` if it is surely better on the starts from `first_start` on, which did not choose it.

        A search looks twice, at half of the starts and at all. Each look has half of the error (Bonferroni), so that
        both together err at most as often as one look at a bound of 95 %.
        """
        before, after = self._paired_scores(winner, first_start)
        winner.status = "kept"
        if not after:
            winner.reason = "no start has an outcome"
            return False
        winner.gain = list(paired_bootstrap_interval(before, after, seed=self.number, confidence=0.975))
        low, mean, _ = winner.gain
        winner.reason = f"gain {mean:+.3g}, at least {low:+.3g} after {len(winner.scores)} starts"
        if math.isfinite(low) and low > 0:
            winner.status, self.incumbent = "adopted", winner.number
        return winner.status == "adopted"
