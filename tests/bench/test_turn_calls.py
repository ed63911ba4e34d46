"""The work of a turn beside the models, counted in calls: unlike times, counts do not depend on the machine."""

from __future__ import annotations

import turns


def test_a_turn_of_kuhn_poker_takes_no_more_calls_than_it_did() -> None:
    calls = turns.calls_per_turn()
    # Measured: 72, 11, 2 and 2 (85, 11, 3 and 2 before guards and prompts of a turn were shared).
    limits = {"play": 75, "judge": 13, "collect": 4, "summarize": 4}
    assert {stage: counts["python"] <= limits[stage] for stage, counts in calls.items()} == dict.fromkeys(limits, True)
