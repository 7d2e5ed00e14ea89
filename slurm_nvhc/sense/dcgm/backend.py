"""The real node behind the reader's interface: host witnesses first, then the engine.

Nothing is kept between two readers: which fields the engine has is found out with the
reading itself (the client library names unknown ids without asking the engine, and one
call answers the rest), so there is no cache that could be wrong after an upgrade.
"""

from __future__ import annotations

import time
from typing import Final, Iterable, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.diag import Ask, Report, Stopped
from slurm_nvhc.model.history import Incident, Sample
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu
from slurm_nvhc.sense.dcgm import bindings, connection, derive, health, identity, links, live, switch_watch, switches, topology, watch
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import GPU, Table
from slurm_nvhc.sense.host import clock, driver, kmsg, node, pci, processes, rdma
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.protocol import Request
from slurm_nvhc.sense.reader.backend import Clock, EngineInfo, PartFailed
from slurm_nvhc.sense.values import sentinel

# A live reading is of this moment. An engine whose newest value is older than this answers
# from memory (our judgement: far above any driver call, below any health check interval).
STALE_S: Final = 60.0
# Of a diagnostic's time, kept for ending it; and for telling so before the reader's own deadline.
_STOP_S: Final = 4.0
_REPLY_S: Final = 0.3
_PROCESSES: Final = "gpu_processes"
_LOST: Final = NoData(rd.BLANK, "the GPU is lost")
_NOT_HERE: Final = NoData(rd.NOT_SUPPORTED, "not on this model")
# One field of each generation of NVLink, by which a model is told to have it.
_NVLINK4: Final = cat.BY_NAME["nvlink_replay_total"]
_NVLINK5: Final = cat.BY_NAME["nvlink5_rx_bytes"]


def open_world(request: Request) -> DcgmBackend:
    return DcgmBackend(request)


class DcgmBackend:
    """See reader.backend.Backend."""

    def __init__(self, request: Request) -> None:
        options = request.options
        self.notes: list[PartFailed] = []
        self._root = str(options.get("root") or "/")
        self._folders = [str(folder) for folder in options.get("bindings") or ()]
        self._address = str(options.get("address") or "")
        self._embedded = options.get("embedded") is True
        timeout = options.get("timeout_s")
        self._until = time.monotonic() + request.deadline_s
        self._timeout_s = min(request.deadline_s, float(timeout) if isinstance(timeout, (int, float)) else request.deadline_s)
        # Only what makes or needs the watch keeps it: all else leaves nothing behind.
        self._persist = request.op in ("watch", "unwatch", "health")
        self._clock: Optional[Clock] = None
        self._lines: Sequence[Line] = ()
        self._connection: Optional[Connection] = None
        self._version = ""
        self._budget = live.Budget()
        self._gpus: list[int] = []
        self._uuids: dict[int, GpuIdentity] = {}

    # -- the host ----------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def clock(self) -> Clock:
        self._clock = clock.read(self._root)
        return self._clock

    def kernel_log(self) -> Sequence[Line]:
        self._lines = kmsg.read(self._clock or self.clock(), self._root)
        return self._lines

    def pci(self) -> Optional[Sequence[PciGpu]]:
        return pci.gpus(self._root)

    def host(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        ports, silent = rdma.ports(fields, self._root)
        if silent:
            self.notes.append(PartFailed("MON-HOST", "host", f"{', '.join(silent)}: no answer within {rdma.PATIENCE_S:g} s"))
        return {entity.NODE: node.readings(fields, self._root), **ports}

    # -- the engine --------------------------------------------------------------

    def engine(self) -> EngineInfo:
        where = self._where()
        found = bindings.load(self._folders)
        self._connection = connection.connect(found, where, self._embedded, self._timeout_s, self._persist)
        self._version = connection.engine_version(self._connection)
        self._gpus = identity.gpu_ids(self._connection)
        of_engine = identity.driver(self._connection, self._gpus)
        return EngineInfo(self._version, of_engine or driver.version(self._root), driver.loaded_ns(self._lines))

    def gpus(self, fields: Sequence[str]) -> Sequence[GpuState]:
        engine = self._engine()
        if not self._gpus:
            return []
        statuses = {gpu: identity.gpu_status(engine, gpu) for gpu in self._gpus}
        on_gpu = [f for f in map(cat.BY_NAME.__getitem__, fields) if f.scope == cat.GPU and f.dcgm_id is not None]
        counters = links.counters(fields)
        table = self._read(derive.ids(f for f in on_gpu if not cat.of_links(f)))
        rows = self._identify(table)
        for gpu in self._silent(table, rows):
            statuses[gpu] = snap.LOST
        for gpu in self._gpus:
            if gpu not in rows and statuses[gpu] == snap.OK:
                # Who is missing could not be told from a listing that leaves out a GPU that works.
                raise PartFailed("MON-ENGINE-LIES", "engine", f"GPU {gpu} of the engine answers, but not with its UUID")
        working = {g: row for g, row in rows.items() if statuses[g] == snap.OK}
        self._read_nvlink(table, working, [f for f in on_gpu if cat.of_links(f)], counters)
        of_links = counters or links.STATE in fields or links.REMOTE in fields
        states, trouble = links.states(engine) if of_links else ({}, "")
        if trouble:
            self._note("MON-ENGINE-LIES", trouble)
        up = {g: None if trouble else states.get(g, {}) for g in working}
        per_link = links.read(engine, table, counters, up, {g: row.model for g, row in working.items()}, self._budget)
        if links.REMOTE in fields:
            links.add_remotes(per_link, self._remotes(working, states, table))
        out = []
        for gpu, row in rows.items():
            its_states = states.get(gpu, {}) if links.STATE in fields else None
            state = _state(row, statuses[gpu], on_gpu, table, gpu)
            if state.status == snap.OK:
                state = state._replace(links=_links(per_link.get(gpu, {}), its_states))
            out.append(state)
        return self._with_processes(self._fresh(out, table), fields)

    def switches(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        found, trouble = switches.read(self._engine(), self._version, fields)
        if trouble:
            self._note("MON-ENGINE-LIES", trouble)
        return found

    def events(self) -> Sequence[Event]:
        """Xids from the watch's samples of field 230; nothing without the watch: the kernel log is then the only witness."""
        engine = self._engine()
        found = watch.find(engine)
        if found is None:
            return []
        out = []
        for gpu, _, sample in watch.samples(engine, found.group, found.xids, 0):
            row = self._uuids.get(gpu)
            number = sample.reading
            if row is None or not isinstance(number, int) or number <= 0 or sentinel(number) is not None or not sample.at_us:
                continue
            ident = f"dcgm:{row.uuid}:{sample.at_us}:{number}"
            out.append(Event("xid", number, sample.at_us * 1000, row.pci, f"Xid {number}", "engine", ident, uuid=row.uuid))
        return out

    # -- what the engine remembers --------------------------------------------------

    def watch(self) -> tuple[bool, bool]:
        engine = self._engine()
        if self._embedded:
            return False, False
        made = watch.ensure(engine)
        try:
            made = switch_watch.ensure(engine, self._version) or made
        except PartFailed as trouble:
            self.notes.append(trouble)  # GPUs are watched all the same
        return watch.find(engine) is not None, made

    def unwatch(self) -> bool:
        of_switches = switch_watch.remove(self._engine())
        return watch.remove(self._engine()) or of_switches

    def history(self, fields: Sequence[str], since_ns: int, until_ns: int) -> Optional[Mapping[str, Mapping[str, Sequence[Sample]]]]:
        engine = self._engine()
        found = watch.find(engine)
        if found is None:
            return None
        self._identify(self._read(()))
        names = {cat.BY_NAME[name].dcgm_id or 0: name for name in fields if name in cat.SAMPLED}
        out: dict[str, dict[str, list[Sample]]] = {row.uuid: {} for row in self._uuids.values()}
        for gpu, field_id, sample in watch.samples(engine, found.group, found.values, max(0, since_ns // 1000), names):
            at_ns = sample.at_us * 1000
            if gpu not in self._uuids or not since_ns <= at_ns <= until_ns:
                continue
            out[self._uuids[gpu].uuid].setdefault(names[field_id], []).append(Sample(at_ns, sample.reading))
        return out

    def health(self) -> Optional[Sequence[Incident]]:
        engine = self._engine()
        self._identify(self._read(()))
        return health.check(engine, {gpu: row.uuid for gpu, row in self._uuids.items()})

    # -- diagnostics ---------------------------------------------------------------

    # Modules of their own, which other operations need not load.

    def diagnose(self, ask: Ask, seconds: float) -> Report:
        from slurm_nvhc.sense.dcgm import diag_run, diag_stop

        uuids = {gpu: row.uuid for gpu, row in self._identify(self._read(())).items()}
        # Coming here took time, which the end keeps and the diagnostic gives.
        kept = min(seconds, self._until - time.monotonic() - _STOP_S)
        engine = diag_stop.Engine(self._another, self._here(), self._embedded, self._root)
        this = diag_run.Run(self._engine(), engine, self._where(), self._version, uuids, self._until - _REPLY_S)
        return diag_run.run(this, ask, kept)

    def stop_diag(self, seconds: float) -> Stopped:
        from slurm_nvhc.sense.dcgm import diag_stop

        engine = diag_stop.Engine(self._another, self._here(), self._embedded, self._root)
        return diag_stop.stop(engine, min(time.monotonic() + seconds, self._until - _REPLY_S))

    def _another(self) -> Connection:
        """The one that runs a diagnostic is busy with it; an embedded engine has no other."""
        if self._embedded:
            return self._engine()
        found = self._connection.bindings if self._connection is not None else bindings.load(self._folders)
        return connection.connect(found, self._where(), False, self._timeout_s)

    def _here(self) -> bool:
        return self._embedded or self._where().here

    # -- helpers -------------------------------------------------------------------

    def _where(self) -> connection.Address:
        return connection.Address() if self._embedded else connection.address(self._address)

    def _engine(self) -> Connection:
        if self._connection is None:
            raise PartFailed("MON-ENGINE-ABSENT", "engine", "there is no connection to the engine")
        return self._connection

    def _note(self, code: str, detail: str) -> None:
        self.notes.append(PartFailed(code, "engine", detail))

    def _read(self, ids: Iterable[int]) -> Table:
        """Who the GPUs are, and board fields of all of them, in one call."""
        engine = self._engine()
        asked = [*identity.IDS, *ids]
        usable = live.known(engine, asked)
        table = live.read(engine, [(GPU, gpu) for gpu in self._gpus], [usable], budget=self._budget)
        table.unknown = frozenset(asked) - frozenset(usable)
        return table

    def _read_nvlink(
        self, table: Table, working: Mapping[int, GpuIdentity], on_gpu: Sequence[cat.Field], counters: Sequence[cat.Field]
    ) -> None:
        """NVLink fields into ``table``: one call per generation, of the GPUs that have it.

        Apart from the board's fields: with NVLink 5 counters in the same call, ECC values were lost (dcgm-exporter#581).
        """
        engine = self._engine()
        old = [*derive.ids(f for f in on_gpu if not cat.is_nvlink5(f)), *links.gpu_ids(counters)]
        for generation, ids in ((_NVLINK4, old), (_NVLINK5, derive.ids(filter(cat.is_nvlink5, on_gpu)))):
            usable = live.known(engine, ids)
            having = [(GPU, g) for g, row in working.items() if cat.exists_on(generation, row.model)]
            table.update(live.read(engine, having, [usable], budget=self._budget))
            table.unknown |= frozenset(ids) - frozenset(usable)

    def _remotes(self, working: Mapping[int, GpuIdentity], states: links.States, table: Table) -> dict[int, dict[int, str]]:
        """Far ends of direct links. Where a fabric is up, or no GPU has a link, there is none, and nothing is asked."""
        fabric = [rd.number(table.reading((GPU, g), cat.BY_NAME["fabric_state"].dcgm_id or 0)) for g in working]
        if any(fabric) or not any(states.values()):
            return {}
        return topology.remotes(self._engine(), {g: row.uuid for g, row in working.items()})

    def _with_processes(self, states: list[GpuState], fields: Sequence[str]) -> list[GpuState]:
        """gpu_processes is the kernel's to tell, by the GPU's minor number. A lost GPU has no reading at all."""
        if _PROCESSES not in fields:
            return states
        counted = processes.computing(self._root)

        def of(state: GpuState) -> Reading:
            if state.status != snap.OK:
                return _LOST
            if isinstance(counted, NoData):
                return counted
            minor = state.identity.minor
            return NoData(rd.BLANK, "its minor number is not known") if minor is None else counted.get(minor, 0)

        return [s._replace(readings={**s.readings, _PROCESSES: of(s)}) for s in states]

    def _identify(self, table: Table) -> dict[int, GpuIdentity]:
        """Rows by DCGM id. A GPU without a UUID is left out: it is then missing, and the bus tells where."""
        slots = pci.slots(self._root)
        remembered = Table()
        if any(identity.row(table, remembered, g, slots) is None for g in self._gpus):
            remembered = watch.remembered(self._engine())
        rows = {g: identity.row(table, remembered, g, slots) for g in self._gpus}
        self._uuids = {g: row for g, row in rows.items() if row is not None}
        return self._uuids

    def _silent(self, table: Table, rows: Mapping[int, GpuIdentity]) -> list[int]:
        """GPUs that the engine lists as present and that answer nothing, not even with their name.

        A driver call that fails because the GPU is gone ends as a plain blank in DCGM. When
        no GPU answers, the engine is at fault: after Xid 119 it makes no driver call any
        more until it is restarted.
        """
        silent = [gpu for gpu in self._gpus if not _answers(table, gpu)]
        if len(silent) < len(self._gpus):
            return silent
        trouble = PartFailed("MON-ENGINE-HUNG", "engine", "the engine has no value of any GPU: it asks the driver no more; restart it")
        if not rows:
            raise trouble  # no listing: that is not "no GPUs"
        self.notes.append(trouble)
        return []

    def _fresh(self, states: list[GpuState], table: Table) -> list[GpuState]:
        newest = live.newest_us(table)
        age = time.time() - newest / 1e6
        if not newest or age <= STALE_S:
            return states
        self._note("MON-ENGINE-LIES", f"the engine's newest value is {age:.0f} s old: nothing it says is of now")
        old = NoData(rd.STALE, f"{age:.0f} s old")

        def stale(readings: Mapping[str, Reading]) -> dict[str, Reading]:
            return {name: value if isinstance(value, NoData) or sentinel(value) else old for name, value in readings.items()}

        return [s._replace(readings=stale(s.readings), links={n: stale(r) for n, r in s.links.items()}) for s in states]


def _answers(table: Table, gpu: int) -> bool:
    """Numbers that the engine knows without the driver (NVML index, minor) are no answer; "not supported" is one."""
    own = (identity.NVML_INDEX, identity.MINOR)
    for field_id in (key[2] for key in table if key[:2] == (GPU, gpu) and key[2] not in own):
        reading = table.reading((GPU, gpu), field_id)
        missing = reading if isinstance(reading, NoData) else sentinel(reading)
        if missing is None or missing.kind in (rd.NOT_SUPPORTED, rd.NOT_PERMITTED):
            return True
    return False


def _state(row: GpuIdentity, said: str, on_gpu: Sequence[cat.Field], table: Table, gpu: int) -> GpuState:
    if said != snap.OK:
        return GpuState(row, said, {f.name: _LOST for f in on_gpu}, {})
    lacks = {f.name for f in on_gpu if cat.of_links(f) and not cat.exists_on(f, row.model)}
    readings = {f.name: _NOT_HERE if f.name in lacks else derive.reading(table, (GPU, gpu), f) for f in on_gpu}
    return GpuState(row, said, readings, {})


def _links(
    counted: Mapping[int, Mapping[str, Reading]], states: Optional[Mapping[int, Reading]]
) -> dict[int, Mapping[str, Reading]]:
    """Counters and state of each link; a state that could not be had is no data beside counters that could."""
    if states is None:
        return {number: dict(readings) for number, readings in counted.items()}
    missing = NoData(rd.BLANK, "the engine gave no state")
    return {
        number: {**counted.get(number, {}), links.STATE: states.get(number, missing)}
        for number in sorted({*counted, *states})
    }
