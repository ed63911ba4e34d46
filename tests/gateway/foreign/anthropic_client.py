"""Programs around the `anthropic` client, as its documentation shows them."""

# Programs are untyped, as in the documentation, and the type checker does not see their environment.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false

from anthropic import Anthropic, AsyncAnthropic

client = Anthropic()
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def messages(task):
    """Ask two models, the second of which reads the first one's answer."""
    chat = [{"role": "user", "content": task["question"]}]
    plan = client.messages.create(model="planner", max_tokens=1024, system="Plan.", messages=chat)
    chat = [{"role": "user", "content": f"{task['question']}\n{plan.content[0].text}"}]
    answer = client.messages.create(model="solver", max_tokens=1024, messages=chat)
    chat += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Are you sure?"}]
    return client.messages.create(model="solver", max_tokens=1024, messages=chat).content[0].text


async def stream(task):
    """Join the text of a stream, asynchronously."""
    chat = [{"role": "user", "content": task["question"]}]
    text = ""
    async with AsyncAnthropic().messages.stream(max_tokens=1024, messages=chat, model="solver") as pieces:
        async for piece in pieces.text_stream:
            text += piece
    return text


def tools(task):
    """Call a tool that the model asks for."""
    chat = [{"role": "user", "content": task["question"]}]
    answer = client.messages.create(model="solver", max_tokens=1024, tools=[ADD], messages=chat)
    chat.append({"role": "assistant", "content": answer.content})
    results = []
    for block in answer.content:
        if block.type == "tool_use":
            result = str(block.input["a"] + block.input["b"])
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
    chat.append({"role": "user", "content": results})
    return client.messages.create(model="solver", max_tokens=1024, tools=[ADD], messages=chat).content[0].text
