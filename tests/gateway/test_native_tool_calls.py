"""Tools that a program declares: schemas, calls and results are in the format of the model's own chat template."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Completion, Request
from marl.engines.program.settings import Program
from marl.engines.token_engine import decode_completion
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.view.dialogue import DialogueSelection, episode_lines
from tests.support.addition_task import team_config, team_deal
from tests.support.small_games import FunctionEngine
from tests.support.trl_templates import TEMPLATES, chat

if not TEMPLATES:
    pytest.skip("TRL is not installed", allow_module_level=True)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {
                "b": {"type": "integer", "description": "B."},
                "a": {"type": "integer", "description": "A."},
            },
        },
    },
}
SOURCE = """
    import json, os, urllib.request

    def ask(messages):
        body = json.dumps({"model": "solver", "messages": messages, "tools": [TOOL_HERE]}).encode()
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            return json.load(response)["choices"][0]["message"]

    def main(task):
        messages = [{"role": "user", "content": "1 + 2?"}]
        while len(messages) < 6:
            messages.append(ask(messages))
            calls = messages[-1].get("tool_calls") or ()
            # The results come back in another order than the calls, which their ids tell apart.
            for call in reversed(calls):
                arguments = json.loads(call["function"]["arguments"])
                result = f"the sum is {arguments['a'] + arguments['b']}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not calls:
                return json.dumps(messages)
"""
SPELLED = {
    "llama3_1": '{"name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "000000000"}]</s>',
    "qwen2_5": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>',
    "qwen3_5_nothink": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
    "</function>\n</tool_call><|im_end|>",
}
"""Template -> a call as its model writes it."""
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
CALLED["tool_calls"][0] |= {"id": "000000000"}  # type: ignore[index,operator]
CALLED["tool_calls"][0]["function"]["arguments"] = {"a": 1, "b": 2}  # type: ignore[index]


class SpelledAnswers(FunctionEngine):
    """Engine that samples given texts, in the tokens of a chat tokenizer, one after the other."""

    def __init__(self, template: str, texts: Sequence[str]) -> None:
        super().__init__(lambda _: "")
        self.chat, self.texts = chat(template), list(texts)

    def _answer(self, request: Request) -> Completion:
        prompt = self.chat.prompt(request)
        ids = tuple(self.chat.tokenizer(self.texts.pop(0), add_special_tokens=False).input_ids)
        text = decode_completion(self.chat, request, prompt, ids)
        return Completion(text, prompt.ids, ids, (-0.5,) * len(ids), "stop")


def run_program(folder: Path, template: str, texts: Sequence[str], history: str) -> tuple[Trajectory, list[Any]]:
    """Return the episode of the program, and the messages that its client has seen in the end."""
    (folder / "tool_user.py").write_text(textwrap.dedent(SOURCE).replace("TOOL_HERE", repr(TOOL)))
    program: Any = Program(call="tool_user:main", folder=folder, workers=1).build(None)
    solver = CallerRole.model_validate({"policy": "solver", "history": history})
    casting = RoleRequestBuilder({"crew": ProgramRole(policy="program"), "solver": solver}, 0)
    game = team_config({"role": "crew", "callers": {"solver": {}}})
    simulator = RolloutSimulator(game, casting, {"program": program, "solver": SpelledAnswers(template, texts)})
    [episode] = simulator.play([team_deal(game)])
    program.close()
    return episode, json.loads(json.loads(episode.turns[-1].completion.text)["answer"])


def rendered_by_transformers(template: str, *messages: dict[str, Any]) -> str:
    chat_messages = [{"role": "user", "content": "1 + 2?"}, *messages]
    options = {"tools": [TOOL], "tokenize": False, "add_generation_prompt": True}
    return chat(template).tokenizer.apply_chat_template(chat_messages, **options)


@pytest.mark.parametrize("history", ["fresh", "append"])
@pytest.mark.parametrize("template", SPELLED)
def test_tools_of_a_program_are_in_the_format_of_the_models_template(
    template: str, history: str, tmp_path: Path
) -> None:
    end = SPELLED[template][SPELLED[template].rindex("<") :]
    episode, seen = run_program(tmp_path, template, [SPELLED[template], f"It is 3.{end}"], history)
    [call] = seen[1]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})
    assert seen[1]["content"] is None
    assert seen[3]["content"] == "It is 3."
    decode, (first, second) = chat(template).tokenizer.decode, episode.turns[:2]
    assert decode(first.completion.prompt_ids) == rendered_by_transformers(template)
    result = {"role": "tool", "content": "the sum is 3", "tool_call_id": "000000000"}
    assert decode(second.completion.prompt_ids) == rendered_by_transformers(template, CALLED, result)
    if history == "fresh":
        shown = "\n".join(line.plain for line in episode_lines(episode, DialogueSelection(full=True), {}))
        assert '<tool_call>{"name": "add", "arguments": {"a":1,"b":2}}</tool_call>' in shown.partition(" 1 solver")[2]
    sampled = (*first.completion.prompt_ids, *first.completion.token_ids)
    assert second.request.continues == (sampled if history == "append" else ())
    assert episode.edge_kinds(first.id, second.id) == {"self", "tool"}


def test_results_that_come_in_another_order_name_their_calls(tmp_path: Path) -> None:
    calls = "\n".join([SPELLED["qwen2_5"].removesuffix("<|im_end|>").replace('"b": 2', f'"b": {b}') for b in (2, 3)])
    episode, seen = run_program(tmp_path, "qwen2_5", [f"{calls}<|im_end|>", "Done.<|im_end|>"], "fresh")
    assert [message["role"] for message in seen] == ["user", "assistant", "tool", "tool", "assistant"]
    called, *results = episode.turns[1].request.messages[1:]
    ids = {call.id: json.loads(call.arguments)["b"] for call in called.calls}
    assert [(ids[result.call_id], result.name, result.content) for result in results] == [
        (3, "add", "the sum is 4"),
        (2, "add", "the sum is 3"),
    ]


@pytest.mark.parametrize("template", SPELLED)
def test_a_call_that_is_cut_off_reaches_the_program_as_text(template: str, tmp_path: Path) -> None:
    cut = SPELLED[template][: SPELLED[template].index("2")]
    _, seen = run_program(tmp_path, template, [cut], "append")
    # Mistral's mark is a control token, which no text has.
    assert seen[1]["content"] == cut.removeprefix("[TOOL_CALLS]").strip()
    assert "tool_calls" not in seen[1]
