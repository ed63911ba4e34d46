"""Search over the turns of a team: success at equal budgets of tokens for best-of-n, a beam and a tree.

    python tests/bench/team_search.py [--problems 200] [--seeds 0] [--out FILE]

Four agents add two numbers of four places in base five, one place each, from what the one before it passes on. Their
tiny model was taught to be right three times in five, so a whole sum is right in about an eighth of all rollouts. After
each of them a critic, a tiny model of its own that learned sums by imitation, says whether that place was right (at
temperature 0, from the digits and the carry that it is shown). Two ratings of rollouts, one that exists at test time
and an oracle:

- `critic`: share of the critic's verdicts that are yes, a process reward model; a tree also uses that of a prefix.
- `outcome`: 1 if the whole sum is right, which only the game knows; nothing is known before the end.

Every rule chooses the best rated rollout, starts from the same rollouts, and counts all sampled tokens, the critic's
included. A search with a smaller budget is the beginning of one with a larger, so each rule runs once; a rollout counts
if it ended within the budget. Problems are held out. `over_best_of_n` has intervals for pairs of problems.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from _bench import parser, report, silent

from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.core.statistics import paired_bootstrap_interval, wilson_interval
from marl.evaluation.held_out import held_out_deals
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.search.rollout_ratings import RolloutRater
from marl.search.settings import TurnSearchSettings
from marl.search.turn_search import TurnSearch, TurnSearchResult

BUDGETS = (64, 128, 192, 256)
"""Sampled tokens of a problem. A whole rollout takes 32; other budgets leave best-of-n a rest that it cannot use."""
PLACES = ("ones", "fives", "squares", "cubes")
RATINGS = {"critic": {"by": "critic.score", "verdicts": "mean"}, "outcome": {"by": "returns"}}
RULES: dict[str, dict[str, Any]] = {"best_of_n": {}, "beam": {"width": 3}, "tree": {"width": 3, "exploration": 0.5}}


def _digits(place: int) -> tuple[str, str, str]:
    """Return expressions of both digits of a place and of the carry that the agent before it passes on."""
    left, right = (f"given.{side} // {5**place} % 5" for side in ("left", "right"))
    return left, right, f"({PLACES[place - 1]}.move | int) // 5" if place else "0"


def _stages() -> list[dict[str, Any]]:
    stages = []
    for place, role in enumerate(PLACES):
        left, right, carry = _digits(place)
        total = f"{left} + {right} + {carry}"
        told = f"{{{{ {left} }}}} + {{{{ {right} }}}} + {{{{ {carry} }}}}"
        right_one, high, low = (f"{{{{ {each} }}}}" for each in (total, f"{total} + 1", f"({total} - 1) | abs"))
        verdict = f"{{{{ 'yes' if {role}.move == ({total}) | string else 'no' }}}}"
        asked = {"tell": f"{told} is {{{{ {role}.move }}}}", "examples": [verdict]}
        stages += [
            {"role": role, "tell": told, "examples": [right_one, right_one, right_one, high, low]},
            {"role": "critic", "name": f"check_{role}", **asked},
        ]
    return stages


def _whole() -> str:
    """Return an expression that is 1 if all places are right."""
    parts, carry = [], "0"
    for place, role in enumerate(PLACES):
        left, right, _ = _digits(place)
        parts.append(f"{role}.readable and {role}.move == ({left} + {right} + {carry}) | string")
        carry = f"((given.left % {5 ** (place + 1)} + given.right % {5 ** (place + 1)}) // {5 ** (place + 1)})"
    return " and ".join(parts)


def team(seed: int, steps: int) -> Scenario:
    """Return the scenario, whose models are taught for so many steps."""
    model = {"kind": "tiny", "hidden": 64, "layers": 2}
    lessons = {"episodes": 1024, "batch": 32, "lr": 3.0e-3}
    speaker = {"instructions": "", "answer": "bracket"}
    solver = {**speaker, "kind": "solver", "policy": "team", "prompt": "{{ observation }} sum"}
    critic = {**speaker, "kind": "critic", "policy": "critic", "prompt": "{{ observation }} right"}
    data = {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [125, 624], "train": 2000, "held_out": 400},
            "stages": _stages(),
            "rewards": {PLACES[-1]: {"whole": f"1 if {_whole()} else 0"}},
            "measures": {"success": f"1 if {_whole()} else 0"},
        },
        "roles": {
            **{role: {**solver, "sampling": {"max_tokens": 4}} for role in PLACES},
            "critic": {**critic, "sampling": {"max_tokens": 4, "temperature": 0.0}, "trainable": False},
        },
        "policies": {
            "team": {"model": {**model, "warm_up": {**lessons, "steps": steps}}, "learner": "grpo"},
            "critic": {"model": {**model, "warm_up": {**lessons, "steps": steps}}},
        },
        "schedule": {"steps": 1, "groups": 1, "group_size": 2, "seed": seed, "threads": 1},
    }
    return validate(data, "team_search", to_train=False)


def _successes(rollouts: Sequence[Trajectory]) -> list[float]:
    return [rollout.findings.measures["success"] for rollout in rollouts]


def _row(results: Sequence[TurnSearchResult]) -> dict[str, Any]:
    """Return success of the chosen rollouts with its 95 % interval, and what they cost."""
    right = _successes([result.chosen_rollout for result in results])
    low, rate, high = wilson_interval(sum(right), len(right))
    return {
        "success": [round(bound, 4) for bound in (low, rate, high)],
        "tokens": round(fmean(result.sampled_tokens for result in results), 1),
        "prompt_tokens": round(fmean(result.prompt_tokens for result in results), 1),
        "rollouts": round(fmean(len(result.rollouts) for result in results), 2),
        "any_right": round(fmean(max(_successes(result.rollouts)) for result in results), 4),
    }


def table(results: dict[str, list[TurnSearchResult]]) -> dict[str, Any]:
    """Return rule -> budget -> figures; those of other rules with their gain over best-of-n at the same budget."""
    rows: dict[str, Any] = {}
    for rule, searched in results.items():
        for budget in BUDGETS:
            within_token_budget = [result.within_token_budget(budget) for result in searched]
            rows.setdefault(rule, {})[budget] = row = _row(within_token_budget)
            if rule != "best_of_n":
                others = [result.within_token_budget(budget).chosen_rollout for result in results["best_of_n"]]
                gain = paired_bootstrap_interval(
                    _successes(others), _successes([result.chosen_rollout for result in within_token_budget])
                )
                row["over_best_of_n"] = [round(bound, 4) for bound in gain]
    return rows


def measure(seeds: Sequence[int], problems: int, steps: int) -> dict[str, Any]:
    """Return the figures of all rules by both ratings; problems of all seeds count as one set."""
    firsts: list[Trajectory] = []
    results: dict[str, dict[str, list[TurnSearchResult]]] = {name: {rule: [] for rule in RULES} for name in RATINGS}
    spent: dict[str, float] = defaultdict(float)
    for seed in seeds:
        scenario = team(seed, steps)
        simulator = untrained_simulator(scenario)
        played = simulator.play(held_out_deals(scenario, seed, problems))
        firsts += played
        for (name, rating), (rule, more) in product(RATINGS.items(), RULES.items()):
            settings = TurnSearchSettings.model_validate({"rule": rule, "tokens": BUDGETS[-1], **rating, **more})
            start = time.process_time()
            if rule == "best_of_n" and name != "critic":  # the same rollouts, whatever they are rated by
                results[name][rule] += [_rated(each, settings) for each in results["critic"][rule][-len(played) :]]
            else:
                results[name][rule] += TurnSearch(simulator)(played, settings)
            spent[f"{name} {rule}"] += time.process_time() - start
    low, rate, high = wilson_interval(sum(_successes(firsts)), len(firsts))
    return {
        "without_search": {
            "success": [round(bound, 4) for bound in (low, rate, high)],
            "tokens": round(fmean(sum(len(t.completion.token_ids) for t in c.turns) for c in firsts), 1),
        },
        "critic_is_right": round(_accuracy(firsts), 4),
        **{name: table(of_rating) for name, of_rating in results.items()},
        "cpu_s": {name: round(seconds, 1) for name, seconds in spent.items()},
    }


def _rated(result: TurnSearchResult, settings: TurnSearchSettings) -> TurnSearchResult:
    rating = RolloutRater(settings.by, settings.verdicts)
    return replace(result, ratings=tuple(rating.rate_rollout(rollout) for rollout in result.rollouts))


def _accuracy(rollouts: Sequence[Trajectory]) -> float:
    """Return the share of the critic's verdicts that agree with the digits that it was shown."""
    agrees = []
    for rollout in rollouts:
        for worker, critic in zip(rollout.turns[::2], rollout.turns[1::2], strict=True):
            left, _, right, _, carry = critic.request.messages[-1].content.split()[:5]
            agrees.append((worker.action == str(int(left) + int(right) + int(carry))) == (critic.action == "yes"))
    return fmean(agrees)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--problems", type=int, default=200)
    options.add_argument("--seeds", type=int, nargs="+", default=[0])
    options.add_argument("--steps", type=int, default=200, help="of warm-up")
    chosen = options.parse_args()
    with silent():
        figures = measure(chosen.seeds, chosen.problems, chosen.steps)
    settings = {"rules": RULES, "ratings": RATINGS, "budgets": BUDGETS}
    report(figures, chosen.out, seeds=chosen.seeds, problems=chosen.problems, steps=chosen.steps, **settings)


if __name__ == "__main__":
    main()
