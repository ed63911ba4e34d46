"""A planner, a solver and a critic of OpenAI's Agents SDK, run one after another by code."""

# The type checker does not see the environment of the Agents SDK.
# pyright: basic, reportMissingImports=false

from agents import Agent, Runner

planner = Agent(name="Planner", instructions="You are the planner.", model="planner")
solver = Agent(name="Solver", instructions="You are the solver.", model="solver")
critic = Agent(name="Critic", instructions="You are the critic.", model="critic")


async def main(task: dict[str, str]) -> str:
    """Return the critic's answer to a task."""
    question = task["question"]
    plan = await Runner.run(planner, f"{question} last")
    solution = await Runner.run(solver, f"{question} last\n{plan.final_output}\nmissing")
    answer = await Runner.run(critic, f"{question} said\n{solution.final_output}\nmissing")
    return answer.final_output
