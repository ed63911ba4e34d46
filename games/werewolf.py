"""Werewolf for 5 to 9 players: hidden roles, private nights, talk by day, and votes (Davidoff, 1986)."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.guess_who import NAMES
from marl.games.marked_events import ObservationLine, observation_with_origins
from marl.games.werewolf_player import WerewolfPlayer
from marl.games.werewolf_talk import (
    DOCTOR,
    NOTHING,
    SEER,
    VILLAGER,
    WEREWOLF,
    is_known_false,
    parse_whisper,
    possible_statements,
    role_claims_in,
    role_with_article,
    to_one_line_statement,
)
from marl.protocols import EngineConfig, StateRendering
from marl.text.word_count import count_words

NOBODY = "nobody"
_OUTCOMES = ("werewolf_win", "village_win", "days")
_COUNTS = ("claims", "werewolf_lies", "village_lies", "village_votes", "words")
_TALK_STAGES = ("night talk", "whisper", "speak")
"""Stages in which a player says something to others, rather than choosing a player."""
Turn = tuple[str, str]
"""(agent, stage): one decision that a player has to make."""


class WerewolfConfig(TextGameConfig):
    """Werewolf. A win pays every player of the team 1, dead or alive, and a loss -1.

    Agents are called by their role (`werewolf_0`, `seer`, `villager_1`), so that a scenario can seat a policy at each
    role. Players know each other only by names, which are dealt at random.
    """

    kind: str = "werewolf"
    players: int = Field(default=5, ge=5, le=9)
    """Number of players."""
    werewolves: int | None = Field(default=None, ge=1, le=3)
    """Number of werewolves (default: 1 of up to six players, 2 of more)."""
    seer: bool = True
    """True if one player is the seer, who learns each night whether a player is a werewolf."""
    doctor: bool = False
    """True if one player is the doctor, who protects a player each night."""
    talk: Literal["claims", "text"] = "claims"
    """Statements: `claims` lists them as legal moves (`ann is a werewolf`), which a tiny model can learn; with `text`
    any text is a statement, and two or more werewolves also talk at night."""
    rounds: int = Field(default=1, ge=0, le=3)
    """Number of public statements of each living player per day."""
    whispers: bool = False
    """True if each living player may say something to one other player each day, before the public statements. Nobody
    else learns that it did."""
    max_words: int = Field(default=30, ge=1, le=500)
    """Maximum number of words of a statement with `talk: text`; the remaining words are cut off."""
    word_cost: float = Field(default=0.0, ge=0, le=0.01, allow_inf_nan=False)
    """Reward that each word of a player's statements costs it. Words are counted as in the game `communication`."""
    reveal: bool = True
    """True if the role of a dead player is told to all."""
    max_days: int | None = Field(default=None, ge=1, le=20)
    """Number of days after which the werewolves win (default: as many as players)."""

    @model_validator(mode="after")
    def _check_teams(self) -> Self:
        wolves = self.werewolf_count
        if 2 * wolves + 1 >= self.players:
            raise ValueError(
                f"werewolves: {wolves} of {self.players} players; choices: 1 to {(self.players - 2) // 2}, as they win "
                "once they are as many as all others, and one player dies in the first night"
            )
        return self

    @property
    def werewolf_count(self) -> int:
        """Number of werewolves."""
        return self.werewolves or (1 if self.players < 7 else 2)

    @property
    def role_of_agent(self) -> Mapping[str, str]:
        """Agent -> role in the game, in the order of the game's agents."""
        roles = {f"{WEREWOLF}_{index}": WEREWOLF for index in range(self.werewolf_count)}
        roles |= {SEER: SEER} if self.seer else {}
        roles |= {DOCTOR: DOCTOR} if self.doctor else {}
        return roles | {f"{VILLAGER}_{index}": VILLAGER for index in range(self.players - len(roles))}

    def default_role_of_agent(self) -> Mapping[str, str]:
        return self.role_of_agent

    def build(self) -> WerewolfGame:
        return WerewolfGame(self)

    def measure_names(self) -> Collection[str]:
        return (*_OUTCOMES, *_COUNTS, "votes_for_truth")

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"honest": WerewolfPlayer(), "liar": WerewolfPlayer(lies=True), "mimic": WerewolfPlayer(imitates=True)}

    def render_state(self, state: str) -> StateRendering:
        """Return two rows of cards: all players, and below each the facts that the agent knows of it."""
        heading, *lines = state.split("\n")
        me, _, alive, *others = heading.split(" . ")
        name, role = me.removeprefix("you are ").split(" , ")
        facts = dict.fromkeys(NAMES[: self.players], "dead") | dict.fromkeys(alive.split(" ")[1:], "?")
        for line in lines:
            if line.startswith("you saw : "):
                seen, _, answer = line.removeprefix("you saw : ").partition(" is ")
                facts[seen] = answer
        facts |= {wolf: role_with_article(WEREWOLF) for wolf in " ".join(others).split(" ")[1:]}
        facts[name] = f"you: {role}"
        return StateRendering("cards", (tuple(facts), tuple(facts.values())), "\n".join(lines))


class WerewolfGame(TextGame):
    """Werewolf: each night the werewolves kill, each day the players talk and vote one of them out."""

    name = "werewolf"
    reset_options = ("names",)
    plays_examples = True

    def __init__(self, config: WerewolfConfig) -> None:
        self.config, self.roles = config, dict(config.role_of_agent)
        self.max_days = config.max_days or config.players
        self.table = NAMES[: config.players]
        """Names of the players, in the order in which they sit."""
        listed_moves = self._moves_of_all_stages() if config.talk == "claims" else None
        super().__init__(tuple(self.roles), config.illegal, listed_moves)
        talks = self.max_days * (config.rounds + config.whispers + 1)
        self.most_words = config.max_words if config.talk == "text" else 4
        if config.illegal.penalty is None:
            # An illegal move costs more than a loss after as many words as possible.
            self.penalty = 1.5 + config.word_cost * self.most_words * talks
        self.rules = self._rules()

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        names = options["names"] if "names" in options else " ".join(rng.sample(self.table, len(self.table)))
        dealt = names.split(" ") if isinstance(names, str) else []
        if sorted(dealt) != sorted(self.table):
            raise ValueError(
                f"werewolf: option names: {names!r} are no names of {', '.join(self.seats)}; choices: "
                f"{' '.join(self.table)!r} in any order"
            )
        self.name_of = dict(zip(self.seats, dealt, strict=True))
        self.agent_of = dict(zip(dealt, self.seats, strict=True))
        self.alive = list(self.table)
        """Names of the living players, in the order in which they sit."""
        self.events: list[ObservationLine] = []
        self.day = 1
        self._whispers: list[ObservationLine] = []
        """Whispers of this day that are not read yet."""
        self._choices: dict[str, tuple[str, int]] = {}
        """Agent -> (player chosen at this stage or night, index of the game's step)."""
        self._seen: list[str] = []
        """Names of the players that the seer inspected."""
        self._counts: Counter[str] = Counter()
        self.winner: str | None = None
        """`werewolf` or `village`, or None before the end and after an illegal move that ended the game."""
        self._turns: list[Turn] = self._plan_night_turns()
        return self._turns[0][0]

    def start_state_key(self) -> str:
        return " ".join(self.name_of.values())

    def _rules(self) -> str:
        """Return the rules of the game with these settings, in words."""
        config, wolves, roles = self.config, self.config.werewolf_count, self.roles.values()
        private = "The werewolves know each other." if wolves > 1 else "The werewolf knows that it is alone."
        night = "In the night each werewolf names a player to `kill`, and reads the names given by werewolves before it"
        night += "; the most frequent name, or the latest of those, dies. "
        if config.talk == "text" and wolves > 1:
            night += "Before, each werewolf says something that only werewolves read. "
        if SEER in roles:
            night += "The seer inspects a player, and learns whether it is a werewolf. "
        if DOCTOR in roles:
            night += "The doctor protects a player, perhaps itself, who is not killed that night. "
        day = "By day all are told who died"
        day += " and its role. " if config.reveal else ". "
        if config.whispers:
            day += f"Then each may say something to one other player: `tell ann : ...`, or `{NOTHING}`. Only these two "
            day += "learn of it. "
        if config.rounds:
            day += f"{('Then', 'Twice in turn', 'Three times in turn')[config.rounds - 1]} each says something to all, "
            day += f"which may be a lie, or `{NOTHING}`. "
        if config.talk == "text":
            day += f"A statement has at most {config.max_words} words. "
        if config.word_cost:
            day += f"Each word costs you {config.word_cost:g}. "
        counts = Counter(roles)
        return (
            f"This is werewolf for {config.players}: {', '.join(f'{counts[role]} {role}' for role in counts)}. "
            f"The werewolves are one team, and all others are the village. {private} Nobody else knows the role of "
            f"another player. Nights and days alternate, from the first night on. {night}{day}Then all vote at the "
            f"same time, for a player or for `{NOBODY}`. Who gets more votes than any other dies. The village wins "
            "when no werewolf is alive. The werewolves win when they are as many as all others, or after "
            f"{self.max_days} days. A win is worth 1 and a loss -1 to every player of the team, dead or alive. You are "
            "told your name and role, who is alive, and what you have read so far, line by line: `ann : ...` is what "
            "ann said to all, `ann to you : ...` to you alone. Only the game writes lines without a colon after a "
            "player's name."
        )

    def _living_agents(self, role: str | None = None) -> list[str]:
        """Return the living agents in the order in which they sit, of one role or of all."""
        agents = [self.agent_of[name] for name in self.alive]
        return [agent for agent in agents if role in (None, self.roles[agent])]

    def _plan_night_turns(self) -> list[Turn]:
        wolves = self._living_agents(WEREWOLF)
        talk = wolves if self.config.talk == "text" and len(wolves) > 1 else []
        turns = [(wolf, "night talk") for wolf in talk] + [(wolves[0], "kill")]
        turns += [(agent, "inspect") for agent in self._living_agents(SEER)]
        turns += [(agent, "protect") for agent in self._living_agents(DOCTOR)]
        return turns + [(wolf, "kill") for wolf in wolves[1:]]

    def _plan_day_turns(self) -> list[Turn]:
        # The first speaker changes from day to day, because the last one to speak knows more.
        living = deque(self._living_agents())
        living.rotate(1 - self.day)
        stages = ["whisper"] * self.config.whispers + ["speak"] * self.config.rounds + ["vote"]
        return [(agent, stage) for stage in stages for agent in living]

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        stage = self._turns[0][1]
        # Whispers and votes are read after the last of them. At night, each role acts without knowing of the others.
        final = {"whisper": ("whisper",), "vote": ("vote",), "kill": ("inspect", "protect"), "inspect": ("protect",)}
        simultaneous = takewhile(lambda turn: turn[1] in final.get(stage, ()), self._turns[1:])
        return (agent, *(other for other, _ in simultaneous))

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        # All that a player may know of others' moves is in its observation, line by line, so that no secret move leaks.
        return (agent,)

    def _next_stage_of(self, agent: str) -> str:
        return next((stage for other, stage in self._turns if other == agent), "wait")

    def _legal_or_example_moves(self, agent: str) -> tuple[str, ...]:
        """Return the legal moves of `agent` in its next stage, or example moves if any text is legal there."""
        me, stage = self.name_of[agent], self._next_stage_of(agent)
        others = [name for name in self.alive if name != me]
        prey = [name for name in others if self.roles[self.agent_of[name]] != WEREWOLF]
        if stage == "kill":
            return tuple(f"kill {name}" for name in prey)
        if stage in ("inspect", "protect"):
            return tuple(f"{stage} {name}" for name in (others if stage == "inspect" else self.alive))
        if stage == "vote":
            return (*(f"vote {name}" for name in others), f"vote {NOBODY}")
        statements = possible_statements(me, others, self.roles.values())
        if stage == "night talk":
            return (NOTHING, *(f"let us kill {name}" for name in prey))
        if stage == "whisper":
            whispers = [f"tell {name} : {said}" for name in others for said in statements if said != NOTHING]
            return (NOTHING, *whispers)
        return statements if stage == "speak" else ()

    def _moves_of_all_stages(self) -> tuple[str, ...]:
        names, roles = self.table, self.roles.values()
        moves = [f"{verb} {name}" for verb in ("kill", "inspect", "protect", "vote") for name in names]
        statements = possible_statements("", names, roles)
        whispers: list[str] = []
        if self.config.whispers:
            whispers = [f"tell {name} : {said}" for name in names for said in statements if said != NOTHING]
        return (*moves, f"vote {NOBODY}", *statements, *whispers)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        free = self.config.talk == "text" and self._next_stage_of(agent) in _TALK_STAGES
        return None if free else self._legal_or_example_moves(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        return self._legal_or_example_moves(agent) if self.legal_actions(agent) is None else ()

    def is_legal(self, action: str) -> bool:
        if self._legal is not None or self._turns[0][1] != "whisper":
            return super().is_legal(action)
        if action == NOTHING:
            return True
        whisper = parse_whisper(action)
        me = self.name_of[self.agent_selection]
        return whisper is not None and whisper[0] in self.alive and whisper[0] != me

    # --- observations of agents ------------------------------------------------------------------------------------

    def describe_observation(self, agent: str) -> str:
        """Return the role of `agent`, the living players, all lines that it may read, and its stage.

        This text is also the information state.
        """
        heading = f"you are {self.name_of[agent]} , {role_with_article(self.roles[agent])} . day {self.day} . alive "
        heading += " ".join(self.alive)
        if self.roles[agent] == WEREWOLF:
            wolves = [name for name in self.table if self.roles[self.agent_of[name]] == WEREWOLF]
            heading += f" . werewolves {' '.join(wolves)}"
        return observation_with_origins(agent, heading, self.events, f"now {self._next_stage_of(agent)}")

    information_state = describe_observation

    def _add_observation_line(self, text: str, step_by_agent: Mapping[str, int], *readers: str) -> None:
        """Add the line `text` to the observations of `readers`, or of all agents if none is given."""
        self.events.append(ObservationLine(text, readers or None, tuple(step_by_agent.items())))

    # --- moves --------------------------------------------------------------------------------------------------------

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent, stage = self._turns.pop(0)
        step = {agent: self.steps_taken - 1}
        if stage in _TALK_STAGES:
            self._deliver_statement(agent, stage, action, step)
        else:
            self._record_player_choice(agent, stage, action.split(" ")[-1], step)
        if not self._turns:
            self._end_night_or_day(stage)
        if self.winner is None:
            return self._turns[0][0]
        rewards: dict[str, float] = {}
        for player, role in self.roles.items():
            rewards[player] = 1.0 if (role == WEREWOLF) == (self.winner == WEREWOLF) else -1.0
        return rewards

    def _deliver_statement(self, agent: str, stage: str, action: str, step_by_agent: Mapping[str, int]) -> None:
        """Deliver a statement to its readers, count its claims and lies, and charge its words."""
        me, listener, statement = self.name_of[agent], "", action
        if stage == "whisper" and (whisper := parse_whisper(action)):
            listener, statement = whisper
        statement = to_one_line_statement(statement, self.most_words)
        if stage == "night talk":
            self._add_observation_line(f"{me} at night : {statement}", step_by_agent, *self._living_agents(WEREWOLF))
        elif stage == "speak":
            self._add_observation_line(f"{me} : {statement}", step_by_agent)
        elif listener:
            sources = tuple(step_by_agent.items())
            self._whispers.append(ObservationLine(f"{me} to you : {statement}", (self.agent_of[listener],), sources))
            self._whispers.append(ObservationLine(f"you to {listener} : {statement}", (agent,), sources))
        if self._turns[0][1] != "whisper":
            # Whispers are simultaneous, so they are read after the last of them.
            self.events += self._whispers
            self._whispers = []
        if statement == NOTHING:
            return
        words = count_words(statement)
        self._counts["words"] += words
        if self.config.word_cost:
            self.add_rewards({agent: -self.config.word_cost * words}, "talk", f"{words} words")
        if stage == "night talk":
            return
        known_roles, known_good = self._known_roles_and_non_werewolves(agent)
        for claim in role_claims_in(me, statement, self.table):
            self._counts["claims"] += 1
            team = "werewolf" if self.roles[agent] == WEREWOLF else "village"
            self._counts[f"{team}_lies"] += is_known_false(claim, known_roles, known_good)

    def _known_roles_and_non_werewolves(self, agent: str) -> tuple[Mapping[str, str], Collection[str]]:
        """Return (name -> role, names of players who are no werewolves), as `agent` knows them for certain."""
        known = {self.name_of[agent]: self.roles[agent]}
        if self.config.reveal:
            known |= {name: self.roles[self.agent_of[name]] for name in self.table if name not in self.alive}
        wolves = {self.name_of[wolf]: WEREWOLF for wolf, role in self.roles.items() if role == WEREWOLF}
        if self.roles[agent] == WEREWOLF:
            return known | wolves, set(self.table) - wolves.keys()
        seen = self._seen if agent == SEER else []
        return known | {name: WEREWOLF for name in seen if name in wolves}, {*seen} - wolves.keys()

    def _record_player_choice(self, agent: str, stage: str, chosen_name: str, step_by_agent: Mapping[str, int]) -> None:
        me = self.name_of[agent]
        self._choices[agent] = chosen_name, step_by_agent[agent]
        if stage == "kill":
            line = f"{me} at night : kill {chosen_name}"
            self._add_observation_line(line, step_by_agent, *self._living_agents(WEREWOLF))
        elif stage == "inspect":
            self._seen.append(chosen_name)
            answer = "a" if self.roles[self.agent_of[chosen_name]] == WEREWOLF else "no"
            self._add_observation_line(f"you saw : {chosen_name} is {answer} werewolf", step_by_agent, agent)
        elif stage == "protect":
            self._add_observation_line(f"you protected {chosen_name}", step_by_agent, agent)
        elif self.roles[agent] != WEREWOLF:
            self._counts["village_votes"] += 1
            self._counts["true_votes"] += chosen_name != NOBODY and self.roles[self.agent_of[chosen_name]] == WEREWOLF

    def _end_night_or_day(self, stage: str) -> None:
        """End the night or the day: set the winner, if any, else plan the turns of the next day or night."""
        choices, self._choices = self._choices, {}
        if stage == "vote":
            for agent, (name, step) in choices.items():
                self._add_observation_line(f"{self.name_of[agent]} votes {name}", {agent: step})
            counts = Counter(name for name, _ in choices.values())
            most = max(counts.values())
            leaders = [name for name, count in counts.items() if count == most]
            victim = leaders[0] if len(leaders) == 1 else NOBODY
            sources = {agent: step for agent, (_, step) in choices.items()}
            self._eliminate(victim, f"day {self.day} : {victim} was voted out", sources)
        else:
            self._apply_night_choices(choices)
        wolves = len(self._living_agents(WEREWOLF))
        if wolves == 0:
            self.winner = "village"
        elif 2 * wolves >= len(self.alive) or (stage == "vote" and self.day == self.max_days):
            self.winner = WEREWOLF
        elif stage == "vote":
            self.day += 1
            self._turns = self._plan_night_turns()
        else:
            self._turns = self._plan_day_turns()

    def _apply_night_choices(self, choices: Mapping[str, tuple[str, int]]) -> None:
        kills = [name for agent, (name, _) in choices.items() if self.roles[agent] == WEREWOLF]
        # Of equally many proposals the latest one decides.
        victim = max(reversed(kills), key=kills.count)
        relevant = {agent: step for agent, (_, step) in choices.items() if agent != SEER}
        if choices.get(DOCTOR, ("", 0))[0] == victim:
            victim = NOBODY
        self._eliminate(victim, f"night {self.day} : {victim} was killed", relevant)

    def _eliminate(self, player_name: str, announcement: str, step_by_agent: Mapping[str, int]) -> None:
        if player_name != NOBODY:
            self.alive.remove(player_name)
            role = self.roles[self.agent_of[player_name]]
            announcement += f" , {role_with_article(role)}" if self.config.reveal else ""
        self._add_observation_line(announcement, step_by_agent)

    def _illegal_move_rewards(self, offender: str) -> dict[str, float]:
        if self.illegal.then != "forfeit":
            return {offender: -self.penalty}
        # The offender's team loses, so that no player can save its team a loss by breaking the rules.
        wolf = self.roles[offender] == WEREWOLF
        payments = {agent: -1.0 if (role == WEREWOLF) == wolf else 1.0 for agent, role in self.roles.items()}
        return payments | {offender: -self.penalty}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the episode.

        `werewolf_win`, `village_win`: 1 for the outcome, and both 0 after an illegal move; `days` begun; `claims`:
        statements about a role; `werewolf_lies`, `village_lies`: claims that the speaker knew to be false; `words` of
        all statements; `village_votes` of players who are no werewolves; `votes_for_truth`: share of these votes that
        named a werewolf (0 without a vote).
        """
        counts = self._counts
        share = counts["true_votes"] / counts["village_votes"] if counts["village_votes"] else 0.0
        outcomes = (self.winner == WEREWOLF, self.winner == "village", self.day)
        measures = dict(zip(_OUTCOMES, map(float, outcomes), strict=True))
        measures |= {name: float(counts[name]) for name in _COUNTS}
        return EpisodeMeasuresAndNewStarts(measures | {"votes_for_truth": share})
