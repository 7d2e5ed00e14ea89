"""The protective state as one value: exclusions, own drain, intents, known GPUs, what was learned. Pure.

It is small, so it is kept as one JSON document, the same text in the ledger and in
its mirror. ``generation`` counts its changes: of two copies, the higher one is newer.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Callable, Collection, Final, Mapping, NamedTuple, Optional, Sequence, TypeVar

from slurm_nvhc.model import learned as lessons
from slurm_nvhc.model import protective as kept
from slurm_nvhc.model import settled as settled_names
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.protective import Ended, Exclusion, Hold, Intent, OwnDrain, Pause, Strike
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot

T = TypeVar("T")

SCHEMA: Final = 2
MOST_ENDED: Final = 50  # exclusions that are over, newest last; older ones are forgotten
STRIKE_AGE_NS: Final = 8 * 86400 * 10**9  # longer than any limit's time that is of use for a strike (a week)
STRIKE_AGES_NS: Final = {"fault": 31 * 86400 * 10**9}  # longer than a fault counts as one come back (30 d)
MOST_STRIKES: Final = 200  # of one kind


class Protective(NamedTuple):
    """What must survive anything. At most one exclusion a UUID, one intent a (kind, reason).

    settled: sticky events that an administrator settled (model/settled.py names): losing these would
             drain again for what was repaired.
    learned: what is normal here; of a GPU only while it is among ``gpus``.
    ended:   exclusions that are over, oldest first. holds: one a UUID. strikes: oldest first. pause: None = none.
    """

    generation: int = 0
    exclusions: tuple[Exclusion, ...] = ()
    own_drain: Optional[OwnDrain] = None
    intents: tuple[Intent, ...] = ()
    gpus: tuple[GpuIdentity, ...] = ()
    settled: tuple[str, ...] = ()
    learned: tuple[Lesson, ...] = ()
    ended: tuple[Ended, ...] = ()
    holds: tuple[Hold, ...] = ()
    strikes: tuple[Strike, ...] = ()
    pause: Optional[Pause] = None

    def summary(self) -> str:
        """For people: what there is, e.g. '1 exclusion, own drain, 0 intents, 8 known GPUs'."""
        counts = [_count(len(self.exclusions), "exclusion"), "own drain" if self.own_drain else "no own drain"]
        return ", ".join([*counts, _count(len(self.intents), "intent"), _count(len(self.gpus), "known GPU")])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# --- changes ---------------------------------------------------------------


def exclude(state: Protective, new: Exclusion) -> Protective:
    """A GPU already excluded keeps its first exclusion, which is the fault to repair; a suspicion gives way to an exclusion."""
    old = next((e for e in state.exclusions if e.uuid == new.uuid), None)
    if old is not None and (old.stage != kept.SUSPECTED or new.stage == kept.SUSPECTED):
        return state
    return state._replace(exclusions=(*(e for e in state.exclusions if e.uuid != new.uuid), new))


def change_exclusion(state: Protective, new: Exclusion) -> Protective:
    """Another stage, way or age of an exclusion; one that has ended meanwhile does not come back."""
    return state._replace(exclusions=tuple(new if e.uuid == new.uuid else e for e in state.exclusions))


def end_exclusion(state: Protective, ended: Ended) -> Protective:
    """Its hold stays: whoever ends the exclusion has the placeholder job to end as well."""
    if all(e.uuid != ended.exclusion.uuid for e in state.exclusions):
        return state
    left = tuple(e for e in state.exclusions if e.uuid != ended.exclusion.uuid)
    return state._replace(exclusions=left, ended=(*state.ended, ended)[-MOST_ENDED:])


def set_hold(state: Protective, hold: Hold) -> Protective:
    return state._replace(holds=(*(h for h in state.holds if h.uuid != hold.uuid), hold))


def end_hold(state: Protective, uuid: str) -> Protective:
    return state._replace(holds=tuple(h for h in state.holds if h.uuid != uuid))


def add_strike(state: Protective, strike: Strike) -> Protective:
    young = [s for s in state.strikes if strike.at_ns - s.at_ns <= STRIKE_AGES_NS.get(s.kind, STRIKE_AGE_NS)]
    # Each kind on its own: many of one must not make us forget another's limit.
    same = [s for s in (*young, strike) if s.kind == strike.kind][-MOST_STRIKES:]
    return state._replace(strikes=(*(s for s in young if s.kind != strike.kind), *same))


def add_intent(state: Protective, new: Intent) -> Protective:
    """The same intent twice is one intent, answering for the keys and events of both."""
    for old in state.intents:
        if _same(old, new):
            both = old._replace(keys=_union(old.keys, new.keys), idents=settled_names.newest((*old.idents, *new.idents)))
            return update_intent(state, both._replace(standing=old.standing and new.standing, events=old.events and new.events))
    return state._replace(intents=(*state.intents, new))


def update_intent(state: Protective, new: Intent) -> Protective:
    """Replace the intent of this kind and reason. One that was ended meanwhile does not come back."""
    return state._replace(intents=tuple(new if _same(i, new) else i for i in state.intents))


def end_intent(state: Protective, done: Intent) -> Protective:
    return state._replace(intents=tuple(i for i in state.intents if not _same(i, done)))


def settle(state: Protective, names: Sequence[str]) -> Protective:
    """These events are settled: one name per entity and Xid stays, the latest."""
    return state._replace(settled=settled_names.newest((*state.settled, *names)))


def remember_gpus(state: Protective, snapshot: Snapshot) -> Protective:
    """Add and update what the snapshot lists.

    A GPU that is not listed any more stays (it may be lost) until another UUID has
    its PCI address (it was swapped). No listing changes nothing. What the source
    did not say about a known GPU stays as it was: a lost GPU says nothing of itself.
    """
    if not snapshot.gpus:
        return state
    listed = {g.identity.uuid: g.identity for g in snapshot.gpus.values() if g.identity.uuid}
    taken = {g.pci for g in listed.values() if g.pci}
    kept = {g.uuid: g for g in state.gpus if g.uuid in listed or g.pci not in taken}
    for uuid, new in listed.items():
        kept[uuid] = _merged(kept[uuid], new) if uuid in kept else new
    gone = {g.uuid for g in state.gpus} - set(kept)
    gpus = tuple(kept[uuid] for uuid in sorted(kept, key=lambda u: (kept[u].pci, u)))
    return state._replace(gpus=gpus, learned=lessons.unlearn_gpus(state.learned, gone))


def forget_gpu(state: Protective, uuid: str) -> Protective:
    gpus = tuple(g for g in state.gpus if g.uuid != uuid)
    return state._replace(gpus=gpus, learned=lessons.unlearn_gpus(state.learned, {uuid}))


def learn(state: Protective, lesson: Lesson) -> Protective:
    """Take over what a healthy look taught: only what is not known yet. Two health checks at once learn once."""
    known = lessons.table(state.learned)
    new = {n: {f: v for f, v in readings.items() if f not in known.get(n, {})} for n, readings in lesson.readings.items()}
    return state._replace(learned=lessons.learn(state.learned, lesson._replace(readings={n: r for n, r in new.items() if r})))


def accept(state: Protective, lesson: Lesson, gone: Collection[tuple[str, str]]) -> Protective:
    """An administrator's word: ``lesson`` is normal from now on, and of ``gone`` (entity, field) nothing is expected any more."""
    return state._replace(learned=lessons.learn(lessons.unlearn(state.learned, gone), lesson))


def _same(a: Intent, b: Intent) -> bool:
    return (a.kind, a.reason) == (b.kind, b.reason)


def _union(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _merged(old: GpuIdentity, new: GpuIdentity) -> GpuIdentity:
    values: Any = (was if now is None or now == "" else now for was, now in zip(old, new))
    return GpuIdentity(*values)


# --- text ------------------------------------------------------------------


def dumps(state: Protective) -> str:
    document = {
        "schema": SCHEMA,
        "generation": state.generation,
        "exclusions": [e._asdict() for e in state.exclusions],
        "own_drain": state.own_drain._asdict() if state.own_drain else None,
        "intents": [i._asdict() for i in state.intents],
        "gpus": [g._asdict() for g in state.gpus],
        "settled": list(state.settled),
        "ended": [{**e._asdict(), "exclusion": e.exclusion._asdict()} for e in state.ended],
        "holds": [h._asdict() for h in state.holds],
        "strikes": [s._asdict() for s in state.strikes],
        "pause": state.pause._asdict() if state.pause else None,
        "learned": [{**lesson._asdict(), "readings": dict(lesson.readings)} for lesson in state.learned],
    }
    return json.dumps(document, indent=1) + "\n"


@functools.lru_cache(maxsize=2)  # a run reads ledger and mirror, usually the same text, several times: 0.8 ms each
def loads(text: str) -> tuple[Protective, int]:
    """(state, how many entries could not be read and were left out). ValueError for no such document.

    Entry by entry: one entry that a hand has broken must not cost the others.
    """
    try:
        document = json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(document, dict):
        raise ValueError("a JSON object was expected")
    if document.get("schema") == 1:
        document = _brought_up(document)
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r} is not known")
    generation = document.get("generation")
    if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
        raise ValueError("key generation: a number of changes was expected")
    exclusions, lost_a = _entries(document.get("exclusions"), _exclusion)
    intents, lost_b = _entries(document.get("intents"), _intent)
    gpus, lost_c = _entries(document.get("gpus"), _identity)
    settled, lost_e = _entries(document.get("settled"), _settled)
    learned, lost_f = _entries(document.get("learned"), _lesson)
    ended, lost_g = _entries(document.get("ended"), _ended)
    holds, lost_h = _entries(document.get("holds"), _hold)
    strikes, lost_i = _entries(document.get("strikes"), _strike)
    drains, lost_d = _entries(_one(document.get("own_drain")), _own_drain)
    pauses, lost_j = _entries(_one(document.get("pause")), _pause)
    own, pause = drains[0] if drains else None, pauses[0] if pauses else None
    state = Protective(generation, exclusions, own, intents, gpus, settled, learned, ended, holds, strikes, pause)
    return state, lost_a + lost_b + lost_c + lost_d + lost_e + lost_f + lost_g + lost_h + lost_i + lost_j


def _brought_up(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of schema 1, from before exclusions had a way and drains a stamp. Its exclusions hide from jobs, as they did."""

    def more(entry: Any, values: Mapping[str, Any]) -> Any:
        return {**values, **entry} if isinstance(entry, dict) else entry

    def each(entries: Any, values: Mapping[str, Any]) -> Any:
        return [more(entry, values) for entry in entries] if isinstance(entries, list) else entries

    out = {**document, "schema": SCHEMA}
    out["exclusions"] = each(document.get("exclusions"), {"stage": kept.EXCLUDED, "way": kept.NARROW, "slot": "", "until_ns": 0})
    out["own_drain"] = more(document.get("own_drain"), {"stamp": ""})
    out["intents"] = each(document.get("intents"), {"next_ns": 0})
    return out


def _one(raw: Any) -> list[Any]:
    return [] if raw is None else [raw]


def _entries(raw: Any, decode: Callable[[Any], T]) -> tuple[tuple[T, ...], int]:
    if not isinstance(raw, list):
        return (), 0 if raw is None else 1
    good: list[T] = []
    for item in raw:
        try:
            good.append(decode(item))
        except (TypeError, KeyError, AttributeError, ValueError):
            continue
    return tuple(good), len(raw) - len(good)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text was expected")
    return value


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("an integer was expected")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(v) for v in value)


def _settled(value: Any) -> str:
    if settled_names.parse(_text(value)) is None:
        raise ValueError("not the name of an event")
    return str(value)


def _one_of(value: Any, *known: str) -> str:
    if value not in known:
        raise ValueError("not a known word")
    return str(value)


def _exclusion(v: Mapping[str, Any]) -> Exclusion:
    named = (_text(v["uuid"]), _text(v["code"]), _text(v["why"]), _text(v["who"]), _int(v["since_ns"]))
    stage = _one_of(v["stage"], kept.SUSPECTED, kept.EXCLUDED, kept.VERIFIED)
    return Exclusion(*named, stage, _one_of(v["way"], kept.NARROW, kept.QUARANTINE), _text(v["slot"]), _int(v["until_ns"]))


def _ended(v: Mapping[str, Any]) -> Ended:
    how = _one_of(v["how"], kept.RELEASED, kept.REPLACED, kept.CLEARED)
    return Ended(_exclusion(v["exclusion"]), how, _text(v["who"]), _text(v["why"]), _int(v["at_ns"]))


def _hold(v: Mapping[str, Any]) -> Hold:
    return Hold(_text(v["uuid"]), _text(v["job_id"]), _int(v["since_ns"]), _text(v["boot_id"]))


def _strike(v: Mapping[str, Any]) -> Strike:
    return Strike(_text(v["kind"]), _text(v["key"]), _int(v["at_ns"]))


def _pause(v: Mapping[str, Any]) -> Pause:
    return Pause(_int(v["until_ns"]), _text(v["why"]), _text(v["who"]), _int(v["since_ns"]))


def _own_drain(v: Mapping[str, Any]) -> OwnDrain:
    named = (_text(v["reason"]), _int(v["set_ns"]), bool(v["confirmed"]), _texts(v["keys"]), _texts(v["idents"]))
    own = OwnDrain(*named, standing=bool(v["standing"]), stamp=_text(v["stamp"]))
    return own._replace(barred=bool(v.get("barred", False)), idle=bool(v.get("idle", False)))


def _intent(v: Mapping[str, Any]) -> Intent:
    named = (_text(v["kind"]), _text(v["reason"]), _int(v["since_ns"]), _texts(v["keys"]), _texts(v["idents"]), _int(v["tries"]))
    intent = Intent(*named, policy=_text(v["policy"]), next_ns=_int(v["next_ns"]))
    intent = intent._replace(limited=_text(v.get("limited", "")), gone=_text(v.get("gone", "")))
    return intent._replace(standing=bool(v["standing"]), events=bool(v["events"]))


def _identity(v: Mapping[str, Any]) -> GpuIdentity:
    values: dict[str, Any] = {k: None if v[k] is None else _int(v[k]) for k in ("minor", "nvml_index", "dcgm_id")}
    values.update({k: _text(v[k]) for k in ("uuid", "pci", "serial", "model", "slot", "vbios")})
    values["mig"] = None if v["mig"] is None else bool(v["mig"])
    return GpuIdentity(**values)


def _lesson(v: Mapping[str, Any]) -> Lesson:
    readings = {_text(n): {_text(f): _plain(r) for f, r in fields.items()} for n, fields in v["readings"].items()}
    return Lesson(_int(v["at_ns"]), _text(v["who"]), readings)


def _plain(value: Any) -> Reading:
    """A number or a word; what is normal is never no data."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError("a number or a word was expected")
    return value
