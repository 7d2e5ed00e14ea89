"""The doctor about reboots and the site's programs: said only where the policy wants them."""

from __future__ import annotations

from typing import Any

import pytest
from test_doctor import machine

from slurm_nvhc.doctor.examine import examine
from slurm_nvhc.doctor.facts import Facts, Line, PathFact, Trust
from slurm_nvhc.model.protective import Intent
from slurm_nvhc.policy.acting import Reboot, SiteHooks

FILE, FOLDER = 0o100755, 0o040755


def said(facts: Facts) -> dict[str, Line]:
    return {line.check: line for line in examine(facts) if line.check.startswith("remedies.")}


def wanted(program: tuple[str, ...] = ("/sbin/reboot",), **changes: Any) -> Facts:
    facts = machine()
    given = facts.policy.policy._replace(reboot=Reboot(enabled=True))
    settings = {**(facts.slurm.settings or {}), "rebootprogram": program}
    facts = facts._replace(policy=facts.policy._replace(policy=given), slurm=facts.slurm._replace(settings=settings))
    return facts._replace(host=facts.host._replace(state=facts.host.state._replace(**changes)))


def test_nothing_is_said_where_nobody_wants_it() -> None:
    assert said(machine()) == {}


def test_a_reboot_needs_a_program_and_a_ledger_that_survives_it() -> None:
    assert said(wanted())["remedies.reboot"] == Line("remedies.reboot", "ok", "Slurm reboots with /sbin/reboot")
    assert "no RebootProgram" in said(wanted(()))["remedies.reboot"].found
    lost = said(wanted(lost="tmpfs"))["remedies.reboot"]
    assert (lost.verdict, "none is asked for" in lost.found) == ("warn", True)


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        (PathFact("/opt/tell", True, 0, FILE), "ok"),
        (PathFact("/opt/tell"), "fail"),
        (PathFact("/opt/tell", True, 0, FOLDER), "fail"),
        (PathFact("/opt/tell", True, 0, 0o100644), "fail"),
        (PathFact("/opt/tell", problem="Permission denied"), ""),
    ],
)
def test_a_program_of_the_site_can_be_run(place: PathFact, verdict: str) -> None:
    facts = machine()
    given = facts.policy.policy._replace(site_hooks=SiteHooks(on_drain="/opt/tell"))
    host = facts.host._replace(trusted=(*facts.host.trusted, Trust("on_drain", (PathFact("/opt", True, 0, FOLDER), place))))
    lines = said(facts._replace(policy=facts.policy._replace(policy=given), host=host))
    assert lines["remedies.on_drain"].verdict == verdict if verdict else "remedies.on_drain" not in lines


def test_an_event_that_nobody_was_told_is_no_matter_of_slurm() -> None:
    facts = machine()
    old = (Intent("notify", "drain-7-00000000", facts.now_ns - 7200 * 10**9, tries=5), Intent("notify", "drain-8-00000000", facts.now_ns))
    facts = facts._replace(ledger=facts.ledger._replace(intents=old))
    lines = {line.check: line for line in examine(facts) if line.check in ("ledger.events", "ledger.intents")}
    assert (lines["ledger.events"].verdict, "drain-7-00000000, tries 5" in lines["ledger.events"].found) == ("warn", True)
    assert lines["ledger.intents"].verdict == "ok"
