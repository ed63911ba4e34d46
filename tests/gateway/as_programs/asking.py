"""OpenAI's API by the standard library, for the programs beside this file."""

import http.client
import json
import os
import threading
from urllib.parse import urlsplit

ADDRESS, KEY = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]


def ask(agent, *lines):
    """Return the answer of `agent` to a user's message of these lines."""
    connection = http.client.HTTPConnection(ADDRESS.hostname or "127.0.0.1", ADDRESS.port)
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": "\n".join(lines)}]})
    connection.request("POST", f"{ADDRESS.path}/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["choices"][0]["message"]["content"]


def ask_at_once(prompts):
    """Return the answers to `prompts`, a dict of lines by agent, which are asked at the same time."""
    answers = {}
    threads = []
    for agent, lines in prompts.items():
        target = lambda agent=agent, lines=lines: answers.update({agent: ask(agent, *lines)})  # noqa: E731
        threads.append(threading.Thread(target=target))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
