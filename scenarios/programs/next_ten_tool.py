"""Taskset of `verifiers.v1` with a tool: the agent must look the number up before it can find its missing digit."""

# The type checker does not see the environment of verifiers.
# pyright: basic, reportMissingImports=false

import verifiers.v1 as vf
from next_ten import NextTenData, NextTenTask

__all__ = ["NumberToolset", "ToolTaskset"]


class NumberToolset(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    """Server of the tool, shared by all episodes of a process."""

    TOOL_PREFIX = None

    @vf.tool
    async def look_up(self, row: int) -> str:
        """Return the number in a row."""
        return f"{10 + row} missing"


class ToolTasksetConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    """Settings of the tool's server."""


class ToolTask(NextTenTask):
    """A further reward for looking the number up."""

    @vf.reward(weight=0.2)
    async def looked_up(self, trace: vf.Trace) -> float:
        """Return 1 if the tool returned the number."""
        return float(any(f"{self.data.number} missing" in str(message.content) for message in trace.tool_messages))


class ToolTaskset(vf.Taskset[ToolTask, ToolTasksetConfig]):
    """The numbers from 10 to 99, each behind its row."""

    def load(self):
        """Yield one task for each number; its prompt names the row alone."""
        for row in range(90):
            number = 10 + row
            data = NextTenData(idx=row, prompt=f"row {row}", number=number, answer=str(10 - number % 10))
            yield ToolTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: ToolTasksetConfig) -> list[vf.Toolset]:
        """Return the server of the tool."""
        return [NumberToolset(config.tools)]


if __name__ == "__main__":
    NumberToolset.run()
