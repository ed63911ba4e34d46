"""Environment of `verifiers.v1` with two trainable agents, a reward that compares them, and a judge."""

# The type checker does not see the environment of verifiers.
# pyright: basic, reportMissingImports=false

import verifiers.v1 as vf

__all__ = ["PlausibleJudge", "SolverAndCritic"]


class SolverAndCriticConfig(vf.EnvConfig):
    """The two agents."""

    solver: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class SolverAndCritic(vf.Env[SolverAndCriticConfig]):
    """A critic reads the solver's answer and gives its own, and both are scored by the rewards of the task."""

    async def run(self, task, agents):
        """Let the solver answer, then the critic."""
        solution = await agents.solver.run(task)
        prompt = f"{task.data.prompt} said {solution.last_reply}"
        await agents.critic.run(type(task)(task.data.model_copy(update={"prompt": prompt}), task.config))

    async def finalize(self, task, episode):
        """Pay the critic for being better than the solver, and both for a right answer at the end."""
        solution, review = episode.traces
        right_at_first, right_at_last = (float(trace.last_reply == task.data.answer) for trace in episode.traces)
        review.record_reward("gain", right_at_last - right_at_first)
        for trace in (solution, review):
            trace.record_reward("team", right_at_last, weight=0.5)


class PlausibleJudge(vf.Judge[float, vf.JudgeConfig]):
    """Judge that says whether an answer could be right. A block plugs it in by `taskset.task.judges`."""

    prompt = "{response} plausible"

    def parse(self, response: vf.JudgeResponse) -> float:
        """Return 1 if the judge says yes."""
        return float(response.text.strip() == "yes")

    async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
        """Return the judge's score of an agent's last reply."""
        return (await self.evaluate(trace=trace, response=trace.last_reply)).parsed or 0.0
