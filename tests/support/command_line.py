"""The command line in this process."""

from __future__ import annotations

import io
import shlex
import sys

import pytest

from marl.commands import cli


def run_marl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object, typed: str = ""
) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of `marl WORDS`, to which a person types `typed`."""
    monkeypatch.setattr(sys, "argv", ["marl", *map(str, words)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def marl_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What `marl WORDS` prints, which ends well."""
    status, output, errors = run_marl(monkeypatch, capsys, *words)
    assert not status, f"marl {shlex.join(map(str, words))}\n{errors}"
    return output


def marl_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What `marl WORDS` prints on standard error, which ends badly."""
    status, _, errors = run_marl(monkeypatch, capsys, *words)
    assert status, f"marl {shlex.join(map(str, words))} ended well"
    return errors
