"""Program of `chaos_programs.py`: a planner and a solver, asked over HTTP. On SIGUSR1 its connection is cut.

Like the clients of OpenAI's and Anthropic's APIs, it repeats a request whose connection is lost.
"""

import http.client
import json
import os
import signal
import socket
import struct
import time
from urllib.parse import urlsplit

ADDRESS, KEY = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
LOG = os.open(os.environ["CHAOS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""File with a line for each attempt that began or ended, and for each cut connection."""
TRIES = 20
WORK_S = 0.03
"""Time in which an attempt computes between its calls, in seconds. Most signals then meet an attempt."""
connection = http.client.HTTPConnection(ADDRESS.hostname or "127.0.0.1", ADDRESS.port)
waiting: list[str] = []
"""Path of the request that waits for its response, if there is one."""


def note(line: str) -> None:
    os.write(LOG, f"{line}\n".encode())


def cut(number: int, frame: object) -> None:
    """Close the connection by a reset, by which an answer that was not read is lost."""
    if connection.sock:
        note("cut in a call" if waiting else "cut between calls")
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(connection.sock.detach())


signal.signal(signal.SIGUSR1, cut)


def send(method: str, path: str, body: object) -> dict:
    """Return the response to a request, which is sent until a connection lasts long enough."""
    for _ in range(TRIES):
        try:
            waiting.append(path)
            connection.request(method, f"{ADDRESS.path}{path}", json.dumps(body), HEADERS)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(answer["error"]["message"])
            return answer
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.01)
        finally:
            waiting.clear()
    raise RuntimeError(f"{TRIES} connections were lost")


def ask(agent: str, text: str) -> str:
    """Return the answer of `agent`."""
    body = {"model": agent, "messages": [{"role": "user", "content": text}]}
    return send("POST", "/chat/completions", body)["choices"][0]["message"]["content"]


def main(task: dict) -> str:
    """Return the solver's answer. Its reward `brief` is reported twice under one key."""
    note("begin")
    plan = ask("planner", f"{task['question']} units")
    for _ in range(2):
        send("PUT", "/marl/rewards", {"agent": "solver", "name": "brief", "value": 1, "key": "once"})
    time.sleep(WORK_S)
    solution = ask("solver", f"{task['question']} units\n{plan}\nsum")
    note("end")
    return solution
