"""The team of `scenarios/debate.yaml` as a program: three debaters answer, read each other, and answer again."""

from asking import ask_at_once

DEBATERS = ("debater_0", "debater_1", "debater_2")


def main(task):
    """Return the answers of the second round."""
    question = task["question"]
    first = ask_at_once(dict.fromkeys(DEBATERS, (f"{question} sum",)))
    prompts = {}
    for agent in DEBATERS:
        lines = [f"{question} mine", first[agent]]
        for other in DEBATERS:
            lines += ["other", first[other]] if other != agent else []
        prompts[agent] = (*lines, "sum")
    return "\n".join(ask_at_once(prompts).values())
