"""Tokens of a program's calls: what its client and the recorded turns hold is what the engine sampled, bit by bit."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal
from marl.engines.program.settings import Program
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import make_tiny_model, make_tiny_tokenizer
from marl.protocols import RoleConfig
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import team_config, team_deal
from tests.support.transformers_engines import plain_logprobs

PROGRAM = """
    import http.client, json, os, threading
    from urllib.parse import urlsplit

    ADDRESS, KEY = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
    HEADERS = {"Authorization": "Bearer " + KEY}
    DIALOGUES, TURNS = DIALOGUES_, TURNS_

    def ask(connection, messages, stream):
        body = {"model": "solver", "messages": messages, "logprobs": True, "return_token_ids": True, "stream": stream}
        connection.request("POST", ADDRESS.path + "/chat/completions", json.dumps(body), HEADERS)
        text = connection.getresponse().read().decode()
        if not stream:
            answer = json.loads(text)
            choice = answer["choices"][0]
            tokens = [answer["prompt_token_ids"], choice["token_ids"], choice["logprobs"]]
            return choice["message"]["content"] or "", tokens
        events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        first, last = map(json.loads, events)
        choice = last["choices"][0]
        content = first["choices"][0]["delta"]["content"]
        return content, [first["prompt_token_ids"], choice["token_ids"], choice["logprobs"]]

    def talk(question, number, seen):
        connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port)
        messages = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"{question} {number} {turn}"})
            answer, tokens = ask(connection, messages, stream=bool((number + turn) % 2))
            messages.append({"role": "assistant", "content": answer})
            seen.append(tokens)

    def main(task):
        seen = []
        talks = [threading.Thread(target=talk, args=(task["question"], n, seen)) for n in range(DIALOGUES)]
        for thread in talks:
            thread.start()
        for thread in talks:
            thread.join()
        return json.dumps(seen)
"""


class LoggedEngine(TransformersEngine):
    """Engine with a log of all that it has sampled."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[Completion] = []

    def step(self, wait_s: float) -> Any:
        finished = super().step(wait_s)
        self.log += [completion for _, completion in finished if isinstance(completion, Completion)]
        return finished


def merging_tokenizer() -> Any:
    """Byte-level BPE with a token for each pair of letters: many texts are the decoded form of several sequences."""
    tokenizer = make_tiny_tokenizer("bytes")
    letters = "abcdefghijklmnopqrstuvwxyz"
    printable = [chr(code) for code in range(33, 127)]
    symbols = ["<pad>", "<eos>", "<assistant>", *printable, "Ġ", "Ċ"]
    merges = [(first, second) for first in letters for second in letters]
    vocabulary = {symbol: index for index, symbol in enumerate([*symbols, *map("".join, merges)])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<pad>", "<eos>", "<assistant>"])
    tokenizer._tokenizer = inner
    return tokenizer


class Talks(NamedTuple):
    """Episodes of the program, and what the engine and the clients saw of them."""

    episodes: list[Trajectory]
    engine: LoggedEngine
    model: Any
    tokenizer: Any

    @property
    def turns(self) -> list[Any]:
        return [turn for episode in self.episodes for turn in episode.turns if turn.inner]


Tokens = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def tokens_of(completion: Completion) -> Tokens:
    return completion.prompt_ids, completion.token_ids, completion.logprobs


def seen_by_clients(episode: Trajectory) -> list[Tokens]:
    seen: list[Tokens] = []
    answer = json.loads(episode.turns[-1].completion.text)["answer"]
    for prompt, sampled, logprobs in json.loads(answer):
        named = [entry["token"] for entry in logprobs["content"]]
        assert named == [f"token_id:{token}" for token in sampled]
        seen.append((tuple(prompt), tuple(sampled), tuple([entry["logprob"] for entry in logprobs["content"]])))
    return seen


def talk(folder: Path, episodes: int, dialogues: int, turns: int) -> Talks:
    source = textwrap.dedent(PROGRAM).replace("DIALOGUES_", str(dialogues)).replace("TURNS_", str(turns))
    (folder / "talking.py").write_text(source)
    tokenizer = merging_tokenizer()
    model = make_tiny_model(Tiny(hidden=32, context=512), tokenizer).eval()
    weights = FullWeights(model, PretrainedSource("solver", str(folder)))
    engine = LoggedEngine(weights, tokenizer, Transformers(slots=64))
    game = team_config({"role": "crew", "callers": {"solver": {}}})
    solver = CallerRole.model_validate({"policy": "solver", "history": "append", "sampling": {"max_tokens": 8}})
    roles: dict[str, RoleConfig] = {"crew": ProgramRole(policy="program"), "solver": solver}
    program: Any = Program(call="talking:main", folder=folder, workers=2).build(None)
    simulator = RolloutSimulator(game, RoleRequestBuilder(roles, 0), {"program": program, "solver": engine})
    deals: list[Deal] = []
    for number in range(episodes):
        deals.append(team_deal(game, f"e{number}", index=number % 10))
    played = simulator.play(deals)
    program.close()
    assert len(played) == episodes, simulator.take_failure_messages()
    return Talks(played, engine, model, tokenizer)


def check(talks: Talks, calls: int, dialogues: int) -> None:
    """Compare what clients saw and what was recorded with the engine's log, and prompts with earlier answers."""
    assert len(talks.turns) == calls
    log = Counter(map(tokens_of, talks.engine.log))
    assert Counter([tokens_of(turn.completion) for turn in talks.turns]) == log
    assert Counter([tokens for episode in talks.episodes for tokens in seen_by_clients(episode)]) == log
    continued = [turn for turn in talks.turns if turn.request.continues]
    assert len(continued) == calls - dialogues
    sequences = {(*completion.prompt_ids, *completion.token_ids) for completion in talks.engine.log}
    for turn in continued:
        assert turn.request.continues in sequences
        assert turn.completion.prompt_ids[: len(turn.request.continues)] == turn.request.continues
    tokenizer = talks.tokenizer
    changed = 0
    for turn in talks.turns:
        text = tokenizer.decode(turn.completion.token_ids, skip_special_tokens=False)
        changed += tuple(tokenizer.encode(text)) != turn.completion.token_ids
    assert changed >= calls / 2, f"decoding and encoding changes {changed} of {calls} answers"


def test_tokens_of_parallel_and_streamed_calls_are_those_of_the_engine(tmp_path: Path) -> None:
    check(talk(tmp_path, episodes=1, dialogues=12, turns=4), 48, 12)


@pytest.mark.slow
def test_of_5000_calls_no_token_differs_from_the_engines_log(tmp_path: Path) -> None:
    talks = talk(tmp_path, episodes=20, dialogues=25, turns=10)
    check(talks, 5000, 500)
    for turn in talks.turns[::250]:
        expected = plain_logprobs(talks.model, turn.completion, turn.request.sampling)
        assert turn.completion.logprobs == pytest.approx(expected, abs=1e-4)
