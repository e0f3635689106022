"""A Slurm of one node on this machine, for the tests: Debian's slurmctld, slurmd, slurm-client and
munge, started on loopback as root and stopped again.

python -m tests.slurm_cluster starts one, says how to use it, and stops it on Ctrl-C.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={tmp}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={tmp}/state
SlurmdSpoolDir={tmp}/spool
SlurmctldPidFile={tmp}/slurmctld.pid
SlurmdPidFile={tmp}/slurmd.pid
SlurmctldLogFile={tmp}/slurmctld.log
SlurmdLogFile={tmp}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
MessageTimeout=60
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; '' if there can."""
    missing = [name for name in PROGRAMS if _which(name) is None]
    if missing:
        return (
            f"Slurm is not installed ({', '.join(missing)} missing): "
            "apt-get install slurmctld slurmd slurm-client munge"
        )
    return "" if os.geteuid() == 0 else "the test starts Slurm's daemons, which takes root"


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Within it the environment that is yielded is of a cluster that runs jobs."""
    tmp = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path: sockets lie in it
    host = socket.gethostname().partition(".")[0]
    conf = tmp / "slurm.conf"
    text = _CONF.format(host=host, tmp=tmp, ports=_free_ports(2), cpus=os.cpu_count())
    conf.write_text(text)
    (tmp / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for name in ("state", "spool"):
        (tmp / name).mkdir()
    env = os.environ | {"SLURM_CONF": str(conf)}
    env["PATH"] = f"{env['PATH']}:/usr/sbin:/usr/local/sbin"
    key = tmp / "munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, env=env)
    daemons = []
    try:
        for command in (
            ["munged", "-F", "--force", f"--key-file={key}", f"--socket={tmp}/munge.socket"]
            + [f"--pid-file={tmp}/munged.pid", f"--log-file={tmp}/munged.log"]
            + [f"--seed-file={tmp}/munged.seed"],
            ["slurmctld", "-D", "-i"],
            ["slurmd", "-D", "-N", host],
        ):
            with open(tmp / f"{command[0]}.out", "w") as log:
                daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=tmp))
            time.sleep(1)
        _wait_until_idle(env, tmp)
        yield env
    finally:
        subprocess.run(["scancel", "--user=root"], env=env, capture_output=True)
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
        shutil.rmtree(tmp, ignore_errors=True)


def _wait_until_idle(env: dict[str, str], tmp: Path) -> None:
    for _ in range(60):
        state = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, timeout=120
        )
        if state.stdout.strip() in ("idle", "mixed"):
            return
        time.sleep(1)
    logs = "\n".join(f"{file.name}\n{file.read_text()}" for file in sorted(tmp.glob("*.out")))
    raise RuntimeError(f"Slurm did not start: {state.stdout} {state.stderr}\n{logs[-4000:]}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    with cluster() as ready:
        print(f"export SLURM_CONF={ready['SLURM_CONF']}\nrunning until Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
