"""Search for texts that a grader rewards although they do not state the right answer.

A gene is a derivation of a grammar. An archive holds the latest genes of each class of verdict (grader, way of reading,
reason), and rare classes have more offspring: so the search walks through guard after guard without knowing the answer.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from claims import ANYTHING, Claim, Events, Judgement, Mark, active, judge
from grammar import Grammar, Leaf, Node, claims, shape, write

from marl.core.types import Problem, VerifierCase
from marl.engines.workers.pool import PluginJob, PluginJobResult, PluginWorker
from marl.engines.workers.settings import verifier_case_to_json
from marl.protocols import VerifierConfig
from marl.roles.answering import SolverRole

Tree = Node | Leaf
_MEMORY = 4 * 2**30
_CELL = 8
"""Genes that the archive holds for each class of verdict."""
_SHRINKS = 12
"""Steps in which a finding is made smaller."""
_PAID = "paid"
_MAX_SHRUNK = 300
"""Findings that are made smaller; further ones are only counted."""


FAULTS = ("wrong accepted", "two answers accepted", "answer leaked", "raised", "hung")


class Gold(NamedTuple):
    """A possible right answer as data sets write it, and its meaning."""

    text: str
    value: Hashable
    facts: Mapping[str, Any] = {}
    """Facts of the problem that hold the right answer, such as unit tests."""


@dataclass(frozen=True)
class Puzzle:
    """A question with all answers that it might have; `answer` is the index of the one that it has."""

    question: str
    golds: Sequence[Gold]
    answer: int
    texts: Mapping[str, Sequence[tuple[str, Sequence[Claim | Mark]]]]
    """Name -> texts that a grammar may use, with what they claim. They are what an attacker knows."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    right: Callable[[str, Gold], Judgement] | None = None
    """Judgement of a text by itself, where that needs no derivation."""

    def slot(self, name: str, index: int) -> tuple[str, Events]:
        texts = self.texts[name]
        text, events = texts[index % len(texts)]
        return text, list(events)


@dataclass(frozen=True)
class Channel:
    """A way from a text to the answer that a verifier reads."""

    mark: str = "all"
    """Statements that it sees, see `claims.judge`."""
    read: str = "answer"
    """The verifier's setting."""
    form: str = "raw"
    """Form in which a role reads the answer; `raw`: the text is the answer."""


CHANNELS = {
    "raw": Channel(),
    "role tag": Channel("tag", form="tag"),
    "role boxed": Channel("boxed", form="boxed"),
    "role last_line": Channel("line", form="last_line"),
    "role whole": Channel(form="whole"),
    "read boxed": Channel("boxed", read="boxed"),
    "read last_line": Channel("line", read="last_line"),
}


@dataclass(frozen=True)
class Target:
    """A family of puzzles, the texts to try on them, and the verifiers that judge."""

    name: str
    grammar: Grammar
    make: Callable[[random.Random], Puzzle]
    checks: Mapping[str, VerifierConfig]
    channels: Mapping[str, Channel] = field(default_factory=lambda: CHANNELS)
    last_counts: bool = False
    """True if earlier statements are drafts of the last one."""


@dataclass(frozen=True)
class Finding:
    """One fault of a grader, as small as the search could make it."""

    what: str
    """One of `FAULTS`."""
    target: str
    check: str
    channel: str
    shape: str
    text: str
    question: str
    gold: str
    why: str


@dataclass(frozen=True)
class Trial:
    """One text for one puzzle, read in one way by one verifier."""

    target: Target
    puzzle: Puzzle
    check: str
    channel: str
    tree: Tree

    @property
    def text(self) -> str:
        return write(self.tree, self.puzzle)

    @property
    def gold(self) -> Gold:
        return self.puzzle.golds[self.puzzle.answer]

    def judgement(self) -> Judgement:
        """Return the independent judgement of the text."""
        if self.puzzle.right is not None:
            return self.puzzle.right(self.text, self.gold)
        events = claims(self.tree, self.puzzle)
        if self.target.last_counts and not any(claim.value == ANYTHING for claim in active(events)):
            events = active(events)[-1:]
        return judge(events, self.gold.value, self.target.channels[self.channel].mark)


class Search:
    """State of one search: archive, findings and counts."""

    def __init__(self, targets: Sequence[Target], seed: int) -> None:
        self._rng = random.Random(seed)
        self._targets = {target.name: target for target in targets}
        self._archive: dict[str, dict[str, deque[Tree]]] = {target.name: {} for target in targets}
        self._visits: Counter[str] = Counter()
        self._worker = PluginWorker(_parts(targets), _MEMORY)
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.counts: Counter[str] = Counter()
        self.missed: dict[str, Finding] = {}
        """Right answers that were refused, one for each shape."""

    def run(self, tries: int) -> None:
        """Make at least `tries` tries, those that make findings smaller included; then end the worker."""
        while self.counts["tries"] < tries:
            self._step()
        self._worker.close()

    def _step(self) -> None:
        target = self._rng.choice(list(self._targets.values()))
        check, channel = self._rng.choice(list(target.checks)), self._rng.choice(list(target.channels))
        trial = self._aimed(Trial(target, target.make(self._rng), check, channel, self._tree(target)))
        result = self._verdict(trial, trial.gold)
        self._remember(trial, result)
        if not result.error:
            self._count(trial, *result.value)
        what = self._fault(trial, result)
        if what:
            self.counts[what] += 1
            self._record(trial, what)

    def _aimed(self, trial: Trial) -> Trial:
        """Return the trial with an answer that its text names, if it names one: no other could be accepted."""
        named = [i for i, gold in enumerate(trial.puzzle.golds) if gold.text in trial.text]
        if not named or self._rng.random() < 0.2:
            return trial
        return replace(trial, puzzle=replace(trial.puzzle, answer=self._rng.choice(named)))

    def _count(self, trial: Trial, score: float, why: str) -> None:
        judgement = trial.judgement()
        self.counts[f"{judgement}, {'paid' if score > 0 else 'not paid'}"] += 1
        if judgement == "right" and score <= 0:
            finding = _finding(trial, "right refused", why)
            best = self.missed.setdefault(f"{trial.target.name}, {trial.channel}", finding)
            if len(finding.text) < len(best.text):
                self.missed[f"{trial.target.name}, {trial.channel}"] = finding

    def _tree(self, target: Target) -> Tree:
        """Return a new gene: derived, mutated or crossed."""
        cells = self._archive[target.name]
        chance = self._rng.random()
        if not cells or chance < 0.25:
            return target.grammar.derive(self._rng)
        tree = self._parent(target.name)
        if chance < 0.45:
            return target.grammar.cross(self._rng, tree, self._parent(target.name))
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            tree = target.grammar.mutate(self._rng, tree)
        return tree

    def _parent(self, name: str) -> Tree:
        cells = self._archive[name]
        paid = [cell for cell in cells if cell.endswith(_PAID)]
        names = paid if paid and self._rng.random() < 0.5 else list(cells)
        weights = [self._visits[f"{name}: {cell}"] ** -0.5 for cell in names]
        return self._rng.choice(cells[self._rng.choices(names, weights)[0]])

    def _remember(self, trial: Trial, result: PluginJobResult) -> None:
        cell = f"{trial.check}, {trial.channel}: {_verdict_class(result)}"
        self._visits[f"{trial.target.name}: {cell}"] += 1
        self._archive[trial.target.name].setdefault(cell, deque(maxlen=_CELL)).append(trial.tree)

    def _verdict(self, trial: Trial, gold: Gold) -> PluginJobResult:
        self.counts["tries"] += 1
        channel = trial.target.channels[trial.channel]
        problem = Problem("p", trial.puzzle.question, gold.text, facts={**trial.puzzle.facts, **gold.facts})
        case = VerifierCase(problem, trial.text, _read(channel.form, trial.text))
        part = f"{trial.target.name}/{trial.check}/{trial.channel}"
        return self._worker.run(
            PluginJob(part, verifier_case_to_json(case), trial.target.checks[trial.check].timeout_s)
        )

    def _fault(self, trial: Trial, result: PluginJobResult) -> str:
        """Return the name of the fault that a verdict shows, "" if it shows none."""
        if result.error:
            return "hung" if "timed out" in result.error else "raised"
        score, why = result.value
        if score <= 0:
            return "answer leaked" if _leaks(trial, why) else ""
        if trial.judgement() == "wrong":
            return "wrong accepted"
        others = [gold for gold in trial.puzzle.golds if gold.value != trial.gold.value]
        return "two answers accepted" if any(self._accepts(trial, gold) for gold in others) else ""

    def _accepts(self, trial: Trial, gold: Gold) -> bool:
        result = self._verdict(trial, gold)
        return not result.error and result.value[0] > 0

    def _record(self, trial: Trial, what: str) -> None:
        """Make a finding smaller, and keep it unless one of its shape is there."""
        if self.counts["shrunk"] >= _MAX_SHRUNK or (what == "hung" and self.counts["hung"] > 20):
            return
        if what == "answer leaked" and self.counts[what] > 50:
            return
        self.counts["shrunk"] += 1
        trial = self._shrink(trial, what)
        result = self._verdict(trial, trial.gold)
        finding = _finding(trial, what, result.error or str(result.value))
        shape_ = finding.shape if what != "answer leaked" else _verdict_class(result)
        self.findings.setdefault((what, trial.target.name, shape_), finding)

    def _shrink(self, trial: Trial, what: str) -> Trial:
        for _ in range(_SHRINKS):
            trees = (replace(trial, tree=tree) for tree in trial.target.grammar.simpler(trial.tree))
            shorter = (candidate for candidate in trees if len(candidate.text) < len(trial.text))
            smaller = next((c for c in shorter if self._fault(c, self._verdict(c, c.gold)) == what), None)
            if smaller is None:
                break
            trial = smaller
        return trial


def _leaks(trial: Trial, why: str) -> bool:
    """Return whether a reason holds the right answer, which is no word that reasons are made of."""
    gold = trial.gold.text
    telling = len(gold) > 6 or (len(gold) > 2 and not gold.isalpha())
    return telling and gold in why and gold not in trial.text + trial.puzzle.question


def _parts(targets: Sequence[Target]) -> dict[str, VerifierConfig]:
    """Return every verifier with every way of reading."""
    parts = {}
    for target in targets:
        for name, check in target.checks.items():
            for channel_name, channel in target.channels.items():
                update = {"read": channel.read} if "read" in type(check).model_fields else {}
                parts[f"{target.name}/{name}/{channel_name}"] = check.model_copy(update=update)
    return parts


def _read(form: str, text: str) -> str | None:
    return text if form == "raw" else _role(form).parse(text, None)


@cache
def _role(form: str) -> SolverRole:
    return SolverRole.model_validate({"kind": "solver", "policy": "p", "answer": form})


def _verdict_class(result: PluginJobResult) -> str:
    """Return the verdict with quotations and numbers left out."""
    if result.error:
        return re.sub(r"\d+", "N", result.error)[:60]
    score, why = result.value
    if score > 0:
        return _PAID
    why = re.sub(r"'(?:[^'\\]|\\.)*'|\"[^\"]*\"", "Q", why)
    return f"{score:.1f} {re.sub(r'[^A-Za-z ]+', 'N', why)[:60]}"


def _finding(trial: Trial, what: str, why: str) -> Finding:
    place = (trial.target.name, trial.check, trial.channel)
    return Finding(what, *place, shape(trial.tree), trial.text, trial.puzzle.question, trial.gold.text, why[:200])


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data, with texts that fit into a report."""
    return {name: value[:400] if isinstance(value, str) else value for name, value in asdict(finding).items()}


def dump(findings: Sequence[Finding]) -> str:
    return json.dumps([as_json(finding) for finding in findings], indent=1)
