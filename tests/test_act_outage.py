"""slurmctld does not answer: what waits for it is put off, and nothing is taken for tried that was not."""

from __future__ import annotations

import time
from pathlib import Path

from site_ import Site

from slurm_nvhc.model.protective import QUARANTINE, Exclusion, Intent
from slurm_nvhc.record.ledger import Ledger

DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_quarantine_that_slurm_was_never_asked_for_is_not_in_vain(tmp_path: Path) -> None:
    """Counted as a try, the outage itself would drain the node: "could not be quarantined within 30 s"."""
    site = Site(tmp_path, policy={"quarantine": {"enabled": True}})
    assert site.hook("health_check").returncode == 0
    (tmp_path / "slurm.conf").write_text("ClusterName=test\nPrologFlags=Alloc\n")
    now_ns = time.time_ns()
    with Ledger.open(str(tmp_path / "state" / "n1"), 5.0) as ledger:
        gpu = ledger.known_gpus()[3]
        ledger.exclude(Exclusion(gpu.uuid, "NVL-STORM", "is bad", "nvhc", now_ns, way=QUARANTINE, slot=gpu.pci))
        ledger.add_intent(Intent(QUARANTINE, gpu.uuid, now_ns, (f"GPU-EXCLUDED {gpu.uuid}",)))
        ledger.add_intent(Intent("notify", "drain-1", now_ns))
        ledger.add_intent(Intent("drain", "nvhc: GPU-LOST gpu5", now_ns, ("GPU-LOST GPU-5",), policy="another"))
    site.scontrol(DOWN)
    assert site.hook("prolog", 7).returncode == 0
    assert site.calls(), "Slurm was asked"
    with Ledger.open(str(tmp_path / "state" / "n1"), 5.0) as ledger:
        tries = {intent.kind: intent.tries for intent in ledger.intents()}
    assert tries[QUARANTINE] == 0
    assert tries["notify"] == 0, "telling the site takes no Slurm"
