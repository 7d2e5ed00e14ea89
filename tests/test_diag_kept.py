"""A diagnostic's report is kept with its run: `nvhc explain` shows it, and another policy judges it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from site_ import Site

from slurm_nvhc import simulate as sim
from slurm_nvhc.catalog import diags
from slurm_nvhc.context import Site as Places
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model.diag import Ask, Error, Report, Result
from slurm_nvhc.pipeline import run_hook
from slurm_nvhc.policy import compiled, source
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.sense import diag as engine_diag

MISMATCH = Error("a memory mismatch", 58, "isolate")


def answers(broken: int | None, skipped: tuple[str, ...] = ()) -> Any:
    """An engine whose every test passes, but for the memory of the GPU in that place of the question."""

    def run(node: str, engine: Any, ask: Ask, deadline_s: float) -> Report:
        results = []
        for at, uuid in enumerate(ask.uuids):
            for test in diags.core(ask.tests):
                bad = (at, test) == (broken, "memory")
                results.append(Result(test, uuid, dg.FAIL if bad else dg.PASS, (MISMATCH,) if bad else ()))
        results += [Result(test, uuid, dg.SKIP) for uuid in ask.uuids for test in skipped]
        at_ns = time.time_ns()
        return Report(dg.DONE, ask.tests, ask.uuids, tuple(results), "", "4.6.0", "575", "sim", at_ns, at_ns + 130 * 10**9)

    return run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Job 1 found gpu1's memory broken in its epilog, job 2 found nothing."""
    policy = {"diagnostics": {"epilog": 2, "epilog_when": "always"}, "budgets": {"epilog": "10m"}}
    site = Site(tmp_path_factory.mktemp("diag"), preset="a100-pcie-nvlink-2", policy=policy)
    (site.root / "gres.conf").write_text("Name=gpu File=/dev/nvidia[0-1]\n")
    site.slurm()
    places = Places(str(site.config), str(site.root / "state"), str(site.root / "run"), str(site.slurm_conf))
    with pytest.MonkeyPatch.context() as patched:
        for job, broken in ((1, 1), (2, None)):
            patched.setattr(engine_diag, "run", answers(broken, ("eud",)))
            for hook in ("prolog", "epilog"):
                run_hook(hook, places, site.environment(job, "0,1"), time.monotonic(), "n1")
    return site


def simulated(site: Site, **sections: Any) -> sim.Report:
    def in_force(partition: str) -> compiled.Policy:
        return source.load(str(site.config), str(site.root / "state" / "n1"), "n1", partition, keep=False).policy

    written = {**yaml.safe_load(site.config.read_text()), **sections}
    document = compile_policy(yaml.safe_dump(written), "new.yaml")
    with site.ledger() as ledger:
        return sim.simulate(ledger, "n1", in_force, lambda partition: compiled.resolve(document, "n1", partition), 0)


def test_it_is_judged_again_as_it_was(site: Site) -> None:
    told = simulated(site)
    assert (told.judged, told.same_hash, told.otherwise, told.differences) == (4, 4, (), ())


def test_another_policy_judges_it_otherwise(site: Site) -> None:
    told = simulated(site, rules={"diag_isolate": {"mode": "observe"}})
    assert [(d.finding.code, d.job_id, d.was, d.now) for d in told.differences] == [
        ("DIAG-FAIL", "1", "drain", "drain (observed)"), ("DIAG-FAIL", "1", "nothing", "notify"),
    ]  # fmt: skip


def test_a_report_that_can_not_be_read_is_told(site: Site, tmp_path: Path) -> None:
    with site.ledger() as ledger:
        run = ledger.last_run("epilog")
        assert run is not None
        seen = ledger.snapshot_of(run.id)
        broken = run._replace(id=0, snapshot=seen, outcome={**run.outcome, "diag": {"outcome": "?"}})
    other = Site(tmp_path)
    other.hook("prolog", 9)
    with other.ledger() as ledger:
        ledger.record_run(broken)
    assert simulated(other).skipped == {"what judge was told can not be read": 1}
    assert "    diag      " not in other.nvhc("explain", "2", code=None)


def test_explain_shows_what_every_gpu_said(site: Site) -> None:
    text = " ".join(site.nvhc("explain", "1", code=1).split())
    assert "diag level 2: done in 2m10s (DCGM 4.6.0)" in text
    assert "diag gpu0: eud: skip; software, memory, pcie: pass" in text
    assert "diag gpu1: memory: fail; eud: skip; software, pcie: pass" in text
    assert "diag memory failed: a memory mismatch (error 58 MEMORY_MISMATCH, isolate)" in text
    clean = " ".join(site.nvhc("explain", "2").split())
    assert "diag gpu0, gpu1: eud: skip; software, memory, pcie: pass" in clean
    assert "DIAG-PASS" in clean


def test_explain_of_one_gpu_shows_its_own(site: Site) -> None:
    text = " ".join(site.nvhc("explain", "gpu0", code=None).split())
    assert "diag gpu0: eud: skip; software, memory, pcie: pass" in text
    assert "gpu1:" not in text
    report = site.nvhc_json("explain", "1", code=1)["runs"][0]["outcome"]["diag"]
    assert (report["outcome"], report["tests"]) == ("done", ["2"])


def test_the_node_is_drained_for_it(site: Site) -> None:
    run = next(r for r in _runs(site, "1") if r.hook == "epilog")
    assert run.verdict == "fail"
    assert "DIAG-FAIL gpu1" in run.outcome["reason"]
    assert "field diagnostic" in run.outcome["reason"]


def _runs(site: Site, job: str) -> Any:
    with site.ledger() as ledger:
        return ledger.runs_of_job(job)
