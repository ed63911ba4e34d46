"""Guests of a simulator: what cannot speak here is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl.protocols import SavedWeights
from marl.rollout.added_policies import AddedPolicies, EarlierWeightsEnginePool


def test_weights_that_this_machine_does_not_see_are_refused_with_their_folder(tmp_path: Path) -> None:
    spare = EarlierWeightsEnginePool(lambda: pytest.fail("an engine was built"))
    guests = AddedPolicies({"actor": spare})
    with pytest.raises(ValueError, match=r"policy 'actor@000040': no folder .*/000040 on \S+, where it is to speak"):
        guests.add_policy("actor@000040", SavedWeights("actor", tmp_path / "000040", 40))
