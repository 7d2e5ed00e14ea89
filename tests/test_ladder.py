"""catalog/ladder.py and act/remedy.py: which rung a fault has reached.

`python tests/test_ladder.py` writes the tables of docs/remediation.md anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from act_fakes import T0, drained, finding, given, uuid

from slurm_nvhc.act import remedy
from slurm_nvhc.act.reason import render
from slurm_nvhc.act.remedy import Case, Past
from slurm_nvhc.act.words import plain
from slurm_nvhc.catalog import findings, ladder, xids
from slurm_nvhc.catalog.ladder import FIELD, REBOOT, RESET, RMA, WATCH
from slurm_nvhc.model.finding import Evidence
from slurm_nvhc.model.protective import Exclusion, OwnDrain, Strike
from slurm_nvhc.policy.compiled import Drain
from slurm_nvhc.record import protective as state

PAGE = Path(__file__).parent.parent / "docs" / "remediation.md"
HEAD = "| code | first | then | source | beside it |\n|---|---|---|---|---|\n"
BUCKETS_HEAD = "| the vendor's word | rung |\n|---|---|\n"
DAY = 86400 * 10**9
STORM = f"NVL-STORM {uuid(3)}"


def table() -> str:
    rows = []
    for row in ladder.ALL:
        switch = findings.BY_CODE[row.code].klass == "switch"
        words = [ladder.word(r, switch) for r in row.rungs] or ["none"]
        first = words[0] + (" (or where its Xid, SXid or recovery action begins)" if row.begins else "")
        rows.append(f"| `{row.code}` | {first} | {' → '.join(words[1:])} | {row.source if row.rungs else ''} | {row.note} |\n")
    return HEAD + "".join(rows)


def buckets_table() -> str:
    rows = [f"| Xid or SXid bucket {name} | {ladder.WORDS[rung]} |\n" for name, rung in ladder.BUCKETS.items()]
    actions = [f"| recovery action {n} ({ladder_word(n)}) | {ladder.WORDS[rung]} |\n" for n, rung in ladder.RECOVERY.items()]
    return BUCKETS_HEAD + "".join([*rows, *actions])


def ladder_word(action: int) -> str:
    from slurm_nvhc.catalog.fields import RECOVERY_ACTIONS

    return RECOVERY_ACTIONS[action]


TABLES = {HEAD: table, BUCKETS_HEAD: buckets_table}


def test_the_page_is_current() -> None:
    text = PAGE.read_text()
    for make in TABLES.values():
        assert make() + "\n" in text + "\n", "docs/remediation.md is old: run python tests/test_ladder.py"


def test_every_code_of_hardware_has_a_row_and_every_row_a_code() -> None:
    wanted = [c.code for c in findings.ALL if c.klass != "monitor"]
    assert [row.code for row in ladder.ALL] == wanted
    for row in ladder.ALL:
        assert list(row.rungs) == sorted(row.rungs), row.code
        assert row.rungs or row.note, f"{row.code}: no rung, and nobody says why"


def test_our_own_means_have_no_rung() -> None:
    for code in findings.ALL:
        if code.klass == "monitor":
            assert ladder.rungs(code.code) == ()
            assert "our own means" in ladder.ladder(code.code).note


@pytest.mark.parametrize(
    ("code", "kind", "number", "text", "rungs"),
    [
        ("XID-FATAL", "xid", 79, "", (REBOOT, REBOOT, FIELD, RMA)),
        ("XID-FATAL", "xid", 119, "", (RESET, REBOOT, REBOOT, FIELD, RMA)),
        ("XID-FATAL", "", None, "", (RESET, REBOOT, REBOOT, FIELD, RMA)),
        ("XID-OTHER", "xid", 46, "", (RESET, FIELD)),  # first a reset, then the vendor's support
        ("XID-OTHER", "xid", 13, "", (WATCH,)),  # an application's Xid never leads to an exchange
        ("XID-OTHER", "xid", 54, "", (FIELD,)),
        ("XID-OTHER", "xid", 9999, "", (WATCH,)),
        ("XID-OTHER", "xid", 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", (REBOOT,)),
        ("XID-NVLINK5", "xid", 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x025001c6 0x00000000)", (RESET, FIELD, RMA)),
        ("XID-NVLINK5", "xid", 149, "NETIR_BER_EVENT Non-fatal XC0 i0 Link 08 (0x0 0x0)", (FIELD, RMA)),
        ("GPU-RECOVERY", "recovery", 2, "", (REBOOT, FIELD, RMA)),
        ("GPU-RECOVERY", "recovery", 3, "", (WATCH, RESET, REBOOT, FIELD, RMA)),
        ("SXID-FATAL", "sxid", 12020, "", (REBOOT, RMA)),
        ("SXID-FATAL", "sxid", 20034, "", (RESET, REBOOT, RMA)),
        ("NVL-STORM", "xid", 79, "", (RESET, FIELD, RMA)),  # no code of an Xid: its own ladder
        ("NO-SUCH-CODE", "", None, "", ()),
    ],
)  # fmt: skip
def test_where_a_ladder_begins(code: str, kind: str, number: Any, text: str, rungs: tuple[int, ...]) -> None:
    assert ladder.rungs(code, kind, number, text) == rungs


def test_the_buckets_are_those_of_the_catalogue() -> None:
    said = {x.action for x in xids.ALL} | {x.then for x in xids.ALL}
    known = set(ladder.BUCKETS)
    assert known - said <= {"RESTART_GUEST", "RESET_GPUS_AND_SWITCHES"}, "a bucket that nobody says"


def past(*strikes: Strike, own: Any = None, exclusions: Any = None, recovery: Any = None) -> Past:
    return Past(strikes, own, exclusions or {}, recovery or {}, T0)


def strikes(n: int, key: str = STORM, age_ns: int = DAY) -> list[Strike]:
    return [Strike("fault", key, T0 - age_ns - i) for i in range(n)]


LINK = Case("NVL-STORM", f"{uuid(3)}/link11")


def test_the_next_rung_when_it_comes_back() -> None:
    told = [remedy.choose(LINK, past(*strikes(n))) for n in range(5)]
    assert [t.rung for t in told] == [RESET, FIELD, RMA, RMA, RMA]
    assert (told[0].do, told[0].then, told[0].why) == ("reset GPU", "reseat, field diagnostic", "first time within 30d")
    assert (told[2].do, told[2].then, told[2].why) == ("exchange (RMA)", "", "came back 2 times within 30d")


def test_only_the_same_fault_on_the_same_gpu_within_the_time_counts() -> None:
    others = [
        *strikes(2, f"NVL-STORM {uuid(4)}"), *strikes(2, f"NVL-CRC {uuid(3)}"), *strikes(2, age_ns=31 * DAY),
        Strike("resume", STORM, T0 - DAY),
    ]  # fmt: skip
    assert remedy.choose(LINK, past(*others)).rung == RESET
    assert remedy.choose(LINK._replace(entity=f"{uuid(3)}/link2"), past(*strikes(1))).rung == FIELD, "another link of it is the same GPU"


def test_the_case_that_it_is_out_for_now_does_not_count_against_it() -> None:
    own = OwnDrain("nvhc: x", T0 - DAY, True, (f"NVL-STORM {uuid(3)}/link11",))
    placed = Strike("fault", STORM, T0 - DAY)
    assert remedy.choose(LINK, past(placed, own=own)).rung == RESET
    assert remedy.choose(LINK, past(*strikes(1, age_ns=5 * DAY), placed, own=own)).rung == FIELD
    excluded = {uuid(3): Exclusion(uuid(3), "NVL-STORM", "why", "nvhc", T0 - DAY)}
    assert remedy.choose(LINK, past(placed, exclusions=excluded)).rung == RESET
    beside = Strike("fault", f"NVL-BER {uuid(3)}", T0 - DAY)
    assert remedy.choose(Case("NVL-BER", uuid(3)), past(placed, beside, exclusions=excluded)).earlier == 0, "found with it"


def test_the_drivers_own_word_counts_where_it_is_harder() -> None:
    asks = remedy.choose(LINK, past(recovery={uuid(3): 2}))
    assert (asks.rung, asks.why) == (REBOOT, "the driver asks for it: node reboot")
    assert asks.then == "reseat, field diagnostic"
    assert remedy.choose(LINK, past(*strikes(2), recovery={uuid(3): 1})).rung == RMA
    assert remedy.choose(LINK, past(recovery={uuid(4): 2})).rung == RESET
    assert remedy.choose(LINK, past(recovery={uuid(3): 3})).rung == RESET, "draining peer traffic is nothing done to a part"


def test_without_a_rung_it_says_why() -> None:
    told = remedy.choose(Case("THERMAL-SLOWDOWN", uuid(3)), past(*strikes(3, f"THERMAL-SLOWDOWN {uuid(3)}")))
    assert (told.rung, told.do) == (None, "")
    assert "cooling" in told.why


def test_one_remedy_a_fault_and_part_the_hardest() -> None:
    two = [finding("XID-FATAL", 3)._replace(evidence=Evidence(field="xid", after=n)) for n in (119, 79)]
    told = remedy.all_of([*two, finding("NVL-STORM", 3, entity=f"{uuid(3)}/link1")], past())
    assert [(r.code, r.do) for r in told] == [("XID-FATAL", "reboot"), ("NVL-STORM", "reset GPU")]


def test_a_drain_leaves_one_strike_a_fault_and_part() -> None:
    keys = (f"NVL-STORM {uuid(3)}/link1", f"NVL-STORM {uuid(3)}/link2", "MON-ENGINE-HUNG monitor:engine", "GPU-LOST pci:0000:5e:00.0")
    new = remedy.struck(keys, past())
    assert [s.key for s in new] == [STORM, "GPU-LOST pci:0000:5e:00.0"]
    assert all((s.kind, s.at_ns) == ("fault", T0) for s in new)
    own = OwnDrain("nvhc: x", T0 - DAY, True, keys[:1])
    longer = remedy.struck(keys, past(Strike("fault", STORM, T0 - DAY), own=own))
    assert [s.key for s in longer] == ["GPU-LOST pci:0000:5e:00.0"], "the fault that the node was out for already is not counted anew"


def test_faults_are_remembered_for_as_long_as_they_count_and_limits_for_a_week() -> None:
    kept = state.Protective()
    for strike in (Strike("fault", STORM, T0), Strike("resume", "", T0), *(Strike("signal", str(n), T0 + 1) for n in range(300))):
        kept = state.add_strike(kept, strike)
    assert {s.kind for s in kept.strikes} == {"fault", "resume", "signal"}, "many of one kind do not push another out"
    assert sum(s.kind == "signal" for s in kept.strikes) == state.MOST_STRIKES
    later = state.add_strike(kept, Strike("fault", "x", T0 + 30 * DAY))
    assert [s.key for s in later.strikes] == [STORM, "x"]


# --- the reason -------------------------------------------------------------------------------


def test_the_reason_says_what_to_do() -> None:
    found = finding("NVL-STORM", 3)
    do = remedy.in_reason(remedy.all_of([found], past()), [found])
    text, troubles = render([found, finding("NVL-CRC", 4)], None, 8, Drain(), T0, remedy=do)
    assert troubles == ()
    assert text.endswith("is bad; do: reset GPU; +1 more: NVL-CRC gpu4")
    assert plain([found, finding("NVL-CRC", 4)], "", 250, remedy=do) == text


def test_the_reason_stays_within_its_length() -> None:
    text, _ = render([finding("NVL-STORM", 3)], None, 8, Drain(max_length=50), T0, remedy="reset GPU")
    assert len(text) <= 50


def test_watching_and_what_has_no_rung_are_not_said() -> None:
    for code in ("NVL-REPLAY", "THERMAL-SLOWDOWN", "MON-ENGINE-HUNG"):
        found = finding(code, 3)
        assert remedy.in_reason(remedy.all_of([found], past()), [found]) == ""


def test_a_template_of_the_site_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "reason.j2"
    path.write_text("{{ first.code }} act={{ remedy }}")
    assert render([finding()], None, 8, Drain(template=str(path)), T0, remedy="reboot")[0] == "nvhc: NVL-STORM act=reboot"


def test_what_the_driver_asks_for_is_read() -> None:
    import build

    snapshot = build.snapshot(build.gpu(0, recovery_action=2), build.gpu(1, recovery_action=0), build.gpu(2))
    assert remedy.asked_for(snapshot) == {build.uuid(0): 2}
    assert given().recovery == {}
    assert drained("x").ground == "x"


if __name__ == "__main__":
    page = PAGE.read_text()
    for head, make in TABLES.items():
        before, _, after = page.partition(head)
        _, gap, rest = after.partition("\n\n")
        page = before + make() + gap[:1] + rest
    PAGE.write_text(page)
