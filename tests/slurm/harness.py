"""A private Slurm on one machine: munged, slurmctld and one slurmd per node, without systemd, as root.

Everything of a cluster lives under one directory of its own (its munge key and
socket, state, spool, logs, fake GPU device files), on ports of its own, so that
several clusters run side by side and nothing of the machine's is touched. Facts
that shape it, all observed on 22.05 and 24.11:

* the directory must be reachable by the job's user, so it is not pytest's tmp_path (0700);
* SlurmctldHost must be the real node name; Debian's slurmd accepts ``-N`` for several nodes on one host;
* slurmstepd overwrites its environment and its tasks survive a killed slurmd, so teardown
  finds stepds by their working directory and tasks by SLURM_CONF in their environment;
* ``cred_expire=5`` makes a requeued job eligible after 6 s instead of 121 s;
* a node is ``draining`` before it is ``drained``: every wait here polls.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

import ports
import processes
from machine import PATH, PRIVATE_PREFIX

JOB_USER = "nvhcjob"
SBIN = "/usr/sbin"
# SchedulerParameters under which tests need not wait for the scheduler's next round.
FAST = "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0"
PATIENT_S = 180.0  # for what comes by itself, on a busy machine too
T = TypeVar("T")


class Node(NamedTuple):
    """state: sinfo's long word without its trailing flag, e.g. idle, mixed, draining, drained."""

    name: str
    state: str
    reason: str
    user: str

    @property
    def out(self) -> bool:
        return self.state.startswith(("drain", "down", "fail"))


class JobInfo(NamedTuple):
    """As scontrol shows it: state PENDING, reason, restarts, priority (0 = held), exit "0:0"."""

    job_id: str
    state: str
    reason: str
    restarts: int
    priority: int
    exit_code: str


class SlurmTrouble(AssertionError):
    """The private Slurm did not do what a test needs; carries the tails of its logs."""


def wait_until(what: str, probe: Callable[[], Optional[T]], seconds: float = PATIENT_S) -> T:
    """Poll until ``probe`` returns something true, and return it; SlurmTrouble naming ``what`` otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise SlurmTrouble(f"waited {seconds:g} s in vain for {what} (last: {found!r})")
        time.sleep(0.03)


def job_user() -> pwd.struct_passwd:
    """An ordinary user for jobs; made when missing."""
    with open("/etc/passwd") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another test process may make it at this moment
        try:
            return pwd.getpwnam(JOB_USER)
        except KeyError:
            useradd = [f"{SBIN}/useradd", "--system", "--no-create-home", "--shell", "/bin/sh", JOB_USER]
            subprocess.run(useradd, check=True, env={"PATH": PATH})
            return pwd.getpwnam(JOB_USER)


def can_constrain_devices() -> str:
    """'' when a cgroup v1 devices hierarchy can be written here, otherwise why not.

    (Slurm's own cgroup v2 plugin wants to own the whole tree through systemd; without systemd it does not start.)
    """
    root = Path("/sys/fs/cgroup/devices")
    if not root.is_dir():
        return "no cgroup v1 devices hierarchy on this machine"
    probe = root / f"nvhc-probe-{os.getpid()}"
    try:
        probe.mkdir()
        (probe / "devices.deny").write_text("c 195:9 rwm")
        probe.rmdir()
    except OSError as exc:
        return f"the cgroup v1 devices hierarchy can not be written: {exc.strerror}"
    return ""


class Cluster:
    """Start with ``with Cluster(...) as cluster:``; set ``conf`` and files before that through ``root``.

    conf:       lines for slurm.conf (hooks, flags); may use {root}
    partitions: partition lines; one partition "gpu" over all nodes when empty
    gres_conf:  text of gres.conf; may use {root}; the default is one File list over all GPUs
    constrain:  ConstrainDevices through cgroup v1
    """

    def __init__(
        self,
        nodes: int = 1,
        gpus: int = 8,
        conf: str = "",
        partitions: str = "",
        gres: str = "",
        gres_conf: str = "",
        constrain: bool = False,
        uts: bool = False,
    ) -> None:
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self.gpus = gpus
        self.conf = conf
        self.partitions = partitions
        self.gres = gres or f"gpu:h100:{gpus}"
        self.gres_conf = gres_conf
        self.constrain = constrain
        self.uts = uts
        self.user = job_user()
        self.root = Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir="/tmp"))  # not in memory, where there may be no device files
        self.root.chmod(0o755)
        for name in ("etc", "state", "spool", "log", "run", "munge", "dev", "work"):
            (self.root / name).mkdir(mode=0o755)
        os.chown(self.root / "work", self.user.pw_uid, self.user.pw_gid)
        self.port, self._port_lock = ports.reserve()
        self.slurm_conf = self.root / "etc" / "slurm.conf"

    # ---- life

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self._write_configuration()
        munge = self.root / "munge"
        self._daemon(
            [
                f"{SBIN}/munged", "--force", "-S", f"{munge}/munge.sock", f"--key-file={munge}/munge.key", f"--pid-file={munge}/munged.pid",
                f"--log-file={self.root}/log/munged.log", f"--seed-file={munge}/seed", "--num-threads=2",
            ]
        )  # fmt: skip
        self._daemon([f"{SBIN}/slurmctld", "-f", str(self.slurm_conf)])
        for name in self.names:
            self.start_slurmd(name)
        wait_until("all nodes to be idle", lambda: {n.state for n in self.nodes()} == {"idle"})

    def start_slurmd(self, name: str, rebooted: bool = False) -> None:
        """rebooted: it says that the node was booted just now, as after a reboot."""
        slurmd = [f"{SBIN}/slurmd", *(["-b"] if rebooted else []), "-N", name, "-f", str(self.slurm_conf)]
        if self.uts:
            slurmd = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh", *slurmd]
        self._daemon(slurmd)

    def stop_slurmctld(self) -> None:
        processes.end([processes.pid_in(self.root / "run" / "slurmctld.pid")], PATIENT_S)  # it writes its state first

    def start_slurmctld(self) -> None:
        self._daemon([f"{SBIN}/slurmctld", "-f", str(self.slurm_conf)])

    def stop(self) -> None:
        """End every daemon, step and task of this cluster, then remove its directory."""
        pid_files = [*(self.root / "run").glob("*.pid"), self.root / "munge" / "munged.pid"]
        daemons = [processes.pid_in(path) for path in pid_files]
        for pid in self._steps_and_tasks():
            processes.send(pid, signal.SIGKILL)
        processes.end(daemons)
        for pid in self._steps_and_tasks():  # what a daemon started while it ended
            processes.send(pid, signal.SIGKILL)
        self._remove_cgroups()
        shutil.rmtree(self.root, ignore_errors=True)
        self._port_lock.close()

    def _daemon(self, argv: Sequence[str]) -> None:
        """Start something that puts itself into the background."""
        environment = {"PATH": PATH, "SLURM_CONF": str(self.slurm_conf)}
        with open(self.root / "log" / "start.err", "ab") as err:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=environment, timeout=PATIENT_S)
        if done.returncode:
            raise SlurmTrouble(f"{argv[0]} did not start (rc {done.returncode}):\n{self.log_tails()}")

    def _steps_and_tasks(self) -> Iterator[int]:
        log_dir = str(self.root / "log")
        marker = f"SLURM_CONF={self.slurm_conf}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                cwd = os.readlink(f"/proc/{entry}/cwd").removeprefix("(unreachable)").removesuffix(" (deleted)")
                comm = Path(f"/proc/{entry}/comm").read_text().strip()
                environ = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_step = comm == "slurmstepd" and cwd == log_dir
            is_task = marker in environ and any(v.startswith(b"SLURM_JOB_ID=") for v in environ)
            if is_step or is_task:
                yield int(entry)

    def _remove_cgroups(self) -> None:
        if not self.constrain:
            return
        for name in self.names:
            for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
                for folder, _dirs, _files in os.walk(path, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)

    # ---- configuration

    def _write_configuration(self) -> None:
        root, host = self.root, os.uname().nodename
        key = root / "munge" / "munge.key"
        key.write_bytes(random.randbytes(128))
        key.chmod(0o600)
        for minor in range(self.gpus):
            path = root / "dev" / f"nvidia{minor}"
            if path.exists():
                continue
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
                path.chmod(0o666)
            except OSError:
                path.touch()
        (root / "etc" / "gres.conf").write_text(
            self.gres_conf.replace("{root}", str(root)) or f"Name=gpu Type=h100 File={root}/dev/nvidia[0-{self.gpus - 1}]\n"
        )
        (root / "etc" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n" + ("ConstrainDevices=yes\n" if self.constrain else ""))
        nodes = "".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + 1 + i} CPUs=32 Boards=1"
            f" SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=20000 Gres={self.gres}\n"
            for i, name in enumerate(self.names)
        )
        everything = f"n[1-{len(self.names)}]"
        partitions = self.partitions or f"PartitionName=gpu Nodes={everything} Default=YES MaxTime=INFINITE State=UP"
        self.slurm_conf.write_text(
            f"""\
ClusterName=nvhc{self.port}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={self.port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin={"task/cgroup" if self.constrain else "task/none"}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters={FAST}
SlurmdParameters=config_overrides
ReturnToService=1
KillWait=2
MessageTimeout=120
BatchStartTimeout=120
MinJobAge=3600
FirstJobId={self.port}
GresTypes=gpu
DebugFlags=NO_CONF_HASH
{self.conf.replace("{root}", str(root))}
{nodes}{partitions.replace("{nodes}", everything)}
"""
        )
        for name in self.names:
            (root / "spool" / name).mkdir(exist_ok=True)

    # ---- commands

    def run(
        self,
        *argv: str,
        as_user: bool = False,
        check: bool = True,
        timeout: float = PATIENT_S,
        extra_env: Optional[Mapping[str, str]] = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster, as root or as the job's user, in the job's work directory."""
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, cwd=self.root / "work",
            env=self.environment(as_user, extra_env), **self.identity(as_user),
        )  # fmt: skip
        if check and done.returncode:
            raise SlurmTrouble(f"{' '.join(argv)} exited {done.returncode}: {done.stdout}{done.stderr}\n{self.log_tails()}")
        return done

    def environment(self, as_user: bool, extra: Optional[Mapping[str, str]] = None) -> dict[str, str]:
        """A clean environment: nothing of the test runner's (LD_*, PYTHON*, SLURM_*) reaches the cluster."""
        user = self.user.pw_name if as_user else "root"
        return {"PATH": PATH, "SLURM_CONF": str(self.slurm_conf), "USER": user, "HOME": "/", "LC_ALL": "C.UTF-8", **(extra or {})}

    def identity(self, as_user: bool) -> dict[str, object]:
        """Arguments for subprocess that make a child the job's user."""
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if as_user else {}

    def srun(self, *args: str, check: bool = True, timeout: float = PATIENT_S) -> subprocess.CompletedProcess[str]:
        """`srun` as the job's user."""
        return self.run("srun", "-Q", *args, as_user=True, check=check, timeout=timeout)

    def sbatch(self, script: str, *args: str) -> str:
        """Submit a script as the job's user; the job's id. Output goes to <work>/<job id>.out."""
        handle, path = tempfile.mkstemp(prefix="job", suffix=".sh", dir=self.root / "work")
        os.write(handle, f"#!/bin/sh\n{script}\n".encode())
        os.close(handle)
        os.chmod(path, 0o644)
        return self.run("sbatch", "--parsable", "-o", f"{self.root}/work/%j.out", *args, path, as_user=True).stdout.strip()

    def background_srun(self, *args: str) -> subprocess.Popen[str]:
        """A running `srun` of the job's user; the caller waits for it."""
        return subprocess.Popen(
            ["srun", "-Q", *args], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.root / "work", env=self.environment(True), **self.identity(True),  # type: ignore[call-overload]
        )  # fmt: skip

    # ---- questions

    def nodes(self) -> list[Node]:
        done = self.run("sinfo", "-h", "-N", "-p", self.first_partition(), "-o", "%N|%T|%u|%E", check=False)
        out = []
        for line in done.stdout.splitlines():
            parts = line.split("|", 3)
            if len(parts) == 4:
                reason = "" if parts[3] == "none" else parts[3]
                out.append(Node(parts[0], parts[1].rstrip("$@^~#!%*+-"), reason, parts[2]))
        return out

    def first_partition(self) -> str:
        found = re.search(r"PartitionName=(\S+)", self.partitions)
        return found.group(1) if found else "gpu"

    def node(self, name: str = "n1") -> Node:
        for node in self.nodes():
            if node.name == name:
                return node
        raise SlurmTrouble(f"no node {name}:\n{self.log_tails()}")

    def wait_node(self, state: str, name: str = "n1", seconds: float = PATIENT_S) -> Node:
        """Wait until the node's state is ``state`` exactly."""
        return self.wait_until(f"{name} to be {state}", lambda: _if(self.node(name), lambda n: n.state == state), seconds)

    def job(self, job_id: str) -> JobInfo:
        text = self.run("scontrol", "-o", "show", "job", job_id).stdout
        value = {k: v for k, v in re.findall(r"(\w+)=(\S*)", text)}
        return JobInfo(job_id, value["JobState"], value["Reason"], int(value["Restarts"]), int(value["Priority"]), value["ExitCode"])

    def jobs(self) -> list[JobInfo]:
        text = self.run("scontrol", "-o", "show", "job", check=False).stdout
        return [self.job(job_id) for job_id in re.findall(r"JobId=(\d+)", text)]

    def wait_job(self, job_id: str, state: str, seconds: float = PATIENT_S) -> JobInfo:
        """Wait until the job's state is ``state`` exactly."""
        return self.wait_until(f"job {job_id} to be {state}", lambda: _if(self.job(job_id), lambda j: j.state == state), seconds)

    def wait_quiet(self, seconds: float = PATIENT_S) -> None:
        """Wait until no job runs, waits or completes any more: every epilog has ended."""
        self.wait_until("all jobs to end", lambda: not self.run("squeue", "-h").stdout.strip(), seconds)

    def output(self, job_id: str) -> str:
        return (self.root / "work" / f"{job_id}.out").read_text()

    def request_counts(self) -> dict[str, int]:
        """slurmctld's received requests by type since the last reset, without sdiag's own."""
        counts: dict[str, int] = {}
        text = self.run("sdiag").stdout
        part = text.partition("statistics by message type")[2].partition("statistics by user")[0]
        for name, count in re.findall(r"^\s+(\w+)\s+\(\s*\d+\)\s+count:(\d+)", part, re.M):
            if name != "REQUEST_STATS_INFO":
                counts[name] = int(count)
        return counts

    def reset_request_counts(self) -> None:
        self.run("sdiag", "--reset")

    def log(self, daemon: str = "slurmd-n1") -> str:
        path = self.root / "log" / f"{daemon}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tails(self) -> str:
        parts = []
        for path in sorted((self.root / "log").glob("*")):
            if path.is_file():
                lines = path.read_text(errors="replace").splitlines()[-15:]
                parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def wait_until(self, what: str, probe: Callable[[], Optional[T]], seconds: float = PATIENT_S) -> T:
        """Poll, and add the logs' ends to a wait in vain: the directory is gone when the report is read."""
        try:
            return wait_until(what, probe, seconds)
        except SlurmTrouble as exc:
            raise SlurmTrouble(f"{exc}\n{self.log_tails()}") from None


def _if(value: T, condition: Callable[[T], bool]) -> Optional[T]:
    return value if condition(value) else None
