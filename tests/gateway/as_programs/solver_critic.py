"""The team of `scenarios/solver_critic.yaml` as a program: a solver answers until a critic says yes, at most thrice."""

from asking import ask


def main(task):
    """Return the solver's last answer."""
    question = task["question"]
    answer = ask("solver", f"{question} sum")
    for _ in range(2):
        if ask("critic", f"{question} said", answer, "right") == "[yes]":
            break
        answer = ask("solver", f"{question} not", answer, "sum")
    return answer
