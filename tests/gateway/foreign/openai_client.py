"""Programs around the `openai` client, as its documentation shows them."""

# Programs are untyped, as in the documentation, and the type checker does not see their environment.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false

import asyncio
import json

from openai import AsyncOpenAI, OpenAI

client = OpenAI()
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def chat(task):
    """Ask two models, the second of which reads the first one's answer, and go on with its history."""
    messages = [
        {"role": "developer", "content": "Plan in a few words."},
        {"role": "user", "content": task["question"]},
    ]
    plan = client.chat.completions.create(model="planner", messages=messages)
    messages = [{"role": "user", "content": f"{task['question']}\n{plan.choices[0].message.content}"}]
    first = client.chat.completions.create(model="solver", messages=messages, temperature=0.5, max_tokens=64)
    messages += [first.choices[0].message, {"role": "user", "content": "Are you sure?"}]
    return client.chat.completions.create(model="solver", messages=messages).choices[0].message.content


def stream(task):
    """Join the pieces of a streamed answer."""
    pieces = client.chat.completions.create(
        model="solver",
        messages=[{"role": "user", "content": task["question"]}],
        stream=True,
        stream_options={"include_usage": True},
    )
    text = ""
    for piece in pieces:
        if piece.choices and piece.choices[0].delta.content is not None:
            text += piece.choices[0].delta.content
    return text


def tools(task):
    """Call a function that the model asks for, in parallel with no other."""
    messages = [{"role": "user", "content": task["question"]}]
    declared = [{"type": "function", "function": ADD | {"strict": True}}]
    answer = client.chat.completions.create(model="solver", messages=messages, tools=declared)
    messages.append(answer.choices[0].message)
    for call in answer.choices[0].message.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = str(arguments["a"] + arguments["b"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return client.chat.completions.create(model="solver", messages=messages, tools=declared).choices[0].message.content


def responses(task):
    """Continue a response by its id, then stream another."""
    first = client.responses.create(model="solver", instructions="Solve.", input=task["question"])
    second = client.responses.create(model="solver", input="Are you sure?", previous_response_id=first.id)
    text = ""
    for event in client.responses.create(model="planner", input=[{"role": "user", "content": "Plan."}], stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
    return f"{second.output_text}\n{text}"


def response_tools(task):
    """Answer the function call of a response by an item of the next one's input."""
    declared = [{"type": "function", "strict": True, **ADD}]
    items = [{"role": "user", "content": task["question"]}]
    response = client.responses.create(model="solver", tools=declared, input=items)
    items += response.output
    for item in response.output:
        if item.type == "function_call":
            result = str(sum(json.loads(item.arguments).values()))
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
    return client.responses.create(model="solver", tools=declared, input=items).output_text


def choices(task):
    """Return the most frequent of five answers to one request."""
    messages = [{"role": "user", "content": task["question"]}]
    answers = client.chat.completions.create(model="solver", messages=messages, n=5).choices
    texts = [choice.message.content for choice in answers]
    return max(texts, key=texts.count)


async def parallel(task):
    """Ask for four plans at once, then for an answer that reads all."""
    asynchronous = AsyncOpenAI()

    async def ask(model, text):
        messages = [{"role": "user", "content": text}]
        answer = await asynchronous.chat.completions.create(model=model, messages=messages)
        return answer.choices[0].message.content

    plans = await asyncio.gather(*[ask("planner", f"{task['question']}: plan {number}") for number in range(4)])
    return await ask("solver", "\n".join([task["question"], *plans]))
