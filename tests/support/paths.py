"""Folders of this checkout that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
KUHN = SCENARIOS / "kuhn_self_play.yaml"
PLUG_IN = ROOT / "tests" / "plug_in"
