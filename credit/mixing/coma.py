"""COMA's rule: alternatives to each answer, and their comparison by a central critic.

Shapes: M rounds, A seats, n turns of one kind, K alternatives, W width of the critic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from marl.core.seeds import episode_name_for_seeding, hash_to_seed
from marl.core.types import Completion, Metrics, Request, Turn, TurnId
from marl.credit.assign.fitted import FittedNetworkAssign
from marl.credit.assign.rollouts import probabilities_among_texts
from marl.credit.mixing.fitted_rule import FittedNetworkRule, FittedNetworks
from marl.credit.mixing.networks import CentralCritic, RoundBatch, counterfactual_advantage
from marl.credit.mixing.round_tensors import TEXT_LENGTH, FeatureLayout, RoundTensors
from marl.protocols import Evidence, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/coma/alone | share of turns | turns without an alternative
"""

_CHUNK = 65536
"""Number of alternatives that the critic evaluates in one pass, to bound its memory."""

TextAlternatives = Mapping[TurnId, Mapping[str, float]]
"""Turn -> text -> its probability; the probabilities of a turn sum to 1. A turn without alternatives is absent."""
WeightedTableRows = Sequence[tuple[int, float]]
"""A turn's alternatives: (row in a table of answers, probability)."""


class ComaRule(FittedNetworkRule[CentralCritic]):
    """COMA's credit: Q of a turn's answer minus the mean Q of its alternatives, by a critic that is fitted first."""

    def __init__(self, settings: FittedNetworkAssign, alternatives: str, samples: int) -> None:
        """`alternatives`, `samples`: the settings of the same name in `Coma`."""
        super().__init__(settings)
        self._alternatives, self._samples = alternatives, samples
        self._share_alone = 0.0
        """Share of the last step's turns that have no alternative."""

    def make_networks(self, layout: FeatureLayout) -> CentralCritic:
        return CentralCritic(layout, self.settings.fit.width)

    @torch.no_grad()
    def credit_by_seat(
        self, fitted: FittedNetworks[CentralCritic], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        batch, critic = RoundBatch(record), fitted.networks
        # COMA's alternatives to a turn are its listed legal moves, or new samples of its policy if the game lists none.
        problem = "coma asks policies what else they could have said, and nobody is there to be asked"
        listed: dict[TurnId, Turn] = {}
        free: dict[TurnId, Turn] = {}
        for turn in turns:
            (listed if turn.request.options else free)[turn.id] = turn
        texts: dict[TurnId, Mapping[str, float]] = {}
        if listed:
            texts |= legal_move_probabilities(listed.values(), evidence.require_simulator(problem))
        if free and self._alternatives == "resample":
            simulator = evidence.require_simulator(problem)
            texts |= sampled_answer_frequencies(list(free.values()), simulator, self._samples, evidence.seed)
        context = critic.encode_contexts(batch).flatten(0, 1)
        values, alone = torch.zeros(len(context)), 0
        for kind, cells, rows in batch.kinds:
            kind_turns = [turns[index] for index in batch.turns.flatten()[cells].tolist()]
            answers = critic.encode_completions(kind, record.completions[kind])
            new_texts, alternatives = self._alternative_answers_as_weighted_rows(kind_turns, rows.tolist(), texts)
            if new_texts:
                answers = torch.cat(
                    [answers, critic.encode_completions(kind, TEXT_LENGTH * fitted.encoder.text_features(new_texts))]
                )
            values[cells] = _counterfactual_advantages(critic, context[cells], answers, rows, alternatives)
            alone += alternatives.count([])
        self._share_alone = alone / len(turns)
        return values.unflatten(0, batch.turns.shape)

    def predict_returns(self, networks: CentralCritic, record: RoundTensors) -> Tensor:
        return networks.recorded_q_by_seat(RoundBatch(record))

    def _alternative_answers_as_weighted_rows(
        self, turns: Sequence[Turn], recorded_answer_rows: Sequence[int], alternative_texts: TextAlternatives
    ) -> tuple[list[str], list[WeightedTableRows]]:
        """Return the texts to append to a table of recorded answers, and each turn's alternatives as weighted rows.

        `recorded_answer_rows`: the row of each turn's recorded answer in the table, which holds one kind of turns.
        """
        row_of = {turn.id: row for turn, row in zip(turns, recorded_answer_rows, strict=True)}
        free = [turn for turn in turns if not turn.request.options]
        peers_of = turns_with_same_prompt(free, self._samples) if self._alternatives == "siblings" else {}
        new_texts: dict[str, int] = {}
        weighted: list[WeightedTableRows] = []
        for turn in turns:
            alternatives: list[tuple[int, float]] = []
            if turn.id in alternative_texts:
                for text, probability in alternative_texts[turn.id].items():
                    alternatives.append(
                        (len(recorded_answer_rows) + new_texts.setdefault(text, len(new_texts)), probability)
                    )
            else:
                peers = peers_of.get(turn.id, ())
                for peer in peers:
                    alternatives.append((row_of[peer], 1 / len(peers)))
            weighted.append(alternatives)
        return list(new_texts), weighted

    def metrics(self) -> Metrics:
        """Return the metrics of the fit, and the share of turns without an alternative."""
        return super().metrics() | ({"credit/coma/alone": self._share_alone} if self._fitted else {})


def legal_move_probabilities(turns: Iterable[Turn], simulator: Simulator) -> TextAlternatives:
    """Return the texts of each turn's legal moves with their probabilities under the current policy, normalised to 1.

    Equal prompts with equal moves are scored once.
    """
    questions: dict[Hashable, tuple[Request, list[str]]] = {}
    turns_by_question: dict[Hashable, list[Turn]] = defaultdict(list)
    for turn in turns:
        request = simulator.request_to_current_policy(turn)
        texts = list(dict.fromkeys((turn.request.options or {}).values()))
        key = (request.policy, request.sampling, request.messages, request.continues, tuple(texts), request.state)
        questions.setdefault(key, (request, texts))
        turns_by_question[key].append(turn)
    rows = probabilities_among_texts(list(questions.values()), simulator)
    alternatives: dict[TurnId, Mapping[str, float]] = {}
    for (key, (_, texts)), row in zip(questions.items(), rows, strict=True):
        if row:
            probabilities = dict(zip(texts, row, strict=True))
            for turn in turns_by_question[key]:
                alternatives[turn.id] = probabilities
    return alternatives


def sampled_answer_frequencies(turns: Sequence[Turn], simulator: Simulator, count: int, seed: int) -> TextAlternatives:
    """Return turn -> text -> its share among `count` new answers of the current policy to the turn's prompt."""
    requests: list[Request] = []
    for turn in turns:
        request = simulator.request_to_current_policy(turn)
        name = (episode_name_for_seeding(turn.id[0]), turn.id[1])
        requests += [replace(request, seed=hash_to_seed(seed, "coma", *name, nth)) for nth in range(count)]
    answers = iter(simulator.ask(requests))
    alternatives: dict[TurnId, Mapping[str, float]] = {}
    for turn in turns:
        texts = Counter([answer.text for answer in islice(answers, count) if isinstance(answer, Completion)])
        if texts:
            alternatives[turn.id] = {text: number / texts.total() for text, number in texts.items()}
    return alternatives


def turns_with_same_prompt(turns: Iterable[Turn], max_siblings: int) -> Mapping[TurnId, Sequence[TurnId]]:
    """Return turn -> at most `max_siblings` other turns of the same agent and role with the same prompt.

    The siblings are the next turns in playing order, cyclically, so a turn with k siblings is a sibling of k turns.
    """
    groups: dict[Hashable, dict[TurnId, None]] = defaultdict(dict)
    for turn in turns:
        prompt = turn.completion.prompt_ids or (turn.request.messages, turn.request.continues)
        groups[turn.agent, turn.role, prompt][turn.id] = None
    peers: dict[TurnId, Sequence[TurnId]] = {}
    for group in map(list, groups.values()):
        cycle = [*group, *group]
        for index, turn in enumerate(group):
            peers[turn] = cycle[index + 1 : index + 1 + min(max_siblings, len(group) - 1)]
    return peers


def _counterfactual_advantages(
    critic: CentralCritic,
    context: Tensor,
    answers: Tensor,
    answer_rows: Tensor,
    weighted_alternatives: Sequence[WeightedTableRows],
) -> Tensor:
    """Return COMA's advantages [n] of turns.

    Args:
        critic: the fitted critic.
        context: [n, W] encodings of all inputs except the turns' own answers.
        answers: [.., W] table of encoded answers, recorded and alternative.
        answer_rows: [n] row of each turn's recorded answer in `answers`.
        weighted_alternatives: alternatives of each turn.
    """
    width = max(1, *map(len, weighted_alternatives))
    indices, probabilities = [], []
    for alternatives in weighted_alternatives:
        # Shorter lists of alternatives are padded with index 0 and probability 0.
        padded = [*alternatives, *[(0, 0.0)] * (width - len(alternatives))]
        turn_indices, turn_probabilities = zip(*padded, strict=True)
        indices.append(turn_indices)
        probabilities.append(turn_probabilities)
    table, chances = torch.tensor(indices), torch.tensor(probabilities)
    advantages = []
    for chunk in torch.arange(len(context)).split(max(1, _CHUNK // width)):
        chosen = critic.q_values(context[chunk] + answers[answer_rows[chunk]])
        replaced = critic.q_values(context[chunk][:, None] + answers[table[chunk]])
        advantages.append(counterfactual_advantage(chosen, replaced, chances[chunk]))
    return torch.where(chances.sum(1) > 0, torch.cat(advantages), 0.0)
