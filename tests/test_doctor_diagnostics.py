"""The doctor about time and diagnostics: budgets against Slurm's limits, diagnostics against budgets, and what can not be run."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import build
import pytest
from hypothesis import given as hyp
from hypothesis import strategies as st
from test_doctor import DIR, FILE, LIB, found, machine, one, policy_with, settings
from test_doctor_look import put

from slurm_nvhc.diagnose import LOOK_S
from slurm_nvhc.doctor import diagnostics
from slurm_nvhc.doctor.facts import DCGMI, Asked, BindingsPlace, DiagFacts, EngineProcess, Facts, Line, PathFact, Program, Trust
from slurm_nvhc.doctor.look import diag, ledger, policy
from slurm_nvhc.doctor.look.edges import Edges
from slurm_nvhc.hooks import install, slurm_conf
from slurm_nvhc.model import tested
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy import sections, show
from slurm_nvhc.policy.compiled import Budgets
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.sense.diag import STOP_S

USUAL = Budgets()

# --- budgets against slurm.conf -------------------------------------------------------------


def times(budgets: Budgets = USUAL, **more: str) -> list[Line]:
    return found(machine(policy__longest=budgets, slurm__settings=settings(**more)), "slurm.times")


def test_every_limit_is_named_with_its_number_when_all_is_well() -> None:
    (line,) = times()
    assert line.verdict == "ok"
    assert line.found == (
        "prolog 9 s (PrologEpilogTimeout none, BatchStartTimeout 10, MessageTimeout 10); epilog 21 s (PrologEpilogTimeout none); "
        "health check 31 s (HealthCheckTimeout 60, HealthCheckInterval 300); registration 11 s (SlurmdTimeout 300): "
        "within Slurm's limits, and one line for each hook"
    )


LIMITS: list[tuple[Budgets, dict[str, str], str]] = [
    (Budgets(), {"prologepilogtimeout": "9", "epilogtimeout": "60"}, "PrologEpilogTimeout=9 is not above our 9 s for the prolog, and a"),
    (Budgets(), {"prologepilogtimeout": "15"}, "PrologEpilogTimeout=15 is not above our 21 s for the epilog"),
    (Budgets(), {"prologtimeout": "5", "prologepilogtimeout": "600"}, "PrologTimeout=5 is not above our 9 s for the prolog"),
    (Budgets(), {"epilogtimeout": "20", "prologepilogtimeout": "600"}, "EpilogTimeout=20 is not above our 21 s for the epilog"),
    (Budgets(prolog_s=30), {"messagetimeout": "60"}, "BatchStartTimeout=10 is not above our 31 s for the prolog, and a batch job"),
    (Budgets(prolog_s=30), {"batchstarttimeout": "60"}, "MessageTimeout=10 is not above our 31 s for the prolog"),
    (Budgets(epilog_s=420), {"prologepilogtimeout": "300"}, "PrologEpilogTimeout=300 is not above our 421 s for the epilog"),
    (Budgets(health_check_s=45), {"healthchecktimeout": "40"}, "HealthCheckTimeout=40 is not above our 46 s for the health check"),
    (Budgets(), {"healthcheckinterval": "30"}, "HealthCheckInterval=30 is not above our 31 s for the health check, and slurmd starts"),
    (Budgets(registration_s=40), {"slurmdtimeout": "30"}, "SlurmdTimeout=30 is not above our 41 s for the registration"),
    (Budgets(health_check_s=10, registration_s=40), {"healthchecktimeout": "30"},
     "HealthCheckTimeout=30 is not above our 41 s for the health check"),
]  # fmt: skip


@pytest.mark.parametrize(("budgets", "more", "said"), LIMITS, ids=[said.partition(" is")[0] for _, _, said in LIMITS])
def test_a_budget_that_does_not_fit(budgets: Budgets, more: dict[str, str], said: str) -> None:
    lines = times(budgets, **more)
    assert [line.found.startswith(said) for line in lines] == [True], lines
    assert lines[0].verdict == "warn"
    assert "lower budgets." in lines[0].found


def test_limits_that_are_none() -> None:
    assert "PrologEpilogTimeout none" in times(prologepilogtimeout="65534")[0].found
    for more in ({"prologepilogtimeout": "65534"}, {"healthchecktimeout": "120"}, {"slurmdtimeout": "0"}, {"prologtimeout": "65535"}):
        assert [line.verdict for line in times(Budgets(epilog_s=500), **more)] == ["ok"], more
    (line,) = times(Budgets(prolog_s=500), prologtimeout="600", prologepilogtimeout="20", epilogtimeout="30",
                    batchstarttimeout="600", messagetimeout="600")  # fmt: skip
    assert line.verdict == "ok", "the hook's own limit counts"


def test_the_longest_budget_of_all_partitions_counts() -> None:
    facts = machine(policy__longest=Budgets(epilog_s=420))
    assert "deadline 21 (here 421)" in one(facts, "slurm.epilog").found
    assert [line.verdict for line in found(machine(policy__longest=Budgets()), "slurm.epilog")] == ["ok"]


def test_the_health_checks_launcher_leaves_time_for_registration() -> None:
    assert install.needed_s(Budgets(health_check_s=10, registration_s=40), "nvhc-health-check.sh") == 41
    assert install.needed_s(Budgets(health_check_s=30, registration_s=10), "nvhc-health-check.sh") == 31


@hyp(st.integers(1, 600), st.integers(1, 700), st.sampled_from(["prolog", "epilog"]))
def test_a_limit_is_exceeded_exactly_when_ours_does_not_end_before_it(budget: int, limit: int, hook: str) -> None:
    hooks = install.hooks_of(LIB, Budgets(**{f"{hook}_s": float(budget)}))
    over = [x for x in slurm_conf.exceeded(hooks, {f"{hook}timeout": (str(limit),)}) if x.key == f"{hook.title()}Timeout"]
    assert bool(over) == (budget + install.GRACE_S >= limit)


# --- diagnostics against budgets ------------------------------------------------------------


def diagnosed(*asked: Asked, **changes: Any) -> Facts:
    return machine(policy__asked=asked, **{"diag": DiagFacts("/usr/libexec/x/nvvs", ("/usr/libexec/x/nvvs",), ("cuda12",)), **changes})


def test_level_2_in_the_usual_epilog_is_not_run_and_it_says_what_would_do() -> None:
    line = one(diagnosed(Asked("epilog", ("2",), 20.0)), "diagnostics.epilog")
    assert line.verdict == "warn"
    assert line.found == "level 2 in the epilog usually takes 300 s, and its budget of 20 s leaves 8 s: it will not be run"
    assert line.advice == "raise budgets.epilog to 410s; then `nvhc hooks install`"
    limited = diagnosed(Asked("epilog", ("2",), 20.0), slurm__settings=settings(prologepilogtimeout="60"))
    assert "to 410s and PrologEpilogTimeout above 411;" in one(limited, "diagnostics.epilog").advice
    elsewhere = diagnosed(Asked("epilog", ("2",), 20.0), slurm__settings=settings(messagetimeout="5"))
    assert one(elsewhere, "diagnostics.epilog").advice == line.advice, "what is in the prolog's way is none of the epilog's"
    enough = one(diagnosed(Asked("epilog", ("2",), 410.0)), "diagnostics.epilog")
    assert (enough.verdict, enough.advice) == ("ok", "")


def test_a_prolog_meets_the_limits_of_starting_a_job() -> None:
    line = one(diagnosed(Asked("prolog", ("1",), 8.0)), "diagnostics.prolog")
    assert "leaves 0 s" in line.found
    assert "raise budgets.prolog to 30s and BatchStartTimeout, MessageTimeout above 31" in line.advice


def test_what_no_budget_is_long_enough_for() -> None:
    line = one(diagnosed(Asked("health check", ("2",), 30.0)), "diagnostics.drained")
    assert line.verdict == "warn"
    assert "at most 50s" in line.advice
    assert "nvhc sweep" in line.advice
    assert "at most 600s" in one(diagnosed(Asked("epilog", ("4",), 600.0)), "diagnostics.epilog").advice
    assert one(diagnosed(Asked("health check", ("1",), 30.0)), "diagnostics.drained").verdict == "ok"


def test_what_was_measured_here_is_taken_instead() -> None:
    asked = Asked("epilog", ("2",), 250.0)
    took = tested.Tested(5, ("2",), "pass", 100.0, "epilog", took={"level 2": 100.0})
    assert one(diagnosed(asked), "diagnostics.epilog").verdict == "warn"
    line = one(diagnosed(asked, ledger__tested=(took, took._replace(took={"level 2": 120.0}))), "diagnostics.epilog")
    assert (line.verdict, "usually takes 150 s" in line.found) == ("ok", True)
    other = took._replace(took={"level 1": 5.0})
    assert one(diagnosed(asked, ledger__tested=(other,)), "diagnostics.epilog").verdict == "warn"


def test_places() -> None:
    places = (("gpu*", ""), ("big", "NVIDIA H100*"), ("", "NVIDIA H100*"), ("", "NVIDIA A100*"))
    asked = Asked("epilog", ("memory", "pcie"), 20.0, places=places)
    line = one(diagnosed(asked), "diagnostics.epilog")
    assert line.found.startswith("memory, pcie in the epilog (partition gpu*; partition big, model NVIDIA H100*; model NVIDIA H100*) usual")
    assert found(diagnosed(asked._replace(places=(("", "NVIDIA A100*"),))), "diagnostics.epilog") == [], "no such GPU here"
    unknown = diagnosed(asked._replace(places=(("", "NVIDIA A100*"),)), snapshot=build.snapshot(source="dcgm")._replace(gpus=None))
    assert len(found(unknown, "diagnostics.epilog")) == 1


def test_nothing_is_said_where_nothing_is_wanted() -> None:
    assert diagnostics.lines(machine()) == []


def test_the_bounds_are_those_of_the_policy() -> None:
    for hook, most in diagnostics.MOST_S.items():
        assert sections._KEYS["budgets"][hook.replace(" ", "_")].most == most


@hyp(st.floats(0, 2000), st.sampled_from(["prolog", "epilog"]))
def test_the_advised_budget_is_enough_and_not_two_steps_too_much(usual: float, hook: str) -> None:
    asked = Asked(hook, ("2",), 400.0)
    needed = diagnostics.needed_s(asked, usual)
    assert diagnostics.room_s(asked._replace(budget_s=needed)) >= usual - 1e-6
    assert diagnostics.room_s(asked._replace(budget_s=needed - 10)) < usual or needed == 10 * (2 if hook == "prolog" else 1)
    looks = 2 if hook == "prolog" else 1  # a prolog reads the node again after it
    assert math.isclose(diagnostics.room_s(asked), Budget(400.0, lambda: 0.0).sense_s() - STOP_S - looks * LOOK_S)


# --- what is there to run -------------------------------------------------------------------

HOST_ENGINE = (EngineProcess(700, "nv-hostengine", 0),)
MISSING = "/usr/bin/dcgmi does not exist"


def with_program(key: str, path: str, mode: int = FILE | 0o755, there: bool = True, asked: tuple[Asked, ...] = (), **more: Any) -> Facts:
    chain = (PathFact("/", True, 0, DIR | 0o755), PathFact(path, there, 0, mode if there else 0))
    programs = (Program(key, path), Program(key, "/etc/nvhc/argument", False))
    return diagnosed(*asked, policy__programs=programs, host__trusted=(Trust(key, chain),), **more)


LEVEL_1 = Asked("health check", ("1",), 30.0)
NO_BINDINGS = (BindingsPlace("/usr/share/dcgm4", False),)


@pytest.mark.parametrize(
    ("through", "there", "bindings", "verdict", "said"),
    [
        ("auto", True, True, "ok", "/usr/bin/dcgmi"),
        ("auto", False, True, "ok", f"{MISSING}: the engine's API is used"),
        ("auto", False, False, "fail", f"{MISSING}: no diagnostic is run"),
        ("dcgmi", False, True, "fail", f"{MISSING}: no diagnostic is run"),
        ("dcgmi", True, False, "ok", "/usr/bin/dcgmi"),
    ],
)
def test_dcgmi(through: str, there: bool, bindings: bool, verdict: str, said: str) -> None:
    more: dict[str, Any] = {} if bindings else {"host__bindings": NO_BINDINGS}
    facts = with_program(DCGMI, "/usr/bin/dcgmi", there=there, asked=(LEVEL_1._replace(through=through),), **more)
    line = one(facts, DCGMI)
    assert (line.verdict, line.found) == (verdict, said)


def test_the_api_without_bindings() -> None:
    asked = LEVEL_1._replace(through="api")
    assert one(diagnosed(asked, host__bindings=NO_BINDINGS), "diagnostics.bindings").verdict == "fail"
    assert found(diagnosed(asked), "diagnostics.bindings") == []


def test_the_engines_own_program() -> None:
    level_2 = Asked("epilog", ("2",), 600.0)
    assert one(diagnosed(level_2), "diagnostics.nvvs").found == "/usr/libexec/x/nvvs, plugins cuda12"
    gone = one(diagnosed(level_2, diag=DiagFacts("", diag.PLACES)), "diagnostics.nvvs")
    assert (gone.verdict, "NVVS_BIN_PATH" in gone.found) == ("warn", True)
    bare = DiagFacts("/usr/libexec/x/nvvs", diag.PLACES, ())
    assert "tests that load the GPU are skipped" in one(diagnosed(level_2, diag=bare), "diagnostics.nvvs").found
    assert one(diagnosed(LEVEL_1, diag=bare), "diagnostics.nvvs").verdict == "ok", "level 1 needs none"
    assert one(diagnosed(level_2, diag=bare._replace(cuda=None)), "diagnostics.nvvs").verdict == "ok", "nothing is known of plugins"
    assert one(diagnosed(level_2, diag=DiagFacts()), "diagnostics.nvvs").verdict == "unknown"
    for elsewhere in ((), None, (EngineProcess(2, "dcgm-exporter", 0, embedded=True),)):
        assert found(diagnosed(level_2, diag=DiagFacts("", diag.PLACES), host__engines=elsewhere), "diagnostics.nvvs") == []
    sim = policy_with(engine=pol.Engine(backend="sim", world="/w"))
    assert found(diagnosed(level_2, policy__policy=sim, diag=DiagFacts("", diag.PLACES)), "diagnostics.nvvs") == []


@pytest.mark.parametrize("key", ["screen.command", "isolate.traffic", "isolate.alone"])
def test_the_sites_commands(key: str) -> None:
    assert one(with_program(key, "/opt/work"), key) == Line(key, "ok", "/opt/work")
    assert "does not exist" in one(with_program(key, "/opt/work", there=False), key).found
    assert "not executable" in one(with_program(key, "/opt/work", FILE | 0o644), key).found
    assert "is not a file" in one(with_program(key, "/opt/work", DIR | 0o755), key).found
    assert one(with_program(key, "/opt/work", stat.S_IFLNK | 0o777), key).verdict == "ok"
    assert "absolute" in one(with_program(key, "work"), key).found
    unclear = with_program(key, "/opt/work", host__root=False)
    chain = (PathFact("/opt/work", problem="Permission denied"),)
    assert found(unclear._replace(host=unclear.host._replace(trusted=(Trust(key, chain),))), key) == []
    assert one(with_program(key, "/opt/work", FILE | 0o777), f"permissions.{key}").verdict == "fail", "root runs it"


# --- how it is looked at --------------------------------------------------------------------

POLICY = """\
schema: 1
budgets: {epilog: 30s}
diagnostics: {epilog: 2, drained: 1}
screen: {command: [/usr/bin/python3, /opt/work.py, --seed, "1"]}
models:
  NVIDIA A100*: {diagnostics: {epilog: [memory]}}
partitions:
  big:
    budgets: {epilog: 500s, health_check: 40s}
    diagnostics: {through: dcgmi, dcgmi: /opt/dcgmi}
    isolate: {traffic: [/opt/nccl], alone: [sh, -c, x]}
  small: {diagnostics: {epilog: none, prolog: 1}}
  same: {mode: observe}
nodes:
  n2: {diagnostics: {drained: none}}
"""


def test_the_policys_diagnostics_of_every_place(tmp_path: Path) -> None:
    put(tmp_path, "etc/nvhc/policy.yaml", POLICY)
    facts = policy.look(Edges(str(tmp_path)), "/etc/nvhc/policy.yaml", "/var/lib/nvhc/n1", "n1")
    assert facts.problem == ""
    assert facts.budgets == Budgets(epilog_s=500, health_check_s=40)
    a100 = "NVIDIA A100*"
    assert set(facts.asked) == {
        Asked("epilog", ("2",), 30.0),
        Asked("health check", ("1",), 30.0),
        Asked("epilog", ("memory",), 30.0, places=(("", a100),)),
        Asked("epilog", ("2",), 500.0, "dcgmi", (("big", ""),)),
        Asked("epilog", ("memory",), 500.0, "dcgmi", (("big", a100),)),
        Asked("prolog", ("1",), 8.0, places=(("small", ""),)),
    }
    assert set(facts.programs) == {
        Program("screen.command", "/usr/bin/python3"), Program("screen.command", "/opt/work.py", False),
        Program("isolate.traffic", "/opt/nccl"), Program("isolate.alone", "/usr/bin/sh"),
        Program(DCGMI, "/usr/bin/dcgmi"), Program(DCGMI, "/opt/dcgmi"),
    }  # fmt: skip
    other = policy.look(Edges(str(tmp_path)), "/etc/nvhc/policy.yaml", "/var/lib/nvhc/n2", "n2")
    assert not [a for a in other.asked if a.hook == "health check"]
    put(tmp_path, "etc/nvhc/policy.yaml", "schema: 1\n")
    plain = policy.look(Edges(str(tmp_path)), "/etc/nvhc/policy.yaml", "/var/lib/nvhc/n1", "n1")
    assert (plain.asked, plain.programs, plain.budgets) == ((), (), Budgets())


def test_a_partition_and_a_node_have_the_last_word(tmp_path: Path) -> None:
    path = put(tmp_path, "policy.yaml", POLICY.replace("{epilog: none, prolog: 1}", "{epilog: 3}"))
    stances = {(s.partition, s.model): s.policy.diagnostics for s in show.stances(str(path), "n2")}
    a100 = "NVIDIA A100*"
    assert (stances["", ""].epilog, stances["", a100].epilog) == (("2",), ("memory",))
    assert (stances["small", ""].epilog, stances["small", a100].epilog) == (("3",), ("3",))
    assert {section.drained for section in stances.values()} == {()}


def test_the_engines_files(tmp_path: Path) -> None:
    edges = Edges(str(tmp_path))
    assert diag.look(edges) == DiagFacts("", diag.PLACES)
    put(tmp_path, diag.PLACES[1])
    assert diag.look(edges) == DiagFacts(diag.PLACES[1], diag.PLACES, None)
    put(tmp_path, diag.PLACES[0])
    folder = os.path.dirname(diag.PLACES[0])
    put(tmp_path, f"{folder}/plugins/cudaless/libSoftware.so")
    assert diag.look(edges) == DiagFacts(diag.PLACES[0], diag.PLACES, ())
    put(tmp_path, f"{folder}/plugins/cuda12/libMemory.so")
    assert diag.look(edges).cuda == ("cuda12",)


def test_measured_times_are_read_from_the_ledger(tmp_path: Path) -> None:
    took = tested.Tested(5, ("2",), "pass", 130.0, "epilog of job 8812")
    with Ledger.open(str(tmp_path / "var/lib/nvhc/n1"), 5.0) as book:
        book.put(f"diag:{build.uuid(0)}", tested.dumps(took))
        book.put(f"diag:{build.uuid(1)}", json.dumps({"broken": 1}))
        book.put("diag_running", "")
    assert ledger.look(Edges(str(tmp_path)), "/var/lib/nvhc", "n1").tested == (took,)
