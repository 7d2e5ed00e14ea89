"""The doctor's checks over facts made by hand: a machine in order, and one thing wrong at a time."""

from __future__ import annotations

import stat
from typing import Any

import build
import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.diagnose import Mark
from slurm_nvhc.doctor.examine import examine, verdict
from slurm_nvhc.doctor.facts import (
    BindingsPlace,
    Directory,
    EngineProcess,
    Facts,
    HostFacts,
    LastRun,
    Launcher,
    LedgerFacts,
    Line,
    Listener,
    Listing,
    PathFact,
    PolicyFacts,
    SlurmFacts,
    Trust,
)
from slurm_nvhc.doctor.mapping import rows
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import PciGpu, Trouble
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.slurm.gres import GresList

S = 10**9
DIR, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
LIB = "/usr/libexec/nvhc"
DEVICES = ("/dev/nvidia0", "/dev/nvidia1")
ENFORCED = build.rule("remap", "row_remap_failure", fail=pol.Level(value_is=(1,)))
BAKED = {"PYTHON": "/opt/nvhc/bin/python", "CONFIG": "/etc/nvhc/policy.yaml", "STATE": "/var/lib/nvhc", "RUN": "/run/nvhc"}


def launcher(name: str, seconds: int) -> Launcher:
    return Launcher(f"{LIB}/{name}", True, True, {**BAKED, "DEADLINE": str(seconds)})


def settings(**more: str) -> dict[str, tuple[str, ...]]:
    known = {
        "prolog": f"{LIB}/nvhc-prolog.sh", "epilog": f"{LIB}/nvhc-epilog.sh", "healthcheckprogram": f"{LIB}/nvhc-health-check.sh",
        "prologflags": "Alloc", "healthcheckinterval": "300", "schedulerparameters": "bf_interval=30,nohold_on_prolog_fail",
    }  # fmt: skip
    return {key: (value,) for key, value in {**known, **more}.items() if value}


def machine(**changes: Any) -> Facts:
    """Two H100 behind one engine, hooks installed and at work. ``host__driver=…`` changes one fact."""
    engine = pol.Engine(address="unix:///run/dcgm.sock")
    snapshot = build.snapshot(build.gpu(0), build.gpu(1), source="dcgm")
    policy = build.policy(ENFORCED, expect=pol.Expect(2, 2), engine=engine)
    ago = build.T0 - 100 * S
    facts = Facts(
        node="n1",
        policy=PolicyFacts("/etc/nvhc/policy.yaml", policy, "the site's policy"),
        snapshot=snapshot,
        host=HostFacts(
            root=True,
            engines=(EngineProcess(700, "nv-hostengine", 0),),
            seen_into=True,
            listeners=(Listener("0.0.0.0", 22),),
            bindings=(BindingsPlace("/usr/share/dcgm4", True, 4), BindingsPlace("/usr/local/dcgm", False)),
            driver="575.57",
            state=Directory(PathFact("/var/lib/nvhc", True, 0, DIR | 0o700), "ext4"),
            run=Directory(PathFact("/run/nvhc", True, 0, DIR | 0o755), "tmpfs"),
            trusted=(Trust("policy", (PathFact("/", True, 0, DIR | 0o755), PathFact("/etc/nvhc/policy.yaml", True, 0, FILE | 0o644))),),
        ),
        slurm=SlurmFacts(
            conf="/etc/slurm/slurm.conf",
            settings=settings(),
            gres=GresList(DEVICES),
            gres_problem="",
            constrain=True,
            containers=(),
            listing=Listing(DEVICES),
            scontrol="/usr/bin/scontrol",
            scontrol_there=True,
            version="slurm 24.11.5",
            libdir=LIB,
            launchers=(
                launcher("nvhc-prolog.sh", 9), launcher("nvhc-epilog.sh", 21), launcher("nvhc-health-check.sh", 31),
                Launcher(f"{LIB}/nvhc-task-prolog.sh", True, True),
            ),
        ),
        ledger=LedgerFacts(
            "/var/lib/nvhc/n1",
            True,
            size=100_000,
            runs={"prolog": LastRun("prolog", ago, "ok", "8812"), "epilog": None, "health_check": LastRun("health_check", ago, "ok")},
            known=tuple(g.identity for g in (snapshot.gpus or {}).values()),
        ),
    )  # fmt: skip
    for key, value in changes.items():
        part, _, name = key.partition("__")
        facts = facts._replace(**{part: getattr(facts, part)._replace(**{name: value}) if name else value})
    return facts


def found(facts: Facts, check: str) -> list[Line]:
    return [line for line in examine(facts) if line.check == check]


def one(facts: Facts, check: str) -> Line:
    (line,) = found(facts, check)
    return line


def test_a_machine_in_order_has_nothing_to_do() -> None:
    lines = examine(machine())
    assert [line for line in lines if line.verdict != "ok" or line.advice] == []
    assert verdict(lines) == "ok"
    assert {line.check.partition(".")[0] for line in lines} == {"policy", "engine", "gpus", "permissions", "mapping", "slurm", "ledger"}


def lost(n: int = 1) -> Any:
    return build.snapshot(build.gpu(0), build.gpu(n, status="lost"), source="dcgm")


def snap(*gpus: Any, **more: Any) -> Any:
    return build.snapshot(*(gpus or (build.gpu(0), build.gpu(1))), source="dcgm", **more)


def directory(path: str, mode: int, kind: str = "ext4", uid: int = 0) -> Directory:
    return Directory(PathFact(path, True, uid, mode), kind)


def policy_with(*rules: Any, **sections: Any) -> Any:
    engine = pol.Engine(address="unix:///run/dcgm.sock")
    return build.policy(*(rules or (ENFORCED,)), **{"expect": pol.Expect(2, 2), "engine": engine, **sections})


def trouble(code: str, part: str = "engine") -> tuple[Trouble, ...]:
    return (Trouble(code, part, "as it was said"),)


HEALTHY_TWICE = (EngineProcess(1, "nv-hostengine", 0), EngineProcess(2, "nv-hostengine", 0))
INSIDE = (EngineProcess(1, "nv-hostengine", 0), EngineProcess(2, "dcgm-exporter", 0, embedded=True))
STATE, RUN = "/var/lib/nvhc", "/run/nvhc"
LATE = {"health_check": LastRun("health_check", build.T0 - 1000 * S, "ok")}
HOUR_OLD = Intent("drain", "nvhc: NVL-STORM gpu3", build.T0 - 4000 * S, tries=7)
GONE = Exclusion(build.uuid(7), "NVL-STORM", "", "nvhc", build.T0)

# (what is changed, the check that says so, its verdict, a part of what it says)
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"policy__problem": "policy.yaml, line 3: no", "policy__which": "the last good policy"},
     "policy.file", "fail", "last good policy test"),
    ({"policy__problem": "no", "policy__readable": False, "host__root": False}, "policy.file", "unknown", "root"),
    ({"snapshot": snap(troubles=trouble("MON-ENGINE-ABSENT"))._replace(gpus=None)}, "engine.reach", "fail", "start nv-hostengine"),
    ({"snapshot": snap(troubles=trouble("MON-ENGINE-LIES"))}, "engine.reach", "warn", "as it was said"),
    ({"snapshot": snap()._replace(gpus=None)}, "engine.reach", "fail", "no list of GPUs"),
    ({"host__bindings": (BindingsPlace("/a", False), BindingsPlace("/b", False))}, "engine.bindings", "fail", "/a, /b"),
    ({"host__bindings": (BindingsPlace("/a", True, 3),)}, "engine.bindings", "warn", "DCGM 4"),
    ({"host__engines": HEALTHY_TWICE}, "engine.others", "warn", "2 engines run: nv-hostengine 1, nv-hostengine 2"),
    ({"host__engines": INSIDE}, "engine.others", "warn", "dcgm-exporter 2"),
    ({"host__engines": None}, "engine.others", "unknown", "/proc"),
    ({"host__seen_into": False}, "engine.others", "unknown", "root"),
    ({"policy__policy": policy_with(engine=pol.Engine(embedded=True))}, "engine.others", "warn", "engine.embedded"),
    ({"host__listeners": (Listener("0.0.0.0", 5555),)}, "engine.port", "warn", "0.0.0.0:5555"),
    ({"host__listeners": (Listener("::", 5555),)}, "engine.port", "warn", "[::]:5555"),
    ({"host__listeners": (Listener("10.0.0.1", 6000),), "policy__policy": policy_with(engine=pol.Engine(address="tcp://n1:6000"))},
     "engine.port", "warn", "10.0.0.1:6000"),
    ({"host__listeners": None}, "engine.port", "unknown", "/proc"),
    ({"snapshot": snap(build.gpu(0, row_remap_failure=NoData("not_permitted")), build.gpu(1))},
     "engine.account", "warn", "row_remap_failure"),
    ({"host__driver": ""}, "gpus.driver", "fail", "not loaded"),
    ({"host__driver": "570.1"}, "gpus.driver", "warn", "575.57"),
    ({"snapshot": lost()}, "gpus.count", "fail", "gpu1 is lost"),
    ({"snapshot": snap(pci_gpus=(PciGpu("0000:1b:00.0"), PciGpu("0000:1c:00.0", False)))},
     "gpus.count", "fail", "0000:1c:00.0 does not answer"),
    ({"snapshot": snap(build.gpu(0)), "ledger__known": ()}, "gpus.count", "fail", "gres.conf 2"),
    ({"snapshot": snap(pci_gpus=tuple(PciGpu(f"0000:1{n}:00.0") for n in range(3)))}, "gpus.count", "fail", "PCI bus 3"),
    ({"policy__policy": policy_with(expect=pol.Expect(8, 2))}, "gpus.count", "fail", "policy 8"),
    ({"slurm__gres": GresList(DEVICES[:1])}, "gpus.count", "warn", "gres.conf 1"),
    ({"snapshot": snap()._replace(gpus=None)}, "gpus.count", "unknown", "engine ?"),
    ({"snapshot": snap(build.gpu(0), build.with_link(build.gpu(1), 1, nvlink_state="down"))}, "gpus.links", "fail", "gpu1 has 1 of 2"),
    ({"snapshot": snap(build.gpu(0), build.gpu(1, links=3)), "policy__policy": policy_with(expect=pol.Expect())},
     "gpus.links", "warn", "gpu0 has 2 of 3"),
    ({"snapshot": snap(build.gpu(0, links=3), build.gpu(1, links=3))}, "gpus.links", "warn", "gpu0 has 3"),
    ({"snapshot": snap(build.gpu(0), build.with_link(build.gpu(1), 1, nvlink_state=NoData("blank")))}, "gpus.links", "unknown", "states"),
    ({"snapshot": snap(build.gpu(0), build.gpu(1, row_remap_failure=NoData("blank")))}, "gpus.needed", "warn", "remap (row_remap_failure)"),
    ({"policy__policy": policy_with(build.rule("x", "ecc_mode"))}, "gpus.needed", "warn", "x (ecc_mode)"),
    ({"snapshot": snap(events_known=False, troubles=trouble("MON-KERNEL-LOG", "kernel_log"))},
     "permissions.kernel_log", "fail", "CAP_SYSLOG"),
    ({"snapshot": snap(events_known=False), "host__root": False}, "permissions.kernel_log", "unknown", "root"),
    ({"host__state": directory(STATE, DIR | 0o755)}, "permissions.state", "fail", "0755"),
    ({"host__state": directory(STATE, DIR | 0o700, uid=5)}, "permissions.state", "fail", "uid 5"),
    ({"host__state": directory(STATE, FILE | 0o700)}, "permissions.state", "fail", "not a directory"),
    ({"host__state": Directory(PathFact(STATE))}, "permissions.state", "warn", "hooks install"),
    ({"host__state": Directory(PathFact(STATE, problem="Permission denied"))}, "permissions.state", "unknown", "Permission denied"),
    ({"host__state": directory(STATE, DIR | 0o700, "tmpfs")}, "permissions.state_filesystem", "warn", "do not survive"),
    ({"host__state": directory(STATE, DIR | 0o700, "nfs4")}, "permissions.state_filesystem", "warn", "locks"),
    ({"host__state": directory(STATE, DIR | 0o700, "overlay")}, "permissions.state_filesystem", "unknown", "overlay"),
    ({"host__run": directory(RUN, DIR | 0o755, "ext4")}, "permissions.run", "warn", "before a reboot"),
    ({"host__run": directory(RUN, DIR | 0o755, "nfs")}, "permissions.run", "warn", "shared"),
    ({"host__run": directory(RUN, DIR | 0o700, "tmpfs")}, "permissions.run", "warn", "task prologs"),
    ({"host__run": directory(RUN, DIR | 0o777, "tmpfs")}, "permissions.run", "fail", "others decide"),
    ({"host__trusted": (Trust("policy", (PathFact("/etc/p", True, 0, FILE | 0o664),)),)}, "permissions.policy", "fail", "0664"),
    ({"host__trusted": (Trust("interpreter", (PathFact("/home/a", True, 1000, DIR | 0o755), PathFact("/home/a/p", True))),)},
     "permissions.interpreter", "fail", "/home/a belongs to uid 1000"),
    ({"host__trusted": (Trust("package", (PathFact("/x", problem="Permission denied"),)),)}, "permissions.package", "unknown", "root"),
    ({"slurm__gres": None, "slurm__gres_problem": "no such file"}, "mapping.positions", "warn", "File=/dev/nvidia0,/dev/nvidia1"),
    ({"slurm__gres": GresList((*DEVICES, "/dev/nvidia5"))}, "mapping.positions", "fail", "position 2"),
    ({"slurm__listing": Listing(DEVICES[::-1])}, "mapping.slurmd", "fail", "position 0 is /dev/nvidia1, gres.conf says /dev/nvidia0"),
    ({"slurm__listing": Listing(DEVICES[:1])}, "mapping.slurmd", "fail", "position 1 is nothing"),
    ({"slurm__listing": Listing(())}, "mapping.slurmd", "fail", "slurmd has no GPU"),
    ({"slurm__gres": GresList((), True)}, "mapping.slurmd", "warn", "no File list"),
    ({"slurm__listing": Listing(None, "it is not on this machine")}, "mapping.slurmd", "unknown", "by hand"),
    ({"host__disabled": "/etc/nvhc/disabled"}, "slurm.switch", "warn", "rm /etc/nvhc/disabled"),
    ({"slurm__launchers": (Launcher(f"{LIB}/nvhc-prolog.sh", False),)}, "slurm.prolog", "fail", "drain the node"),
    ({"slurm__launchers": (Launcher(f"{LIB}/nvhc-prolog.sh", True, False, BAKED),)}, "slurm.prolog", "fail", "chmod"),
    ({"slurm__launchers": (Launcher(f"{LIB}/nvhc-epilog.sh", True, True),)}, "slurm.epilog", "fail", "stub"),
    ({"slurm__launchers": (launcher("nvhc-epilog.sh", 5),)}, "slurm.epilog", "warn", "deadline 5 (here 21)"),
    ({"slurm__launchers": (), "slurm__settings": None}, "slurm.launchers", "unknown", "in time"),
    ({"slurm__launchers": (Launcher(f"{LIB}/nvhc-prolog.sh", False),), "slurm__settings": None}, "slurm.launchers", "warn", "--libdir"),
    ({"slurm__settings": None, "slurm__conf": ""}, "slurm.conf", "unknown", "--slurm-conf"),
    ({"slurm__settings": None}, "slurm.conf", "unknown", "can not be read"),
    ({"slurm__settings": settings(epilog="")}, "slurm.hooks", "warn", f"Epilog={LIB}/nvhc-epilog.sh"),
    ({"slurm__settings": settings(prologflags="")}, "slurm.hooks", "warn", "PrologFlags=Alloc"),
    ({"slurm__settings": {**settings(), "prolog": (f"{LIB}/nvhc-prolog.sh", "/x")}}, "slurm.times", "warn", "2 Prolog lines"),
    ({"slurm__settings": settings(prologepilogtimeout="21")}, "slurm.times", "warn", "PrologEpilogTimeout=21"),
    ({"slurm__settings": settings(batchstarttimeout="5")}, "slurm.times", "warn", "BatchStartTimeout=5"),
    ({"slurm__settings": settings(messagetimeout="5")}, "slurm.times", "warn", "MessageTimeout=5"),
    ({"slurm__settings": settings(healthcheckinterval="0")}, "slurm.health_check_interval", "warn", "never runs"),
    ({"slurm__settings": settings(healthchecknodestate="IDLE")}, "slurm.health_check_interval", "warn", "IDLE"),
    ({"slurm__scontrol_there": False}, "slurm.scontrol", "fail", "slurm.bin_dir"),
    ({"slurm__sinfo_there": False}, "slurm.sinfo", "warn", "without counting"),
    ({"policy__narrowing": True}, "slurm.narrowing", "fail", "TaskProlog="),
    ({"policy__narrowing": True, "slurm__containers": ("pyxis (/etc/p)",)}, "slurm.containers", "warn", "pyxis"),
    ({"slurm__constrain": None}, "slurm.constrain", "unknown", "cgroup.conf"),
    ({"ledger__there": False}, "ledger.file", "warn", "no hook has run"),
    ({"ledger__problem": "Permission denied", "ledger__denied": True}, "ledger.file", "unknown", "root"),
    ({"ledger__problem": "file is not a database"}, "ledger.file", "fail", "not a database"),
    ({"ledger__set_aside": ("ledger.sqlite3.corrupt-1",)}, "ledger.file", "warn", "corrupt-1"),
    ({"ledger__runs": LATE}, "ledger.health_check", "warn", "ran 16m ago"),
    ({"ledger__runs": {}}, "ledger.health_check", "warn", "never run"),
    ({"ledger__runs": LATE, "slurm__settings": settings(healthchecknodestate="IDLE")}, "ledger.health_check", "unknown", "IDLE"),
    ({"ledger__protective_problem": "protective.json: broken"}, "ledger.protective", "warn", "broken"),
    ({"ledger__intents": (HOUR_OLD,)}, "ledger.intents", "warn", "tries 7"),
    ({"ledger__exclusions": (GONE,)}, "ledger.exclusions", "warn", "not in this node"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "check", "expected", "said"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)])
def test_one_thing_wrong(changes: dict[str, Any], check: str, expected: str, said: str) -> None:
    facts = machine(**changes)
    line = one(facts, check)
    assert line.verdict == expected
    assert said in f"{line.found} -> {line.advice}"
    assert line.advice
    assert "\n" not in line.found + line.advice
    assert verdict(examine(facts)) in (expected, "warn", "fail")


# What looks odd and is in order.
FINE: list[tuple[dict[str, Any], str, str]] = [
    ({"policy__there": False, "policy__which": "the packaged policy"}, "policy.file", "does not exist: the packaged policy"),
    ({"policy__policy": policy_with(mode="observe")}, "policy.rules", "would act"),
    ({"host__listeners": (Listener("127.0.0.1", 5555), Listener("::1", 5555), Listener("::ffff:127.0.0.1", 5555))},
     "engine.port", "every user"),
    ({"host__bindings": (BindingsPlace("/a", True),)}, "engine.bindings", "/a"),
    ({"snapshot": snap(engine="")}, "engine.bindings", "DCGM 4"),
    ({"host__engines": (EngineProcess(2, "dcgm-exporter", 0, embedded=True),)}, "engine.others", "dcgm-exporter"),
    ({"host__engines": (EngineProcess(1, "nv-hostengine", 990),)}, "engine.account", "uid 990; no reading was refused"),
    ({"snapshot": snap(build.gpu(0, row_remap_failure=NoData("not_supported")), build.gpu(1, row_remap_failure=NoData("not_supported")))},
     "gpus.needed", "do not apply here: remap"),
    ({"policy__policy": policy_with(build.rule("x", "ecc_mode", mode="observe"))}, "gpus.needed", "has its readings"),
    ({"policy__policy": policy_with(build.rule("x", "rdma_state"))}, "gpus.needed", "has its readings"),
    ({}, "gpus.fields", f"of {sum(f.scope in ('gpu', 'link') and f.live for f in cat.ALL)} fields read"),
    ({"policy__policy": policy_with(build.rule("x", "ecc_mode", "nvlink_replay"))}, "gpus.needed", "has its readings"),
    ({"snapshot": snap(build.gpu(0, links=0), build.gpu(1, links=0)), "policy__policy": policy_with(expect=pol.Expect())},
     "gpus.links", "no NVLink"),
    ({"ledger__own_drain": OwnDrain("nvhc: GPU-LOST", build.T0, True)}, "ledger.drain", "nvhc: GPU-LOST"),
    ({"ledger__intents": (HOUR_OLD._replace(since_ns=build.T0),)}, "ledger.intents", "1 intent"),
    ({"ledger__exclusions": (GONE._replace(uuid=build.uuid(1)),)}, "ledger.exclusions", "gives one back"),
    ({"slurm__containers": ("pyxis (/etc/p)",)}, "slurm.narrowing", "no TaskProlog"),
    ({"slurm__constrain": False}, "slurm.constrain", "node-wide"),
    ({"host__trusted": (Trust("package", (PathFact("/tmp", True, 0, DIR | 0o1777), PathFact("/tmp/p", True, 0, LINK | 0o777))),)},
     "permissions.package", "only root"),
    ({"host__run": Directory(PathFact(RUN), "tmpfs")}, "permissions.run", "launcher makes it"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "check", "said"), FINE, ids=[f"{w[1]}-{n}" for n, w in enumerate(FINE)])
def test_what_looks_odd_and_is_in_order(changes: dict[str, Any], check: str, said: str) -> None:
    line = one(machine(**changes), check)
    assert (line.verdict, line.advice) == ("ok", "")
    assert said in line.found


def test_mig_has_no_links_to_count() -> None:
    gpus = [g._replace(identity=g.identity._replace(mig=True), links={}) for g in (build.gpu(0), build.gpu(1))]
    facts = machine(snapshot=snap(*gpus))
    assert "gpu0, gpu1" in one(facts, "gpus.mig").found
    assert one(facts, "gpus.links").verdict == "ok"


def test_models_are_told_apart() -> None:
    other = build.gpu(1, model="NVIDIA A100-SXM4-80GB", links=0)
    facts = machine(snapshot=snap(build.gpu(0), other), policy__policy=policy_with(expect=pol.Expect()))
    assert [line.found.partition(":")[0] for line in found(facts, "gpus.links")] == [build.H100, "NVIDIA A100-SXM4-80GB"]


def test_a_node_without_gpus_says_so_and_has_nothing_to_do() -> None:
    """The reader found no engine either: that is no trouble where there is nothing to read."""
    facts = machine(
        snapshot=snap(pci_gpus=(), troubles=trouble("MON-ENGINE-ABSENT"))._replace(gpus=None),
        policy__policy=policy_with(expect=pol.Expect()),
        slurm__gres=None,
        slurm__listing=Listing(()),
        slurm__settings={},
        slurm__launchers=(Launcher(f"{LIB}/nvhc-prolog.sh", False),),
        ledger__there=False,
        ledger__known=(),
        host__engines=(),
        host__driver="",
        host__state=Directory(PathFact(STATE), "ext4"),
    )
    bad = [line for line in examine(facts) if line.verdict != "ok" and not line.check.startswith("slurm.")]
    assert bad == []
    assert "no NVIDIA GPU" in one(facts, "gpus.count").found
    assert one(facts, "slurm.launchers").verdict == "ok"
    assert found(facts, "mapping.positions") == []


def test_gpus_that_are_expected_are_missed_without_hardware() -> None:
    facts = machine(snapshot=snap(pci_gpus=(), troubles=trouble("MON-ENGINE-ABSENT"))._replace(gpus=None))
    assert one(facts, "engine.reach").verdict == "fail"


def test_a_bus_that_can_not_be_listed_excuses_no_engine() -> None:
    """Silence is not health: without /sys nobody knows that there is no GPU."""
    unseen = snap(troubles=trouble("MON-ENGINE-ABSENT"))._replace(gpus=None, pci_gpus=None)
    facts = machine(snapshot=unseen, policy__policy=policy_with(expect=pol.Expect()), slurm__gres=None, ledger__known=())
    assert one(facts, "engine.reach").verdict == "fail"
    assert one(facts, "gpus.count").verdict == "unknown"


def test_the_table_follows_the_file_list() -> None:
    table = rows(machine(slurm__gres=GresList(("/dev/nvidia1", "/dev/nvidia0"))))
    assert [(r.position, r.file, r.minor, r.uuid) for r in table] == [
        (0, "/dev/nvidia1", 1, build.uuid(1)),
        (1, "/dev/nvidia0", 0, build.uuid(0)),
    ]


def test_the_table_keeps_the_place_of_a_gpu_that_is_gone() -> None:
    table = rows(machine(snapshot=snap(build.gpu(0))))
    assert [(r.position, r.uuid) for r in table] == [(0, build.uuid(0)), (1, build.uuid(1))]
    assert rows(machine(snapshot=snap(build.gpu(0)), ledger__known=()))[1] == (1, "/dev/nvidia1", 1, "", "")


def test_positions_of_instances_are_assumed_and_that_is_how_it_is_with_mig() -> None:
    parents = [state._replace(identity=state.identity._replace(mig=True)) for state in (build.gpu(0), build.gpu(1))]
    facts = machine(snapshot=build.snapshot(*parents, source="dcgm"), slurm__gres=GresList(parts=True))
    (line,) = found(facts, "mapping.positions")
    assert line.verdict == "warn"
    assert "2 of 2 GPUs are in MIG mode" in line.found
    assert "File=" not in line.advice
    assert rows(facts) == ()


def test_a_diagnostic_that_was_left_is_told() -> None:
    mark = Mark("epilog of job 8812", build.T0 - 60 * S, ("2",), ("GPU-a",))
    left = one(machine(ledger__diag=mark), "engine.diag")
    assert left.verdict == "warn"
    assert "begun by epilog of job 8812" in left.found
    assert "(level 2) was left" in left.found
    assert "nvhc diag --stop" in left.advice
    assert one(machine(ledger__diag=mark, ledger__diag_alive=True), "engine.diag").verdict == "ok"
    assert one(machine(), "engine.diag").verdict == "ok"
