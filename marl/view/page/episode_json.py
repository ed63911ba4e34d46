"""JSON data of one recorded episode for the page: turns, edges, tokens, rewards and credit derivations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Reward, Turn
from marl.credit_stage.records import CreditRecord, TurnCreditRecord
from marl.protocols import GameConfig
from marl.scenario.schema import Scenario
from marl.view.baseline_description import BaselineDescription, describe_baseline
from marl.view.credit_chain import reason_without_credit
from marl.view.credit_explanation import format_plugin_settings
from marl.view.edge_text import EDGE_KINDS, edge_prompt_token_indices
from marl.view.page.graph_layout import turn_columns_and_rows
from marl.view.page.reference_players import (
    reference_move_probabilities,
    render_information_state_if_possible,
    sampled_answer_probability,
)
from marl.view.token_decoder import TokenDecoder
from marl.view.verifier_scores import question_and_right_answer, turns_of_other_agents_reading, verifier_scores_in_turn

_SHOWN_PEERS = 64
"""Maximum number of peers (members of a turn's baseline group) that are listed for one turn."""
_LISTED_PEERS = 50_000
"""Maximum number of listed peers of all turns of an episode, which are most of the answer about a long episode."""


@dataclass(frozen=True, slots=True)
class EpisodeSerializer:
    """Serializer that turns the episodes of a run into JSON data for the page."""

    scenario: Scenario | None
    """Scenario of the run, or None if it cannot be loaded, for example because plug-ins are not installed."""
    games: Mapping[str, GameConfig]
    """Game name -> settings. The name is "" in a run with one game."""
    texts: TokenDecoder
    """Decoder of token ids into text."""

    def episode_json(self, step: int, trajectory: Trajectory, record: CreditRecord | None) -> dict[str, Any]:
        """Return an episode as JSON data. `record` is its step's credit record, or None."""
        deal = trajectory.deal
        question, answer = question_and_right_answer(trajectory)
        turns, edges = [], []
        for turn, position in zip(trajectory.turns, turn_columns_and_rows(trajectory), strict=True):
            turns.append(self._turn_json(turn, trajectory, position))
            for source in trajectory.sources(turn.id, EDGE_KINDS):
                kinds = trajectory.edge_kinds(source, turn.id)
                # `tokens`: kind of the edge -> number of prompt tokens that come from the source.
                tokens = {
                    kind: len(edge_prompt_token_indices(turn, source, kind)) for kind in EDGE_KINDS if kind in kinds
                }
                edges.append({"source": source[1], "reader": turn.id[1], "kinds": tokens})
        return {
            **{"step": step, "episode": trajectory.id, "group": deal.group, "game": deal.game, "seats": deal.seats},
            **{"purpose": deal.purpose, "policies": deal.policies, "start": trajectory.start, "end": trajectory.end},
            **{"parent": trajectory.parent, "question": question, "answer": answer},
            "measures": trajectory.findings.measures,
            "returns": trajectory.returns,
            "rewards": _rewards_json(trajectory.rewards),
            "turns": turns,
            "edges": edges,
            "chains": self.advantage_derivations_json(trajectory, record) if record else None,
        }

    def advantage_derivations_json(self, trajectory: Trajectory, record: CreditRecord) -> list[dict[str, Any]]:
        """Return the derivation of each turn's advantage, or the reason for a missing advantage."""
        credit_of = record.turns()
        # Peers of a group and rewards of a pool are computed once, because an episode may have thousands of turns.
        members_of: list[list[TurnCreditRecord]] = []
        for group in record.groups:
            members_of.append([credit_of[turn] for turn in group.turns if turn in credit_of])
        rewards_of: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        peers_per_turn = min(_SHOWN_PEERS, max(1, _LISTED_PEERS // max(1, len(trajectory.turns))))
        described: list[dict[str, Any]] = []
        baseline_of: dict[int, BaselineDescription] = {}
        for turn in trajectory.turns:
            credit = credit_of.get(turn.id)
            if credit is None:
                reason = "it has no entry in the credit record"
                if self.scenario:
                    reason = reason_without_credit(self.scenario, turn)
                described.append({"no_credit": reason})
                continue
            rule, pool = record.rules[credit.rule], credit.pool or (credit.agent,)
            if pool not in rewards_of:
                rewards_of[pool] = _rewards_json([reward for reward in trajectory.rewards if reward.agent in pool])
            if credit.group is not None and credit.group not in baseline_of:
                like = record.groups[credit.group].like
                baseline_of[credit.group] = describe_baseline(like, members_of[credit.group])
            words = BaselineDescription() if credit.group is None else baseline_of[credit.group]
            described.append(
                {
                    **{"field": rule.field, "assign": format_plugin_settings(rule.assign), "reward_scale": rule.scale},
                    "baseline_rule": format_plugin_settings(rule.baseline),
                    "baseline_words": asdict(words),
                    **{"policy": credit.policy, "pool": credit.pool, "pool_reward": credit.pool_reward},
                    "rewards": rewards_of[pool],
                    **{"assigned": credit.assigned, "penalties": credit.penalties, "earned": credit.earned},
                    **_peers_json(credit, record, members_of, peers_per_turn),
                    **{"baseline": credit.baseline, "scale": credit.scale, "advantage": credit.advantage},
                    **{"tokens": credit.token_advantages, "entropy": credit.token_entropy},
                    "mismatch": credit.token_mismatch,
                }
            )
        return described

    def prompt_json(self, turn: Turn) -> dict[str, Any]:
        """Return the turn's prompt exactly as tokenized, with chat template and special tokens."""
        completion = turn.completion
        return {"text": self.texts.decode(turn.request.policy, completion.prompt_ids), "ids": completion.prompt_ids}

    def _turn_json(self, turn: Turn, trajectory: Trajectory, position: tuple[int, int]) -> dict[str, Any]:
        """Return a turn as JSON data. `position` is its (column, row) in the graph."""
        completion, request, game = turn.completion, turn.request, self.games.get(trajectory.deal.game)
        scores: list[dict[str, Any]] = []
        for reader in turns_of_other_agents_reading(turn, trajectory):
            for score in verifier_scores_in_turn(reader):
                scores.append({**asdict(score), "by": reader.agent, "turn": reader.id[1]})
        return {
            **{"index": turn.id[1], "id": turn.id, "agent": turn.agent, "role": turn.role, "policy": request.policy},
            **{"nth": turn.nth, "attempt": turn.attempt, "versions": completion.versions, "problem": turn.problem},
            **{"column": position[0], "row": position[1]},
            **{"text": completion.text, "action": turn.action, "finish": completion.finish},
            **{"reason": completion.reason, "usage": completion.usage, "sampling": request.sampling},
            "messages": [message.to_dict() for message in request.messages],
            "marks": [mark._asdict() | {"source": mark.source[1]} for mark in request.marks],
            "continues": len(request.continues),
            "prompt_tokens": len(completion.prompt_ids),
            "tokens": {
                "ids": completion.token_ids,
                "texts": self.texts.decode_each_token(request.policy, completion.token_ids),
                "logprobs": completion.logprobs,
                **{"imposed": completion.imposed, "segments": completion.segments},
            },
            "gave": list(map(asdict, verifier_scores_in_turn(turn))),
            "scores": scores,
            "state": request.state,
            "drawing": render_information_state_if_possible(game, request.state),
            "moves": list(request.options) if request.options else None,
            "probability": sampled_answer_probability(turn),
            "reference": reference_move_probabilities(game, request.state, request.options),
        }


def _peers_json(
    turn_credit: TurnCreditRecord,
    record: CreditRecord,
    members_of: Sequence[Sequence[TurnCreditRecord]],
    max_peers: int,
) -> dict[str, Any]:
    """Return the first `max_peers` peers of a turn and the number of all. `members_of`: members of each peer group."""
    if turn_credit.group is None:
        return {"like": None, "peers": None, "peer_count": None}
    members = members_of[turn_credit.group]
    others = (member for member in members if member.turn != turn_credit.turn)
    listed: list[dict[str, Any]] = []
    for peer in islice(others, max_peers):
        listed.append({"episode": peer.turn[0], "turn": peer.turn[1], "earned": peer.earned})
    return {"like": record.groups[turn_credit.group].like, "peers": listed, "peer_count": len(members) - 1}


def _rewards_json(rewards: Sequence[Reward]) -> list[dict[str, Any]]:
    """Return rewards as JSON data, each with the index of its turn."""
    return [asdict(reward) | {"turn": reward.turn[1]} for reward in rewards]
