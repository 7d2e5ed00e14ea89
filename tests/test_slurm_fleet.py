"""slurm/fleet.py: what sinfo answers, and what it is when it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_nvhc.slurm.fleet import OutNode, Partition, SlurmFleet, parse
from slurm_nvhc.slurm.node import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmError

# As 22.05 printed it, with SLURM_TIME_FORMAT=%s.
SEEN = """\
gpu|1|drained|1796129387|root|n1|nvhc: a|b [x] = "q
gpu|1|drained|1796129387|root|n2|nvhc: two
line two|x
gpu|2|drained*|1796129388|root|n[3-4]|nvhc: same
gpu|1|draining@|1796129389|root|n9|nvhc: busy
gpu|1|down*|1796129000|slurm|n8|Not responding
gpu|3|idle|Unknown|Unknown|n[5-7]|none
long|1|idle|1796129000|root|n7|nvhc: kept after a resume
"""


def test_a_partition_with_everything() -> None:
    gpu, long = parse(SEEN)
    s = 10**9
    assert gpu == Partition(
        "gpu",
        9,
        (
            OutNode("n1", "drained", 'nvhc: a|b [x] = "q', "root", 1796129387 * s),
            OutNode("n2", "drained", "nvhc: two\nline two|x", "root", 1796129387 * s),
            OutNode("n3", "drained", "nvhc: same", "root", 1796129388 * s),
            OutNode("n4", "drained", "nvhc: same", "root", 1796129388 * s),
            OutNode("n9", "draining", "nvhc: busy", "root", 1796129389 * s),
            OutNode("n8", "down", "Not responding", "slurm", 1796129000 * s),
        ),
    )
    assert long == Partition("long", 1, ()), "24.11 keeps the reason of an ended drain: the state decides"


def test_long_names_and_many_nodes() -> None:
    name = "gpu-cluster-rack-042-node-with-a-very-long-host-name-0001"
    long = "a_partition-with.a_long.name"
    (part,) = parse(f"{long}|1|drained|1|root|{name}|nvhc: x\n{long}|9999|idle|Unknown|Unknown|m[0001-9999]|none\n")
    assert (part.nodes, part.out[0].name) == (10000, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sinfo: something else\n", "not a line"),
        ("gpu|2|drained|1|root|n1|two announced, one named\n", "2 nodes were announced and 1 named"),
        ("gpu|1|drained|1|root|n[3-|x\n", "brackets"),
        ("gpu|1|drained|2026-12-01T12:00:00|root|n1|a time that was not asked for\n", "not a line"),
    ],
)
def test_what_is_no_answer_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_reason_without_a_time_and_an_empty_answer() -> None:
    ((part),) = parse("gpu|1|drained|Unknown|Unknown|n1|none\n")
    assert part.out == (OutNode("n1", "drained", "", "Unknown", 0),)
    assert parse("") == ()


def sinfo(tmp_path: Path, script: str) -> SlurmFleet:
    path = tmp_path / "sinfo"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return SlurmFleet(str(tmp_path), "/etc/slurm/slurm.conf", 2.0)


def test_one_question(tmp_path: Path) -> None:
    answer = 'echo "a|1|idle|Unknown|Unknown|n1|none"; echo "b|2|down|5|root|n[1-2]|x"'
    fleet = sinfo(tmp_path, f'echo "$SLURM_CONF $SLURM_TIME_FORMAT $*" > {tmp_path}/asked; {answer}')
    assert [p.name for p in fleet.partitions(("a", "b"))] == ["a", "b"]
    assert (tmp_path / "asked").read_text() == "/etc/slurm/slurm.conf %s -h --local -p a,b -o %R|%D|%T|%H|%u|%N|%E\n"
    assert [n.name for n in fleet.out_nodes()] == ["n1", "n2"]
    assert "-a" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("sleep 60", TIMEOUT),
        ("echo 'slurm_load_node: Unable to contact slurm controller (connect failure)' >&2; exit 1", UNREACHABLE),
        ("echo 'Socket timed out on send/recv operation' >&2; exit 1", TIMEOUT),
        ("echo what", REFUSED),
        ("true", REFUSED),  # an unknown partition is an empty answer
    ],
)
def test_no_answer(tmp_path: Path, script: str, kind: str) -> None:
    with pytest.raises(SlurmError) as caught:
        sinfo(tmp_path, script).partitions(("gpu",), 0.3)
    assert caught.value.kind == kind


def test_sinfo_that_is_not_there(tmp_path: Path) -> None:
    missing = SlurmFleet(str(tmp_path), "", 2.0).unusable()
    assert missing is not None
    assert missing.kind == MISSING
    assert os.path.join(str(tmp_path), "sinfo") in str(missing)
    assert SlurmFleet("bin", "", 2.0).unusable() is not None
    assert sinfo(tmp_path, "true").unusable() is None
