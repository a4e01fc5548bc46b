"""Each user's kernels have one helper: it serves nobody else, and ends when nobody needs it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.cuda import (
    GIB,
    Call,
    CudaProgram,
    CudaWorld,
    children_of,
    has_ended,
    helper_pid,
)
from support.node import until

from jupyter_gpushare.client.memory import driver as driver_module
from jupyter_gpushare.node.checkpoint.supervisor import listen
from jupyter_gpushare.protocol.checkpoint import (
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    Target,
    decode_answer,
    encode_request,
)
from jupyter_gpushare.protocol.privateplace import UnsafePlace, checkpoint_socket, make_private
from jupyter_gpushare.protocol.processes import namespace_of_pids, start_time, user_ids

from .conftest import Drive, Stage

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")


def tell(place: Path, line: bytes) -> bytes:
    """The helper's answer to one line."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(place))
        connection.sendall(line)
        answer = b""
        while not answer.endswith(b"\n") and (data := connection.recv(65536)):
            answer += data
        return answer


# -- being started ---------------------------------------------------------------------------


def test_many_kernels_at_once_get_one_helper(
    cuda_world: CudaWorld, gpu: str, drive: Drive, place: Path
) -> None:
    programs = [cuda_world.program() for _ in range(3)]
    try:
        start = threading.Barrier(len(programs))

        def park(program: CudaProgram) -> Result:
            start.wait()
            return drive(program).park(30, 1).result

        with ThreadPoolExecutor(len(programs)) as threads:
            assert set(threads.map(park, programs)) == {Result.DONE}
        every = psutil.process_iter(["cmdline"])
        helpers = [one.pid for one in every if str(place) in (one.info["cmdline"] or ())]
        assert helpers == [helper_pid(place)]
        assert len(children_of(helpers[0])) == 1
    finally:
        for program in programs:
            program.kill()


def test_it_is_nobodys_child_and_holds_nothing_of_its_starter(stage: Stage, tmp_path: Path) -> None:
    """Not our terminal, not our output, not our files, not our session, not our lease."""
    with open(tmp_path / "open", "w") as held:
        os.set_inheritable(held.fileno(), True)
        environ = {
            **stage.world.environ(),
            "CUDA_VISIBLE_DEVICES": "",
            "JUPYTER_GPUSHARE_SECRET": "s3cret",
            "JUPYTERHUB_API_TOKEN": "s3cret",
        }
        driver = stage.driver(environ=environ)
        assert driver.park(10, 1).result is Result.DONE  # and it sees the GPUs
    helper = stage.pid
    (worker,) = children_of(helper)
    assert os.getsid(helper) != os.getsid(0)
    assert os.getppid() != helper
    for pid in (helper, worker):
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        targets = {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
        assert str(tmp_path / "open") not in targets
        ours = {os.readlink(f"/proc/self/fd/{n}") for n in (1, 2)} - {"/dev/null"}
        assert not ours & targets
        told = psutil.Process(pid).environ()
        assert "s3cret" not in told.values()
        assert "CUDA_VISIBLE_DEVICES" not in told
        assert (told.get("HOME"), told["JUPYTER_GPUSHARE"]) == (os.environ.get("HOME"), "off")


@pytest.fixture
def tracers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What Yama would be told; there may be no Yama in this kernel."""
    told: list[int] = []
    monkeypatch.setattr(driver_module, "only_ancestors_trace", lambda: True)
    monkeypatch.setattr(driver_module, "_set_tracer", told.append)
    return told


def test_where_only_ancestors_may_trace_the_helper_is_let_in_meanwhile(
    gpu: str, drive: Drive, place: Path, tracers: list[int]
) -> None:
    driver = drive(None)  # this very process
    driver.state()
    assert tracers == [helper_pid(place), 0]
    tracers.clear()
    driver.lock(0.0)
    assert (set(tracers[:-1]), tracers[-1]) == ({-1}, 0), "another helper may have to unlock it"


def test_what_ends_first_does_not_take_the_others_leave_away(tracers: list[int]) -> None:
    """A question of one thread while another one's lock goes on: who unlocks must get in."""
    with driver_module._tracers.let_in(7):
        with driver_module._tracers.let_in(8):
            assert tracers == [7, -1], "only one can be named"
        assert tracers[-1] == 7
        with driver_module._tracers.let_in(7):
            assert tracers[-1] == 7
        assert tracers[-1] == 7
    assert tracers[-1] == 0


def test_while_it_is_locked_the_next_helper_may_unlock_it_at_once(
    gpu: str, drive: Drive, place: Path, tracers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heir does that before this process has asked it."""
    driver = drive(None)  # this very process

    def lost(*_request: object) -> None:
        assert tracers[-1] == -1
        raise driver_module._Lost("It went away.")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_ask", lost)
        patch.setattr(driver, "unlock", lambda: tracers.append(9) or Outcome(Result.DONE))
        assert driver.lock(0.0).result is Result.INTACT
        assert tracers == [-1, 9, 0], "not in between"
        patch.setattr(driver, "unlock", lambda: Outcome(Result.STUCK))
        assert driver.lock(0.0).result is Result.STUCK
        assert tracers[-1] == -1, "who unlocks goes on trying"
    driver.state()
    assert tracers[-1] == -1, "a question sets nobody free"
    assert driver.unlock().result is Result.DONE
    assert tracers[-1] == 0


def test_yamas_setting_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ptrace_scope"
    assert not driver_module.only_ancestors_trace(str(file))
    for text, expected in (("0\n", False), ("1\n", True), ("2\n", False)):
        file.write_text(text)
        assert driver_module.only_ancestors_trace(str(file)) is expected


def test_ctrl_c_and_a_hangup_pass_it_by(stage: Stage) -> None:
    helper = stage.helper()
    for pid in (helper, *children_of(helper)):
        os.kill(pid, signal.SIGINT)
    os.kill(helper, signal.SIGHUP)
    assert stage.driver().park(10, 1).result is Result.DONE
    assert helper_pid(stage.place) == helper


def test_it_needs_the_standard_library_only() -> None:
    """The resident part loads no CUDA, no tornado, no policy, nothing but the protocol of ours."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import jupyter_gpushare.node.checkpoint.supervisor\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))\n"
        "print(sorted(n for n in sys.modules if n.startswith('jupyter_gpushare.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others, ours = done.stdout.splitlines()
    assert others == "['jupyter_gpushare']"
    assert "policy" not in ours
    assert "inventory" not in ours


def test_a_python_without_the_package_is_said(stage: Stage) -> None:
    environ = {k: v for k, v in stage.world.environ().items() if k != "PYTHONPATH"}
    driver = stage.driver(environ=environ, python="/bin/false", start_within=0.3)
    assert driver.park(10, 1).cause is Cause.NO_HELPER
    driver = stage.driver(environ=environ, python="/nonexistent", start_within=0.3)
    ability = driver.probe()
    assert not ability.usable
    assert "cannot be started" in ability.why


# -- being idle ------------------------------------------------------------------------------


def test_it_ends_by_itself(stage: Stage) -> None:
    driver = stage.driver(idle_s=3.0)  # it is looked at before it ends
    driver.state()
    helper = stage.pid
    # The kernel lists no children for an instant while the thread that started them ends.
    (worker,) = until(lambda: children_of(helper), "the helper's worker is listed")
    until(lambda: has_ended(helper), "the helper's end")
    until(lambda: has_ended(worker), "the worker's end")
    assert not stage.place.exists()
    assert driver.park(10, 1).result is Result.DONE  # the next one starts it again


def sleeps(pid: int) -> int:
    """How often its first thread has gone to sleep, which looks between two sleeps."""
    return psutil.Process(pid).num_ctx_switches().voluntary


def test_it_stays_while_something_is_parked(stage: Stage) -> None:
    driver = stage.driver(idle_s=0.2)
    assert driver.park(10, 1).result is Result.DONE
    helper = stage.pid
    descriptor = os.pidfd_open(helper)
    try:
        slept = sleeps(helper)  # four times until it would end
        until(lambda: sleeps(helper) >= slept + 12, "it looks whether it is of use")
        assert not has_ended(helper)
        assert driver.resume(None, 10).result is Result.DONE
        until(lambda: has_ended(helper), "the helper's end")
        assert driver.park(10, 1).result is Result.DONE
        second = helper_pid(stage.place)
        assert second is not None
        stage.program.kill()  # nobody is left who is parked
        until(lambda: has_ended(second), "the helper's end")
    finally:
        os.close(descriptor)


def test_told_to_stop_it_ends_what_is_under_way(stage: Stage) -> None:
    helper = stage.helper()
    stage.world.hang(Call.CHECKPOINT)
    parked = stage.parking(30)
    until(lambda: stage.world.is_in(Call.CHECKPOINT), "the checkpoint")
    os.kill(helper, signal.SIGTERM)
    until(lambda: not stage.place.exists(), "the socket's end")
    stage.world.heal()
    assert parked.result(60).result is Result.DONE
    until(lambda: has_ended(helper), "the helper's end")


def test_nothing_is_left_open_after_many_requests(stage: Stage) -> None:
    driver = stage.driver()
    helper = stage.helper()
    stage.world.hang(Call.STATE)
    driver.state(0.05)
    stage.world.heal()
    driver.state()
    ours, its = psutil.Process().num_fds(), psutil.Process(helper).num_fds()
    for _ in range(3):
        driver.state()
        assert tell(stage.place, b"nonsense\n")
        stage.world.hang(Call.STATE)
        driver.state(0.05)  # a worker that is killed
        stage.world.heal()
        driver.state()
    # At most: the last caller before may not have been hung up on yet when they were counted.
    # What any of these leaves open, it leaves three times.
    until(lambda: psutil.Process(helper).num_fds() <= its, "the helper's descriptors closed")
    assert psutil.Process().num_fds() == ours
    assert len(children_of(helper)) == 1


# -- who may ask, and about whom -------------------------------------------------------------


def test_nonsense_is_answered_and_harmless(stage: Stage) -> None:
    helper = stage.helper()
    for line in (b"\xff\n", b"{}\n", b"[" * 5000 + b"\n", b"x" * 70000 + b"\n"):
        answer = decode_answer(tell(stage.place, line))
        assert isinstance(answer, Outcome)
        assert answer.cause is Cause.BAD_REQUEST
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(stage.place))  # and goes without a word
    assert stage.driver().park(10, 1).result is Result.DONE
    assert helper_pid(stage.place) == helper


def test_a_pid_that_is_another_process_by_now_is_not_touched(stage: Stage) -> None:
    stage.helper()
    started = start_time(stage.program.pid)
    assert started is not None
    for action in (Action.STATE, Action.PARK, Action.RESUME):
        request = Request(action, Target(stage.program.pid, started - 1), deadline=10)
        answer = decode_answer(tell(stage.place, encode_request(request)))
        assert isinstance(answer, Outcome)
        assert answer.cause is Cause.GONE
    assert stage.state() == 0


@as_root
def test_another_users_process_is_not_touched(stage: Stage) -> None:
    stage.helper()
    other = subprocess.Popen(["sleep", "60"], user=NOBODY)
    try:
        until(lambda: user_ids(other.pid) == {NOBODY}, "the other user's process")
        outcome = stage.drive(other.pid).park(10, 1)
        assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NOT_YOURS)
    finally:
        other.kill()
        other.wait()


#: In a program: become another user.
AS_NOBODY = f"os.setuid({NOBODY})\n"


def a_stranger(code: str, *, in_container: bool) -> subprocess.Popen[bytes]:
    """A process of another user, or one of ours to which pids mean other processes."""
    line = [sys.executable, "-I", "-S", "-c", f"import os, socket, sys\n{code}"]
    if in_container:
        line = ["unshare", "--pid", "--fork", "--kill-child", "timeout", "20", *line]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@as_root
@pytest.mark.parametrize("in_container", [False, True])
def test_a_stranger_gets_no_answer(stage: Stage, in_container: bool) -> None:
    """Even if the folder lets them in. The pid that a container names is not the one it means."""
    stage.helper()
    stage.place.parent.chmod(0o755)
    stage.place.chmod(0o666)
    code = (
        f"{'' if in_container else AS_NOBODY}"
        f"s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect({str(stage.place)!r})\n"
        "try:\n    s.sendall(sys.stdin.buffer.read()); print(s.recv(9))\n"
        "except ConnectionError: print(b'')"
    )
    request = Request(Action.PARK, Target(stage.program.pid, start_time(stage.program.pid) or 0))
    with a_stranger(code, in_container=in_container) as stranger:
        said, _ = stranger.communicate(encode_request(request), timeout=60)
    assert said.strip() == b"b''"
    assert stage.state() == 0
    stage.place.parent.chmod(0o700)
    assert stage.driver().park(10, 1).result is Result.DONE


@as_root
@pytest.mark.parametrize(
    ("in_container", "who"), [(False, f"user {NOBODY}"), (True, "another container")]
)
def test_a_strangers_helper_is_not_talked_to(stage: Stage, in_container: bool, who: str) -> None:
    """Somebody listens where ours should be, in a folder that we share."""
    code = (
        f"s = socket.socket(socket.AF_UNIX); s.bind({str(stage.place)!r})\n"
        f"{'' if in_container else AS_NOBODY}"
        "s.listen(); print('here', flush=True)\n"
        "c, _ = s.accept(); print(c.recv(9), flush=True)"
    )
    with a_stranger(code, in_container=in_container) as planted:
        assert planted.stdout is not None
        assert planted.stdout.readline() == b"here\n"
        driver = stage.driver(start_within=2)
        outcome = driver.park(10, 1)
        assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NO_HELPER)
        assert who in outcome.message
        assert planted.stdout.readline() == b"b''\n"


def test_a_helper_that_was_stopped_is_set_going_again(stage: Stage) -> None:
    """Before it is asked and in its work. It holds the lock, so no other one can take its place."""
    helper = stage.helper()
    process = psutil.Process(helper)
    process.suspend()
    try:
        until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped")
        assert stage.driver().park(10, 1).result is Result.DONE
        assert stage.driver().resume(None, 10).result is Result.DONE
        stage.world.slow(Call.CHECKPOINT, 500)
        parked = stage.parking(20)
        until(lambda: stage.state() == 1, "it is locked")
        process.suspend()
        assert parked.result(60).result is Result.DONE
    finally:
        process.resume()
    assert helper_pid(stage.place) == helper


def test_a_lock_that_somebody_holds_without_listening_is_said(stage: Stage) -> None:
    with open(f"{stage.place}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = stage.driver(start_within=6)
        outcome = driver.park(10, 1)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NO_HELPER)
    assert f"{stage.place}.lock" in outcome.message


@pytest.mark.parametrize("name", ["h.sock", "h.sock.new"])
@pytest.mark.parametrize("what", ["link", "dangling", "pipe"])
def test_what_lies_in_its_place_is_neither_followed_nor_in_the_way(
    stage: Stage, name: str, what: str, tmp_path: Path
) -> None:
    """Planted, or left by one that was killed before it listened."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    there = stage.place.parent / name
    if what == "pipe":
        os.mkfifo(there, 0o600)
    else:
        there.symlink_to(victim if what == "link" else tmp_path / "nowhere")
    assert stage.driver().park(20, 1).result is Result.DONE
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("name", "said"), [("h.sock.lock", "symbolic"), ("h.sock", "directory")])
def test_what_cannot_be_moved_out_of_the_way_is_said(
    stage: Stage, name: str, said: str, tmp_path: Path
) -> None:
    there = stage.place.parent / name
    if said == "directory":
        there.mkdir()
    else:
        there.symlink_to(tmp_path / "nowhere")
    outcome = stage.driver(start_within=6).park(10, 1)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NO_HELPER)
    assert said in outcome.message
    assert not (tmp_path / "nowhere").exists()
    there.rmdir() if said == "directory" else there.unlink()


# -- the place -------------------------------------------------------------------------------


@pytest.fixture
def runtime() -> Iterator[str]:
    """A runtime directory whose name is short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        yield folder


@pytest.mark.parametrize("where", ["runtime", "none", "long"])
def test_the_place_is_private_and_of_this_pid_namespace(runtime: str, where: str) -> None:
    given = {"runtime": {"XDG_RUNTIME_DIR": runtime}, "none": {}}
    environ = given.get(where, {"XDG_RUNTIME_DIR": f"/run/{'x' * 100}"})
    place = Path(checkpoint_socket(environ, sys.executable))
    own, temporary = Path(runtime, "jupyter-gpushare"), f"/tmp/jupyter-gpushare-{os.getuid()}"
    assert place.parent == (own if where == "runtime" else Path(temporary))
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert namespace_of_pids() in place.name
    assert str(place) != checkpoint_socket(environ, "/other/python")


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("open", "open to other users"),
        ("link", "no directory"),
        pytest.param("another's", f"belongs to user {NOBODY}", marks=as_root),
    ],
)
def test_a_folder_that_others_may_enter_is_not_used(runtime: str, whose: str, said: str) -> None:
    folder = Path(runtime, "jupyter-gpushare")
    if whose == "link":
        folder.symlink_to(tempfile.mkdtemp(dir=runtime))
    else:
        folder.mkdir(mode=0o700)
        folder.chmod(0o755 if whose == "open" else 0o700)
    if whose == "another's":
        os.chown(folder, NOBODY, NOBODY)
    place = Path(checkpoint_socket({"XDG_RUNTIME_DIR": runtime}, sys.executable))
    assert place.parent != folder  # the one in /tmp it is
    with pytest.raises(UnsafePlace, match=said):
        make_private(str(folder))
    with pytest.raises(UnsafePlace):
        listen(str(folder / "h.sock"))


@as_root
def test_whoever_makes_the_folder_in_tmp_first_blocks_nobody(runtime: str) -> None:
    victim = 54117
    planted = Path(f"/tmp/jupyter-gpushare-{victim}")
    planted.mkdir(mode=0o755)
    Path(runtime).chmod(0o755)
    mine = Path(runtime, "mine")
    mine.mkdir(mode=0o700)
    os.chown(mine, victim, victim)
    code = "import os\nfrom jupyter_gpushare.protocol.privateplace import checkpoint_socket\n"
    code += f"os.setgid({victim}); os.setuid({victim})\n"
    code += f"print(checkpoint_socket({{'HOME': {str(mine)!r}}}, '/python'))"
    line = [sys.executable, "-c", code]
    try:
        told = subprocess.run(line, capture_output=True, text=True, check=True)
    finally:
        planted.rmdir()
    assert Path(told.stdout.strip()).parent == mine / ".cache" / "jupyter-gpushare"


def test_no_place_at_all_is_a_refusal(stage: Stage, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    driver = stage.driver(place=str(tmp_path / "h.sock"))
    outcome = driver.park(10, 1)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NO_HELPER)


def test_kernels_wait_for_their_turn(stage: Stage) -> None:
    stage.helper()
    with stage.world.program() as other:
        other.allocate(GIB)
        stage.world.hang(Call.CHECKPOINT)
        parked = stage.parking()
        until(lambda: stage.world.is_in(Call.CHECKPOINT), "the checkpoint")
        busy = stage.drive(other).park(0.2, 0.1)
        assert (busy.result, busy.cause) == (Result.REFUSED, Cause.BUSY)
        stage.world.heal()
        assert stage.drive(other).park(20, 1).result is Result.DONE
        assert parked.result(60).result is Result.DONE
