"""Requests of a role in the same situation share the prompt; nothing else is carried over from one to the next."""

from __future__ import annotations

from dataclasses import replace

from marl.core.types import Info
from marl.protocols import PromptContext
from marl.roles.answering import PlayerRole, SolverRole
from marl.roles.judging import JudgeRole
from marl.rollout.casting import RoleRequestBuilder


def situation(text: str = "card K", attempt: int = 0, state: str = "K") -> PromptContext:
    info: Info = {"legal": ("bet", "check"), "hears": (), "together": (), "state": state, "attempt": attempt}
    return PromptContext("player_0", {"text": text}, info)


def test_equal_situations_share_the_prompt_but_not_the_seed_or_the_state() -> None:
    builder = RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0)
    first, second = builder.build_request("player", situation(), 1), builder.build_request("player", situation(), 2)
    assert first.messages is second.messages
    assert (first.seed, second.seed) == (1, 2)
    assert replace(second, seed=1) == first
    assert builder.build_request("player", situation(state="K bet"), 1).state == "K bet"
    assert builder.build_request("player", situation(), 1, "actor@000120", "eval").policy == "actor@000120"


def test_a_template_that_shows_the_attempt_is_filled_in_for_each_attempt() -> None:
    role = PlayerRole(policy="actor", prompt="{{ observation }} {{ attempt }}")
    builder = RoleRequestBuilder({"player": role}, 0)
    texts = [builder.build_request("player", situation(attempt=n), 0).messages[-1].content for n in (0, 1, 0)]
    assert texts == ["card K 0", "card K 1", "card K 0"]


def test_instructions_that_change_during_a_run_reach_the_next_request() -> None:
    builder = RoleRequestBuilder({"solver": SolverRole(policy="actor", instructions="Be brief.")}, 0)
    before = builder.build_request("solver", situation(), 0).messages
    builder.instructions["solver"] = "Be exact."
    after = builder.build_request("solver", situation(), 0).messages
    assert ("Be brief." in before[0].content, "Be exact." in after[0].content) == (True, True)
    del builder.instructions["solver"]
    assert builder.build_request("solver", situation(), 0).messages == before


def test_a_role_with_a_tag_of_its_own_in_each_request_shares_nothing() -> None:
    judge = JudgeRole(policy="actor").with_default_verdict_tag("nonce")
    builder = RoleRequestBuilder({"judge": judge}, 0)
    first, second = builder.build_request("judge", situation(), 1), builder.build_request("judge", situation(), 2)
    assert first.messages != second.messages
