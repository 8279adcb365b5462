"""A Slurm cluster of one node on this machine: munge, controller and node daemon in a folder of its own.

    python tests/study/one_node_slurm.py

starts one, says what to export so that `sbatch` and `squeue` find it, and ends it with Ctrl-C. It needs Debian's
`slurm-wlm` and `munge`, no rights, no accounting and no change of the system's own configuration.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")

CONFIGURATION = """
ClusterName=one-node
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0
NodeName={host} NodeAddr=127.0.0.1 NodeHostname={host} CPUs={cpus} RealMemory={memory}
PartitionName=only Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing_parts() -> list[str]:
    """What of Slurm is not installed here."""
    return [name for name in (*DAEMONS, "sbatch", "srun", "squeue") if _program(name) is None]


@contextmanager
def one_node_slurm(place: Path, *, cpus: int = 4) -> Iterator[dict[str, str]]:
    """Start a cluster, and end it afterwards.

    Args:
        place: An empty folder for its configuration, state and logs.
        cpus: How many tasks of one processor may run at once, whatever the machine has.

    Yields:
        What a client needs in its environment.
    """
    for name in ("state", "spool"):
        (place / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    configuration = place / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=host,
            place=place,
            user=getpass.getuser(),
            cpus=cpus,
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    found = {"SLURM_CONF": str(configuration)}
    with ExitStack() as stack:
        own = [f"--{part}-file={place}/munge.{part}" for part in ("key", "pid", "log", "seed")]
        munge = stack.enter_context(
            _daemon("munged", "--foreground", "--force", f"--socket={place}/munge.socket", *own, log=place)
        )
        _wait(lambda: (place / "munge.socket").exists(), [munge], place)
        control = stack.enter_context(_daemon("slurmctld", "-D", "-i", log=place, environment=found))
        node = stack.enter_context(_daemon("slurmd", "-D", "-N", host, log=place, environment=found))
        _wait(lambda: _state(found) == "idle", [munge, control, node], place)
        try:
            yield found
        finally:
            _slurm("scancel", f"--user={getpass.getuser()}", environment=found)
            with_limit = time.monotonic() + 10
            while _slurm("squeue", "--noheader", environment=found).strip() and time.monotonic() < with_limit:
                time.sleep(0.2)


@contextmanager
def _daemon(name: str, *words: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    with (log / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(
            [_program(name), *words], stdout=out, stderr=out, env={**os.environ, **(environment or {})}
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(is_there, daemons: list[subprocess.Popen], place: Path, limit: float = 30) -> None:
    end = time.monotonic() + limit
    while not is_there():
        if time.monotonic() > end or any(daemon.poll() is not None for daemon in daemons):
            said = "\n".join(file.read_text(errors="replace")[-1500:] for file in place.glob("*.out"))
            raise RuntimeError(f"the cluster did not start:\n{said}")
        time.sleep(0.1)


def _state(environment: dict[str, str]) -> str:
    return _slurm("sinfo", "--noheader", "--format=%T", environment=environment).strip()


def _slurm(*words: str, environment: dict[str, str]) -> str:
    asked = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return asked.stdout


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home, one_node_slurm(Path(home)) as needed:
        for name, value in needed.items():
            print(f"export {name}={value}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("ended")
