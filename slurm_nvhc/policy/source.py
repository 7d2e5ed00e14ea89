"""The policy in force, for hooks: compiled once per content, last good one kept. Light imports only.

``<state>/policy.json`` is the last good policy, compiled, and names the content
it came from (where there was none, the packaged policy that only observes, and no
content); ``<state>/policy.rejected.json`` is the marker for a content that was
refused, so that it is parsed and announced once. YAML is touched only when neither
knows the content.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any, Final, Mapping, NamedTuple, Optional

import slurm_nvhc
from slurm_nvhc import resources
from slurm_nvhc.errors import InputError, NvhcError
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy import acting, compiled
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import files

COMPILED: Final = "policy.json"
REJECTED: Final = "policy.rejected.json"
PACKAGED: Final = "etc/policy.yaml"
MAX_BYTES: Final = 1024 * 1024
MAX_COMPILED: Final = 64 * 1024 * 1024
CODE: Final = "MON-POLICY"
BUILTIN: Final = "builtin"  # hash of the policy that is left when nothing can be read


class LoadedPolicy(NamedTuple):
    """troubles: each run's; ``first``: this trouble was not there at an earlier run, so it is worth a notice."""

    policy: Policy
    troubles: tuple[Trouble, ...] = ()
    first: bool = False


class _Rejected(NamedTuple):
    """A content that can not be used: its key and the one-line error."""

    key: str
    error: str


def digest(packaged: bytes, site: Optional[bytes]) -> str:
    """Names a compiled policy by everything it depends on: our version and both texts. Hex SHA-256."""
    parts = (slurm_nvhc.__version__.encode(), b"%d" % compiled.SCHEMA, packaged, b"-" if site is None else b"+" + site)
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()


def read_packaged() -> bytes:
    """The packaged policy's text. Raises InputError."""
    path = resources.find(PACKAGED)
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from None


def read_site(path: str) -> Optional[bytes]:
    """The site's policy text, None when there is no such file. Raises InputError.

    Refused: what is no plain file, is too large, and (when we are root) what
    others could have written, since the policy decides what root does.
    """
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hang a hook
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as exc:
        raise InputError(path, "", f"can not be read: {getattr(exc, 'strerror', None) or exc}") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(path, "", "is not a plain file")
        if os.geteuid() == 0 and facts.st_uid != 0:
            raise InputError(path, "", f"belongs to uid {facts.st_uid}, not to root", f"chown root {path}")
        if os.geteuid() == 0 and facts.st_mode & 0o002:
            raise InputError(path, "", "can be written by everyone", f"chmod o-w {path}")
        with os.fdopen(os.dup(fd), "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from None
    finally:
        os.close(fd)
    if len(text) > MAX_BYTES:
        raise InputError(path, "", f"is larger than {MAX_BYTES // 1024} KiB")
    return text


def load(path: str, state_dir: str, node: str, partition: str, keep: bool = True) -> LoadedPolicy:
    """The policy in force on this node for this partition. Never raises.

    A policy that can not be used leaves the last good one in force; without one the
    packaged rules, which then only observe: what the administrator wanted is not known,
    and it may have been less. Without these, a policy without rules.

    keep: False for a look by hand, which leaves nothing behind: a broken edit that it
    met first is still news to the next hook.
    """
    try:
        return _load(_Ask(path, state_dir, node, partition, keep))
    except Exception as exc:  # a hook must run with whatever policy is left
        return LoadedPolicy(nothing(), (_trouble(f"{path}: the policy could not be loaded: {type(exc).__name__}: {exc}"),), True)


def nothing() -> Policy:
    """No rules, observe only: what is left when neither a policy nor PyYAML can be had."""
    return Policy(
        BUILTIN, "observe", {}, acting.Narrow(), compiled.Expect(), compiled.Monitor(), compiled.Engine(), compiled.Slurm(),
        acting.Drain(), compiled.Budgets(), compiled.Record(), 2.0,
    )  # fmt: skip


class _Ask(NamedTuple):
    """What was asked for. keep: the outcome may be written to state_dir."""

    path: str
    state_dir: str
    node: str
    partition: str
    keep: bool

    def resolve(self, document: Mapping[str, Any]) -> Optional[Policy]:
        """None when the document is damaged or another version's."""
        if document.get("schema") != compiled.SCHEMA:
            return None
        try:
            return compiled.resolve(document, self.node, self.partition)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def _load(ask: _Ask) -> LoadedPolicy:
    last = _read_json(os.path.join(ask.state_dir, COMPILED), MAX_COMPILED)
    try:
        packaged = read_packaged()
        site = read_site(ask.path)
    except NvhcError as exc:
        return _fallback(_Rejected(hashlib.sha256(str(exc).encode()).hexdigest(), str(exc)), last, ask)
    if site is None and last is not None and last.get("site") is True:
        gone = f"{ask.path}: is gone (for the packaged policy alone, make it hold 'schema: 1')"
        return _fallback(_Rejected(hashlib.sha256(b"gone " + os.fsencode(ask.path)).hexdigest(), gone), last, ask)
    key = digest(packaged, site)
    if last is not None and last.get("key") == key:
        policy = ask.resolve(last)
        if policy is not None:
            return LoadedPolicy(policy)
    known = _read_json(os.path.join(ask.state_dir, REJECTED), MAX_BYTES)
    if known is not None and known.get("key") == key and isinstance(known.get("error"), str):
        return _fallback(_Rejected(key, known["error"]), last, ask)
    return _compile(site, key, packaged, last, ask)


def _compile(site: Optional[bytes], key: str, packaged: bytes, last: Optional[Mapping[str, Any]], ask: _Ask) -> LoadedPolicy:
    try:
        from slurm_nvhc.policy.compile import compile_policy

        document = compile_policy(site, ask.path, packaged)
    except InputError as exc:
        return _fallback(_Rejected(key, str(exc)), last, ask)
    except ImportError as exc:
        # Not remembered as rejected: the text may be fine, it is the installation that is not.
        return _fallback(_Rejected("", f"{ask.path or PACKAGED}: can not be compiled: {exc}"), last, ask)
    _write(ask, COMPILED, document)
    if ask.keep:
        _forget(ask.state_dir, REJECTED)
    return LoadedPolicy(compiled.resolve(document, ask.node, ask.partition))


def _fallback(rejected: _Rejected, last: Optional[Mapping[str, Any]], ask: _Ask) -> LoadedPolicy:
    """The last good policy, or the packaged one in observe mode, or nothing; with the trouble that says so."""
    first = _announce(rejected, ask)
    policy = ask.resolve(last) if last is not None else None
    if last is None or policy is None:
        try:
            from slurm_nvhc.policy.compile import compile_policy

            last = _observing(compile_policy(None, PACKAGED))
        except (ImportError, NvhcError) as exc:
            return LoadedPolicy(nothing(), (_trouble(f"{rejected.error}; nothing is judged, since {exc}"),), first)
        _write(ask, COMPILED, last)  # so that the next run need not compile it again
        policy = compiled.resolve(last, ask.node, ask.partition)
    if last.get("site") is True:
        left = f"the last good policy {policy.hash} stays in force"
    elif last.get("key") == "":
        left = f"no good one is known, so the packaged policy {policy.hash} judges and only observes"
    else:
        left = f"the packaged policy {policy.hash} stays in force"
    return LoadedPolicy(policy, (_trouble(f"{rejected.error}; {left}"),), first)


def _observing(packaged: Mapping[str, Any]) -> dict[str, Any]:
    """The packaged policy for a site whose own was never right. Without a key: it answers to no content."""
    return {**packaged, "key": "", "base": {**packaged["base"], "mode": "observe"}}


def _announce(rejected: _Rejected, ask: _Ask) -> bool:
    """Leave the marker. True when it was not there: the trouble is new."""
    known = _read_json(os.path.join(ask.state_dir, REJECTED), MAX_BYTES)
    if known is not None and known.get("key") == rejected.key:
        return False
    _write(ask, REJECTED, rejected._asdict())
    return True


def _read_json(path: str, most: int) -> Optional[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(most))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write(ask: _Ask, name: str, value: Any) -> None:
    """Best effort: without a writable state directory the policy is compiled at each run."""
    if not ask.keep:
        return
    try:
        if not os.path.isdir(ask.state_dir):
            files.make_private_dir(ask.state_dir)
        files.write_atomic(os.path.join(ask.state_dir, name), json.dumps(value))
    except (OSError, ValueError):
        pass


def _forget(state_dir: str, name: str) -> None:
    try:
        os.unlink(os.path.join(state_dir, name))
    except (OSError, ValueError):
        pass


def _trouble(detail: str) -> Trouble:
    return Trouble(CODE, "policy", " ".join(detail.split()))
