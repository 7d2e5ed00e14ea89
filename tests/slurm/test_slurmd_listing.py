"""What the doctor asks of slurmd, of a real one. slurmd -G wants munged on 24.11, so it is asked within a cluster."""

from __future__ import annotations

from harness import Cluster

from slurm_nvhc.doctor.look import slurm
from slurm_nvhc.doctor.look.edges import Edges
from slurm_nvhc.slurm import gres


def test_slurmd_lists_what_gres_conf_says(start) -> None:
    cluster = start(Cluster())
    log = cluster.root / "log" / "slurmd-n1.log"
    before = log.read_text() if log.exists() else ""
    listing = slurm.listing(Edges(), "n1", str(cluster.slurm_conf), "/usr/bin")
    ours, _ = gres.read(str(cluster.slurm_conf), "n1")
    assert listing.problem == ""
    assert ours is not None
    assert len(ours.files) == 8
    assert listing.files == ours.files
    assert "Gres Name=gpu" not in (log.read_text() if log.exists() else "").removeprefix(before), "nothing is written to slurmd's log"
