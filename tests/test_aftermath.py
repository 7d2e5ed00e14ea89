"""aftermath.py in whole hook runs: evidence, counting and the site's programs, for what was really done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import act_fakes
import build
import pytest
from site_ import Site

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.evidence import BUG_REPORT
from slurm_nvhc.act.execute import Done, Outcome
from slurm_nvhc.act.plan import plan
from slurm_nvhc.act.steps import Step
from slurm_nvhc.aftermath import Teller
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Intent
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy.acting import Evidence, SiteHooks
from slurm_nvhc.record import protective
from slurm_nvhc.record.protective import Protective

RULES = {
    "defaults": False,
    "rules": {
        "replay": {"finding": "NVL-STORM", "field": "nvlink_replay", "fail": {"increase_above": 100}, "action": "drain"},
        "remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"},
    },
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def hook_program(site: Site, name: str, text: str = "") -> str:
    path = site.root / name
    path.write_text(f"#!/bin/sh\ncat >{site.root}/{name}.json\n{text or 'echo done'}\n")
    path.chmod(0o755)
    return str(path)


def got(site: Site, name: str) -> Any:
    path = site.root / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def storm(site: Site) -> None:
    with site.edit() as world:
        world.storm("g3.link11", "replay", 21200, 2460)


def bundles(site: Site) -> list[str]:
    folder = site.root / "state" / "n1" / "evidence"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def test_a_drain_keeps_evidence_counts_and_tells(site: Site) -> None:
    site.write_policy({**RULES, "site_hooks": {"on_drain": hook_program(site, "on_drain"), "on_exclude": hook_program(site, "on_exclude")}})
    site.slurm()
    site.hook("prolog", 8812)
    storm(site)
    site.hook("epilog", 8812)
    (name,) = bundles(site)
    told = json.loads((site.root / "state" / "n1" / "evidence" / name).read_text())
    assert told["findings"][0]["code"] == "NVL-STORM"
    assert told["before"] is not None
    assert told["ledger"][told["identity"][0]["uuid"]][0]["hook"] == "prolog"
    event = got(site, "on_drain")
    assert (event["schema"], event["event"], event["node"], event["cluster"], event["mode"]) == (1, "drain", "n1", "test", "enforce")
    assert event["reason"].endswith("; do: reset GPU")
    assert event["reason"] in (site.root / "drained").read_text()
    assert event["job"] == {"id": "8812", "user": "alice", "partition": "gpu"}
    assert event["findings"][0]["gpu"]["serial"]
    assert event["remedies"][0]["do"] == "reset GPU"
    assert os.path.basename(event["evidence"]) == name
    assert got(site, "on_exclude") is None
    run = site.last("epilog")
    assert run.outcome["told"][0]["told"] == "done"
    with site.ledger() as ledger:
        kept = ledger.protective()
    assert [(s.kind, s.key) for s in kept.strikes] == [("fault", f"NVL-STORM {told['identity'][0]['uuid']}")]
    assert kept.intents == (), "told, so nothing is left to tell"
    assert not list((site.root / "state" / "n1" / "notify").iterdir())
    said = site.nvhc("explain", "8812", code=None)
    assert "remedy    gpu3 NVL-STORM: reset GPU (first time within 30d); if it comes back: reseat, field diagnostic" in said
    assert f"evidence  {event['evidence']}" in said
    assert "on_drain: told done" in said

    # The same fault while the node is out is no second drain: nothing is kept, counted or told again.
    (site.root / "on_drain.json").unlink()
    site.hook("health_check")
    assert bundles(site) == [name]
    assert got(site, "on_drain") is None
    with site.ledger() as ledger:
        assert len(ledger.protective().strikes) == 1


def test_the_second_time_the_reason_asks_for_more(site: Site) -> None:
    site.write_policy(RULES)
    drained = site.slurm()
    for job in (1, 2):
        site.hook("prolog", job)
        storm(site)
        site.hook("epilog", job)
        if job == 1:
            assert drained.read_text().endswith("; do: reset GPU")
            drained.unlink()  # somebody resumes the node
    assert drained.read_text().endswith("; do: reseat, field diagnostic")


def test_a_drain_that_is_not_placed_is_no_event(site: Site) -> None:
    site.write_policy({**RULES, "site_hooks": {"on_drain": hook_program(site, "on_drain")}})
    site.hook("prolog", 1)
    storm(site)
    site.hook("epilog", 1)
    assert [d["kind"] for d in site.last("epilog").outcome["done"]] == ["intent"]
    assert got(site, "on_drain") is None
    assert bundles(site) == []
    with site.ledger() as ledger:
        assert ledger.protective().strikes == ()


def test_observe_mode_tells_and_keeps_nothing(site: Site) -> None:
    site.write_policy({**RULES, "mode": "observe", "site_hooks": {"on_drain": hook_program(site, "on_drain")}})
    site.slurm()
    site.hook("prolog", 1)
    storm(site)
    site.hook("epilog", 1)
    assert site.last("epilog").verdict == "fail"
    assert got(site, "on_drain") is None
    assert bundles(site) == []


def test_a_program_that_fails_stops_nothing_and_is_told_again(site: Site) -> None:
    policy = {**RULES, "site_hooks": {"on_drain": hook_program(site, "on_drain", "exit 4")}}
    site.write_policy(policy)
    drained = site.slurm()
    site.hook("prolog", 1)
    storm(site)
    assert site.hook("epilog", 1).returncode == 0
    assert drained.exists()
    run = site.last("epilog")
    assert [t["code"] for t in run.outcome["troubles"]] == ["MON-SITE-HOOK"]
    assert run.verdict == "fail"
    first = got(site, "on_drain")
    with site.ledger() as ledger:
        (intent,) = ledger.intents()
        assert (intent.kind, intent.reason, intent.tries) == ("notify", first["id"], 1)
        ledger.update_intent(intent._replace(next_ns=0))
    (site.root / "on_drain.json").unlink()
    hook_program(site, "on_drain")
    site.hook("health_check")
    assert got(site, "on_drain") == first, "the very same document, id included"
    with site.ledger() as ledger:
        assert ledger.intents() == ()


def test_evidence_that_can_not_be_written_stops_nothing(site: Site) -> None:
    (site.root / "file").touch()
    site.write_policy({**RULES, "evidence": {"dir": str(site.root / "file")}})
    drained = site.slurm()
    site.hook("prolog", 1)
    storm(site)
    site.hook("epilog", 1)
    assert drained.exists()
    assert [t["code"] for t in site.last("epilog").outcome["troubles"]] == ["MON-EVIDENCE"]


def test_evidence_by_hand(site: Site) -> None:
    site.write_policy({**RULES, "evidence": {"keep": 2}})
    site.hook("health_check")
    with site.edit() as world:
        world.set("g1.395", 1)
    answer = site.nvhc_json("evidence", "gpu1")
    told = json.loads(Path(answer["path"]).read_text())
    assert told["occasion"]["kind"] == "by hand"
    assert told["identity"][0]["nvml_index"] == 1
    assert told["remedies"][0]["do"] == "reseat, field diagnostic"
    assert site.nvhc("evidence", "--list").split() == [answer["path"]]
    assert "is no GPU that this node knows" in site.nvhc("evidence", "gpu9", code=2)
    assert site.last("health_check").verdict == "ok", "a look by hand is no run"
    if not os.path.exists(BUG_REPORT):
        assert f"{BUG_REPORT} is not there" in site.nvhc("evidence", "--bug-report", code=3)
    site.nvhc("evidence", "gpu1")
    assert len(site.nvhc("evidence", "--list").split()) == 2, "evidence.keep"


def test_what_an_administrator_does_is_told_too(site: Site) -> None:
    program = hook_program(site, "on_release", "exit 5")
    site.write_policy({**RULES, "site_hooks": {"on_release": program}})
    site.hook("health_check")
    with site.ledger() as ledger:
        uuid = next(g.uuid for g in ledger.known_gpus() if g.nvml_index == 2)
        ledger.exclude(Exclusion(uuid, "NVL-STORM", "gpu2 link4", "nvhc", 7))
    said = site.nvhc("gpu", "release", "gpu2", code=0)
    assert f"on_release: {program}: exit status 5" in said, "said, and the release stands"
    event = got(site, "on_release")
    assert (event["event"], event["uuid"], event["hook"]) == ("release", uuid, "by hand")
    with site.ledger() as ledger:
        assert ledger.exclusions() == ()


# --- without a node ---------------------------------------------------------------------------


class Book:
    """The ledger of a Teller."""

    def __init__(self) -> None:
        self.kept = Protective()

    def protective(self) -> Protective:
        return self.kept

    def ask(self, call: Any, default: Any) -> Any:
        return default

    def __getattr__(self, name: str) -> Any:
        def change(value: Any) -> None:
            self.kept = getattr(protective, name)(self.kept, value)

        return change


def a_teller(tmp_path: Path, book: Book, left_s: float = 30.0, **sections: Any) -> Teller:
    policy = act_fakes.policy()._replace(**sections)
    context: Any = SimpleNamespace(
        site=SimpleNamespace(state=str(tmp_path)), node="n1", policy=policy, budget=SimpleNamespace(left_s=lambda: left_s), book=book,
        slurm_conf="", hook="health_check", job=None,
    )  # fmt: skip
    (tmp_path / "n1").mkdir(exist_ok=True)
    found = act_fakes.finding("NVL-STORM", 3)
    seen: Any = SimpleNamespace(
        mapping=act_fakes.mapping(), judgement=SimpleNamespace(findings=(found,), suspects=()), changes=(), before=None,
        given=SimpleNamespace(diag=None), snapshot=build.snapshot(build.gpu(3)),
    )  # fmt: skip
    given = act_fakes.given(strikes=book.kept.strikes, intents=book.kept.intents, policy=policy)
    return Teller(context, seen, given, ())


def program_that_counts(tmp_path: Path, text: str = "true") -> str:
    path = tmp_path / "count"
    path.write_text(f"#!/bin/sh\ncat >>{tmp_path}/told\n{text}\n")
    path.chmod(0o755)
    return str(path)


def told(tmp_path: Path) -> list[Any]:
    path = tmp_path / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


ALERT = Step(st.ALERT, why="limit: 2 of 2 nodes", keys=("NVL-STORM x",), about="reboot")


def test_a_limit_is_told_once_a_day_for_the_same_thing(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_limit=program_that_counts(tmp_path))
    for why in ("limit: 2 of 2 nodes", "limit: 3 of 2 nodes"):
        a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((Done(ALERT._replace(why=why), True),)))
    assert [t["why"] for t in told(tmp_path)] == ["limit: 2 of 2 nodes"]
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((Done(ALERT._replace(keys=("NVL-CRC y",)), True),)))
    assert len(told(tmp_path)) == 2
    book.kept = book.kept._replace(strikes=tuple(s._replace(at_ns=s.at_ns - 2 * 86400 * 10**9) for s in book.kept.strikes))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((Done(ALERT, True),)))
    assert len(told(tmp_path)) == 3


def test_only_what_was_done_is_an_event(tmp_path: Path) -> None:
    drain = Step(st.DRAIN, reason="nvhc: x", keys=(f"NVL-STORM {act_fakes.uuid(3)}",))
    cases = [
        (Outcome((Done(drain, True, "the node was taken out meanwhile, its reason stays"),)), 0),
        (Outcome((Done(drain, False),)), 0),
        (Outcome((Done(drain, True),), deeds=(drain,)), 1),
        (Outcome((Done(Step(st.END_EXCLUSION, uuid="GPU-x", about="cleared"), True),)), 0),
        (Outcome((Done(Step(st.END_EXCLUSION, uuid="GPU-x", about="replaced"), True),)), 1),
        (Outcome((Done(Step(st.RESUME, reason="nvhc: x"), False),)), 0),
        (Outcome((Done(Step(st.RESUME, reason="nvhc: x"), True),)), 1),
        (Outcome((Done(Step(st.REQUEUE, job="7"), True),)), 1),
    ]
    counting = program_that_counts(tmp_path)
    hooks = SiteHooks(on_drain=counting, on_resume=counting, on_release=counting, on_requeue=counting)
    for outcome, number in cases:
        (tmp_path / "told").unlink(missing_ok=True)
        a_teller(tmp_path, Book(), site_hooks=hooks).after(outcome)
        assert len(told(tmp_path)) == number, outcome


def test_without_time_left_nothing_is_run_and_the_event_waits(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_drain=program_that_counts(tmp_path))
    drain = Step(st.DRAIN, reason="nvhc: x", keys=("NVL-STORM x",))
    after = a_teller(tmp_path, book, 0.6, site_hooks=hooks).after(Outcome((), deeds=(drain,)))
    assert [t.code for t in after.troubles] == ["MON-SITE-HOOK"]
    assert told(tmp_path) == []
    (intent,) = book.kept.intents
    assert intent.next_ns > act_fakes.T0
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome())
    assert told(tmp_path) == [], "not before its time"
    book.kept = book.kept._replace(intents=(intent._replace(next_ns=0),))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome())
    assert [t["id"] for t in told(tmp_path)] == [intent.reason]
    assert book.kept.intents == ()


def test_an_event_that_could_not_be_told_for_a_day_is_dropped(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_drain=program_that_counts(tmp_path, "exit 1"))
    drain = Step(st.DRAIN, reason="nvhc: x", keys=("NVL-STORM x",))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((), deeds=(drain,)))
    (intent,) = book.kept.intents
    book.kept = book.kept._replace(intents=(intent._replace(next_ns=0, since_ns=intent.since_ns - 2 * 86400 * 10**9),))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome())
    assert len(told(tmp_path)) == 1
    assert book.kept.intents == ()
    assert not list((tmp_path / "n1" / "notify").iterdir())


def test_a_program_that_is_taken_out_of_the_policy_is_not_run_any_more(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_drain=program_that_counts(tmp_path, "exit 1"))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((), deeds=(Step(st.DRAIN, reason="nvhc: x"),)))
    book.kept = book.kept._replace(intents=tuple(i._replace(next_ns=0) for i in book.kept.intents))
    a_teller(tmp_path, book, site_hooks=SiteHooks()).after(Outcome())
    assert (len(told(tmp_path)), book.kept.intents) == (1, ())


def test_before_a_reboot_evidence_then_the_site(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_reboot=program_that_counts(tmp_path))
    teller = a_teller(tmp_path, book, site_hooks=hooks)
    teller.before_reboot(Step(st.REBOOT, reason="nvhc: x", keys=(f"GPU-LOST {act_fakes.uuid(3)}",)))
    (event,) = told(tmp_path)
    assert event["event"] == "reboot"
    assert Path(event["evidence"]).name.endswith("-GPU-LOST-00000003.json")
    assert json.loads(Path(event["evidence"]).read_text())["occasion"]["kind"] == "reboot"
    assert [b["kind"] for b in teller.after(Outcome()).bundles] == ["reboot"]


def test_a_reboot_that_is_asked_for_again_is_the_same_event(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_reboot=program_that_counts(tmp_path))
    book.kept = book.kept._replace(intents=(Intent("reboot", "nvhc: x", act_fakes.T0 - 7), Intent("drain", "nvhc: x", 5)))
    for reason in ("nvhc: x", "nvhc: x", "nvhc: y"):
        a_teller(tmp_path, book, site_hooks=hooks).before_reboot(Step(st.REBOOT, reason=reason))
    one, again, other = (t["id"] for t in told(tmp_path))
    assert one == again != other
    assert one.split("-")[1] == str(act_fakes.T0 - 7)


def test_evidence_can_be_switched_off(tmp_path: Path) -> None:
    after = a_teller(tmp_path, Book(), evidence=Evidence(enabled=False)).after(Outcome((), deeds=(Step(st.DRAIN, reason="nvhc: x"),)))
    assert after.bundles == ()
    assert not (tmp_path / "n1" / "evidence").exists()


def test_whatever_goes_wrong_here_stops_nothing(tmp_path: Path) -> None:
    class Broken(Book):
        def protective(self) -> Protective:
            raise RuntimeError("a bug of ours")

    teller = a_teller(tmp_path, Broken())
    teller.before_reboot(Step(st.REBOOT, reason="nvhc: x"))
    after = teller.after(Outcome((), deeds=(Step(st.DRAIN, reason="nvhc: x"),)))
    assert [(t.code, t.detail) for t in after.troubles] == [("MON-INTERNAL", "after the steps: RuntimeError: a bug of ours")]


def test_in_observe_mode_no_program_is_run(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_resume=program_that_counts(tmp_path, "exit 1"))
    resume = Outcome((Done(Step(st.RESUME, reason="nvhc: x"), True),))
    a_teller(tmp_path, book, site_hooks=hooks, mode="observe").after(resume)
    assert (told(tmp_path), book.kept.intents) == ([], ())
    a_teller(tmp_path, book, site_hooks=hooks).after(resume)
    book.kept = book.kept._replace(intents=tuple(i._replace(next_ns=0) for i in book.kept.intents))
    a_teller(tmp_path, book, site_hooks=hooks, mode="observe").after(Outcome())
    assert (len(told(tmp_path)), len(book.kept.intents)) == (1, 1), "what waits goes on waiting"


def test_a_prolog_does_not_wait_for_what_others_could_not_tell(tmp_path: Path) -> None:
    book, hooks = Book(), SiteHooks(on_resume=program_that_counts(tmp_path, "exit 1"))
    a_teller(tmp_path, book, site_hooks=hooks).after(Outcome((Done(Step(st.RESUME, reason="nvhc: x"), True),)))
    book.kept = book.kept._replace(intents=tuple(i._replace(next_ns=0) for i in book.kept.intents))
    for hook, number in (("prolog", 1), ("epilog", 2)):
        teller = a_teller(tmp_path, book, site_hooks=hooks)
        teller._context.hook = hook  # type: ignore[misc]
        teller.after(Outcome())
        assert len(told(tmp_path)) == number


# --- what counts as done ----------------------------------------------------------------------

FAULT = act_fakes.decision(act_fakes.proposal("drain", act_fakes.finding("NVL-STORM", 3)))
NARROWED = act_fakes.decision(act_fakes.proposal("narrow", act_fakes.finding("NVL-STORM", 3)))


def deeds(node: act_fakes.Site, what: Any = FAULT, **changes: Any) -> list[str]:
    return [step.kind for step in node.run(what, **changes)[1].deeds]


def test_a_drain_is_a_deed_once_it_is_placed() -> None:
    node = act_fakes.Site()
    assert deeds(node) == ["drain"]
    assert deeds(node) == [], "it is placed already"
    late = act_fakes.Site()
    late.slurm.behaviour = "hangs_at_update"
    assert deeds(late) == []
    late.slurm.wake_up()
    assert deeds(late) == ["drain"], "applied after the hook had gone: known by its reason"


FOREIGN = act_fakes.drained("ADMIN: psu")


@pytest.mark.parametrize("state", [FOREIGN, FOREIGN._replace(base="DOWN"), NodeState("DOWN", frozenset())])
def test_a_node_that_somebody_took_out_meanwhile_is_none(state: NodeState) -> None:
    node = act_fakes.Site()
    node.slurm.before_update = state
    assert deeds(node) == []


def test_an_exclusion_is_one_and_so_is_the_drain_in_its_place() -> None:
    narrows = {"policy": act_fakes.policy(pol.Narrow(enabled=True))}
    assert deeds(act_fakes.Site(), NARROWED, **narrows) == ["exclude"]
    broken = act_fakes.Site()
    broken.ledger.broken = True
    inp = act_fakes.given(NARROWED, **narrows)
    assert [s.kind for s in broken.do(plan(inp), inp).deeds] == ["drain"]
