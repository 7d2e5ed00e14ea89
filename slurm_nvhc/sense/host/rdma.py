"""Ports of RDMA devices, InfiniBand and Ethernet, from sysfs: state, rate and error counters.

Every port is a port: virtual functions and storage adapters too; which of them a node needs
is learned or written in the policy, not guessed here.

State and counters are questions to the device's firmware, and a sick device may not answer them
for a minute. Each device is asked by a thread of its own, and what it does not answer in time is
no data: the reading of the GPUs goes on.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Callable, Collection, Final, Mapping, NamedTuple

from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading

# All devices together. Our judgement: a device that is well answers its counters within milliseconds.
PATIENCE_S: Final = 1.0
# Far above any node's; a host of virtual functions must not take the reader's time.
MAX_DEVICES: Final = 64
_WORD_BYTES: Final = 4  # IBTA: PortXmitData and PortRcvData count 32-bit words

_LINK_LAYERS: Final = {"InfiniBand": 1, "Ethernet": 2}
_STATE = re.compile(r"^(\d{1,2}):")  # "4: ACTIVE"
_RATE = re.compile(r"^(\d{1,6}(?:\.\d{1,3})?) Gb/sec\b")  # "400 Gb/sec (4X NDR)"
_COUNT = re.compile(r"^\d{1,20}$")


class _Counter(NamedTuple):
    """A file below the port's folder. bits: its width, when it stops at its ceiling instead of going on (0: it goes on)."""

    path: str
    bits: int = 0
    scale: int = 1


# Widths are those of the IBTA's PortCounters, which the kernel hands out; the octet counts come from the
# extended ones. hw_counters stand in where a driver has no PortCounters (EFA, bnxt_re).
_COUNTERS: Final[Mapping[str, tuple[_Counter, ...]]] = {
    "rdma_link_downed": (_Counter("counters/link_downed", 8),),
    "rdma_link_recovery": (_Counter("counters/link_error_recovery", 8),),
    "rdma_symbol_errors": (_Counter("counters/symbol_error", 16),),
    "rdma_rcv_errors": (_Counter("counters/port_rcv_errors", 16),),
    "rdma_rcv_remote_physical_errors": (_Counter("counters/port_rcv_remote_physical_errors", 16),),
    "rdma_local_link_integrity_errors": (_Counter("counters/local_link_integrity_errors", 4),),
    "rdma_buffer_overrun_errors": (_Counter("counters/excessive_buffer_overrun_errors", 4),),
    "rdma_xmit_discards": (_Counter("counters/port_xmit_discards", 16),),
    "rdma_packet_seq_errors": (_Counter("hw_counters/packet_seq_err"), _Counter("hw_counters/seq_err_naks_rcvd")),
    "rdma_ack_timeouts": (_Counter("hw_counters/local_ack_timeout_err"),),
    "rdma_xmit_bytes": (_Counter("counters/port_xmit_data", scale=_WORD_BYTES), _Counter("hw_counters/tx_bytes")),
    "rdma_rcv_bytes": (_Counter("counters/port_rcv_data", scale=_WORD_BYTES), _Counter("hw_counters/rx_bytes")),
}
NAMES: Final = ("rdma_link_layer", "rdma_state", "rdma_phys_state", "rdma_rate", *_COUNTERS)

ReadFile = Callable[[str], str]  # raises OSError


def ports(
    fields: Collection[str], root: str = "/", patience_s: float = PATIENCE_S, read_file: ReadFile | None = None
) -> tuple[dict[str, dict[str, Reading]], list[str]]:
    """({entity: the readings asked for}, names of devices that did not answer in time).

    A node without RDMA devices has no port: {}. read_file: how a file is read, for tests.
    """
    wanted = [name for name in NAMES if name in fields]
    folder = os.path.join(root, "sys/class/infiniband")
    silence = NoData(rd.ERROR, f"no answer within {patience_s:g} s")
    out: dict[str, dict[str, Reading]] = {}
    asked = []
    for device in _listed(folder)[:MAX_DEVICES]:
        looks = []
        for number in _listed(os.path.join(folder, device, "ports")):
            if number.isascii() and number.isdigit():
                readings: dict[str, Reading] = dict.fromkeys(wanted, silence)
                out[entity.rdma(device, int(number))] = readings
                looks.append(_Port(os.path.join(folder, device, "ports", number), root, read_file or _text, readings))
        thread = threading.Thread(target=_ask, args=(looks,), daemon=True)
        thread.start()
        asked.append((device, thread))
    until = time.monotonic() + patience_s
    silent = []
    for device, thread in asked:
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            silent.append(device)
    # Copies: a thread that is late may still write.
    return {name: dict(readings) for name, readings in out.items()}, silent


def _ask(looks: list[_Port]) -> None:
    for look in looks:
        for name in look.readings:
            try:
                look.readings[name] = _reading(look, name)
            except OSError as exc:
                look.readings[name] = NoData(rd.ERROR, exc.strerror or "can not be read")


class _Port(NamedTuple):
    """readings: what is asked for, filled in one by one."""

    folder: str
    root: str
    read: ReadFile
    readings: dict[str, Reading]

    def text(self, name: str) -> str:
        return self.read(os.path.join(self.folder, name)).strip()


def _reading(port: _Port, name: str) -> Reading:
    """Raises OSError."""
    if name == "rdma_link_layer":
        word = port.text("link_layer")
        return _LINK_LAYERS.get(word, NoData(rd.ERROR, f"unknown link layer {word[:20]!r}"))
    if name == "rdma_rate":
        rate = _RATE.match(port.text("rate"))
        return float(rate[1]) if rate else NoData(rd.BLANK, "the port has no rate")
    if name in ("rdma_state", "rdma_phys_state"):
        state = _STATE.match(port.text(name.removeprefix("rdma_")))
        return int(state[1]) if state else NoData(rd.ERROR, "not a state")
    if name == "rdma_link_downed":
        carrier = _carrier_losses(port)
        if carrier is not None:
            return carrier
    return _count(port, _COUNTERS[name])


def _carrier_losses(port: _Port) -> Reading | None:
    """How often the interface of an Ethernet port lost its carrier; None for InfiniBand, and where no interface is named.

    Ethernet ports count link losses there, not in PortCounters, which are the IBTA's.
    """
    try:
        if port.text("link_layer") != "Ethernet":
            return None
        interface = port.text("gid_attrs/ndevs/0")
        text = port.read(os.path.join(port.root, "sys/class/net", os.path.basename(interface), "carrier_down_count")).strip()
    except OSError:
        return None
    return int(text) if _COUNT.match(text) else None


def _count(port: _Port, files: tuple[_Counter, ...]) -> Reading:
    """The first of the files that is there. Raises OSError when it is there and can not be read."""
    for counter in files:
        try:
            text = port.text(counter.path)
        except FileNotFoundError:
            continue
        if not _COUNT.match(text):
            return NoData(rd.ERROR, f"{text[:20]!r} is not a count")
        ceiling = (1 << counter.bits) - 1 if counter.bits else None
        if int(text) == ceiling:
            # It stands still from here on: "no growth" would be a false all-clear.
            return NoData(rd.ERROR, f"at its ceiling of {ceiling}: clear it with perfquery -R")
        return int(text) * counter.scale
    return NoData(rd.NOT_SUPPORTED, "the device has no such counter")


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(256)
