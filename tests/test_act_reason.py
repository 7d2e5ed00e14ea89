"""act/reason.py and act/words.py: one line that an administrator can act on, whatever the data and the template hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.act import words as wd
from slurm_nvhc.act.reason import render
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.policy.compiled import Drain

UUID = "GPU-1f2e3d4c-aaaa-bbbb-cccc-ddddeeeeffff"
ROW = {"uuid": UUID, "pci": "0000:4b:00.0", "nvml_index": 3, "minor": 5}
DRAIN = Drain()
JOB = Job("8812", 1001, "ada", "gpu")
STORM = Finding(
    "NVL-STORM",
    f"{UUID}/link11",
    "link",
    "fail",
    "link11 replay +21200",
    Evidence(field="nvlink_replay", before=0, after=21200, amount=21200, seconds=41 * 60.0),
    ROW,
    of_job=True,
    action="drain",
)


def finding(
    code: str, entity: str, message: str = "", verdict: str = "fail", klass: str = "gpu", row: Any = None, **evidence: Any
) -> Finding:
    return Finding(code, entity, klass, verdict, message, Evidence(**evidence), row or {}, action="drain")


def reason(*findings: Finding, job: Optional[Job] = JOB, drain: Drain = DRAIN) -> str:
    text, troubles = render(findings, job, 8, drain, 1_800_000_000 * 10**9)
    assert troubles == ()
    return text


def test_the_form() -> None:
    assert reason(STORM) == "nvhc: NVL-STORM gpu3 GPU-1f2e3d4c… 0000:4b:00.0 link11 replay +21200 in 41m job 8812"


PORT = "switch:0000:c1:00.0/port5"
BEHIND = (f"NVL-STORM {UUID}/link11",)


@pytest.mark.parametrize(
    ("suspect", "said"),
    [
        (Suspect("switch", "switch:0000:c1:00.0", "why", findings=BEHIND), "switch 0000:c1:00.0"),
        (Suspect("link", PORT, "why", far=f"{UUID}/link11", findings=BEHIND), "switch 0000:c1:00.0 port5"),
        (Suspect("connector", f"{UUID}/link11", "why", far=PORT, findings=BEHIND), "connector at gpu3 link11"),
        (Suspect("slot", UUID, "why", findings=BEHIND), "slot of gpu3"),
        (Suspect("node", "node", "why", findings=BEHIND), "node"),
    ],
)
def test_a_suspect_that_the_finding_does_not_name_itself(suspect: Suspect, said: str) -> None:
    text, _ = render([STORM], JOB, 8, DRAIN, 0, [suspect])
    assert text == f"nvhc: NVL-STORM gpu3 GPU-1f2e3d4c… 0000:4b:00.0 link11 replay +21200 in 41m job 8812; suspect {said}"
    assert wd.plain([STORM], "8812", 250, [suspect]) == text


@pytest.mark.parametrize(
    "suspect",
    [
        Suspect("link", f"{UUID}/link11", "why", far=PORT, findings=BEHIND),
        Suspect("gpu", UUID, "why", findings=BEHIND),
        Suspect("switch", "node", "why", named=False, findings=BEHIND),
        Suspect("switch", "switch:0000:c1:00.0", "why", findings=("NVL-CRC other",)),
    ],
)
def test_a_suspect_that_adds_nothing_is_not_said(suspect: Suspect) -> None:
    assert "suspect" not in render([STORM], JOB, 8, DRAIN, 0, [suspect])[0]


def test_a_suspect_on_which_nothing_was_found_goes_by_its_name_too() -> None:
    other = "GPU-99999999-1111-2222-3333-444444444444"
    suspect = Suspect("link", f"{other}/link2", "why", far=f"{UUID}/link11", findings=BEHIND)
    text, _ = render([STORM], JOB, 8, DRAIN, 0, [suspect], {other: "gpu2"})
    assert text.endswith("; suspect gpu2 link2")
    assert wd.plain([STORM], "8812", 250, [suspect], {other: "gpu2"}) == text


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            finding("RDMA-DOWN", "rdma:mlx5_3/port1", "RDMA port state: 0 (absent) (learned 4 (active))", klass="node",
                    field="rdma_state", after=0, limit=4, learned=True),
            "RDMA port state 0 (absent) (learned 4 (active))",
        ),
        (
            finding("PCIE-WIDTH", UUID, "PCIe width possible: 8 lanes (its siblings have 16 lanes)",
                    field="pcie_max_width", after=8, limit=16, learned=True),
            "PCIe width possible 8 lanes (its siblings have 16 lanes)",
        ),
        (finding("PCIE-WIDTH", UUID, "PCIe width: 8", field="pcie_width", after=8, limit=16), "PCIe width 8 of 16 lanes"),
    ],
)  # fmt: skip
def test_what_differs_from_what_was_learned_is_said_as_check_says_it(told: Finding, said: str) -> None:
    assert wd.what(told) == said


def test_what_was_gathered_over_jobs_does_not_read_as_this_jobs() -> None:
    burn = STORM._replace(code="NVL-RECOVERY", absolute=True, evidence=Evidence(field="nvlink_recovery", amount=5, seconds=14 * 3600.0))
    said = "nvhc: NVL-RECOVERY gpu3 GPU-1f2e3d4c… 0000:4b:00.0 link11 recovery +5 in 14h seen at job 8812"
    assert reason(burn) == said
    assert wd.plain([burn], JOB.job_id, 250) == said


def test_no_job_when_the_fault_is_not_the_jobs() -> None:
    assert "job" not in reason(STORM._replace(of_job=False))
    assert "job" not in reason(STORM, job=None)


def test_several_findings_worst_first() -> None:
    crc = finding("NVL-CRC", f"{UUID}/link2", verdict="warn", row=ROW)
    lost = finding("GPU-LOST", "pci:0000:5e:00.0", "does not answer")
    hung = finding("MON-ENGINE-HUNG", "monitor:engine", "no answer in 5 s", "fail", "monitor")
    text = reason(hung, crc, crc._replace(entity=f"{UUID}/link3"), STORM, lost)
    assert text.startswith("nvhc: NVL-STORM gpu3 ")
    assert text.endswith(" job 8812; +3 more: GPU-LOST gpu?, MON-ENGINE-HUNG engine, NVL-CRC gpu3")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            finding("GPU-LOST", "pci:0000:5e:00.0", "is not in the engine's list"),
            "nvhc: GPU-LOST gpu? 0000:5e:00.0 is not in the engine's list",
        ),
        (
            finding("MON-ENGINE-HUNG", "monitor:engine", "no answer in 5 s", klass="monitor"),
            "nvhc: MON-ENGINE-HUNG engine: no answer in 5 s",
        ),
        (finding("FABRIC-STATE", "switch:0000:01:00.0", "fatal SXid"), "nvhc: FABRIC-STATE switch 0000:01:00.0: fatal SXid"),
        (finding("GPU-LOST", "node", "7 of 8 GPUs", klass="node"), "nvhc: GPU-LOST 7 of 8 GPUs"),
        (
            finding("MEM-REMAP-FAILED", UUID, row=ROW, field="row_remap_failure", after=1),
            "nvhc: MEM-REMAP-FAILED gpu3 GPU-1f2e3d4c… 0000:4b:00.0 row remap failed",
        ),
        (
            finding("GPU-RECOVERY", UUID, row=ROW, field="recovery_action", after=1),
            "nvhc: GPU-RECOVERY gpu3 GPU-1f2e3d4c… 0000:4b:00.0 recovery action GPU reset",
        ),
        (
            finding("PCIE-WIDTH", UUID, row=ROW, field="pcie_width", after=8),
            "nvhc: PCIE-WIDTH gpu3 GPU-1f2e3d4c… 0000:4b:00.0 PCIe width 8 lanes",
        ),
        (
            finding("NVL-DOWN", f"{UUID}/link4", row=ROW, field="nvlink_state", after="down"),
            "nvhc: NVL-DOWN gpu3 GPU-1f2e3d4c… 0000:4b:00.0 link4 link state down",
        ),
        (
            finding("NVL-REPLAY", UUID, row=ROW, field="nvlink_replay_total", amount=4.0, bound="at_least", seconds=60.0),
            "nvhc: NVL-REPLAY gpu3 GPU-1f2e3d4c… 0000:4b:00.0 replay at least +4 in 1m",
        ),
        (
            finding("THERMAL-SLOWDOWN", UUID, row=ROW, field="hw_thermal_slowdown_ns", amount=240e9, seconds=2400.0),
            "nvhc: THERMAL-SLOWDOWN gpu3 GPU-1f2e3d4c… 0000:4b:00.0 time in hardware thermal slowdown +4m in 40m",
        ),
        (
            finding("XID-FATAL", UUID, "Xid 79 (fallen off the bus)", row=ROW, field="xid", after=79, amount=1.0),
            "nvhc: XID-FATAL gpu3 GPU-1f2e3d4c… 0000:4b:00.0 Xid 79 (fallen off the bus)",
        ),
        (finding("GPU-LOST", UUID, "gone"), "nvhc: GPU-LOST gpu? GPU-1f2e3d4c… gone"),
    ],
)
def test_each_kind_of_evidence_in_template_and_built_in_form(what: Finding, text: str) -> None:
    assert reason(what) == text
    assert wd.plain([what], JOB.job_id, 250) == text


def test_built_in_and_packaged_form_are_the_same() -> None:
    both = (STORM, finding("NVL-CRC", f"{UUID}/link2", row=ROW))
    assert wd.plain(both, JOB.job_id, 250) == reason(*both)


@pytest.mark.parametrize("length", [20, 60, 80, 250])
def test_length_and_cut_at_a_word(length: int) -> None:
    text = reason(STORM, *(finding(f"NVL-{n}", UUID, row=ROW) for n in range(40)), drain=Drain(max_length=length))
    assert len(text) <= length
    assert text.startswith("nvhc: NVL")
    assert text.endswith("…")
    assert reason(STORM, drain=Drain(max_length=60)) == "nvhc: NVL-STORM gpu3 GPU-1f2e3d4c… 0000:4b:00.0 link11…"


def site(tmp_path: Path, template: str) -> Drain:
    path = tmp_path / "reason.j2"
    path.write_text(template)
    return Drain(template=str(path))


def test_a_sites_template(tmp_path: Path) -> None:
    drain = site(tmp_path, "{{ first.code }}\n  act=RESET {{ first.uuid }} by {{ job.user }}|{{ node_gpus }} {{ time }}{{ more|length }}")
    assert reason(STORM, drain=drain) == f"nvhc: NVL-STORM act=RESET {UUID} by ada/8 2027-01-15T08:00:00Z0"


@pytest.mark.parametrize(
    "template",
    [
        "{{ first.code",
        "{{ frist.code }}",
        "{{ first.nope }}",
        "",
        "   \n",
        "{% for x in 5 %}{% endfor %}",
        "{{ 1/0 }}",
        "{% include 'x' %}",
        "{{ first.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ more.append(1) }}x",
        "{{ range(10**9)|list }}",
        "x" * 70000,
    ],
)
def test_a_broken_or_hostile_template_gives_the_built_in_form_and_a_trouble(tmp_path: Path, template: str) -> None:
    drain = site(tmp_path, template)
    text, troubles = render([STORM], JOB, 8, drain, 0)
    assert text == wd.plain([STORM], "8812", 250)
    assert [t.code for t in troubles] == ["MON-POLICY"]
    assert troubles[0].detail.startswith(drain.template)
    assert "\n" not in troubles[0].detail


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    assert "line 2" in render([STORM], JOB, 8, site(tmp_path, "a\n{{ }\n"), 0)[1][0].detail


def test_a_template_that_is_missing_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"nvhc \xff")
    (tmp_path / "folder").mkdir()
    for name in ("nowhere", "latin", "folder"):
        text, troubles = render([STORM], JOB, 8, Drain(template=str(tmp_path / name)), 0)
        assert text == wd.plain([STORM], "8812", 250)
        assert len(troubles) == 1


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    text, troubles = render([STORM], JOB, 8, Drain(), 0)
    assert text == wd.plain([STORM], "8812", 250)
    assert [t.code for t in troubles] == ["MON-INTERNAL"]


def test_without_findings() -> None:
    assert render([], None, 8, Drain(), 0)[0].startswith("nvhc: ")


def test_data_can_not_inject_a_template_or_a_line() -> None:
    evil = finding("SITE-RULE", UUID, "{{ 7*7 }}\nReason=x | [root@now]\x1b[2J\udcff", row={**ROW, "pci": "a\nb"})
    text = reason(evil)
    assert "{{ 7*7 }} Reason=x / [root@now]" in text
    assert text.isprintable()


_TEXT = st.text(alphabet=st.characters(codec=None), max_size=300)


@given(_TEXT, _TEXT, _TEXT, _TEXT, st.one_of(st.none(), st.integers(), st.floats(), _TEXT), st.integers(1, 300))
def test_any_finding_gives_one_clean_line(code: str, entity: str, message: str, field: str, value: Any, length: int) -> None:
    odd = Finding(
        code,
        entity,
        "gpu",
        "fail",
        message,
        Evidence(field="nvlink_replay" if len(field) % 2 else field, after=value, amount=value, seconds=value),
        {"nvml_index": value, "pci": value},
        of_job=True,
    )
    text, _ = render([odd, odd, STORM], Job(code, user=message), 8, Drain(max_length=length), 0)
    assert len(text) <= length
    assert text.isprintable()
    assert "|" not in text
    assert text.startswith("nvhc:"[: max(0, length - 1)])


def test_extend() -> None:
    assert wd.extend("nvhc: A gpu3", ["B gpu5", "B gpu5"], 250) == "nvhc: A gpu3; also B gpu5"
    assert wd.extend("nvhc: A gpu3", ["A gpu3"], 250) == "nvhc: A gpu3"
    assert wd.extend("nvhc: A gpu3", ["B gpu5"], 20) == "nvhc: A gpu3"


def test_importing_act_is_light() -> None:
    code = "import sys, slurm_nvhc.act.execute, slurm_nvhc.act.reason; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & {
        "jinja2",
        "dataclasses",
        "logging",
        "argparse",
        "subprocess",
        "msgspec",
        "yaml",
        "inspect",
        "pathlib",
        "tempfile",
        "shutil",
    }


def test_several_links_of_one_gpu_are_counted() -> None:
    links = [finding("NVL-DOWN", f"{UUID}/link{n}", row=ROW, field="nvlink_state", after="down") for n in range(18)]
    assert reason(*links) == "nvhc: NVL-DOWN gpu3 GPU-1f2e3d4c… 0000:4b:00.0 18 links link state down"
    assert wd.plain(links, "", 250) == reason(*links)
    assert "link3,link16 link state down" in reason(links[16], links[3])


def test_an_xid_behind_another_finding_keeps_its_number() -> None:
    lost = finding("GPU-LOST", UUID, "is on the PCI bus but not in the engine's list", row=ROW)
    xid = finding("XID-FATAL", UUID, "Xid 79 (fallen off the bus)", row=ROW, field="xid", after=79, amount=1.0)
    assert reason(lost, xid).endswith("; +1 more: XID-FATAL gpu3 Xid 79")


def test_a_value_is_told_with_what_it_was_compared_with() -> None:
    width = finding("PCIE-WIDTH", UUID, row=ROW, field="pcie_width", after=8, limit=16)
    assert "PCIe width 8 of 16 lanes" in reason(width)


def test_a_fault_that_a_job_only_met_is_not_told_as_its_doing() -> None:
    assert reason(finding("MEM-SRAM", UUID, "x", row=ROW)._replace(of_job=True)).endswith("x seen at job 8812")
