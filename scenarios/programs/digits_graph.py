"""A planner, a solver and a critic as a LangGraph graph around one model, as LangGraph's documentation builds it."""

# The type checker does not see the environment of LangGraph.
# pyright: basic, reportMissingImports=false

from typing import TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

llm = ChatOpenAI(model="gpt-4.1")


class State(TypedDict):
    """State of the graph."""

    question: str
    plan: str
    solution: str
    answer: str


def ask(instructions: str, text: str) -> str:
    """Return the model's answer to a user's message under `instructions`."""
    return llm.invoke([SystemMessage(instructions), HumanMessage(text)]).text


def plan(state: State) -> dict[str, str]:
    """Find the last digit."""
    return {"plan": ask("You are the planner.", f"{state['question']} last")}


def solve(state: State) -> dict[str, str]:
    """Find the digit that is missing to the next ten."""
    return {"solution": ask("You are the solver.", f"{state['question']} last\n{state['plan']}\nmissing")}


def revise(state: State) -> dict[str, str]:
    """Give the final answer."""
    return {"answer": ask("You are the critic.", f"{state['question']} said\n{state['solution']}\nmissing")}


builder = StateGraph(State)
builder.add_node("planner", plan)
builder.add_node("solver", solve)
builder.add_node("critic", revise)
builder.add_edge(START, "planner")
builder.add_edge("planner", "solver")
builder.add_edge("solver", "critic")
builder.add_edge("critic", END)
graph = builder.compile()


def main(task: dict[str, str]) -> str:
    """Return the graph's answer to a task."""
    return graph.invoke({"question": task["question"]})["answer"]
