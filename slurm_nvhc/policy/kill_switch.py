"""The cluster's kill switch: a file, usually on a file system that all nodes share, that switches hooks or single rules off.

An empty file switches everything off; lines that name rules switch off these rules and nothing else. What
follows a "#" is a remark: an empty file may say why it is there. (A node's own switch is the launcher's business.)

The file is read by a child process with a deadline of its own: a shared file system that hangs keeps its
readers in the kernel, where no signal of ours reaches them, and must cost a hook one second, not its protection.
"""

from __future__ import annotations

import zlib
from typing import Any, Collection, Final, NamedTuple

from slurm_nvhc.model import finding as fd
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import child

READ_S: Final = 1.0  # a shared file system that works answers in milliseconds; our judgement
SHARE: Final = 0.1  # of a hook's budget at most
MOST_BYTES: Final = 65536
_HEAD: Final = "/usr/bin/head"
_ABSENT: Final = ("No such file or directory", "Not a directory")


class Switch(NamedTuple):
    """What the file says. The default is a switch that is not there.

    everything: hooks do nothing
    rules:      these rules of the policy are off
    unknown:    words in it that name no rule of the policy
    problem:    why it could not be read, '' when it could (or is not there)
    text:       the file's text, for when it can not be read the next time; '' = not there
    """

    file: str = ""
    everything: bool = False
    rules: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problem: str = ""
    text: str = ""

    def __str__(self) -> str:
        """For people; '' when nothing is switched off."""
        if self.everything:
            return f"hooks are OFF on every node that reads {self.file}: it exists"
        return f"rules off by {self.file}: {', '.join(self.rules)}" if self.rules else ""


def look(path: str, known: Collection[str], timeout_s: float) -> Switch:
    """Read the switch. known: the names of the policy's rules. Never raises, never takes longer than timeout_s (and 0.2 s)."""
    if not path:
        return Switch()
    result = child.run((_HEAD, "-c", str(MOST_BYTES), "--", path), timeout_s)
    if result.rc == 0:
        # A file that is there and empty is not a file that is absent.
        return parse(path, result.out or "\n", known)
    said = " ".join((result.err or result.problem).split())
    if any(text in said for text in _ABSENT):
        return Switch(path)
    if result.problem == "timeout":
        said = f"no answer within {timeout_s:.1f} s"
    return Switch(path, problem=f"{path}: the kill switch can not be read: {said}")


def parse(path: str, text: str, known: Collection[str]) -> Switch:
    words = [word for line in text.splitlines() for word in line.partition("#")[0].replace(",", " ").split()]
    if not words:
        return Switch(path, everything=True, text=text)
    named = dict.fromkeys(words)
    return Switch(
        path, False, tuple(w for w in named if w in known), tuple(w for w in named if w not in known), "", text
    )


def without(policy: Policy, rules: Collection[str]) -> Policy:
    """The policy with these rules off, whatever an overlay says of them; its hash says that it is another one."""
    names = sorted(set(rules) & set(policy.rules))
    if not names:
        return policy
    off: dict[str, Any] = {"rules": {name: {"mode": fd.OFF} for name in names}}
    return policy._replace(
        hash=f"{policy.hash}-{zlib.crc32(' '.join(names).encode()):08x}",
        rules={**policy.rules, **{name: policy.rules[name]._replace(mode=fd.OFF) for name in names}},
        later=(*policy.later, off),
    )
