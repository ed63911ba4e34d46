"""One recorded episode as plain data for the page: turns, edges, tokens, rewards, and the chain of each advantage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from marl.graph import Trajectory
from marl.judging.records import StepRecord
from marl.protocols import GameConfig
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.types import Turn
from marl.view.chain import CreditChain, credit_chain, not_judged
from marl.view.edges import KINDS, marked_tokens
from marl.view.page.layout import layout
from marl.view.page.reference import drawing, probability, reference
from marl.view.page.token_texts import TokenTexts
from marl.view.verdicts import problem_of, readers_of, scores_of
from marl.view.why import settings_in_words

_SHOWN_PEERS = 64
"""Most peers of a turn that are listed."""


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """Describes episodes of a run."""

    home: RunFolder
    scenario: Scenario | None
    """None: it cannot be read today, as it names parts that are not installed."""
    games: Mapping[str, GameConfig]
    """Name of each game of the run, "" where there is one -> its settings."""
    texts: TokenTexts

    @classmethod
    def of_run(cls, home: RunFolder, scenario: Scenario | None) -> EpisodeView:
        """Return the view of a run's episodes."""
        games = {name: played.game for name, played in scenario.by_game().items()} if scenario else {}
        return cls(home, scenario, games, TokenTexts(home))

    def episode(self, step: int, trajectory: Trajectory, record: StepRecord | None) -> dict[str, Any]:
        """Return an episode; `record`: the judgement of its step, where there is one."""
        deal = trajectory.deal
        question, answer = problem_of(trajectory)
        return {
            **{"step": step, "episode": trajectory.id, "group": deal.group, "game": deal.game, "seats": deal.seats},
            **{"purpose": deal.purpose, "policies": deal.policies, "start": trajectory.start, "end": trajectory.end},
            **{"parent": trajectory.parent, "question": question, "answer": answer},
            "measures": trajectory.findings.measures,
            "returns": trajectory.returns,
            "rewards": [asdict(reward) | {"turn": reward.turn[1]} for reward in trajectory.rewards],
            "turns": [self._turn(turn, trajectory, place) for turn, place in self._placed(trajectory)],
            "edges": [edge for turn in trajectory.turns for edge in _edges(turn, trajectory)],
            "chains": self.chains(trajectory, record) if record else None,
        }

    @staticmethod
    def _placed(trajectory: Trajectory) -> list[tuple[Turn, tuple[int, int]]]:
        return list(zip(trajectory.turns, layout(trajectory), strict=True))

    def chains(self, trajectory: Trajectory, record: StepRecord) -> list[dict[str, Any]]:
        """Return for each turn the chain of its advantage, or why it has none."""
        chains = record.turns()
        described = []
        for turn in trajectory.turns:
            chain = chains.get(turn.id)
            if chain is None:
                reason = not_judged(self.scenario, turn) if self.scenario else "it has no entry in the judgement"
                described.append({"not_judged": reason})
            else:
                described.append(_chain(credit_chain(chain, record, trajectory, chains)))
        return described

    def prompt(self, turn: Turn) -> dict[str, Any]:
        """Return a turn's prompt as the model read it, chat template and special tokens included."""
        completion = turn.completion
        return {"text": self.texts.text(turn.request.policy, completion.prompt_ids), "ids": completion.prompt_ids}

    def _turn(self, turn: Turn, trajectory: Trajectory, place: tuple[int, int]) -> dict[str, Any]:
        completion, request, game = turn.completion, turn.request, self.games.get(trajectory.deal.game)
        return {
            **{"index": turn.id[1], "id": turn.id, "agent": turn.agent, "role": turn.role, "policy": request.policy},
            **{"nth": turn.nth, "attempt": turn.attempt, "versions": completion.versions, "problem": turn.problem},
            **{"column": place[0], "row": place[1]},
            **{"text": completion.text, "action": turn.action, "finish": completion.finish},
            **{"reason": completion.reason, "usage": completion.usage, "sampling": request.sampling},
            "messages": [message._asdict() for message in request.messages],
            "marks": [mark._asdict() | {"source": mark.source[1]} for mark in request.marks],
            "continues": len(request.continues),
            "prompt_tokens": len(completion.prompt_ids),
            "tokens": self._tokens(turn),
            "gave": [asdict(score) for score in scores_of(turn)],
            "scores": [
                {"name": score.name, "value": score.value, "why": score.why, "by": reader.agent, "turn": reader.id[1]}
                for reader in readers_of(turn, trajectory)
                for score in scores_of(reader)
            ],
            "state": request.state,
            "drawing": drawing(game, request.state),
            "moves": list(request.options) if request.options else None,
            "probability": probability(turn),
            "reference": reference(game, request.state, request.options),
        }

    def _tokens(self, turn: Turn) -> dict[str, Any]:
        completion = turn.completion
        return {
            "ids": completion.token_ids,
            "texts": self.texts.pieces(turn.request.policy, completion.token_ids),
            "logprobs": completion.logprobs,
            "imposed": completion.imposed,
        }


def _edges(reader: Turn, trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the edges that lead to a turn: in which ways, and how many of its prompt's tokens each way marks."""
    edges = []
    for source in trajectory.sources(reader.id, KINDS):
        kinds = trajectory.kinds(source, reader.id)
        tokens = {kind: len(marked_tokens(reader, source, kind)) for kind in KINDS if kind in kinds}
        edges.append({"source": source[1], "reader": reader.id[1], "kinds": tokens})
    return edges


def _chain(judged: CreditChain) -> dict[str, Any]:
    turn, rule, peers = judged.turn, judged.rule, judged.peers
    return {
        **{"field": rule.field, "assign": settings_in_words(rule.assign), "reward_scale": rule.scale},
        "baseline_rule": settings_in_words(rule.baseline),
        **{"policy": turn.policy, "pool": turn.pool, "pool_reward": turn.pool_reward},
        "rewards": [asdict(reward) | {"turn": reward.turn[1]} for reward in judged.rewards],
        **{"assigned": turn.assigned, "penalties": turn.penalties, "earned": turn.earned},
        "like": judged.like,
        "peers": None if peers is None else [_peer(peer.turn, peer.earned) for peer in peers[:_SHOWN_PEERS]],
        "peer_count": None if peers is None else len(peers),
        **{"baseline": turn.baseline, "scale": turn.scale, "advantage": turn.advantage},
        **{"tokens": turn.token_advantages, "entropy": turn.token_entropy, "mismatch": turn.token_mismatch},
    }


def _peer(turn: tuple[str, int], earned: float) -> Mapping[str, Any]:
    return {"episode": turn[0], "turn": turn[1], "earned": earned}
