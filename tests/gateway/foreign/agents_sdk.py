"""Programs around the Agents SDK, as its documentation shows them. It speaks the API of responses by default."""

# Programs are untyped, as in the documentation, and the type checker does not see their environment.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false

from agents import Agent, Runner, SQLiteSession, function_tool
from openai.types.responses import ResponseTextDeltaEvent


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


solver = Agent(
    name="Solver",
    handoff_description="Solves problems",
    instructions="You are the solver. Add.",
    tools=[add],
    model="solver",
)
planner = Agent(name="Planner", instructions="You are the planner. Plan.", model="planner")
triage = Agent(name="Triage", instructions="Determine which agent to use.", handoffs=[solver], model="planner")
manager = Agent(
    name="Manager",
    instructions="Ask the solver.",
    model="planner",
    tools=[solver.as_tool(tool_name="ask_solver", tool_description="Solves a problem")],
)


async def responses(task):
    """Run one agent."""
    result = await Runner.run(planner, task["question"])
    return result.final_output


async def streamed(task):
    """Join the text of the streamed events of an agent with a tool."""
    text = ""
    result = Runner.run_streamed(solver, input=task["question"])
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            text += event.data.delta
    return text


async def hand_off(task):
    """Hand the conversation off to another agent."""
    result = await Runner.run(triage, task["question"])
    return f"{result.last_agent.name}: {result.final_output}"


async def agent_as_tool(task):
    """Let an agent call another one as its tool."""
    result = await Runner.run(manager, task["question"])
    return result.final_output


async def session(task):
    """Keep the history of an agent in a session of its own."""
    memory = SQLiteSession("conversation")
    await Runner.run(planner, task["question"], session=memory)
    result = await Runner.run(planner, "Are you sure?", session=memory)
    return result.final_output


def chat_completions(task):
    """Run one agent over chat completions instead of responses."""
    from agents import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    model = OpenAIChatCompletionsModel(model="solver", openai_client=AsyncOpenAI())
    return Runner.run_sync(
        Agent(name="Solver", instructions="Add.", tools=[add], model=model), task["question"]
    ).final_output
