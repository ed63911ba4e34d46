"""Taskset of `verifiers.v1`: the digit that is missing to the next ten, such as 3 after 47, in one turn.

With the environment `user-sim` of verifiers, a simulated user poses the same problems in a conversation.
"""

# The type checker does not see the environment of verifiers.
# pyright: basic, reportMissingImports=false

import verifiers.v1 as vf

__all__ = ["NextTenTaskset"]


class NextTenData(vf.TaskData):
    """One number, with the right answer."""

    number: int
    answer: str


class NextTenTask(vf.Task[NextTenData, vf.State, vf.TaskConfig]):
    """The rewards look at the agent's last reply."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """Return 1 for the right digit."""
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=-0.1)
    async def words(self, trace: vf.Trace) -> float:
        """Return the number of words beyond the first."""
        return max(0.0, len(trace.last_reply.split()) - 1.0)

    @vf.metric
    async def replies(self, trace: vf.Trace) -> float:
        """Return the number of the agent's turns."""
        return float(trace.num_turns)


class NextTenTaskset(vf.Taskset[NextTenTask, vf.TasksetConfig]):
    """The numbers from 10 to 99."""

    def load(self):
        """Yield one task for each number."""
        for row in range(90):
            number = 10 + row
            data = NextTenData(idx=row, prompt=f"{number} missing", number=number, answer=str(10 - number % 10))
            yield NextTenTask(data, self.config.task)
