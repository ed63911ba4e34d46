"""The gallery of games: rules, a picture, the best known value, and how far the measured scenarios get."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath

from site_gallery import first_figure, loaded
from site_links import ROOT, page_of
from site_settings import escaped, table

from marl.core.plugins import find_plugin
from marl.games.environments import RenderableGameConfig
from marl.protocols import GameConfig
from marl.scenario.yaml_text import read_yaml

PAGE = "games/gallery.md"
VALUES = {
    "kuhn_poker": "-1/18 chips a hand for the first player (Kuhn 1950); the player `nash`",
    "leduc_poker": "-.0856 chips a hand for the first player (OpenSpiel's exact solver, the same game)",
    "holdem": "unknown: too many deals; the player `equity`, which never bluffs",
    "liars_dice": "1/9 for the first player with one die of three faces (OpenSpiel's CFR+, the same game); exact by "
    "NashConv with one die of up to five faces",
    "goofspiel": "0, by symmetry; exact by NashConv with few cards",
    "colonel_blotto": "0 with equal troops, by symmetry; a linear programme finds an equilibrium, the player `nash`",
    "first_price_auction": "bid (n - 1)/n of the value, for continuous values (Vickrey 1961); the player `nash`",
    "nim": "multiples of `max_take` + 1 are lost (Bouton 1901); the player `minimax`",
    "tic_tac_toe": "a draw; the player `minimax`",
    "connect_four": "a win of the first player on 7 by 6 (Allis 1988); draws on 4 by 4, 4 by 5 and 5 by 4",
    "negotiation": "without `discount`, the player with the last offer that can be accepted demands everything",
    "guess_who": "the player `entropy` needs the minimum number of turns on small tables; it wins about .70 of "
    "the games of `guess_who.yaml` against random play",
    "taboo": "unknown",
    "werewolf": "unknown; of five players, the village wins .17 of random games and .47 of `honest` ones",
    "codenames": "unknown; one team finds .79 of its words with the player `topics`, and .38 by random play",
    "hanabi": "with one card each, the best team of two is computed exactly: 2.92 of 3 points with the six cards of "
    "`hanabi.yaml`; with 12 cards and two each, `hints` players score 3.6 of 6 points, and random ones 2.1",
    "communication": "exact with one round and at most four agents; the player `best_choices`",
    "repeated_matrix": "a linear programme solves each zero-sum table",
}
"""Kind of a game -> its equilibrium or best known value, or the player to compare with."""


def games_page() -> tuple[str, str]:
    """Return (title, text) of the gallery of games."""
    return "Gallery of games", "".join(_games())


def _games() -> Iterator[str]:
    yield "# Gallery of games\n\n"
    yield "Our own games: the best value that is known, the first figure of each scenario that plays the game, from "
    yield "before training to after it, then rules and a picture of each. Rules are those of the default settings, as "
    yield "models read them. Environments of other libraries and workflows of teams: [games](index.md).\n\n"
    rows: list[tuple[str, ...]] = []
    for kind, value in VALUES.items():
        rows.append((f"[{kind}](#{kind})", value, "<br>".join(_figures(kind)) or "no scenario"))
    yield from table(("game", "best known value", "how far a tiny model gets"), rows)
    for kind in VALUES:
        yield f"\n## {kind}\n\n"
        yield from _rules_and_picture(kind)


def _figures(kind: str) -> Iterator[str]:
    """Yield the first figure of each scenario that plays only this game."""
    for file in sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scenarios").glob("*.yaml")):
        if [view.game.kind for view in loaded(file).scenario_by_game().values()] == [kind]:
            page = relpath(page_of(file), "games")
            # The links of a figure begin at the folder of scenarios.
            figure = re.sub(r"\]\(([^)#]+)", r"](../scenarios/\1", first_figure(file))
            yield f"[{Path(file).stem}]({page}): {figure}"


def _rules_and_picture(kind: str) -> Iterator[str]:
    """Yield the rules of a game, and a picture after a few random moves."""
    plugin = find_plugin("games", kind)
    assert issubclass(plugin, GameConfig)
    settings = plugin.model_validate(read_yaml(f"{{{plugin.example}}}", "example") | {"kind": kind})
    game = settings.build_environment("ansi") if isinstance(settings, RenderableGameConfig) else settings.build()
    rng = random.Random(0)
    game.reset(seed=1)
    yield f"{escaped(' '.join(game.infos[game.agent_selection].get('rules', '').split()))}\n\n"
    for _ in range(4):
        info = game.infos[game.agent_selection]
        before = game.copy()
        game.step(rng.choice(info["legal"] or info["examples"] or ("",)))
        if any(game.terminations.values()) or any(game.truncations.values()):
            game = before
            break
    picture = game.render() if isinstance(settings, RenderableGameConfig) else None
    if picture is not None:
        yield f"After a few random moves:\n\n```text\n{picture}\n```\n\n"
    link = relpath("settings/games.md", "games")
    yield f"Settings: [{kind}]({link}#{kind}).\n"
