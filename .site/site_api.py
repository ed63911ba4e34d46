"""Pages of the Python reference: which modules each shows. mkdocstrings fills them from docstrings."""

from __future__ import annotations

PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "marl": ("The package marl", "What `import marl` gives.", ("marl", "marl.export.run_tables")),
    "types": (
        "Turns, trajectories, samples",
        "Plain data that all parts exchange.",
        ("marl.core.types", "marl.core.graph"),
    ),
    "games": (
        "Writing a game",
        "A game is a `GameConfig` whose `build()` returns a PettingZoo `AECEnv`.",
        ("marl.protocols.games", "marl.games.base", "marl.games.aec"),
    ),
    "tasks": (
        "Writing a task, a verifier, a tool",
        "Problems, checks of answers, and what a model may call.",
        ("marl.protocols.tasks", "marl.games.tasks.base"),
    ),
    "roles": (
        "Writing a role",
        "Prompts, and how answers are read.",
        ("marl.protocols.roles", "marl.roles.base", "marl.roles.parsing"),
    ),
    "credit": (
        "Writing a credit rule",
        "`assign` and `baseline`, and the same numbers as plain functions.",
        ("marl.protocols.credit", "marl.credit.functions"),
    ),
    "learning": (
        "Writing a learner or a loss",
        "Learners, losses, and losses as plain functions.",
        ("marl.protocols.learning", "marl.trainers.functions"),
    ),
    "engines": ("Writing an engine", "What samples.", ("marl.protocols.engines",)),
    "models": (
        "Writing a model",
        "Weights, and encoders of texts.",
        ("marl.protocols.models", "marl.protocols.encoders"),
    ),
    "play": (
        "Writing an experience",
        "Where the episodes of a step come from.",
        ("marl.protocols.play", "marl.experience.rollouts"),
    ),
    "config": (
        "Settings and parts",
        "Bases of all settings, and how parts are looked up.",
        ("marl.core.config", "marl.core.plugins"),
    ),
}
"""Page -> heading, introduction, modules."""


def api_pages() -> dict[str, tuple[str, str]]:
    """Return page -> (title, text)."""
    pages = {}
    for name, (title, introduction, modules) in PAGES.items():
        blocks = "\n".join(f"::: {module}\n" for module in modules)
        pages[f"api/{name}.md"] = (title, f"# {title}\n\n{introduction}\n\n{blocks}")
    return pages
