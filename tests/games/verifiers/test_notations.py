r"""Notations of one right answer, by class: each accepts its rewritings and none of its wrong neighbours."""

from __future__ import annotations

import pytest
from grading import accepted, rejected

CLASSES = {
    "quantifiers": (
        "Negate: for every x, P(x).",
        r"\exists x\,\neg P(x)",
        [r"$\exists x: \neg P(x)$", r"$(\exists y)(\neg P(y))$", r"$\exists x.\,\neg P(x)$"],
        [r"$\forall x\,\neg P(x)$", r"$\neg\exists x\,P(x)$", r"$\neg\forall x\,P(x)$"],
    ),
    "quantified relations": (
        "",
        r"\exists x\,\forall y\ (x\ge y)",
        [r"\exists a\,\forall b\,(a\ge b)", r"$\exists x\,\forall y\,(y\le x)$"],
        [r"\forall x\,\exists y\,(x\ge y)", r"\exists x\,\forall y\,(x>y)"],
    ),
    "contrapositives": (
        "Write the contrapositive of $p \\to q$.",
        r"\neg q\to\neg p",
        ["If not q, then not p.", r"$\lnot q \Rightarrow \lnot p$"],
        [r"$p\to q$", r"$\neg p\to\neg q$"],
    ),
    "copies of ordered products": (
        "A and B are invertible matrices. Find $(AB)^{-1}$.",
        "B^{-1}A^{-1}",
        [r"$B^{-1}\cdot A^{-1}$"],
        ["(AB)^{-1}", "A^{-1}B^{-1}"],
    ),
    "inverses in a group": ("In a group, what is (gh)^{-1}?", "h^{-1}g^{-1}", ["$h^{-1} g^{-1}$"], ["g^{-1}h^{-1}"]),
    "compositions": (
        "",
        "f(g(x))",
        [r"$(f\circ g)(x)$", r"$f\circ g(x)$"],
        [r"$(g\circ f)(x)$", "g(f(x))", "f(x)g(x)"],
    ),
    "recurrences": (
        "Find a recurrence.",
        "a_n=3a_{n-1}-2a_{n-2}",
        ["$a_{n+1}=3a_n-2a_{n-1}$", "$a_k=3a_{k-1}-2a_{k-2}$"],
        ["$a_n=2a_{n-1}-3a_{n-2}$", "$a_{n+1}=3a_{n-1}-2a_{n-2}$"],
    ),
    "arbitrary constants": (
        "Solve $y''+y=0$.",
        r"y=C_1\cos x+C_2\sin x",
        [r"y=A\sin x+B\cos x", r"y(x)=c_1\cos x+c_2\sin x", r"y=a\cos x-b\sin x"],
        [r"y=A\cos x+A\sin x", r"y=A\cos x", r"y=\cos x+\sin x"],
    ),
    "solutions with a parameter": (
        r"Solve $\sin x=\frac12$.",
        r"x=\frac{\pi}{6}+2k\pi\text{ or }x=\frac{5\pi}{6}+2k\pi,\ k\in\mathbb{Z}",
        [r"$x=(-1)^n\frac{\pi}{6}+n\pi$, $n\in\mathbb{Z}$", r"$x=\frac\pi2\pm\frac\pi3+2k\pi$ where $k$ is an integer"],
        [r"$x=\pm\frac{\pi}{6}+2k\pi$, $k\in\mathbb{Z}$", r"$x=(-1)^n\frac{\pi}{6}+2n\pi$, $n\in\mathbb{Z}$"],
    ),
    "integer solutions": (
        "Find all integer solutions of 3x+5y=1.",
        r"(x,y)=(2+5k,-1-3k),\ k\in\mathbb{Z}",
        [r"(x,y)=(-3+5t,2-3t),\ t\in\mathbb{Z}", "x=2-5n, y=-1+3n", r"(y,x)=(-1-3k,2+5k), k\in\mathbb Z"],
        [r"(x,y)=(2+10k,-1-6k)", r"(y,x)=(2+5k,-1-3k), k\in\mathbb Z", "(2,-1)"],
    ),
    "functions by cases": (
        "",
        r"f(x)=\begin{cases}x&x\ge0\\-x&x<0\end{cases}",
        ["$f(x)=|x|$", r"\begin{cases}-x&\text{if }x<0\\x&\text{otherwise}\end{cases}", r"f(x)=\max(x,-x)"],
        ["f(x)=x", "f(x)=-|x|", r"\begin{cases}x&x>0\\-x&x<0\end{cases}"],
    ),
    "dates in a stated order": (
        "On which date (dd/mm) do they meet?",
        "12/05",
        ["They meet on 12 May.", "May 12", "12.5."],
        ["24/10", "05/12", "5 December", "2.4"],
    ),
    "scores": ("What is her win-loss record?", "12-4", ["12 wins and 4 losses", "12:4"], ["4-12", "8", "3-1"]),
    "ratios": ("What is the ratio of boys to girls?", "3:15", ["1:5", "3 to 15"], ["5:1", "1:4", "15:3"]),
    "orders": ("Order the runners.", "C, A, B", ["C > A > B", "CAB", "C → A → B"], ["A, B, C", "C, B, A"]),
    "bases": ("Write 100 in base 7.", "202_7", ["202", "$(202)_7$", "202 (base 7)"], ["202_8", "200"]),
    "percentages": ("What is 15% of 80?", "12", ["12", "twelve"], ["12%", "0.12"]),
    "several boxes": (
        "Find both roots.",
        "-4 and 4",
        [r"The roots are \boxed{4} and \boxed{-4}."],
        [r"\boxed{4} and \boxed{-5}", r"\boxed{4}", r"\boxed{4} and maybe \boxed{-4}"],
    ),
    "JSON": ("", "17", ['{"answer": 17}', '```json\n{"answer": "17"}\n```'], ['{"answer": 17, "or": 18}', '{"n": 17}']),
    "sentences with a name": (
        "Who is the tallest?",
        "Bob",
        ["**Bob** is the tallest.", "So the tallest person is Bob.", "It's Bob."],
        ["Bob is not the tallest.", "Alice is taller than Bob.", "Bob or Alice."],
    ),
    "sentences with a number": (
        "How many apples does she have?",
        "8",
        ["She now has 8 apples, 3 of which are green.", "So she ends up with eight apples."],
        [
            "She has 8 apples more than Tom.",
            "She does not have 8 apples.",
            "See page 8.",
            "The 8 in the text is wrong.",
        ],
    ),
    "number words of the question's language": (
        "Combien de solutions y a-t-il ?",
        "3",
        ["Il y a donc trois solutions."],
        ["Il y a donc treize solutions.", "Il y a plus de trois solutions."],
    ),
    "chemical equations": (
        "Balance: hydrogen and oxygen burn to water.",
        r"2H_2 + O_2 \to 2H_2O",
        [r"O_2 + 2\,H_2 \rightarrow 2\,H_2O", "2H2 + O2 -> 2H2O"],
        [r"H_2 + O_2 \to H_2O", r"2H_2O \to 2H_2 + O_2"],
    ),
    "values of Python": ("", "{'a': 1, 'b': 2}", ['{"b": 2, "a": 1}'], ["{'a': 1}", "{'a': 1, 'b': True}"]),
    "lines": (
        "Find a parametric equation of the line through (1,2) with direction (3,4).",
        "(x,y)=(1,2)+t(3,4)",
        ["x=1+3t, y=2+4t", "(x,y)=(4,6)+s(6,8)"],
        ["(x,y)=(3,4)+t(1,2)", "(1,2)"],
    ),
}
"""Class -> question, right answer, answers that are right, answers that are wrong."""


@pytest.mark.parametrize("name", CLASSES)
def test_rewritings_are_right_and_neighbours_are_wrong(name: str) -> None:
    question, gold, right, wrong = CLASSES[name]
    assert rejected("math", [(gold, answer) for answer in right], question) == []
    assert accepted("math", [(gold, answer) for answer in wrong], question) == []
