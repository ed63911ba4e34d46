"""Durations of the run's calls to its simulators, depending on the number of simulators."""

from __future__ import annotations

from marl.scenario.cluster import ClusterConfig

_SIGN_OF_LIFE_S = 0.5
"""Minimum time after which a call of `SimulatorProcess.execute_and_play` replies without a result, in seconds."""
_SIGNS_OF_LIFE_PER_S = 100
"""Maximum number of such replies per second of all simulators together. With more simulators, each replies more
rarely, so that the cost of the run's process does not grow with their number."""
_SIGNS_OF_LIFE_PER_DEADLINE = 4
"""Minimum number of such replies of one simulator within `cluster.deadline_s`."""
_BATCHING_S_PER_SIMULATOR = 5e-3
"""Time for which results of a simulator, and commands without jobs to it, are gathered into one call, in seconds for
each simulator of the run. Calls cost the run's process more than their content: 1,000 simulators need fewer."""
_MAX_BATCHING_S = 2.0
"""Maximum of this time, in seconds."""


def call_limit_s(settings: ClusterConfig) -> float:
    """Return the time after which a simulator that plays replies without a result, in seconds."""
    limit_s = max(_SIGN_OF_LIFE_S, settings.simulators / _SIGNS_OF_LIFE_PER_S)
    return min(limit_s, settings.deadline_s / _SIGNS_OF_LIFE_PER_DEADLINE)


def batching_s(simulators: int) -> float:
    """Return the time for which results and commands of one of so many `simulators` are gathered, in seconds."""
    return min(_BATCHING_S_PER_SIMULATOR * simulators, _MAX_BATCHING_S)
