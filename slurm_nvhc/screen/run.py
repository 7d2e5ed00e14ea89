"""The site's command, once per GPU and repetition, and what is kept of its digests. An administrator waits for it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc import diagnose, ground
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.policy.acting import Screen
from slurm_nvhc.proc import child, together
from slurm_nvhc.record import lock
from slurm_nvhc.screen.compare import Comparison, Key, Past, Subject, compare
from slurm_nvhc.sense.client import read_snapshot

KEPT: Final = 10  # last results of a GPU
MOST_DIGEST: Final = 200  # characters: a digest, and no text about it
MOST_HASHED: Final = 64 << 20  # bytes of a file that the command names; of a larger one its beginning and its size
_WHY: Final = 120  # characters of what a command said when it failed


Denied = Callable[[Sequence[str]], Mapping[str, str]]


class Wanted(NamedTuple):
    """uuids: of GPUs that may be used (ground.py), each ``repeat`` times; together: all at once, else one after the other.

    forget: nothing is held against a GPU's past, and what was kept of it is dropped.
    """

    uuids: tuple[str, ...]
    repeat: int = 2
    together: bool = False
    forget: bool = False


class Answer(NamedTuple):
    """digest: '' when there is none, and then ``why``."""

    digest: str
    why: str = ""


def command(context: Context) -> Screen:
    """The policy's section. InputError, naming the key, for a command that is not there or can not be run."""
    given, config = context.policy.screen, context.site.config
    if not given.command:
        raise InputError(config, "key screen.command", "names no command: nothing is screened", "docs/screen.md has one")
    program = given.command[0]
    if not program.startswith("/"):
        raise InputError(config, "key screen.command", f"{program[:60]!r} is not an absolute path", "it is run without a PATH of yours")
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise InputError(config, "key screen.command", f"{program} can not be executed", "chmod 0755, or name the interpreter before it")
    return given


def screen(
    context: Context, environment: Mapping[str, str], snapshot: Snapshot, wanted: Wanted, say: Callable[[str], object]
) -> tuple[tuple[Subject, ...], Comparison]:
    """Run, compare, keep. environment: as ground.stand() has it, which is asked again before each run. say: told of each as it begins.

    MonitorError while a diagnostic of ours, or another screen, runs on the node: each would be in the other's way.
    """
    given = command(context)
    left = diagnose.end_left(context)
    if left:
        raise MonitorError("diagnostic", "", left[0].detail, "`nvhc diag --stop`")
    path = f"{context.site.state}/{context.node}/{diagnose.LOCK}"
    with lock.held(path, 0.0) as ours:
        if not ours:
            raise MonitorError(path, "", "is held by a diagnostic or another screen, or can not be held", "wait for it; run as root")
        return _screen(context, given, environment, snapshot, wanted, say)


def _screen(
    context: Context, given: Screen, environment: Mapping[str, str], snapshot: Snapshot, wanted: Wanted, say: Callable[[str], object]
) -> tuple[tuple[Subject, ...], Comparison]:
    words = fingerprint(given.command)
    identities = [(snapshot.gpus or {})[uuid].identity for uuid in wanted.uuids]
    keys = {i.uuid: Key(words, snapshot.driver, i.model, i.vbios) for i in identities}

    def denied(uuids: Sequence[str]) -> Mapping[str, str]:
        engine = context.policy.engine  # not within the budget of a hook, which is long over
        return ground.still(context, lambda: read_snapshot(context.node, engine, engine.timeout_s), environment, uuids)[2]

    answers = _answers(given, [Subject(i, keys[i.uuid]) for i in identities], wanted, denied, say)
    kept = {i.uuid: _kept(context, i.uuid) for i in identities}
    subjects = tuple(_subject(i, keys[i.uuid], answers[i.uuid], None if wanted.forget else past(kept[i.uuid])) for i in identities)
    found = compare(subjects, snapshot.wall_ns, context.policy.hash)
    for subject in subjects:
        uuid = subject.identity.uuid
        _keep(context, uuid, noted({} if wanted.forget else _parsed(kept[uuid]), subject, found, snapshot.wall_ns))
    return subjects, found


def _answers(
    given: Screen, subjects: Sequence[Subject], wanted: Wanted, denied: Denied, say: Callable[[str], object]
) -> dict[str, list[Answer]]:
    """By UUID. A GPU on which the command failed once is not tried again. denied: which GPUs may not be used any more -> why."""
    out: dict[str, list[Answer]] = {s.identity.uuid: [] for s in subjects}
    for turn in range(1, wanted.repeat + 1):
        left = [s for s in subjects if all(answer.digest for answer in out[s.identity.uuid])]
        which = f", run {turn} of {wanted.repeat}" if wanted.repeat > 1 else ""
        for some in [left] if wanted.together and left else [[s] for s in left]:
            whys = denied([s.identity.uuid for s in some])
            for uuid, why in whys.items():
                out[uuid].append(Answer("", f"run {turn} was not begun: {why}"))
            free = [s for s in some if s.identity.uuid not in whys]
            if free:
                say(f"{f'{len(free)} GPUs at once' if wanted.together else free[0].name}{which}")
            for s, answer in zip(free, ask(given, [s.identity.uuid for s in free])):
                out[s.identity.uuid].append(answer)
    return out


def ask(given: Screen, uuids: Sequence[str]) -> list[Answer]:
    """Run the command once for each of these GPUs, at the same time, with that one visible."""
    jobs = [together.Job(given.command, {"CUDA_VISIBLE_DEVICES": uuid}) for uuid in uuids]
    return [_answer(result, given.timeout_s) for result in together.run(jobs, given.timeout_s)]


def _answer(done: Optional[child.Result], timeout_s: float) -> Answer:
    """What goes wrong is no result, and never a digest."""
    if done is None:
        return Answer("", "it was not run")
    if done.problem == "timeout":
        return Answer("", f"not ended within {timeout_s:g} s")
    if done.rc != 0:
        last = child.last_line(done.err) or child.last_line(done.out)
        return Answer("", done.problem or f"exit status {done.rc}{f': {_printable(last)[:_WHY]}' if last else ''}")
    if len(done.out) >= child.MAX_OUTPUT // 4:  # characters are 1 to 4 bytes: its end may have been cut off
        return Answer("", "it printed more than a digest")
    digest = child.last_line(done.out)
    if not digest:
        return Answer("", "it printed nothing")
    if len(digest) > MOST_DIGEST or digest != _printable(digest):
        return Answer("", f"the last line it printed is no digest: {_printable(digest)[:60]}")
    return Answer(digest)


def fingerprint(words: Sequence[str]) -> str:
    """Of the command's words and of the files among them: another interpreter or script is another command."""
    out = hashlib.sha256()
    for word in words:
        out.update(f"{len(word)}:{word}\n".encode("utf-8", "surrogateescape"))
        try:
            if word.startswith("/") and os.path.isfile(word):
                with open(word, "rb") as file:
                    out.update(file.read(MOST_HASHED))
                    out.update(f"{os.fstat(file.fileno()).st_size}\n".encode())
        except OSError:
            pass  # it is the command that must read it
    return out.hexdigest()[:16]


def _subject(identity: GpuIdentity, key: Key, answers: Sequence[Answer], before: Optional[Past]) -> Subject:
    return Subject(identity, key, tuple(a.digest for a in answers if a.digest), next((a.why for a in answers if a.why), ""), before)


# --- what is kept, one note of the ledger per GPU -----------------------------------------


def _kept(context: Context, uuid: str) -> str:
    return context.book.ask(lambda led: led.get(f"screen:{uuid}"), "")


def _keep(context: Context, uuid: str, note: str) -> None:
    context.book.ask(lambda led: led.put(f"screen:{uuid}", note), None)


def past(note: str) -> Optional[Past]:
    """What a note says; None for none, and for one that can not be read."""
    raw = _parsed(note)
    try:
        return Past(str(raw["digest"]), Key(**{name: str(raw["key"][name]) for name in Key._fields}), int(raw["at_ns"]))
    except (KeyError, TypeError, ValueError):
        return None


def noted(before: Mapping[str, Any], subject: Subject, found: Comparison, now_ns: int) -> str:
    """The note after this screen. A digest is only taken over when nothing differs: else a fault would be the next one's past."""
    uuid = subject.identity.uuid
    now = {"at_ns": now_ns, "digests": list(subject.digests), "why": subject.why, "verdict": found.verdicts[uuid]}
    earlier = before.get("last")
    out: dict[str, Any] = {k: before[k] for k in ("digest", "key", "at_ns") if k in before}
    if uuid in found.agreed:
        out = {"digest": subject.steady, "key": subject.key._asdict(), "at_ns": now_ns}
    return json.dumps({**out, "last": [now, *(earlier if isinstance(earlier, list) else [])][:KEPT]})


def _parsed(note: str) -> Mapping[str, Any]:
    try:
        value = json.loads(note) if note else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def _printable(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
