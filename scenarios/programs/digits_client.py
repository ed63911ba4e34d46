"""A planner, a solver and a critic, asked one after another by OpenAI's client."""

# The type checker may not see the environment of the client.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

from openai import OpenAI

client = OpenAI()


def ask(agent: str, text: str) -> str:
    """Return the answer of `agent` to a user's message."""
    messages = [{"role": "system", "content": f"You are the {agent}."}, {"role": "user", "content": text}]
    response = client.chat.completions.create(model="gpt-4.1", messages=messages)
    return response.choices[0].message.content or ""


def main(task: dict[str, str]) -> str:
    """Return the critic's answer to a task."""
    question = task["question"]
    plan = ask("planner", f"{question} last")
    solution = ask("solver", f"{question} last\n{plan}\nmissing")
    return ask("critic", f"{question} said\n{solution}\nmissing")
