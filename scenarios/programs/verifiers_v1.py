"""Plays episodes of an environment of `verifiers.v1`, whose agents and judges are the callers of the stage.

The stage tells the environment's block `[env]` as TOML, as in a configuration file of `verifiers`. An agent without a
`client` of its own asks the caller of its name, or of its `model`; so does a judge. See the page "Coming from
verifiers" of the documentation for an example and for what is not covered.
"""

# The type checker does not see the environment of verifiers.
# pyright: basic, reportMissingImports=false

import asyncio
import json
import os
import tomllib
from collections import defaultdict
from contextlib import AsyncExitStack
from statistics import fmean

# Clients without an address of their own, such as those of judges, read these variables when they are configured. The
# servers of tools are processes that import the environment's module from this folder.
os.environ["PRIME_INFERENCE_URL"] = os.environ["OPENAI_BASE_URL"]
os.environ["PRIME_API_KEY"] = os.environ["OPENAI_API_KEY"]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))

import httpx
import verifiers.v1 as vf
from verifiers.v1.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null.program import call_mcp, connect_mcp

__all__ = ["ChatHarness", "main"]

HARNESS = "verifiers-v1"
"""Id of `ChatHarness`, by which `verifiers` imports this module."""
LOOP = asyncio.new_event_loop()
SERVERS = AsyncExitStack()
"""Servers of the environments, which run until the process ends."""
HTTP = httpx.AsyncClient(timeout=None, trust_env=False)
environments = {}
"""TOML block -> its environment."""


class ChatHarnessConfig(vf.HarnessConfig):
    """Settings of `ChatHarness`."""

    id: str = HARNESS


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """The harness `null` of verifiers, a chat with the environment's tools, without a process of its own per turn."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # noqa: PLR0913
        """Ask the model until it answers without a tool call. All messages are recorded by verifiers at `endpoint`."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += map(message_to_wire, prompt or ())
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        tools, names, servers = await connect_mcp({"mcpServers": servers})
        body = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
        while True:
            response = await HTTP.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
            # An error is also the way in which verifiers ends an agent: by its limits or a stop condition.
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return vf.ProgramResult(0, "", "")
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
                known = name in names
                content = await call_mcp(servers, names, name, arguments) if known else f"error: no tool {name!r}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


class ServedEnvironment:
    """Environment with its running servers, and the tasks that its taskset has yielded so far."""

    def __init__(self, env):
        self.env, self._tasks, self._unread = env, [], iter(env.taskset)

    def task(self, row):
        """Return the task in `row` of the taskset, counted from 0; raise IndexError if there are fewer tasks."""
        while len(self._tasks) <= row:
            try:
                self._tasks.append(next(self._unread))
            except StopIteration:
                raise IndexError(f"row {row}: the taskset has {len(self._tasks)} tasks") from None
        return self._tasks[row]


def place_agent(name, agent, taskset_id):
    """Return the settings of `agent` with the caller that it asks, and without processes or sandboxes if it may."""
    update = {"model": agent.model or name}
    harness = agent.harness or vf.default_agent_harness(taskset_id)
    # `bash` is only a default here if neither the environment nor the scenario names a harness.
    if harness.id == "null" or (agent.harness is None and harness.id == "bash"):
        update["harness"] = ChatHarnessConfig.model_validate({})
        if agent.runtime == vf.PrimeConfig():
            update["runtime"] = vf.SubprocessConfig()
    return agent.model_copy(update=update)


async def open_environment(block):
    """Load the environment of a TOML block and start its servers."""
    config = vf.resolve_env_config(tomllib.loads(block))
    agents = {name: place_agent(name, agent, config.taskset.id) for name, agent in agent_config_fields(config).items()}
    env = vf.load_environment(config.model_copy(update=agents))
    await SERVERS.enter_async_context(env.serving())
    return ServedEnvironment(env)


def caller_rewards(episode, client):
    """Return caller -> name -> weighted reward or metric, a mean if the agent of the caller ran several times."""
    values = defaultdict(lambda: defaultdict(list))
    for trace in episode.traces:
        # Agents with a client of their own are no callers.
        if trace.agent.config.client == client:
            rewards = {name: reward.value for name, reward in trace.rewards.items()}
            for name, value in {**trace.metrics, **rewards}.items():
                values[trace.agent.config.model][name].append(value)
    return {caller: {name: fmean(each) for name, each in named.items()} for caller, named in values.items()}


async def play(task):
    """Play one episode of the environment, on the row of the taskset that the task names."""
    block, context = task["observation"], vf.ModelContext(model="", client=vf.EvalClientConfig())
    if block not in environments:
        environments[block] = await open_environment(block)
    served = environments[block]
    episode = await served.env.run_episode(served.task(task["given"]["row"]), context)
    if not episode.ok:
        error = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)][-1]
        raise RuntimeError(f"the episode failed: {error.type}: {error.message}")
    return {"answer": episode.traces[-1].last_reply, "rewards": caller_rewards(episode, context.client)}


def main(task):
    """Return the last reply of an episode, with the rewards and metrics of its agents."""
    if "api_key" in task:
        raise ValueError("tasks_per_worker: must be 1 for environments of verifiers")
    return LOOP.run_until_complete(play(task))
