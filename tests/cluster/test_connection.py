"""Connection of a run to Ray: what is refused, by which message, and who can reach the ports of a run's own cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import refused
from real_runs import kuhn

import marl
from marl.errors import EngineError
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError

ray = pytest.importorskip("ray")
