"""A planner, a solver and a critic as a loop around OpenAI's API, with nothing but the standard library."""

import http.client
import json
import os
import threading
from urllib.parse import urlsplit

ADDRESS = urlsplit(os.environ["OPENAI_BASE_URL"])


class Connection(threading.local):
    """A connection to the server for each thread."""

    def __init__(self):
        self.http = http.client.HTTPConnection(ADDRESS.hostname or "127.0.0.1", ADDRESS.port)


connection = Connection()


def ask(key, agent, text):
    """Return the answer of `agent` to a user's message. `key`: API key of the task."""
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.http.request("POST", f"{ADDRESS.path}/chat/completions", body, headers)
    response = connection.http.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(answer["error"]["message"])
    return answer["choices"][0]["message"]["content"]


def main(task):
    """Return the team's answer to a task."""
    # With `tasks_per_worker`, several tasks share the process and its environment, so each has a key of its own.
    key, question = task.get("api_key") or os.environ["OPENAI_API_KEY"], task["question"]
    plan = ask(key, "planner", f"{question} units")
    solution = ask(key, "solver", f"{question} units\n{plan}\nsum")
    return ask(key, "critic", f"{question} said\n{solution}\nsum")
