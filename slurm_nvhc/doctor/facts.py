"""What the doctor looked at, and what it says. Values only.

None, or a ``problem`` that is not '', means that something could not be looked at: that is
*unknown*, neither good nor bad.
"""

from __future__ import annotations

import stat
from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.diagnose import Mark
from slurm_nvhc.hooks.slurm_conf import Settings
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import AUTO
from slurm_nvhc.model.protective import Exclusion, Hold, Intent, OwnDrain, Pause
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.model.tested import Tested
from slurm_nvhc.policy.acting import Quarantine
from slurm_nvhc.policy.compiled import Budgets, Policy
from slurm_nvhc.policy.kill_switch import Switch
from slurm_nvhc.slurm.gres import GresList
from slurm_nvhc.slurm.jobs import PartitionRules

AS_ROOT: Final = "run as root to see it"
DCGMI: Final = "diagnostics.dcgmi"  # key of the policy, and name of the check


class Line(NamedTuple):
    """One thing that was looked at.

    check:   a stable name, "area.part"
    verdict: ok, warn, fail or unknown
    found:   what there is; advice: what to do, '' when there is nothing to do
    """

    check: str
    verdict: str
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Line:
    return Line(check, fd.OK, found)


def warn(check: str, found: str, advice: str) -> Line:
    return Line(check, fd.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Line:
    return Line(check, fd.FAIL, found, advice)


def unknown(check: str, found: str, advice: str) -> Line:
    return Line(check, fd.UNKNOWN, found, advice)


class Asked(NamedTuple):
    """A diagnostic that the policy has a hook run on this node.

    hook:   "prolog", "epilog" or "health check"; budget_s: all that this hook has
    places: patterns of partition and GPU model, '' = any
    """

    hook: str
    tests: tuple[str, ...]
    budget_s: float
    through: str = AUTO
    places: tuple[tuple[str, str], ...] = (("", ""),)


class Program(NamedTuple):
    """A file that a command of the policy names. key: of the policy; runs: it is run itself, and not given to what is run."""

    key: str
    path: str
    runs: bool = True


class PolicyFacts(NamedTuple):
    """policy: what hooks would load now; which: where it comes from, in words.

    problem: why the site's file can not be used, '' when it can or when there is none.
    narrowing: it narrows on some partition, model or node; quarantines: it has placeholder jobs hold GPUs on some.
    longest:  the longest budgets of this node, whatever the partition; None: those of ``policy``
    asked:    diagnostics in hooks, of every partition and model
    programs: of diagnostics and tests by hand, of every partition
    """

    path: str
    policy: Policy
    which: str
    there: bool = True
    readable: bool = True
    problem: str = ""
    narrowing: bool = False
    quarantines: bool = False
    longest: Optional[Budgets] = None
    asked: tuple[Asked, ...] = ()
    programs: tuple[Program, ...] = ()

    @property
    def budgets(self) -> Budgets:
        return self.longest if self.longest is not None else self.policy.budgets


class PathFact(NamedTuple):
    """One file or directory, the link itself where it is one. there is False also when that can not be told."""

    path: str
    there: bool = False
    uid: int = 0
    mode: int = 0  # as stat gives it, type included
    problem: str = ""

    @property
    def permissions(self) -> str:
        return f"{stat.S_IMODE(self.mode):04o}"


class Directory(NamedTuple):
    """filesystem: type of the file system that it lies, or would lie, on; '' when unknown.

    lost: why what is in it is gone after a reboot; '' when it is not, None when that can not be told.
    """

    path: PathFact
    filesystem: str = ""
    lost: Optional[str] = ""


class Trust(NamedTuple):
    """Something that root runs or obeys, and every directory and link on the way to it."""

    what: str
    chain: tuple[PathFact, ...]


class EngineProcess(NamedTuple):
    """embedded: not nv-hostengine, but a program that has become an engine itself."""

    pid: int
    name: str
    uid: int
    embedded: bool = False


class Listener(NamedTuple):
    """A listening TCP socket. Address as text, "0.0.0.0" and "::" meaning all of them."""

    address: str
    port: int


class BindingsPlace(NamedTuple):
    """A folder looked at. major: of the libdcgm that its modules load, None when they do not tell."""

    folder: str
    there: bool
    major: Optional[int] = None


class HostFacts(NamedTuple):
    """Facts about the machine itself.

    root:      the doctor runs as root
    engines:   None when processes can not be listed
    seen_into: every process could be looked into for an engine inside it
    listeners: None when /proc/net can not be read
    driver:    version of the loaded kernel driver, '' when none is loaded
    disabled:  path of the kill switch where it exists, '' otherwise
    cluster:   what the policy's kill switch says
    """

    root: bool
    engines: Optional[tuple[EngineProcess, ...]]
    seen_into: bool
    listeners: Optional[tuple[Listener, ...]]
    bindings: tuple[BindingsPlace, ...]
    driver: str
    state: Directory
    run: Directory
    trusted: tuple[Trust, ...]
    disabled: str = ""
    cluster: Switch = Switch()


class Launcher(NamedTuple):
    """A launcher's file. settings: the paths and the deadline written into it; {} for a file that is none of ours."""

    path: str
    there: bool
    executable: bool = False
    settings: Mapping[str, str] = {}
    problem: str = ""


class Listing(NamedTuple):
    """What slurmd itself says its GPUs are. files: None when it did not say."""

    files: Optional[tuple[str, ...]]
    problem: str = ""


class SlurmFacts(NamedTuple):
    """conf: path of slurm.conf, '' when none was found; settings: None when it can not be read.

    constrain:  jobs see only their own device files; None when that can not be told
    containers: names of container plugins that Slurm loads, with the file that says so
    scontrol:   the policy's scontrol can be run; version: what it says its version is
    sinfo_there: so can sinfo beside it
    """

    conf: str
    settings: Optional[Settings]
    gres: Optional[GresList]
    gres_problem: str
    constrain: Optional[bool]
    containers: tuple[str, ...]
    listing: Listing
    scontrol: str
    scontrol_there: bool
    version: str
    libdir: str
    launchers: tuple[Launcher, ...]
    sinfo_there: bool = True


class LastRun(NamedTuple):
    hook: str
    ended_ns: int
    verdict: str
    job_id: str = ""


class LedgerFacts(NamedTuple):
    """problem: why the ledger can not be read; denied: for lack of permission.

    size: bytes of the database and its log; set_aside: names of damaged files kept from before.
    tested: what diagnostics said so far, one of each GPU.
    """

    directory: str
    there: bool
    problem: str = ""
    denied: bool = False
    size: int = 0
    runs: Mapping[str, Optional[LastRun]] = {}
    set_aside: tuple[str, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    holds: tuple[Hold, ...] = ()
    own_drain: Optional[OwnDrain] = None
    intents: tuple[Intent, ...] = ()
    known: tuple[GpuIdentity, ...] = ()
    protective_problem: str = ""
    pause: Optional[Pause] = None
    diag: Optional[Mark] = None
    diag_alive: bool = False
    tested: tuple[Tested, ...] = ()


class QuarantineFacts(NamedTuple):
    """wanted: the policy's section by partition, where it is enabled; {} = nowhere. '' is that of health checks.

    alloc:   PrologFlags has Alloc; None when that can not be told
    missing: commands of Slurm that are not there
    of_node: the node's partitions; partitions: all of them. problem: why Slurm did not say.
    """

    wanted: Mapping[str, Quarantine] = {}
    alloc: Optional[bool] = None
    missing: tuple[str, ...] = ()
    of_node: tuple[str, ...] = ()
    partitions: Mapping[str, PartitionRules] = {}
    problem: str = ""


class DiagFacts(NamedTuple):
    """What the engine runs as a diagnostic, looked for only where the policy wants one.

    nvvs: where it is; '' at none of ``looked_at``. cuda: folders of plugins for CUDA beside it; None when that can not be told.
    """

    nvvs: str = ""
    looked_at: tuple[str, ...] = ()
    cuda: Optional[tuple[str, ...]] = None


class Facts(NamedTuple):
    """All that was looked at. The snapshot's wall clock is the present."""

    node: str
    policy: PolicyFacts
    snapshot: Snapshot
    host: HostFacts
    slurm: SlurmFacts
    ledger: LedgerFacts
    quarantine: QuarantineFacts = QuarantineFacts()
    diag: DiagFacts = DiagFacts()

    @property
    def now_ns(self) -> int:
        return self.snapshot.wall_ns

    @property
    def no_gpus(self) -> bool:
        """No NVIDIA GPU is here, and nobody expects one: the node is nothing for us to watch."""
        gres = self.slurm.gres
        expected = self.policy.policy.expect.gpus or self.ledger.known or (gres is not None and gres.files)
        return self.snapshot.pci_gpus == () and not self.snapshot.gpus and not expected
