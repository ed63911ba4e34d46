"""JSON data of one recorded episode for the page: turns, edges, tokens, rewards and credit derivations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.credit_stage.records import CreditRecord
from marl.protocols import GameConfig
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.view.credit_chain import CreditChain, credit_chain, reason_without_credit
from marl.view.credit_explanation import format_settings
from marl.view.edge_text import EDGE_KINDS, marked_tokens
from marl.view.page.graph_layout import graph_layout
from marl.view.page.reference_players import reference_probabilities, sampled_probability, state_drawing
from marl.view.token_decoder import TokenDecoder
from marl.view.verifier_scores import problem_of, readers_by_other_agents, scores_of

_SHOWN_PEERS = 64
"""Maximum number of listed peers of a turn."""


@dataclass(frozen=True, slots=True)
class EpisodeSerializer:
    """Serializer for the episodes of a run."""

    home: RunFolder
    scenario: Scenario | None
    """None if the scenario cannot be loaded, for example because plug-ins are not installed."""
    games: Mapping[str, GameConfig]
    """Game name -> settings. The name is "" in a run with one game."""
    texts: TokenDecoder

    @classmethod
    def of_run(cls, home: RunFolder, scenario: Scenario | None) -> EpisodeSerializer:
        """Return the serializer for a run's episodes."""
        games = {name: view.game for name, view in scenario.by_game().items()} if scenario else {}
        return cls(home, scenario, games, TokenDecoder(home))

    def episode(self, step: int, trajectory: Trajectory, record: CreditRecord | None) -> dict[str, Any]:
        """Return an episode as JSON data. `record` is its step's credit record, or None."""
        deal = trajectory.deal
        question, answer = problem_of(trajectory)
        turns, edges = [], []
        for turn, position in zip(trajectory.turns, graph_layout(trajectory), strict=True):
            turns.append(self._turn(turn, trajectory, position))
            edges += _edges(turn, trajectory)
        return {
            **{"step": step, "episode": trajectory.id, "group": deal.group, "game": deal.game, "seats": deal.seats},
            **{"purpose": deal.purpose, "policies": deal.policies, "start": trajectory.start, "end": trajectory.end},
            **{"parent": trajectory.parent, "question": question, "answer": answer},
            "measures": trajectory.findings.measures,
            "returns": trajectory.returns,
            "rewards": [asdict(reward) | {"turn": reward.turn[1]} for reward in trajectory.rewards],
            "turns": turns,
            "edges": edges,
            "chains": self.chains(trajectory, record) if record else None,
        }

    def chains(self, trajectory: Trajectory, record: CreditRecord) -> list[dict[str, Any]]:
        """Return the derivation of each turn's advantage, or the reason for a missing advantage."""
        chains = record.turns()
        described = []
        for turn in trajectory.turns:
            chain = chains.get(turn.id)
            if chain is None:
                reason = (
                    reason_without_credit(self.scenario, turn)
                    if self.scenario
                    else "it has no entry in the credit record"
                )
                described.append({"not_judged": reason})
            else:
                described.append(_chain(credit_chain(chain, record, trajectory, chains)))
        return described

    def prompt(self, turn: Turn) -> dict[str, Any]:
        """Return the turn's prompt exactly as tokenized, with chat template and special tokens."""
        completion = turn.completion
        return {"text": self.texts.decode(turn.request.policy, completion.prompt_ids), "ids": completion.prompt_ids}

    def _turn(self, turn: Turn, trajectory: Trajectory, position: tuple[int, int]) -> dict[str, Any]:
        completion, request, game = turn.completion, turn.request, self.games.get(trajectory.deal.game)
        return {
            **{"index": turn.id[1], "id": turn.id, "agent": turn.agent, "role": turn.role, "policy": request.policy},
            **{"nth": turn.nth, "attempt": turn.attempt, "versions": completion.versions, "problem": turn.problem},
            **{"column": position[0], "row": position[1]},
            **{"text": completion.text, "action": turn.action, "finish": completion.finish},
            **{"reason": completion.reason, "usage": completion.usage, "sampling": request.sampling},
            "messages": [message._asdict() for message in request.messages],
            "marks": [mark._asdict() | {"source": mark.source[1]} for mark in request.marks],
            "continues": len(request.continues),
            "prompt_tokens": len(completion.prompt_ids),
            "tokens": {
                "ids": completion.token_ids,
                "texts": self.texts.decode_each(request.policy, completion.token_ids),
                "logprobs": completion.logprobs,
                "imposed": completion.imposed,
            },
            "gave": [asdict(score) for score in scores_of(turn)],
            "scores": [
                {"name": score.name, "value": score.value, "why": score.why, "by": reader.agent, "turn": reader.id[1]}
                for reader in readers_by_other_agents(turn, trajectory)
                for score in scores_of(reader)
            ],
            "state": request.state,
            "drawing": state_drawing(game, request.state),
            "moves": list(request.options) if request.options else None,
            "probability": sampled_probability(turn),
            "reference": reference_probabilities(game, request.state, request.options),
        }


def _edges(reader: Turn, trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the edges into a turn, with the number of marked prompt tokens per kind."""
    edges = []
    for source in trajectory.sources(reader.id, EDGE_KINDS):
        kinds = trajectory.edge_kinds(source, reader.id)
        tokens = {kind: len(marked_tokens(reader, source, kind)) for kind in EDGE_KINDS if kind in kinds}
        edges.append({"source": source[1], "reader": reader.id[1], "kinds": tokens})
    return edges


def _chain(derivation: CreditChain) -> dict[str, Any]:
    turn, rule, peers = derivation.record, derivation.rule, derivation.peers
    listed_peers = None
    if peers is not None:
        listed_peers = []
        for peer in peers[:_SHOWN_PEERS]:
            listed_peers.append({"episode": peer.turn[0], "turn": peer.turn[1], "earned": peer.earned})
    return {
        **{"field": rule.field, "assign": format_settings(rule.assign), "reward_scale": rule.scale},
        "baseline_rule": format_settings(rule.baseline),
        **{"policy": turn.policy, "pool": turn.pool, "pool_reward": turn.pool_reward},
        "rewards": [asdict(reward) | {"turn": reward.turn[1]} for reward in derivation.rewards],
        **{"assigned": turn.assigned, "penalties": turn.penalties, "earned": turn.earned},
        "like": derivation.like,
        "peers": listed_peers,
        "peer_count": None if peers is None else len(peers),
        **{"baseline": turn.baseline, "scale": turn.scale, "advantage": turn.advantage},
        **{"tokens": turn.token_advantages, "entropy": turn.token_entropy, "mismatch": turn.token_mismatch},
    }
