"""COMA's rule: alternatives to each answer, and their comparison by a central critic.

Shapes: M rounds, A seats, n turns of one kind, K alternatives, W width of the critic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from marl.core.seeds import seed_of
from marl.core.types import Completion, Metrics, Request, Turn, TurnId
from marl.credit.assign.fitted import FittedAssign
from marl.credit.assign.rollouts import text_probabilities
from marl.credit.mixing.fitted_rule import FittedNetworks, FittedRule
from marl.credit.mixing.networks import CentralCritic, RoundBatch, counterfactual
from marl.credit.mixing.round_tensors import TEXT_LENGTH, FeatureLayout, RoundTensors
from marl.protocols import Evidence, Simulator

_CHUNK = 65536
"""Number of alternatives that the critic evaluates in one pass, to bound its memory."""

Alternatives = Mapping[TurnId, Mapping[str, float]]
"""Turn -> text -> its probability; the probabilities of a turn sum to 1. A turn without alternatives is absent."""
Weighted = Sequence[tuple[int, float]]
"""A turn's alternatives: (row in a table of answers, probability)."""


class ComaRule(FittedRule[CentralCritic]):
    """A turn earns Q of its answer minus the mean Q of its agent's alternatives, by a critic that is fitted first."""

    def __init__(self, settings: FittedAssign, alternatives: str, samples: int) -> None:
        """`alternatives`, `samples`: the settings of `Coma`."""
        super().__init__(settings)
        self._alternatives, self._samples = alternatives, samples
        self._share_alone = 0.0
        """Share of the last step's turns without an alternative."""

    def make_networks(self, layout: FeatureLayout) -> CentralCritic:
        return CentralCritic(layout, self.settings.fit.width)

    @torch.no_grad()
    def credit(
        self, fitted: FittedNetworks[CentralCritic], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        batch, critic = RoundBatch(record), fitted.networks
        texts = self._texts(evidence, turns)
        context = critic.context(batch).flatten(0, 1)
        values, alone = torch.zeros(len(context)), 0
        for kind, cells, rows in batch.kinds:
            of_kind = [turns[index] for index in batch.turns.flatten()[cells].tolist()]
            answers = critic.encode(kind, record.completions[kind])
            new, weighted = self._weighted(of_kind, rows.tolist(), texts)
            if new:
                answers = torch.cat([answers, critic.encode(kind, TEXT_LENGTH * fitted.encoder.texts(new))])
            values[cells] = _advantages(critic, context[cells], answers, rows, weighted)
            alone += sum(not alternatives for alternatives in weighted)
        self._share_alone = alone / len(turns)
        return values.unflatten(0, batch.turns.shape)

    def predict(self, networks: CentralCritic, record: RoundTensors) -> Tensor:
        return networks.by_seat(RoundBatch(record))

    def _texts(self, evidence: Evidence, turns: Sequence[Turn]) -> Alternatives:
        """Return the alternatives given as texts, not as other turns of this step."""
        problem = "coma asks policies what else they could have said, and nobody is there to be asked"
        distinct = {turn.id: turn for turn in turns}.values()
        finite = [turn for turn in distinct if turn.request.options]
        texts = dict(listed_moves(finite, evidence.require_simulator(problem))) if finite else {}
        free = [turn for turn in distinct if not turn.request.options]
        if free and self._alternatives == "resample":
            texts |= resample(free, evidence.require_simulator(problem), self._samples, evidence.seed)
        return texts

    def _weighted(
        self, turns: Sequence[Turn], rows: Sequence[int], texts: Alternatives
    ) -> tuple[Sequence[str], Sequence[Weighted]]:
        """Return new texts, and each turn's alternatives as rows: the answers of the kind, then the new texts."""
        row = {turn.id: row for turn, row in zip(turns, rows, strict=True)}
        free = [turn for turn in turns if not turn.request.options]
        peers_of = siblings(free, self._samples) if self._alternatives == "siblings" else {}
        new: dict[str, int] = {}
        weighted: list[Weighted] = []
        for turn in turns:
            if turn.id in texts:
                alternatives: list[tuple[int, float]] = []
                for text, probability in texts[turn.id].items():
                    alternatives.append((len(rows) + new.setdefault(text, len(new)), probability))
                weighted.append(alternatives)
            else:
                peers = peers_of.get(turn.id, ())
                weighted.append([(row[peer], 1 / len(peers)) for peer in peers])
        return list(new), weighted

    def metrics(self) -> Metrics:
        """Return the metrics of the fit, and the share of turns without an alternative."""
        return super().metrics() | ({"credit/coma/alone": self._share_alone} if self._fitted else {})


def listed_moves(turns: Iterable[Turn], simulator: Simulator) -> Alternatives:
    """Return the texts of listed moves with their probabilities, given that the current policy says one of them.

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
    """Return `count` new answers of the current policies to each turn's prompt; probabilities of equal texts add up."""
    requests: list[Request] = []
    for turn in turns:
        request = simulator.request_for(turn)
        requests += [replace(request, seed=seed_of(seed, "coma", *turn.id, nth)) for nth in range(count)]
    answers = iter(simulator.ask(requests))
    alternatives: dict[TurnId, Mapping[str, float]] = {}
    for turn in turns:
        texts = [answer.text for answer in islice(answers, count) if isinstance(answer, Completion)]
        if texts:
            alternatives[turn.id] = {text: texts.count(text) / len(texts) for text in dict.fromkeys(texts)}
    return alternatives


def siblings(turns: Iterable[Turn], count: int) -> Mapping[TurnId, Sequence[TurnId]]:
    """Return turn -> at most `count` other turns of the same agent and role with the same prompt.

    These are the next turns in playing order, cyclically, so each turn is an alternative as often as it has
    alternatives.
    """
    groups: dict[Hashable, dict[TurnId, None]] = defaultdict(dict)
    for turn in turns:
        prompt = turn.completion.prompt_ids or (turn.request.messages, turn.request.continues)
        groups[turn.agent, turn.role, prompt][turn.id] = None
    peers: dict[TurnId, Sequence[TurnId]] = {}
    for group in map(list, groups.values()):
        cycle = [*group, *group]
        for index, turn in enumerate(group):
            peers[turn] = cycle[index + 1 : index + 1 + min(count, len(group) - 1)]
    return peers


def _advantages(
    critic: CentralCritic, context: Tensor, answers: Tensor, rows: Tensor, weighted: Sequence[Weighted]
) -> Tensor:
    """Return the advantages [n] from contexts [n, W] and the table of answers [.., W] (recorded and alternative)."""
    width = max(1, *map(len, weighted))
    indices, probabilities = [], []
    for alternatives in weighted:
        # Row 0 with probability 0 pads the table.
        padded = [*alternatives, *[(0, 0.0)] * (width - len(alternatives))]
        indices.append([index for index, _ in padded])
        probabilities.append([probability for _, probability in padded])
    table, chances = torch.tensor(indices), torch.tensor(probabilities)
    advantages = []
    for chunk in torch.arange(len(context)).split(max(1, _CHUNK // width)):
        chosen = critic.value(context[chunk] + answers[rows[chunk]])
        replaced = critic.value(context[chunk][:, None] + answers[table[chunk]])
        advantages.append(counterfactual(chosen, replaced, chances[chunk]))
    return torch.where(chances.sum(1) > 0, torch.cat(advantages), 0.0)
