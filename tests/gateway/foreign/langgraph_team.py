"""Programs around LangGraph and `langchain-openai`, as their documentation shows them."""

# Programs are untyped, as in the documentation, and the type checker does not see their environment.
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false

import operator
from typing import Annotated, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

# All nodes share one model, as in the documentation; the system prompts tell the agents apart.
llm = ChatOpenAI(model="gpt-4.1")


class State(TypedDict):
    """State of the graph."""

    question: str
    plan: str
    parts: Annotated[list[str], operator.add]
    answer: str


def plan(state: State):
    """Plan."""
    messages = [SystemMessage("You are the planner. Plan."), HumanMessage(state["question"])]
    return {"plan": llm.invoke(messages).content}


def solve_part(name: str):
    """Return a node that solves one part of the problem."""

    def node(state: State):
        text = f"{state['question']}\n{state['plan']}\n{name}"
        return {"parts": [llm.invoke([SystemMessage("You are the solver. Solve."), HumanMessage(text)]).content]}

    return node


def judge(state: State):
    """Read both parts."""
    text = "\n".join([state["question"], *state["parts"]])
    return {"answer": llm.invoke([SystemMessage("You are the critic. Judge."), HumanMessage(text)]).content}


def build():
    """Return the graph: a planner, two branches at once, and a critic that joins them."""
    graph = StateGraph(State)
    graph.add_node("planner", plan)
    graph.add_node("units", solve_part("units"))
    graph.add_node("tens", solve_part("tens"))
    graph.add_node("critic", judge)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "units")
    graph.add_edge("planner", "tens")
    graph.add_edge(["units", "tens"], "critic")
    graph.add_edge("critic", END)
    return graph.compile()


team = build()


def branches(task):
    """Run the graph."""
    return team.invoke({"question": task["question"]})["answer"]


async def streamed(task):
    """Run the graph and join the tokens that the critic streams."""
    text = ""
    async for token, metadata in team.astream({"question": task["question"]}, stream_mode="messages"):
        if metadata["langgraph_node"] == "critic":
            text += token.content
    return text


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def with_tools(task):
    """Run an agent that calls a tool until it answers."""
    bound = llm.bind_tools([add])
    system = SystemMessage("You are the solver. Solve.")
    graph = StateGraph(MessagesState)
    graph.add_node("solver", lambda state: {"messages": [bound.invoke([system, *state["messages"]])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "solver")
    graph.add_conditional_edges("solver", tools_condition)
    graph.add_edge("tools", "solver")
    return graph.compile().invoke({"messages": [HumanMessage(task["question"])]})["messages"][-1].content
