"""What a reading of the node costs, and what an engine that does not answer costs beyond the deadline.

    ./run bench reader [--json FILE] [--times N]

On the simulated node (8 x H100, 144 links, every catalogue field). With NVHC_DCGM_ADDRESS set
(and NVHC_DCGM_BINDINGS where DCGM is not in its install path) the same on that engine,
beside a bare process that imports NVIDIA's bindings, connects and reads the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import table
from table import Row

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc import child
from slurm_nvhc.sense import client, protocol
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.dcgm import bindings, connection, identity, links
from slurm_nvhc.sense.reader.backend import PartFailed
from slurm_nvhc.sense.sim.world import World

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "engines")
sys.path.insert(0, ENGINES)
import servers  # noqa: E402

NODE = "n1"
PATIENT_S = 30.0
SHORT_S = 1.0  # the deadline that engines without an answer are given
LATE_TIMES = 3  # each costs its deadline
RATIO_BOUND = 1.5  # a cold read against a bare process
MEMORY_BOUND_MIB = 80.0
GPUS, LINKS = 8, 144

# The reader's own main, and then what its memory came to: exact for this process, unlike rusage, which
# counts the parent's memory before exec.
MEASURED = """\
import sys
from slurm_nvhc.sense.reader.__main__ import main
main()
print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr, flush=True)
import os
os._exit(0)
"""

BARE = """\
import json, os, sys, types
folder, place, families = json.loads(sys.argv[1])
sys.path.insert(0, folder)
if not os.path.exists(os.path.join(folder, "logger.py")):
    sys.modules["logger"] = types.ModuleType("logger")
import dcgm_structs, dcgm_fields, dcgm_agent, pydcgm
dcgm_structs._dcgmInit()
handle = pydcgm.DcgmHandle(**place)
gpus = [dcgm_structs.c_dcgmGroupEntityPair_t(1, gpu) for gpu in dcgm_agent.dcgmGetAllDevices(handle.handle)]
for ids in families:
    ids = [i for i in ids if dcgm_fields.DcgmFieldGetById(i) is not None]
    for start in range(0, len(ids), 120):
        dcgm_agent.dcgmEntitiesGetLatestValues(handle.handle, gpus, ids[start : start + 120], 1)
dcgm_agent.dcgmGetNvLinkLinkStatus(handle.handle)
os._exit(0)
"""


def read(engine: Engine, deadline_s: float = PATIENT_S) -> Snapshot:
    return read_snapshot(NODE, engine, deadline_s)


def cold(name: str, engine: Engine, times: int) -> list[Row]:
    """A whole reading, from no process to a snapshot, and the most memory that its reader took."""
    first = read(engine)
    if not first.gpus:
        table.stop(f"{name}: no reading: {'; '.join(t.detail for t in first.troubles)}")
    counts = f"{len(first.gpus)} GPUs, {sum(len(g.links) for g in first.gpus.values())} links, {len(cat.ALL)} fields"
    seconds = [table.timed(lambda: read(engine)) for _ in range(times)]
    return [
        table.of_times(f"cold read, {name}", seconds, counts),
        Row(f"reader's peak memory, {name}", max(peak_mib(engine) for _ in range(3)), "MiB", bound=MEMORY_BOUND_MIB),
    ]


def peak_mib(engine: Engine) -> float:
    request = protocol.Request(engine.backend, NODE, client.options(engine), PATIENT_S, parent=os.getpid())
    done = child.run([sys.executable, "-I", "-c", MEASURED], PATIENT_S, request=protocol.encode(request))
    found = re.search(r"VmHWM:\s*(\d+) kB", done.err)
    if found is None or '"part": "done"' not in done.reply:
        table.stop(f"the reader did not come to its end: {done.problem or done.err.strip()[-200:]}")
    return int(found[1]) / 1024


def live(engine: Engine, times: int) -> list[Row]:
    """The engine at NVHC_DCGM_ADDRESS, beside a bare process."""
    rows = cold("dcgm", engine, times)
    where = connection.address(engine.address)
    folder = next(f for f in engine.bindings or bindings.INSTALL_PATHS if os.path.isfile(os.path.join(f, "dcgm_agent.py")))
    place = {"ipAddress": where.tcp} if where.tcp else {"unixSocketPath": where.unix}
    board = [*identity.IDS, *(f.dcgm_id for f in cat.ALL if f.dcgm_id is not None and f.scope == cat.GPU and f.live)]
    per_link = links.gpu_ids(links.counters(protocol.ALL_FIELDS))
    argv = [sys.executable, "-I", "-c", BARE, json.dumps([folder, place, [board, per_link]])]

    def once() -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            table.stop(f"the bare process failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")

    bare = table.of_times("bare process, same reading", [table.timed(once) for _ in range(times)])
    ratio = Row("cold read / bare process", rows[0].value / bare.value, "x", bound=RATIO_BOUND)
    return [*rows, bare, ratio]


def late(folder: str) -> list[Row]:
    """How far past its deadline an engine without an answer keeps the client. The worst of a few times."""
    rows = []
    for name, without_answer in _engines(folder):
        with without_answer as engine:
            worst = max(table.timed(lambda: _no_answer(engine)) for _ in range(LATE_TIMES)) - SHORT_S
        rows.append(Row(f"past the deadline, {name}", max(0.0, worst) * 1000, "ms", note=f"worst of {LATE_TIMES}; deadline {SHORT_S:g} s"))
    left = _children()
    if left:
        table.stop(f"{len(left)} reader processes were left behind")
    return rows


def _no_answer(engine: Engine) -> None:
    seen = read(engine, SHORT_S)
    if seen.gpus is not None or "MON-ENGINE-HUNG" not in [t.code for t in seen.troubles]:
        table.stop(f"an engine that should not answer did: {seen.troubles}")


def _engines(folder: str) -> Iterator[tuple[str, contextlib.AbstractContextManager[Engine]]]:
    for after in ("pci", "engine"):
        yield f"sim, hung after the {after} part", contextlib.nullcontext(Engine("sim", world=_world(folder, f"sim-{after}", after)))
    stub = Engine("dcgm", bindings=(f"{ENGINES}/bindings",))
    for call in ("dcgmGetAllDevices", "dcgmEntitiesGetLatestValues"):
        world = _world(folder, call)
        with open(f"{world}.stub", "w", encoding="utf-8") as file:
            json.dump({"hang": call}, file)
        yield f"dcgm, hung in {call}", contextlib.nullcontext(stub._replace(address=f"unix://{world}"))
    for talk in (servers.silent, servers.babbling, servers.dripping, _late(_world(folder, "late"))):
        yield f"dcgm, {talk.__name__}", _serving(stub, talk)


def _world(folder: str, name: str, hung_after: str = "") -> str:
    world = World.preset("hgx-h100-8")
    if hung_after:
        world.engine("hung", after=hung_after)
    path = f"{folder}/{name}.json"
    world.save(path)
    return path


@contextlib.contextmanager
def _serving(engine: Engine, talk: servers.Talk) -> Iterator[Engine]:
    with servers.serving(talk) as address:
        yield engine._replace(address=address)


def _late(world: str) -> servers.Talk:
    def late(link: socket.socket, over: threading.Event) -> None:
        """Answers after the deadline."""
        over.wait(SHORT_S * 1.5)
        servers.greeting(world, stays=True)(link, over)

    return late


def _children() -> list[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def main() -> int:
    given = table.arguments("cost of a reading, and of an engine that does not answer")
    address = os.environ.get("NVHC_DCGM_ADDRESS", "")
    folders = tuple(filter(None, os.environ.get("NVHC_DCGM_BINDINGS", "").split(":")))
    with tempfile.TemporaryDirectory(prefix="nvhc-bench-") as folder:
        world = f"{folder}/world.json"
        World.preset("hgx-h100-8").save(world)
        rows = cold("sim", Engine("sim", world=world), given.times)
        if address:
            try:
                rows += live(Engine("dcgm", address, bindings=folders), given.times)
            except PartFailed as exc:
                table.stop(f"NVHC_DCGM_ADDRESS: {exc}")
        rows += late(folder)
    return table.show(rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
