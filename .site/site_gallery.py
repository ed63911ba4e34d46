"""The gallery: a page for each scenario, with who takes part, who learns how, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

import yaml
from site_drawings import drawing
from site_links import ROOT, page_of, slug
from site_settings import escaped, table

import marl
from marl.scenario.schema import Scenario

MEASURED_IN = ("tests/bench/README.md", "credit/README.md", "scenarios/real/README.md", "marl/engines/vllm/README.md")
"""Documents whose tables hold figures of scenarios."""
NONE = "Example, not measured"
"""Words in the first comment of a scenario without figures."""
DASH = "\N{EN DASH}"
SUCCESS = "success on held-out problems"
_MEASURE = re.compile(r"NashConv|wins|probability|share of|accuracy|success|return|score")
"""Words by which a row names its figure; others show success."""
_ELSEWHERE = "{kind: openai, base_url: 'http://127.0.0.1:9/v1', model: none, key_env: null}"
_CHANGES = re.compile(r"# yaml-language-server.*\n")


@dataclass(frozen=True)
class Measured:
    """Rows of a table of figures that are about one scenario."""

    document: str
    heading: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@cache
def gallery_pages() -> dict[str, tuple[str, str]]:
    """Return page -> (title, text): the gallery, then each scenario."""
    files = sorted(
        str(file.relative_to(ROOT)) for file in (ROOT / "scenarios").rglob("*.yaml") if "suites" not in file.parts
    )
    pages = {page_of(file): (Path(file).stem, "".join(_page(file))) for file in files}
    return {"scenarios/gallery.md": ("Gallery", "".join(_gallery(files)))} | pages


@cache
def loaded(file: str) -> Scenario:
    """Return a scenario; what it takes from runs that are not here has something else in its place."""
    data = _data(file)
    instead = [
        f"policies.{name}.{part}={other}"
        for name, policy in data["policies"].items()
        for part, kind, other in (("model", "trained", "{kind: tiny}"), ("engine", "reward_model", _ELSEWHERE))
        if _kind(policy.get(part)) == kind
    ]
    if _kind(data.get("experience")) == "recorded":
        instead.append("experience=rollouts")
    # `random_play` leaves out whether weights are there: those of `make real` may be missing.
    return marl.load(ROOT / file, instead, random_play=True)


@cache
def _data(file: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / file).read_text())


def _kind(part: Any) -> str:
    """Return the kind of a part as it is written; "" if there is none."""
    return str(part.get("kind", "")) if isinstance(part, dict) else str(part or "")


def _gallery(files: list[str]) -> Iterator[str]:
    yield "# Gallery of scenarios\n\n"
    yield "Every scenario, with what was measured of it: the first row of its figures, before → after, one number a "
    yield "seed. The page of each shows the rest, and the file itself. Credit is `assign` ∘ `baseline`, as written for "
    yield "the whole run; a dash stands where no learner uses it. In a drawing each line is a seed, from before (empty "
    yield "circle) to after (full); the scale begins at 0 and ends at 1, or at the greatest figure. "
    yield "NashConv should fall.\n\n"
    for folder in dict.fromkeys(dirname(file) for file in files):
        if folder != "scenarios":
            yield f"## {folder}\n\n"
        rows = []
        for file in (file for file in files if dirname(file) == folder):
            scenario = loaded(file)
            link = f"[{Path(file).stem}]({relpath(page_of(file), 'scenarios')})"
            learners = [policy.learner for policy in scenario.policies.values() if policy.learner]
            kinds = ", ".join(dict.fromkeys(_code(learner.kind) for learner in learners))
            rule = _rule(scenario.credit) if any(learner.trains_on_advantages for learner in learners) else DASH
            rows.append((link, headline(file), kinds, rule, first_figure(file)))
        yield from table(("scenario", "what it is", "learners", "credit", "measured"), rows)
        yield "\n"


def _page(file: str) -> Iterator[str]:
    scenario = loaded(file)
    yield f"# {Path(file).stem}\n\n{_comment(file)}\n\n```bash\nmarl train {file}\n```\n\n"
    yield "## Who takes part\n\n"
    yield from table(("role", "seats", "hears", "policy", "speaks by", "learns by", "credit"), _roles(file, scenario))
    schedule, experience = scenario.schedule, _kind(_data(file).get("experience")) or "rollouts"
    yield f"\nA step plays {schedule.groups} times {schedule.group_size} episodes (`{experience}`); "
    yield f"the run has {schedule.steps} steps. Settings: {_settings(page_of(file), scenario)}.\n\n"
    yield "## What was measured\n\n"
    yield from _figures(file)
    text = _CHANGES.sub("", (ROOT / file).read_text())
    yield f"## The file\n\n`{file}`\n\n```yaml\n{text.rstrip()}\n```\n"


# --- who -------------------------------------------------------------------------------------------------------------


def _roles(file: str, scenario: Scenario) -> Iterator[tuple[str, ...]]:
    hears: dict[str, dict[str, None]] = {}
    for name, others in _hears(_data(file)):
        hears.setdefault(name, {}).update(dict.fromkeys(others))
    for name, role in scenario.roles.items():
        policy = scenario.policies[role.policy]
        seats: list[str] = []
        for view in scenario.scenario_by_game().values():
            seats += [agent for agent, seated_role in view.seats.items() if seated_role == name]
        shown = ", ".join(dict.fromkeys(seats)) if len(seats) < 5 else f"{seats[0]} … {seats[-1]} ({len(seats)})"
        learns = "frozen" if policy.model else "-"
        if policy.learner:
            learns = _code(policy.learner.kind) if role.trainable else f"{_code(policy.learner.kind)}, from others"
        judged = policy.learner is not None and role.trainable
        rule = _rule(scenario.credit.roles.get(name, scenario.credit)) if judged else ""
        written = _data(file)["policies"][role.policy]
        speaks = _code(_speaks(written, policy.model.kind if policy.model else policy.engine.kind))
        yield (_code(name), shown, ", ".join(hears.get(name, ())), _code(role.policy), speaks, learns, rule)


def _speaks(written: dict[str, Any], kind: str) -> str:
    """Return the kind of a policy's model or engine: as it is written where something else was put in its place."""
    if _kind(written.get("engine")) == "reward_model":
        return "reward_model"
    return "trained" if _kind(written.get("model")) == "trained" else kind


def _hears(data: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield (role, roles that it hears) for each stage of a workflow."""
    if isinstance(data, dict):
        if "role" in data and isinstance(data.get("hears", data.get("verifies")), str | list):
            heard = data.get("hears", data.get("verifies"))
            yield data["role"], [heard] if isinstance(heard, str) else [str(each) for each in heard]
        for value in data.values():
            yield from _hears(value)
    elif isinstance(data, list):
        for value in data:
            yield from _hears(value)


def _rule(credit: Any) -> str:
    return f"{_code(credit.assign.kind)} ∘ {_code(credit.baseline.kind)}"


def _settings(page: str, scenario: Scenario) -> str:
    """Return links to the settings of the parts that a scenario names."""
    used = {("credit", scenario.credit.assign.kind), ("baselines", scenario.credit.baseline.kind)}
    used |= {("games", view.game.kind) for view in scenario.scenario_by_game().values()}
    used |= {("trainers", policy.learner.kind) for policy in scenario.policies.values() if policy.learner}
    used |= {("experience", scenario.experience.kind)}
    links = [
        f"[{kind}]({relpath(f'settings/{group}.md', dirname(page))}#{kind})"
        for group, kind in sorted(used)
        if ":" not in kind
    ]
    return ", ".join(links)


def _code(text: str) -> str:
    return f"`{text}`"


# --- text ------------------------------------------------------------------------------------------------------------


def _comment(file: str) -> str:
    """Return the comment with which a scenario begins; lines that are indented or drawn are left as they are."""
    text = _CHANGES.sub("", (ROOT / file).read_text())
    lines = [line.lstrip("#") for line in text[: len(text) - len(re.sub(r"\A(#.*\n)+", "", text))].splitlines()]
    prose = [line.strip() for line in lines]
    end = next((i for i, line in enumerate(lines) if not line.strip() or line.startswith("   ")), len(lines))
    rest = "\n".join(lines[end:]).strip("\n")
    return escaped(" ".join(prose[:end])) + (f"\n\n```text\n{rest}\n```" if rest.strip() else "")


def headline(file: str) -> str:
    """Return the first sentence of a scenario's comment."""
    return re.split(r"(?<=[.:])\s(?![^(]*\))", _comment(file).split("\n")[0].removeprefix(f"{NONE}: "))[0].rstrip(":")


# --- figures ---------------------------------------------------------------------------------------------------------


def first_figure(file: str) -> str:
    """Return the most important figure of a scenario, or that it has none."""
    for each in measured(file):
        if "after" in each.heads[-1] and len(each.heads) > 2:
            first, *_, before, after = each.rows[0]
            return f"{measure(first)}:<br>{before} → {after}<br>{drawing(before, after)}"
    if NONE in _comment(file):
        return "not measured"
    return f"[figures]({relpath(page_of(file), 'scenarios')}#what-was-measured)"


def measure(row: str) -> str:
    """Return what a row of figures shows, from the text in its first cell."""
    clauses = re.split(r"[:;] (?![^(]*\))", row.partition(".yaml`")[2])
    return next((clause for clause in clauses if _MEASURE.search(clause)), SUCCESS).removeprefix("its ")


def _figures(file: str) -> Iterator[str]:
    tables = measured(file)
    for each in tables:
        yield f"From [{each.heading}]({_link(file, each.document)}#{slug(each.heading, '-')}):\n\n"
        yield from table(each.heads, each.rows)
        yield "\n"
    if not tables and NONE in _comment(file):
        yield "Nothing: it is an example, and the tests run a small version of it.\n\n"
    elif not tables:
        places = [name for name in MEASURED_IN if f"{Path(file).stem}.yaml" in (ROOT / name).read_text()]
        links = ", ".join(f"[{name}]({_link(file, name)})" for name in places)
        yield f"Figures of it stand in the text of {links}.\n\n"


def _link(file: str, document: str) -> str:
    return relpath(page_of(document), dirname(page_of(file)))


def measured(file: str) -> tuple[Measured, ...]:
    """Return the figures of a scenario in the tables of the READMEs."""
    return tuple(each for name in MEASURED_IN for each in _rows_in(name, Path(file).name))


def _rows_in(document: str, name: str) -> Iterator[Measured]:
    heading = ""
    for block in re.split(r"\n\n+|\n(?=<!--)", (ROOT / document).read_text()):
        if title := re.match(r"#+ (.+)", block):
            heading = title[1]
        lines = [line for line in block.splitlines() if line.startswith("|")]
        if len(lines) < 3:
            continue
        heads, _, *rows = [cells(line) for line in lines]
        about, taken = False, []
        for row in rows:
            if not row[0].startswith("…") or ".yaml`" in row[0]:
                about = row[0].lstrip("… ").startswith(f"`{name}`")
            if about:
                taken.append(row)
        if taken:
            yield Measured(document, heading, heads, tuple(taken))


def cells(line: str) -> tuple[str, ...]:
    """Return the cells of a row of a table."""
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
