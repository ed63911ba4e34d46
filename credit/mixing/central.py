"""COMA at work: what else agents could have said, and what a central critic makes of it.

Shapes: M rounds, A seats, n turns of one kind, K alternatives, W width of the critic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credit.assign.playing import text_probabilities
from credit.mixing.fitted import Fitted, FittedRule
from credit.mixing.networks import CentralCritic, RoundBatch, counterfactual
from credit.mixing.records import TEXT_LENGTH
from marl.seeds import seed_of
from marl.types import Completion

if TYPE_CHECKING:
    from credit.assign.value_decomposition import Coma
    from credit.mixing.records import Layout, Record
    from marl.protocols import Evidence, Simulator
    from marl.types import Metrics, Request, Turn, TurnId

_AT_ONCE = 65536
"""Alternatives that are judged in one pass."""

Alternatives = Mapping["TurnId", Mapping[str, float]]
"""Turn -> text -> its probability. The probabilities of a turn sum to 1; a turn that is missing has no alternative."""
Weighted = Sequence[tuple[int, float]]
"""A turn's alternatives: (place in a table of answers, probability)."""


class ComaRule(FittedRule[CentralCritic]):
    """A turn earns what it adds to what its agent would have said otherwise, by a critic fitted to its step before."""

    def __init__(self, settings: Coma) -> None:
        super().__init__(settings)
        self._alternatives, self._samples = settings.alternatives, settings.samples
        self._alone = 0.0

    def make_networks(self, layout: Layout) -> CentralCritic:
        return CentralCritic(layout, self.settings.fit.width)

    @torch.no_grad()
    def judge(self, fitted: Fitted[CentralCritic], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        batch, critic = RoundBatch(record), fitted.networks
        texts = self._texts(evidence, turns)
        context = critic.context(batch).flatten(0, 1)
        values, alone = torch.zeros(len(context)), 0
        for kind, places, rows in batch.kinds:
            of_kind = [turns[place] for place in batch.turns.flatten()[places].tolist()]
            answers = critic.encode(kind, record.completions[kind])
            new, weighted = self._weighted(of_kind, rows.tolist(), texts)
            if new:
                answers = torch.cat([answers, critic.encode(kind, TEXT_LENGTH * fitted.encoder.texts(new))])
            values[places] = _advantages(critic, context[places], answers, rows, weighted)
            alone += sum(not alternatives for alternatives in weighted)
        self._alone = alone / len(turns)
        return values.unflatten(0, batch.turns.shape)

    def predict(self, networks: CentralCritic, record: Record) -> Tensor:
        return networks.by_seat(RoundBatch(record))

    def _texts(self, evidence: Evidence, turns: Sequence[Turn]) -> Alternatives:
        """Return alternatives that nobody said in this step."""
        problem = "coma asks policies what else they could have said, and nobody is there to be asked"
        distinct = {turn.id: turn for turn in turns}.values()
        finite = [turn for turn in distinct if turn.request.options]
        texts = dict(listed_moves(finite, evidence.player(problem))) if finite else {}
        free = [turn for turn in distinct if not turn.request.options]
        if free and self._alternatives == "resample":
            texts |= resample(free, evidence.player(problem), self._samples, evidence.seed)
        return texts

    def _weighted(
        self, turns: Sequence[Turn], rows: Sequence[int], texts: Alternatives
    ) -> tuple[Sequence[str], Sequence[Weighted]]:
        """Return new texts, and each turn's alternatives: places among the answers of the kind, then the new texts."""
        row = {turn.id: row for turn, row in zip(turns, rows, strict=True)}
        free = [turn for turn in turns if not turn.request.options]
        alike = siblings(free, self._samples) if self._alternatives == "siblings" else {}
        new: dict[str, int] = {}
        weighted: list[Weighted] = []
        for turn in turns:
            if turn.id in texts:
                chances = texts[turn.id].items()
                weighted.append([(len(rows) + new.setdefault(t, len(new)), chance) for t, chance in chances])
            else:
                peers = alike.get(turn.id, ())
                weighted.append([(row[peer], 1 / len(peers)) for peer in peers])
        return list(new), weighted

    def metrics(self) -> Metrics:
        """Return those of the fit, and the share of turns without an alternative."""
        return super().metrics() | ({"credit/coma/alone": self._alone} if self._fitted else {})


def listed_moves(turns: Iterable[Turn], simulator: Simulator) -> Alternatives:
    """Return the texts of listed moves, each as likely as the present policy is to say it and no other of them.

    Equal questions are scored once.
    """
    questions: dict[Hashable, tuple[Request, list[str], list[Turn]]] = {}
    for turn in turns:
        request = simulator.request_for(turn)
        texts = list(dict.fromkeys((turn.request.options or {}).values()))
        question = (request.policy, request.sampling, request.messages, request.continues, tuple(texts), request.state)
        questions.setdefault(question, (request, texts, []))[2].append(turn)
    rows = text_probabilities([(request, texts) for request, texts, _ in questions.values()], simulator)
    alternatives: dict[TurnId, Mapping[str, float]] = {}
    for (_, texts, equal), row in zip(questions.values(), rows, strict=True):
        if row:
            alternatives |= {turn.id: dict(zip(texts, row, strict=True)) for turn in equal}
    return alternatives


def resample(turns: Sequence[Turn], simulator: Simulator, count: int, seed: int) -> Alternatives:
    """Return `count` new answers of the present policies to each turn's prompt; equal ones add up."""
    requests = [
        replace(simulator.request_for(turn), seed=seed_of(seed, "coma", *turn.id, nth))
        for turn in turns
        for nth in range(count)
    ]
    answers = iter(simulator.ask(requests))
    alternatives: dict[TurnId, Mapping[str, float]] = {}
    for turn in turns:
        texts = [answer.text for answer in (next(answers) for _ in range(count)) if isinstance(answer, Completion)]
        if texts:
            alternatives[turn.id] = {text: texts.count(text) / len(texts) for text in dict.fromkeys(texts)}
    return alternatives


def siblings(turns: Iterable[Turn], count: int) -> Mapping[TurnId, Sequence[TurnId]]:
    """Return turn -> other turns of the same agent and role with the same prompt, at most `count`.

    They are those that follow it in the order of play, the first following the last, so each turn is an alternative as
    often as it has some itself.
    """
    groups: dict[Hashable, dict[TurnId, None]] = defaultdict(dict)
    for turn in turns:
        prompt = turn.completion.prompt_ids or (turn.request.messages, turn.request.continues)
        groups[turn.agent, turn.role, prompt][turn.id] = None
    peers: dict[TurnId, Sequence[TurnId]] = {}
    for group in map(list, groups.values()):
        twice = [*group, *group]
        for place, turn in enumerate(group):
            peers[turn] = twice[place + 1 : place + 1 + min(count, len(group) - 1)]
    return peers


def _advantages(
    critic: CentralCritic, context: Tensor, answers: Tensor, rows: Tensor, weighted: Sequence[Weighted]
) -> Tensor:
    """Return [n] from contexts [n, W] and all answers of the kind [.., W], the turns' own and the alternatives."""
    width = max(1, *map(len, weighted))
    padded = [[*alternatives, *[(0, 0.0)] * (width - len(alternatives))] for alternatives in weighted]
    places = torch.tensor([[place for place, _ in alternatives] for alternatives in padded])
    chances = torch.tensor([[chance for _, chance in alternatives] for alternatives in padded])
    advantages = []
    for part in torch.arange(len(context)).split(max(1, _AT_ONCE // width)):
        chosen = critic.value(context[part] + answers[rows[part]])
        alternatives = critic.value(context[part][:, None] + answers[places[part]])
        advantages.append(counterfactual(chosen, alternatives, chances[part]))
    return torch.where(chances.sum(1) > 0, torch.cat(advantages), 0.0)
