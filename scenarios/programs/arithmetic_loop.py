"""A planner, a solver and a critic as a loop around OpenAI's API, with nothing but the standard library."""

import http.client
import json
import os
import threading
from urllib.parse import urlsplit

ADDRESS, KEY = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
connections = threading.local()


def ask(agent, text):
    """Return the answer of `agent` to a user's message."""
    if not hasattr(connections, "open"):
        connections.open = http.client.HTTPConnection(ADDRESS.hostname or "127.0.0.1", ADDRESS.port)
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connections.open.request("POST", f"{ADDRESS.path}/chat/completions", body, headers)
    response = connections.open.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(answer["error"]["message"])
    return answer["choices"][0]["message"]["content"]


def main(task):
    """Return the team's answer to a task."""
    question = task["question"]
    plan = ask("planner", f"{question} units")
    solution = ask("solver", f"{question} units\n{plan}\nsum")
    return ask("critic", f"{question} said\n{solution}\nsum")
