"""Recorded turns and episodes as rows of a table, for the Parquet export and `marl.open_run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl.core.types import Message, Reward
from marl.export.turn_selection import RecordedEpisode, RecordedTurn
from marl.view.edge_text import EDGE_KINDS
from marl.view.token_decoder import TokenDecoder

Row = dict[str, Any]
"""Name of a column -> value."""
CREDIT_COLUMNS = (
    *("pool", "pool_reward", "assigned", "penalties", "earned", "baseline", "scale", "advantage"),
    "token_advantages",
)
"""Columns of the table of turns that come from the credit record. They are null for a turn without credit."""


def episode_row(episode: RecordedEpisode) -> Row:
    """Return `episode` as a row of the table of episodes."""
    trajectory, deal = episode.trajectory, episode.trajectory.deal
    parent = trajectory.parent and {"episode": trajectory.parent[0], "turn": trajectory.parent[1]}
    return {
        **{"step": episode.step, "episode": trajectory.id, "group": deal.group, "game": deal.game},
        **{"seed": deal.seed, "purpose": deal.purpose, "branch": deal.branch, "start": trajectory.start},
        **{"parent": parent, "end": trajectory.end, "turns": len(trajectory.turns)},
        "tokens": sum(len(turn.completion.token_ids) for turn in trajectory.turns),
        "seats": _mapping_rows(deal.seats, "agent", "role"),
        "policies": _mapping_rows(deal.policies, "role", "policy"),
        "returns": _mapping_rows(trajectory.returns, "agent", "value"),
        "rewards": [*map(_reward_row, trajectory.rewards)],
        "measures": _mapping_rows(trajectory.findings.measures, "name", "value"),
    }


def turn_row(recorded_turn: RecordedTurn, decoder: TokenDecoder) -> Row:
    """Return `recorded_turn` as a row of the table of turns. `decoder` gives the text of the prompt's tokens."""
    turn, trajectory = recorded_turn.turn, recorded_turn.trajectory
    request, completion = turn.request, turn.completion
    credit: Row = dict.fromkeys(CREDIT_COLUMNS)
    if recorded_turn.credit is not None:
        credit = {name: getattr(recorded_turn.credit, name) for name in CREDIT_COLUMNS}
        credit["penalties"] = _mapping_rows(recorded_turn.credit.penalties, "name", "value")
    sources = []
    for source in trajectory.sources(turn.id, EDGE_KINDS):
        kinds = sorted(trajectory.edge_kinds(source, turn.id))
        sources.append({"episode": source[0], "turn": source[1], "kinds": kinds})
    return {
        **{"step": recorded_turn.step, "episode": turn.id[0], "turn": turn.id[1], "group": trajectory.deal.group},
        **{"game": trajectory.deal.game, "start": trajectory.start, "problem": turn.problem},
        **{"agent": turn.agent, "nth": turn.nth, "attempt": turn.attempt, "role": turn.role, "policy": request.policy},
        "messages": [_message_row(message) for message in request.messages],
        "chat": [_message_row(message) for message in recorded_turn.prompt],
        "prompt": decoder.decode(request.policy, completion.prompt_ids) if completion.prompt_ids else None,
        **{"prompt_ids": completion.prompt_ids, "continues": len(request.continues), "tools": request.tools},
        **{"completion": completion.text, "token_ids": completion.token_ids, "logprobs": completion.logprobs},
        **{
            "imposed": completion.imposed,
            "segments": completion.segments,
            "finish": completion.finish,
            "reason": completion.reason,
        },
        "versions": completion.versions,
        "sampling": request.sampling.model_dump_json(),
        **{"legal": None if request.options is None else list(request.options), "action": turn.action},
        "state": request.state,
        "rewards": [_reward_row(reward) for reward in trajectory.rewards if reward.turn == turn.id],
        "return": recorded_turn.return_of_agent,
        "sources": sources,
        **credit,
    }


def _message_row(message: Message) -> Row:
    """Return `message` with None for its empty fields, as Parquet columns cannot be left out."""
    calls = [call._asdict() for call in message.calls] or None
    fields = {"calls": calls, "call_id": message.call_id or None, "name": message.name or None}
    return {"role": message.role, "content": message.content, **fields}


def _reward_row(reward: Reward) -> Row:
    columns = {"agent": reward.agent, "name": reward.name, "value": reward.value, "cause": reward.cause}
    return columns | {"turn": reward.turn[1]}


def _mapping_rows(mapping: Mapping[str, Any], key_column: str, value_column: str) -> list[Row]:
    """Return `mapping` as rows of a nested table with two columns, since Parquet columns cannot be dictionaries."""
    return [{key_column: key, value_column: value} for key, value in mapping.items()]
