"""From what a DCGM field holds to a reading: items of a mask, bit error rates, empty texts.

Compare and judge see fields of the catalogue only: nobody tests a mask that is not 0 when all is well,
or a mantissa beside an exponent.
"""

from __future__ import annotations

from typing import Final, Iterable

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.dcgm.live import Table
from slurm_nvhc.sense.values import sentinel

# An item of two bits in the fabric's health mask (NVML).
_NOT_SUPPORTED, _TRUE, _FALSE = 0, 1, 2
# Exponent in bits 0 to 7, mantissa in bits 8 to 11 (NVML).
_PACKED_LIMIT: Final = 1 << 12
# The driver writes "no errors" as 15e-255; DCGM's own health check takes 15e-238 for none too. No link moves
# 1e30 bits in its life, so nothing below this was ever measured.
_NONE_BELOW: Final = 1e-30


def ids(fields: Iterable[cat.Field]) -> list[int]:
    """The DCGM fields that hold these readings."""
    return [i for f in fields for i in (f.dcgm_id, f.packed_id) if i is not None]


def reading(table: Table, entity: tuple[int, int], field: cat.Field) -> Reading:
    """One catalogue field of one entity. Only for fields with a ``dcgm_id``."""
    raw = table.reading(entity, field.dcgm_id or 0)
    if field.bits is not None:
        return item(raw, *field.bits)
    if field.packed_id is not None:
        return ber(raw, table.reading(entity, field.packed_id))
    if field.unit == cat.WORD and raw == "":
        return NoData(rd.BLANK, "the engine gave an empty text")
    return raw


def item(raw: Reading, shift: int, width: int) -> Reading:
    """An item of a mask: of two bits 1 or 0 for true or false, else its number. 0 in the mask: not supported."""
    missing = _missing(raw)
    if missing is not None:
        return missing
    if not isinstance(raw, int) or raw < 0:
        return NoData(rd.ERROR, f"{raw} is no mask")
    value = raw >> shift & (1 << width) - 1
    if value == _NOT_SUPPORTED:
        return NoData(rd.NOT_SUPPORTED)
    if width != 2:
        return value
    if value in (_TRUE, _FALSE):
        return 1 if value == _TRUE else 0
    return NoData(rd.ERROR, f"the mask {raw:#x} is neither true nor false at bit {shift}")


def ber(ratio: Reading, packed: Reading) -> Reading:
    """A bit error rate from its decoded field, else from the packed one. A rate that can not be is no data."""
    if _missing(ratio) is None:
        return _rate(ratio)
    if _missing(packed) is not None:
        return ratio
    if not isinstance(packed, int) or not 0 <= packed < _PACKED_LIMIT:
        return NoData(rd.ERROR, f"{packed} is no packed bit error rate")
    return _rate((packed >> 8) * 10.0 ** -(packed & 0xFF))


def _rate(value: Reading) -> Reading:
    plain = rd.number(value)
    if plain is None or not 0 <= plain <= 1:
        return NoData(rd.ERROR, f"{value} is no bit error rate")
    return 0.0 if plain < _NONE_BELOW else float(plain)


def _missing(raw: Reading) -> NoData | None:
    return raw if isinstance(raw, NoData) else sentinel(raw)
