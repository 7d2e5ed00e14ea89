"""Digests beside each other: does a GPU compute something else than the others, than before, than in the same minute? Pure.

What the site's command promises is that its digest depends on nothing but the GPU's model, the driver and the command
itself. It may be wrong about that (a library was upgraded, a kernel is not deterministic), and then *many* GPUs differ at
once; silent corruption is rare and gives each GPU a wrong result of its own. So a GPU fails only where it stands alone
against others that agree, and stood there twice; everything else that differs is a warning.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.times import iso

DIGEST: Final = "SDC-DIGEST"
NO_RESULT: Final = "DIAG-NO-RESULT"
NODE: Final = "node"
NO_MORE: Final = "what other work it would spoil is not known"
_SHOWN: Final = 12  # characters of a digest in a sentence


class Key(NamedTuple):
    """What a digest may rightly depend on: it is held against the past only where all of it is as it was.

    command: hash of its words and of the files that they name.
    """

    command: str
    driver: str
    model: str
    vbios: str

    @property
    def peers(self) -> tuple[str, str, str]:
        """GPUs for which this is the same must give the same digest: firmware computes nothing."""
        return self.command, self.driver, self.model


class Past(NamedTuple):
    """The digest that a GPU last gave when nothing differed, with what, and when (ns UTC)."""

    digest: str
    key: Key
    at_ns: int


class Subject(NamedTuple):
    """One GPU in one screen.

    digests: one for each run of the command that gave one, in order
    why:     why a run gave none, '' when all did. No result is never a mismatch.
    past:    None when nothing is known, or is not to be held against it
    """

    identity: GpuIdentity
    key: Key
    digests: tuple[str, ...] = ()
    why: str = ""
    past: Optional[Past] = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def steady(self) -> str:
        """Its digest, '' when it gave none, or more than one."""
        return self.digests[0] if len(set(self.digests)) == 1 else ""

    @property
    def before(self) -> Optional[Past]:
        """The past that counts: of the same key."""
        return self.past if self.past is not None and self.past.key == self.key else None


class Comparison(NamedTuple):
    """verdicts: by UUID; verdict: of all together, what is said of the node itself included.

    notes: what differs and is no finding. agreed: UUIDs whose digest is to be held against them the next time.
    """

    verdict: str
    verdicts: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    agreed: tuple[str, ...] = ()


class _Said(NamedTuple):
    """One statement. about: None: the node's."""

    about: Optional[Subject]
    verdict: str
    text: str


def compare(subjects: Sequence[Subject], now_ns: int = 0, policy: str = "") -> Comparison:
    """now_ns, policy: for the findings: when it was, and the hash of the policy in force."""
    said: list[_Said] = []
    notes: list[str] = []
    doubted: set[tuple[str, str, str]] = set()  # where the command itself is doubted, its digest is nobody's past
    for peers, members in _groups(subjects).items():
        theirs = _group(members)
        said += theirs
        doubted |= {peers} if any(s.about is None for s in theirs) else set()
        notes += [_anew(s, s.past) for s in members if s.past is not None and s.before is None and s.digests]
    of: dict[str, list[_Said]] = {s.identity.uuid: [] for s in subjects}
    for one in said:
        if one.about is not None:
            of[one.about.identity.uuid].append(one)
    verdicts = {uuid: fd.worst(s.verdict for s in mine) for uuid, mine in of.items()}
    node = [s for s in said if s.about is None]
    agreed = tuple(
        s.identity.uuid
        for s in subjects
        if s.steady and s.key.peers not in doubted and not any(_code(one) == DIGEST for one in of[s.identity.uuid])
    )
    findings = [_finding(None, [s], now_ns, policy) for s in node]
    for subject in subjects:
        for code in (DIGEST, NO_RESULT):
            mine = [s for s in of[subject.identity.uuid] if _code(s) == code]
            findings += [_finding(subject, mine, now_ns, policy)] if mine else []
    return Comparison(fd.worst([*verdicts.values(), *(s.verdict for s in node)]), verdicts, tuple(findings), tuple(notes), agreed)


def _groups(subjects: Iterable[Subject]) -> dict[tuple[str, str, str], list[Subject]]:
    out: dict[tuple[str, str, str], list[Subject]] = {}
    for subject in subjects:
        out.setdefault(subject.key.peers, []).append(subject)
    return out


def _group(members: Sequence[Subject]) -> list[_Said]:
    """GPUs that must agree."""
    out = [_Said(s, fd.UNKNOWN, f"no result: {s.why}") for s in members if s.why]
    repeated = [s for s in members if len(s.digests) > 1]
    if len(repeated) > 1 and not any(s.steady for s in repeated):
        found = f"none of {len(repeated)} GPUs gives the same digest twice: nothing can be compared"
        blamed = "no result: the command is not deterministic"
        return [*out, *(_Said(s, fd.UNKNOWN, blamed) for s in repeated), _Said(None, fd.UNKNOWN, f"{blamed}: {found}")]
    voters = [s for s in members if s.steady]
    others = _others(voters)
    out += [*_itself(repeated), *others, *_past(voters, bool(others))]
    if len(members) == 1 and len(members[0].digests) == 1 and members[0].before is None:
        out.append(_Said(members[0], fd.UNKNOWN, "no result: one digest, and no other GPU, past or second run to hold it against"))
    return out


def _itself(repeated: Sequence[Subject]) -> list[_Said]:
    """A GPU that does not repeat itself is convicted once others show that the command does, and by two wrong runs: a command that
    is not quite deterministic gives some GPU a single one soon enough."""
    unsteady, steady = [s for s in repeated if not s.steady], [s for s in repeated if s.steady]
    alone = len(steady) > len(unsteady)  # so at least two of them
    right, agree = Counter(s.steady for s in steady).most_common(1)[0] if steady else ("", 0)
    out = []
    for s in unsteady:
        different = len(set(s.digests))
        gave = f"gave {different} digests in {len(s.digests)} runs of the same work ({', '.join(map(_short, dict.fromkeys(s.digests)))})"
        sure = alone and 2 * agree > len(steady) and sum(digest != right for digest in s.digests) > 1
        then = f"it, or a command that is not deterministic{'; run it again, more often' if alone else ''}"
        then = f"{len(steady)} others repeat themselves; {NO_MORE}" if sure else then
        out.append(_Said(s, fd.FAIL if sure else fd.WARN, f"{gave}: {then}"))
    return out


def _others(voters: Sequence[Subject]) -> list[_Said]:
    counts = Counter(s.steady for s in voters)
    if len(counts) < 2:
        return []
    right, agree = counts.most_common(1)[0]
    if 2 * agree <= len(voters):
        names = " and ".join(f"{_short(digest)} of {_names(s for s in voters if s.steady == digest)}" for digest in counts)
        which = f"one of them computes wrongly, which one is not known; {NO_MORE}" if len(voters) == 2 else "no digest has a majority"
        return [_Said(s, fd.WARN, f"{names} differ: {which}") for s in voters]
    out = []
    for s in voters:
        if s.steady == right:
            continue
        gave = f"gave {_short(s.steady)} in {_runs(s)}, {agree} others of its model {_short(right)}"
        alike = [o for o in voters if o.steady == s.steady and o is not s]
        if alike:
            # Corruption does not hit two GPUs in the same way: a setting or a part that differs does.
            out.append(_Said(s, fd.WARN, f"{gave}; {_names(alike)} gave the same as it: look first for what these have different"))
        else:
            sure = len(s.digests) > 1
            out.append(_Said(s, fd.FAIL if sure else fd.WARN, f"{gave}{'' if sure else '; run it again'}; {NO_MORE}"))
    return out


def _past(voters: Sequence[Subject], disagree: bool) -> list[_Said]:
    known = [(s, s.before) for s in voters if s.before is not None]
    changed = [(s, past) for s, past in known if past.digest != s.steady]
    if len(changed) > 1 and len(changed) == len(known) and not disagree:
        since = iso(max(past.at_ns for _, past in changed))
        found = f"all {len(changed)} GPUs agree, and gave something else before ({since})"
        cause = "the command or a library of it has changed; if so, `nvhc screen --forget` takes what they give now"
        return [_Said(None, fd.WARN, f"{found}: {cause}")]
    out = []
    for s, past in changed:
        gave = f"gave {_short(past.digest)} before ({iso(past.at_ns)}), now {_short(s.steady)}"
        out.append(_Said(s, fd.WARN, f"{gave}: it has changed, or what the command uses"))
    return out


def _anew(subject: Subject, past: Past) -> str:
    what = [name for name, now, then in zip(Key._fields, subject.key, past.key) if now != then]
    return f"{subject.name} starts anew: what it gave before ({iso(past.at_ns)}) was with another {' and '.join(what)}"


def _code(said: _Said) -> str:
    return NO_RESULT if said.verdict == fd.UNKNOWN else DIGEST


def _finding(subject: Optional[Subject], said: Sequence[_Said], now_ns: int, policy: str) -> Finding:
    """What is said of one GPU, or of the node, in one finding: the worst of it first."""
    verdict = fd.worst(s.verdict for s in said)
    text = "; ".join(s.text for s in sorted(said, key=lambda s: s.verdict != verdict))
    evidence = Evidence(text=text, at_ns=now_ns, source="nvhc screen")
    if subject is None:
        return Finding(_code(said[0]), NODE, "node", verdict, text, evidence, {}, policy=policy)
    before = subject.before.digest if subject.before is not None else None
    evidence = evidence._replace(before=before, after=", ".join(subject.digests) or None)
    return Finding(_code(said[0]), subject.identity.uuid, "gpu", verdict, text, evidence, subject.identity._asdict(), policy=policy)


def _runs(s: Subject) -> str:
    return f"all {len(s.digests)} runs" if len(s.digests) > 1 else "one run"


def _names(subjects: Iterable[Subject]) -> str:
    return ", ".join(s.name for s in subjects)


def _short(digest: str) -> str:
    return digest if len(digest) <= _SHOWN + 1 else f"{digest[:_SHOWN]}…"
