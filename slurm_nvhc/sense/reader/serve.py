"""One request served: the parts of the reply, each as soon as it is known."""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError, NvhcError
from slurm_nvhc.model import diag
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.history import Sample
from slurm_nvhc.model.snapshot import Event, GpuState
from slurm_nvhc.sense import kernel_log, protocol
from slurm_nvhc.sense.kernel_log import SAME_FALL_NS, Line
from slurm_nvhc.sense.merge import ENGINE_LATE_NS, SAME_EVENT_NS
from slurm_nvhc.sense.protocol import Cursor, Request
from slurm_nvhc.sense.reader.backend import Backend, Clock, PartFailed, open_backend
from slurm_nvhc.sense.values import sentinel

Emit = Callable[[Mapping[str, Any]], None]

# Lines this much older than the last read are looked at again, to recognise the second
# line of a fall and the engine's echo of an Xid that was reported already. A record stands up to
# SAME_EVENT_NS beside its echo; twice more, so that events further back find their own records
# and leave it to that one.
LOOK_BACK_NS: Final = SAME_FALL_NS + ENGINE_LATE_NS + 3 * SAME_EVENT_NS


def serve(text: str, emit: Emit, armed: Callable[[Request], None]) -> None:
    """Answer one request. Never raises for the backend's sake: what fails becomes a trouble part.

    armed: called with the request before anything that can block, to set the deadline.
    """
    try:
        request = protocol.decode(text)
    except NvhcError as exc:
        _trouble(emit, "MON-READER", "reader", str(exc))
        emit({"part": "done"})
        return
    armed(request)
    backend = _attempt(emit, "reader", lambda: open_backend(request))
    if backend is not None:
        if request.op == "snapshot":
            _parts(request, backend, emit)
        else:
            _remembered(request, backend, emit)
    emit({"part": "done"})


def _remembered(request: Request, backend: Backend, emit: Emit) -> None:
    """What the engine remembers, or shall: one part of the operation's own name."""
    clock = _attempt(emit, "reader", backend.clock)
    if clock is not None:
        emit({"part": "clock", **clock._asdict()})
    if request.op != "diag_stop":  # what was left running is ended also where the engine does not answer, or is gone (R40)
        info = _attempt(emit, "engine", backend.engine)
        if info is None:
            return
        emit({"part": "engine", **info._asdict()})
    answer = _attempt(emit, "engine", lambda: _OPERATIONS[request.op](request, backend, emit))
    _notes(backend, emit)
    if answer is not None:
        emit({"part": request.op, **answer})


def _watch(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    watched, made = backend.watch()
    return {"watched": watched, "made": made}


def _unwatch(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    return {"watched": False, "made": False, "removed": backend.unwatch()}


def _history(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    found = backend.history(_names(request, emit), request.since_ns, request.until_ns)
    if found is None:
        return {"watched": False, "series": {}}
    return {"watched": True, "series": {uuid: _series(of_gpu) for uuid, of_gpu in found.items()}}


def _series(of_gpu: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    out = {}
    for name, samples in of_gpu.items():
        clean = [Sample(s.at_ns, sentinel(s.value) or s.value) for s in samples]
        out[name] = [[s.at_ns, rd.to_json(s.value)] for s in thin(clean)]
    return out


def thin(samples: Sequence[Sample], most: int = protocol.MAX_SAMPLES) -> list[Sample]:
    """Changes only, and of these at most ``most``, evenly spread, with the first and the last."""
    changes = [s for i, s in enumerate(samples) if i == 0 or s.value != samples[i - 1].value]
    if len(changes) <= most:
        return changes
    return [changes[i * (len(changes) - 1) // (most - 1)] for i in range(most)]


def _health(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    incidents = backend.health()
    return {"known": incidents is not None, "incidents": [i._asdict() for i in incidents or ()]}


def _diag(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    asked = request.diag
    ask = diag.Ask(
        _texts(asked, "tests"),
        _texts(asked, "uuids"),
        _texts(asked, "parameters"),
        str(asked.get("through", diag.AUTO)),
        str(asked.get("dcgmi", diag.Ask._field_defaults["dcgmi"])),
    )
    return diag.to_json(backend.diagnose(ask, _seconds(asked)))


def _diag_stop(request: Request, backend: Backend, emit: Emit) -> dict[str, Any]:
    stopped = backend.stop_diag(_seconds(request.diag))
    return {**stopped._asdict(), "troubles": [t._asdict() for t in stopped.troubles]}


def _texts(asked: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = asked.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError("the request to the reader", f"key diag.{name}", "is no list of texts")
    return tuple(value)


def _seconds(asked: Mapping[str, Any]) -> float:
    value = asked.get("seconds")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("the request to the reader", "key diag.seconds", "is no number")
    return float(value)


_OPERATIONS: Final[Mapping[str, Callable[[Request, Backend, Emit], dict[str, Any]]]] = {
    "watch": _watch,
    "unwatch": _unwatch,
    "history": _history,
    "health": _health,
    "diag": _diag,
    "diag_stop": _diag_stop,
}


def _notes(backend: Backend, emit: Emit) -> None:
    for note in backend.notes:
        _trouble(emit, note.code, note.part, note.detail)
    backend.notes.clear()


def _parts(request: Request, backend: Backend, emit: Emit) -> None:
    if request.wait_s > 0:
        _attempt(emit, "reader", lambda: backend.wait(request.wait_s))
    clock = _attempt(emit, "reader", backend.clock)
    if clock is not None:
        emit({"part": "clock", **clock._asdict()})
        _kernel_log(request, backend, clock, emit)
    listed = _attempt(emit, "pci", lambda: (backend.pci(),))
    if listed is not None:
        emit({"part": "pci", "gpus": None if listed[0] is None else [p._asdict() for p in listed[0]]})
    names = tuple(name for name in _names(request, emit) if cat.BY_NAME[name].live)
    host = _attempt(emit, "host", lambda: backend.host(names))
    if host is not None:
        emit({"part": "host", "parts": _part_table(host)})
    _notes(backend, emit)
    info = _attempt(emit, "engine", backend.engine)
    if info is None:
        return
    emit({"part": "engine", **info._asdict()})
    gpus = _attempt(emit, "engine", lambda: backend.gpus(names))
    if gpus is not None:
        emit({"part": "gpus", "gpus": _gpu_table(gpus, emit)})
        # An engine that could not list its GPUs is not asked on: the same trouble would be told twice.
        switches = _attempt(emit, "engine", lambda: backend.switches(names))
        if switches is not None:
            emit({"part": "switches", "parts": _part_table(switches)})
    _notes(backend, emit)
    events = _attempt(emit, "engine", backend.events)
    if events is not None:
        emit({"part": "events", "events": [e._asdict() for e in _bounded(events, "engine", emit)]})


def _attempt(emit: Emit, part: str, call: Callable[[], Any]) -> Any:
    """What the call returns, or None after a trouble part. A backend's bug is trouble like any other."""
    try:
        return call()
    except PartFailed as exc:
        _trouble(emit, exc.code, exc.part, exc.detail)
    except NvhcError as exc:
        _trouble(emit, "MON-READER", part, str(exc))
    except BrokenPipeError:
        raise
    except Exception as exc:
        _trouble(emit, "MON-READER", part, f"{type(exc).__name__}: {exc}")
    return None


def _trouble(emit: Emit, code: str, part: str, detail: str) -> None:
    emit({"part": "trouble", "code": code, "where": part, "detail": detail[:300]})


def _names(request: Request, emit: Emit) -> tuple[str, ...]:
    unknown = [name for name in request.fields if name not in cat.BY_NAME]
    if unknown:
        _trouble(emit, "MON-READER", "reader", f"unknown field {unknown[0][:40]!r}")
    return tuple(name for name in request.fields if name in cat.BY_NAME)


def _kernel_log(request: Request, backend: Backend, clock: Clock, emit: Emit) -> None:
    lines = _attempt(emit, "kernel_log", backend.kernel_log)
    if lines is None:
        emit({"part": "kernel_log", "known": False, "cursor": request.kernel_cursor, "events": []})
        return
    new, reported, after = since(lines, protocol.cursor(request.kernel_cursor), clock)
    emit(
        {
            "part": "kernel_log",
            "known": True,
            "cursor": str(after),
            "events": [e._asdict() for e in _bounded(new, "kernel_log", emit)],
            # For recognition only: no text, which is what makes a reply long.
            "reported": [e._replace(text="", process="")._asdict() for e in reported[-protocol.MAX_EVENTS :]],
        }
    )


def since(lines: Sequence[Line], before: Cursor | None, clock: Clock) -> tuple[list[Event], list[Event], Cursor]:
    """(events since the cursor, events shortly before it, the next cursor).

    A cursor of another boot, or ahead of the log, starts from the log's beginning: an event
    may be told twice, with the same ident, but none is lost.
    """
    following = lines[-1].seq + 1 if lines else 0
    start, look_back = 0, 0
    if before is not None and before.boot_id == clock.boot_id:
        if before.seq <= following or not lines:
            start, look_back = before.seq, before.wall_ns - LOOK_BACK_NS
        following = max(following, start)
    relevant = [line for line in lines if line.seq >= start or line.wall_ns >= look_back]
    new: list[Event] = []
    reported: list[Event] = []
    for event in kernel_log.parse(relevant, clock.boot_id):
        (new if int(event.ident.rpartition(":")[2]) >= start else reported).append(event)
    return new, reported, Cursor(clock.boot_id, following, clock.wall_ns)


def _bounded(events: Sequence[Event], part: str, emit: Emit) -> Sequence[Event]:
    """The first and the last of a storm."""
    half = protocol.MAX_EVENTS // 2
    if len(events) <= protocol.MAX_EVENTS:
        return events
    code = "MON-KERNEL-LOG" if part == "kernel_log" else "MON-ENGINE-LIES"
    _trouble(emit, code, part, f"{len(events)} events at once: only the first and the last {half} were read")
    return [*events[:half], *events[-half:]]


def _gpu_table(gpus: Sequence[GpuState], emit: Emit) -> dict[str, Any]:
    """Keyed by UUID. Two entries of one UUID are both without data: which is which can not be known."""
    out: dict[str, Any] = {}
    for gpu in gpus:
        uuid = gpu.identity.uuid
        if uuid in out:
            _trouble(emit, "MON-ENGINE-LIES", "engine", f"{uuid} is listed twice")
            twice = rd.to_json(rd.NoData(rd.ERROR, "the GPU is listed twice"))
            out[uuid]["readings"] = {name: twice for name in out[uuid]["readings"]}
            out[uuid]["links"] = {}
            continue
        out[uuid] = {
            "identity": gpu.identity._asdict(),
            "status": gpu.status,
            "readings": _readings(gpu.readings),
            "links": {str(number): _readings(readings) for number, readings in gpu.links.items()},
        }
    return out


def _part_table(parts: Mapping[str, Mapping[str, rd.Reading]]) -> dict[str, Any]:
    return {name: _readings(readings) for name, readings in parts.items()}


def _readings(readings: Mapping[str, rd.Reading]) -> dict[str, Any]:
    """Sentinels never leave the reader; anything else goes out as it is, for the client to judge."""
    out = {}
    for name, value in readings.items():
        missing = sentinel(value)
        out[name] = rd.to_json(value if missing is None else missing)
    return out
