"""Credit that raises once a run is under way."""

from pathlib import Path

from marl.core.types import Advantage, Credit
from marl.protocols import AssignConfig, Evidence


class Fussy(AssignConfig):
    """What an agent is paid; raises in the fourth step unless there is a file."""

    kind: str = "tests.support.failing_credit:Fussy"
    file: str

    def __call__(self, evidence: Evidence) -> Credit:
        if evidence.trajectories[0].id.startswith("000004.") and not Path(self.file).exists():
            raise TypeError("nobody has told me who deserves this")
        return {
            turn.id: Advantage(trajectory.returns.get(turn.agent, 0.0))
            for trajectory in evidence.trajectories
            for turn in trajectory.turns
        }
