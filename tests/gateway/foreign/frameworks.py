"""Programs around further frameworks, as their documentation shows them. Each function imports its own framework."""

# Programs are untyped, as in the documentation, and the type checker does not see their environment.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: first number
        b: second number
    """
    return a + b


async def ag2(task):
    """Ask an agent of ag2 with a tool, and go on in the same conversation."""
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    agent = Agent("assistant", prompt="Plan.", config=OpenAIConfig(model="planner"))
    reply = await agent.ask(task["question"])
    follow_up = await reply.ask("Are you sure?")
    solver = Agent("solver", prompt="Solve.", config=OpenAIConfig(model="solver"), tools=[add])
    solved = await solver.ask(task["question"])
    return f"{follow_up.body}\n{solved.body}"


async def autogen(task):
    """Let two agents of autogen talk in turns."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.conditions import MaxMessageTermination
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    # autogen must be told what a model that it does not know can do.
    info = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
    info["family"] = "unknown"

    def client(model):
        return OpenAIChatCompletionClient(model=model, model_info=info)

    planner = AssistantAgent("planner", model_client=client("planner"), system_message="Plan.")
    critic = AssistantAgent("critic", model_client=client("critic"), system_message="Criticise.")
    solver = AssistantAgent(
        "solver", model_client=client("solver"), system_message="Solve.", tools=[add], reflect_on_tool_use=True
    )
    talk = RoundRobinGroupChat([planner, critic], termination_condition=MaxMessageTermination(4))
    talked = await talk.run(task=task["question"])
    solved = await solver.run(task=task["question"])
    return f"{talked.messages[-1].content}\n{solved.messages[-1].content}"


def pydantic_ai(task):
    """Run an agent of Pydantic AI with a tool, and another with a history."""
    from pydantic_ai import Agent

    planner = Agent("openai-chat:planner", instructions="Plan.")
    first = planner.run_sync(task["question"])
    second = planner.run_sync("Are you sure?", message_history=first.all_messages())
    solver = Agent("openai-chat:solver", instructions="Solve.", tools=[add])
    return f"{second.output}\n{solver.run_sync(task['question']).output}"


def smolagents(task):
    """Run a tool-calling agent of smolagents, which ends by its tool `final_answer`."""
    import os

    from smolagents import OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel("solver", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = ToolCallingAgent(tools=[tool(add)], model=model, max_steps=4, verbosity_level=0)
    return str(agent.run(task["question"]))


def crewai(task):
    """Run a crew of two agents, the second of which reads the first one's answer."""
    import os

    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    from crewai import LLM, Agent, Crew, Task

    planner = Agent(role="Planner", goal="Plan", backstory="Plans.", llm=LLM(model="planner", provider="openai"))
    solver = Agent(role="Solver", goal="Solve", backstory="Solves.", llm=LLM(model="solver", provider="openai"))
    plan = Task(description=task["question"], expected_output="a plan", agent=planner)
    solve = Task(description="Solve it.", expected_output="a number", agent=solver, context=[plan])
    return str(Crew(agents=[planner, solver], tasks=[plan, solve]).kickoff())
