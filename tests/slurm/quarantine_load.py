"""A node under load while GPUs of it are put under quarantine and released: users always wait for every GPU.

Users' jobs ask for 1, 2 and 4 GPUs, from a queue that never runs dry and by srun and salloc in loops. Their hooks only note
down which GPUs they were given. A GPU is declared bad in the epilog of the job that had it. It must not be given to
any user's job from that moment until it is released: that is counted, from the notes of the prologs.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Callable, NamedTuple, Optional, TypeVar

from harness import SlurmTrouble
from site_nvhc import DRAIN_RULES, Site

from slurm_nvhc.model.protective import Hold
from slurm_nvhc.record.ledger import Ledger

T = TypeVar("T")
QUARANTINE = "quarantine: {enabled: true, max_gpus: 4, place_within: %s}\n"
# Only builtin commands: these run for every job.
PROLOG = """\
#!/bin/sh
read up idle </proc/uptime
[ "$SLURM_JOB_UID" = 0 ] && exec {launcher}
echo "$up start $SLURM_JOB_ID $SLURM_JOB_GPUS" >>{log}
exit 0
"""
EPILOG = """\
#!/bin/sh
[ "$SLURM_JOB_UID" = 0 ] && exec {launcher}
bad=
for number in $(echo "$SLURM_JOB_GPUS" | {sed} 's/,/ /g'); do
    [ -e {bad}/$number ] && bad="$bad $number"
done
if [ -n "$bad" ]; then
    {python} -I {declare} bad {places} {log} $bad </dev/null >/dev/null 2>>{log}.errors
    for number in $bad; do /bin/rm -f {bad}/$number; done
fi
read up idle </proc/uptime
echo "$up end $SLURM_JOB_ID $SLURM_JOB_GPUS" >>{log}
exit 0
"""


class Note(NamedTuple):
    up: float
    what: str
    words: tuple[str, ...]


class Transition(NamedTuple):
    """One GPU: bad, held and released at these times (uptime, s); held is None when it never was."""

    position: int
    bad: float
    held: Optional[float]
    well: float


class Load:
    """``with Load(site) as load``: the site's hooks must be the light ones (see ``prepare``)."""

    def __init__(self, site: Site, seed: int = 1, short_s: float = 0.05, long_s: float = 0.6) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.log = site.cluster.root / "work" / "gpus.log"
        self.transitions: list[Transition] = []
        self._seconds = (short_s, long_s)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # ---- users

    def __enter__(self) -> Load:
        for work in (self._queue, self._sruns, self._sallocs):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _pause(self) -> str:
        return f"{self.random.uniform(*self._seconds):.2f}"

    def _queue(self) -> None:
        """Arrays of jobs, so that some always wait. Every other request is for more than one GPU."""
        while not self._stop.is_set():
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):
                waiting = self.site.cluster.run("squeue", "-h", "-r", "-t", "PD", "-u", self.site.cluster.user.pw_name, "-o", "%A").stdout
                if len(waiting.split()) < 24:
                    gpus = self.random.choice((1, 1, 1, 2, 2, 4))
                    self.site.cluster.sbatch(f"sleep {self._pause()}", f"--gres=gpu:{gpus}", "--array=0-7", "-o", "/dev/null")
            self._stop.wait(0.3)

    def _interactive(self, *command: str) -> None:
        while not self._stop.is_set():
            gpus = self.random.choice((1, 2))
            with contextlib.suppress(subprocess.SubprocessError):
                words = (*command, f"--gres=gpu:{gpus}", "sleep", self._pause())
                self.site.cluster.run(*words, as_user=True, check=False, timeout=30)
            self._stop.wait(0.1)

    def _sruns(self) -> None:
        self._interactive("srun", "-Q", "-n1", "--immediate=20")

    def _sallocs(self) -> None:
        self._interactive("salloc", "-Q", "-n1", "--immediate=20")

    # ---- GPUs

    def transition(
        self, *positions: int, seconds: float = 90.0, keep_s: float = 0.3, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """These GPUs become bad, each in the epilog of the job that has it then; are held; and are released together.

        meanwhile: what happens while they are held.
        """
        folder = self.site.cluster.root / "work" / "bad"
        for position in positions:
            (folder / str(position)).touch()
        held: dict[int, float] = {}

        def all_held() -> bool:
            for hold in self.holds():
                position = self.position(hold.uuid)
                if position in positions:
                    held.setdefault(position, time.clock_gettime(time.CLOCK_BOOTTIME))
            return len(held) == len(positions)

        try:
            self.wait_until(f"GPUs {positions} to be held", all_held, seconds)
            time.sleep(keep_s)
            meanwhile()
        finally:
            self._well(*positions)
            notes = self.notes()
            for position in positions:
                bad = [n.up for n in notes if n.what == "bad" and str(position) in n.words]
                well = [n.up for n in notes if n.what == "well" and str(position) in n.words]
                if bad and well:
                    self.transitions.append(Transition(position, bad[-1], held.get(position), well[-1]))
        self.wait_until("the placeholder jobs to end", lambda: not self.placeholders(), seconds)

    def wait_until(self, what: str, probe: Callable[[], Optional[T]], seconds: float) -> T:
        """What is known of the node's GPUs is told with a wait in vain: afterwards all of it is gone."""
        try:
            return self.site.cluster.wait_until(what, probe, seconds)
        except SlurmTrouble as exc:
            node = self.site.cluster.run("scontrol", "-d", "show", "node", "n1", check=False).stdout
            jobs = self.site.cluster.run("squeue", "-a", "-o", "%i %j %T %r %b", check=False).stdout
            notes = "\n".join(self.log.read_text().splitlines()[-80:])
            raise SlurmTrouble(f"{exc}\n--- node\n{node}{jobs}--- notes\n{notes}\n--- trouble\n{self.trouble()}") from None

    def declare(self, *positions: int) -> None:
        """Now, by nobody's epilog: free GPUs."""
        words = [str(self.site.python), "-I", str(self.site.cluster.root / "declare.py"), "bad", *places(self.site), str(self.log)]
        self.site.cluster.run(*words, *(str(p) for p in positions))

    def _well(self, *positions: int) -> None:
        for position in positions:
            (self.site.cluster.root / "work" / "bad" / str(position)).unlink(missing_ok=True)
        declared = [str(p) for p in positions if self.site.uuid(p) in {e.uuid for e in self._kept("exclusions")}]
        if declared:
            words = [str(self.site.python), "-I", str(self.site.cluster.root / "declare.py"), "well", *places(self.site), str(self.log)]
            self.site.cluster.run(*words, *declared)

    def wait_starts(self, more: int, seconds: float = 120.0) -> None:
        """Let users' jobs go on undisturbed until so many have started."""
        wanted = self.starts() + more
        self.site.cluster.wait_until(f"{more} jobs to start", lambda: self.starts() >= wanted, seconds)

    def position(self, uuid: str) -> int:
        return next(n for n in range(self.site.cluster.gpus) if self.site.uuid(n) == uuid)

    def holds(self) -> tuple[Hold, ...]:
        return self._kept("holds")

    def _kept(self, what: str):  # type: ignore[no-untyped-def]
        with Ledger.open(f"{self.site.options.state}/n1", 5.0) as ledger:
            return getattr(ledger.protective(), what)

    def placeholders(self) -> list[str]:
        return self.site.cluster.run("squeue", "-h", "-r", "-u", "root", "-o", "%i %j %T").stdout.splitlines()

    # ---- what came of it

    def notes(self) -> list[Note]:
        out = []
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            up, what, *words = line.split()
            out.append(Note(float(up), what, tuple(words)))
        return out

    def starts(self) -> int:
        return sum(n.what == "start" for n in self.notes())

    def given_out(self) -> list[str]:
        """Users' jobs that got a GPU between its declaration and its release."""
        out = []
        for note in self.notes():
            if note.what != "start" or len(note.words) < 2:
                continue
            given = {int(p) for p in note.words[1].split(",")}
            for t in self.transitions:
                if t.position in given and t.bad <= note.up <= t.well:
                    out.append(f"job {note.words[0]} got GPU {t.position} {note.up - t.bad:.2f} s after it was declared bad")
        return out

    def seconds_to_hold(self) -> list[float]:
        return sorted(t.held - t.bad for t in self.transitions if t.held is not None)

    def trouble(self) -> str:
        """What the epilogs wrote to stderr, and steps that did not reach their aim."""
        path = Path(f"{self.log}.errors")
        said = path.read_text() if path.exists() else ""
        failed = [" ".join(n.words) for n in self.notes() if n.what == "done" and "False" in n.words[:2]]
        return "\n".join([said, *failed]).strip()


def places(site: Site) -> tuple[str, ...]:
    return (site.options.config, site.options.state, site.options.run, site.options.slurm_conf)


class LoadedSite(Site):
    """A node whose users' jobs have the light hooks."""

    def __init__(self, place_within: str = "30s", conf: str = "", policy: str = "") -> None:
        super().__init__(DRAIN_RULES + QUARANTINE % place_within + policy, conf=conf)

    def _make(self) -> None:
        super()._make()
        root = self.cluster.root
        (root / "declare.py").write_text((Path(__file__).with_name("declare.py")).read_text())
        (root / "work" / "bad").mkdir()
        log = root / "work" / "gpus.log"
        values = {
            "log": log, "bad": root / "work" / "bad", "sed": "/bin/sed", "python": self.python, "declare": root / "declare.py",
            "places": " ".join(places(self)),
        }  # fmt: skip
        for name, text in (("prolog", PROLOG), ("epilog", EPILOG)):
            path = root / f"light-{name}.sh"
            path.write_text(text.format(launcher=f"{self.options.libdir}/nvhc-{name}.sh", **values))
            path.chmod(0o755)
            self.cluster.conf = self.cluster.conf.replace(f"{self.options.libdir}/nvhc-{name}.sh", str(path))
