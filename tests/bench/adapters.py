"""What separate policies cost beside one shared policy, in time, and what a second adapter costs in memory.

    python tests/bench/adapters.py [--out FILE] [--repeats 5] [--episodes 48] [--tokens 32] [--hidden 384] [--layers 8]

`time`: seconds of a step (play, read, credit, update, publish) on one thread in a game of two agents, a planner and a
solver, who say as many tokens in every variant: `relay` asks them one after the other, `at_once` together. `ratio` is
that of two policies with a model (or an adapter) each to one policy that speaks for both, by wall clock, `cpu_ratio`
the same in CPU time of this process, which other work on the machine disturbs less. Episodes come in groups of 8 with
the same prompts, and no completion ends early. Repetitions are interleaved.

`bytes`: of all tensors that a run holds after a step, each stretch of memory counted once: parameters (of engine and
learners), moments of the optimizer, keys and values; with one adapter for both agents and with two on the same base.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from _bench import parser, report, spread
from torch import Tensor

from marl.core.types import Message
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.protocols import Evidence, PromptContext, RoleConfig
from marl.scenario.load import validate
from marl.training.build import build
from marl.training.run import Run
from marl.training.samples import collect_samples

AGENTS = ("planner", "solver")
LEARNER = {"kind": "grpo", "lr": 1e-4}


class RelayConfig(TextGameConfig):
    """The planner speaks, then the solver, or both at once; a coin that each of them shows by the way is paid for."""

    kind: str = f"{__name__}:RelayConfig"
    at_once: bool = False

    def build(self) -> Relay:
        return Relay(self)


class Relay(TextGame):
    name = "relay"

    def __init__(self, config: RelayConfig) -> None:
        super().__init__(AGENTS, config.illegal, ("heads", "tails"))
        self.at_once = config.at_once

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.shown: list[str] = []
        self.texts = {agent: "".join(rng.choices("abcdefghijklmnop", k=63)) for agent in AGENTS}
        return AGENTS[0]

    def start_state_key(self) -> str:
        return self.texts[AGENTS[0]]

    def describe_observation(self, agent: str) -> str:
        return self.texts[agent]

    def information_state(self, agent: str) -> str:
        return self.texts[agent]

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        return AGENTS if self.at_once and agent == AGENTS[0] else (agent,)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.shown.append(action)
        if len(self.shown) < 2:
            return AGENTS[1]
        return {agent: float(shown == "heads") for agent, shown in zip(AGENTS, self.shown, strict=True)}


class Speaker(RoleConfig):
    """Whatever it says shows a coin."""

    kind: str = f"{__name__}:Speaker"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        return (Message("user", context.observation["text"]),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return ("heads", "tails")[sum(map(ord, text)) % 2]

    def phrase(self, move: str) -> str:
        return move


def scenario(model: dict[str, Any], separate: bool, at_once: bool, how: Any) -> Any:
    policies = AGENTS if separate else ("team", "team")
    sampling = {"max_tokens": how.tokens}
    return validate(
        {
            "game": {"kind": f"{__name__}:RelayConfig", "at_once": at_once},
            "seats": {agent: agent for agent in AGENTS},
            "roles": {
                agent: {"kind": f"{__name__}:Speaker", "policy": policy, "sampling": sampling}
                for agent, policy in zip(AGENTS, policies, strict=True)
            },
            "policies": {policy: {"model": model, "learner": LEARNER} for policy in dict.fromkeys(policies)},
            "schedule": {"steps": 100, "groups": how.episodes // 8, "group_size": 8, "threads": 1},
        }
    )


def built(*settings: Any) -> Run:
    """A run in which nothing ends early."""
    run: Any = build(scenario(*settings))
    engines: Any = run.simulator.engines.values()
    for engine in engines:
        engine._ends_E = np.array([], np.int64)
    return run


def step(run: Run) -> None:
    """What the training loop does between two evaluations."""
    trajectories = run.experience.gather(run.step, run.deals, run.simulator)
    readings = run.read(trajectories)
    judgement = run.credit_stage(Evidence(trajectories, "relay", readings, run.simulator))
    batches = collect_samples(trajectories, judgement, run.scenario.roles, readings)
    for name, learner in run.learners.items():
        learner.update(batches[name])
    for name in run.learners:
        run.schedule_publication(name, run.step + 1)
    run.publish()
    run.step += 1


def times(model: dict[str, Any], at_once: bool, how: Any) -> dict[str, Any]:
    runs = {separate: built(model, separate, at_once, how) for separate in (False, True)}
    for run in runs.values():
        step(run)
    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(how.repeats):
        for separate, run in runs.items():
            started = time.perf_counter(), time.process_time()
            step(run)
            taken[separate].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    said = {separate: sum(run.simulator.tokens.values()) for separate, run in runs.items()}
    assert said[False] == said[True] == (how.repeats + 1) * 2 * how.episodes * how.tokens
    pairs = list(zip(taken[False], taken[True], strict=True))
    return {
        "shared_s": round(statistics.median(wall for wall, _ in taken[False]), 3),
        "separate_s": round(statistics.median(wall for wall, _ in taken[True]), 3),
        "ratio": spread([two[0] / one[0] for one, two in pairs]),
        "cpu_ratio": spread([two[1] / one[1] for one, two in pairs]),
    }


def held(run: Run) -> dict[str, int]:
    """Bytes by what they are for, each stretch of memory once; the learners' own first."""
    learners: Any = run.learners.values()
    simulator: Any = run.simulator
    engines: Any = {id(engine): engine for engine in simulator.engines.values()}.values()
    kinds: dict[str, list[Tensor]] = {
        "parameters": [p for each in learners for p in each.model.parameters()]
        + [t for each in engines for t in _tensors(each.network.model)],
        "optimizer": [t for each in learners for s in each._optimizer._adam.state.values() for t in s.values()],
        "kv": [t for each in engines for layer in each._decoder.cache.slot_layers for t in layer.kv],
    }
    seen: set[int] = set()
    sizes: Counter[str] = Counter()
    for kind, tensors in kinds.items():
        for tensor in tensors:
            memory = tensor.untyped_storage()
            sizes[kind] += 0 if memory.data_ptr() in seen else memory.nbytes()
            seen.add(memory.data_ptr())
    return dict(sizes) | {"total": sum(sizes.values())}


def _tensors(model: Any) -> Iterable[Tensor]:
    """Those of adapters are no parameters of the engine's: they never want gradients."""
    yield from model.parameters()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def memory(model: dict[str, Any], how: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, separate in (("one_adapter", False), ("two_adapters", True)):
        run = built(model, separate, False, how)
        step(run)
        figures[name] = held(run)
        simulator: Any = run.simulator
        sampler: Any = simulator.engines[next(iter(run.learners))]
        figures["base_parameters"] = sum(p.numel() for p in sampler.network.model.parameters())
    one, two = (figures[name] for name in ("one_adapter", "two_adapters"))
    figures["added"] = round(two["total"] / one["total"] - 1, 4)
    figures["added_without_kv"] = round((two["total"] - two["kv"]) / (one["total"] - one["kv"]) - 1, 4)
    return figures


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--episodes", type=int, default=48)
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--hidden", type=int, default=384)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--rank", type=int, default=8)
    how = options.parse_args()
    size = {"hidden": how.hidden, "layers": how.layers, "heads": how.hidden // 64, "initializer_range": 0.02}
    base = {"kind": "tiny", "vocabulary": "bytes", **size}
    models = {"models": base, "adapters": {"kind": "adapter", "base": base, "rank": how.rank}}
    figures: dict[str, Any] = {"bytes": memory(models["adapters"], how), "time": {}}
    for name, model in models.items():
        for order, at_once in (("relay", False), ("at_once", True)):
            figures["time"][f"{name}_{order}"] = times(model, at_once, how)
    settings = {key: value for key, value in vars(how).items() if key != "out"}
    report(figures, how.out, seeds=[0], **settings)


if __name__ == "__main__":
    # A plug-in's module must not be the program itself, so the plug-ins of this file are imported like any others.
    from adapters import main as main_of_module

    main_of_module()
