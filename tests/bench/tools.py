"""What calls of tools cost: the engine beside the tool itself, a search of a large corpus, and prompts read again.

    python tests/bench/tools.py [--out FILE] [--calls 2000] [--documents 100000]

CPU time, so that other work on the machine does not count. `call`: milliseconds of this process and the worker process
for a call of `expand` through the engine `tools`, less the time of the tool itself. `search`: milliseconds of a search
of four words in documents of twelve words, which are drawn from 20,000 words by Zipf's law; and the seconds of making
the index, once in each worker process. `prefix_cache`: the metric of this name in 8 dialogues of 8 calls with
`history: append` on a real vLLM engine. Questions have 256 letters, answers up to 48 and results 64, a token a letter.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from _bench import parser, report, spread

from marl.core.types import Completion, Message, Request, Sampling
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.engines.workers.settings import Tools
from marl.games.search_tools import CorpusFile, ExpandTool, SearchTool
from marl.games.tasks.citations import CitationsTask
from marl.host.processes import process_tree_cpu_s
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model

VOCABULARY, DOCUMENT_WORDS, QUERY_WORDS, SEARCHES = 20_000, 12, 4, 200
DIALOGUES, DIALOGUE_CALLS, QUESTION, ANSWER, RESULT = 8, 8, 256, 48, 64
LIMITS = {"call_ms": 1.0, "search_ms": 5.0, "prefix_cache": 0.7}


def call_cost_ms(calls: int) -> dict[str, float]:
    """CPU milliseconds of one call beside the tool, of the tool, and of both."""
    tool = ExpandTool(task=CitationsTask())
    ids = list(tool.documents)
    questions = [ids[number % len(ids)] for number in range(calls)]
    engine = Tools(tools={"expand": tool}, workers=1).build(None)

    def run(names: Sequence[str]) -> None:
        for ticket, name in enumerate(names):
            state = json.dumps({"name": "expand", "arguments": {"id": name}})
            engine.submit(ticket, Request("library", (), Sampling(), state=state))
        answered = 0
        while answered < len(names):
            answered += len(engine.step(1.0))

    run(ids[:1])  # starts the worker process
    before = process_tree_cpu_s(os.getpid())
    run(questions)
    both = process_tree_cpu_s(os.getpid()) - before
    started = time.process_time()
    for name in questions:
        tool({"id": name})
    alone = time.process_time() - started
    per_call = {"call_ms": both - alone, "tool_ms": alone, "both_ms": both}
    return {name: round(1000 * seconds / calls, 4) for name, seconds in per_call.items()}


def search_cost(document_count: int, folder: Path) -> dict[str, object]:
    """CPU milliseconds of a search, and CPU seconds of reading the corpus and making its index."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(VOCABULARY)]
    weights = list(accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(document_count):
            text = " ".join(rng.choices(words, cum_weights=weights, k=DOCUMENT_WORDS))
            file.write(json.dumps({"id": f"d-{number}", "text": text}) + "\n")
    tool = SearchTool(corpus=CorpusFile(path=path))
    started = time.process_time()
    tool.prepare()
    indexed = time.process_time() - started
    times: list[float] = []
    for _ in range(SEARCHES):
        query = " ".join(rng.choices(words, cum_weights=weights, k=QUERY_WORDS))
        started = time.process_time()
        tool({"query": query})
        times.append(1000 * (time.process_time() - started))
    return {"index_s": round(indexed, 2), "search_ms": spread(times)}


def prefix_cache(folder: Path) -> float:
    """Share of the prompts' tokens that vLLM had cached, over all calls of all dialogues."""
    tiny = Tiny(
        **{"architecture": "qwen3", "hidden": 48, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32},
        **{"vocabulary": "bytes", "context": 2048},
    )
    build_tiny_model(tiny, folder, ())
    engine = VLLM(kv_cache_mib=64).build(tiny.source("actor", folder))
    assert isinstance(engine, VLLMEngine)
    rng = random.Random(0)
    histories: dict[int, tuple[int, ...]] = dict.fromkeys(range(DIALOGUES), ())
    for call in range(DIALOGUE_CALLS + 1):
        for dialogue, history in histories.items():
            message = Message("user", "".join(rng.choices("abcdefgh", k=RESULT if call else QUESTION)))
            sampling, seed = Sampling(max_tokens=ANSWER), DIALOGUES * call + dialogue
            engine.submit(dialogue, Request("actor", (message,), sampling, seed, continues=history))
        open_dialogues = set(histories)
        while open_dialogues:
            for dialogue, completion in engine.step(1.0):
                assert isinstance(completion, Completion)
                histories[dialogue] = completion.prompt_ids + completion.token_ids
                open_dialogues.remove(dialogue)
    share = engine.take_step_metrics()["actor"]["prefix_cache"]
    engine.close()
    return round(share, 3)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--calls", type=int, default=2000)
    line.add_argument("--documents", type=int, default=100_000)
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = call_cost_ms(given.calls) | search_cost(given.documents, Path(folder))
        figures["prefix_cache"] = prefix_cache(Path(folder) / "model")
    report(figures, given.out, seeds=[0], calls=given.calls, documents=given.documents, limits=LIMITS)


if __name__ == "__main__":
    main()
