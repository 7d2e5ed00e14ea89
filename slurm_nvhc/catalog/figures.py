"""How figures of a field are written, in findings, reasons and tables alike."""

from __future__ import annotations

from typing import Any, Optional

from slurm_nvhc.catalog.fields import GAUGE, Field
from slurm_nvhc.model.reading import NoData, number
from slurm_nvhc.model.times import duration


def amount(quantity: float, field: Optional[Field]) -> str:
    """Growth of a counter: '21200', '1.5', or '41m' for a counter of ns."""
    if field is not None and field.unit == "ns":
        return duration(quantity / 1e9)
    return str(int(quantity)) if quantity == int(quantity) else f"{quantity:.3g}"


def value(reading: Any, field: Optional[Field]) -> str:
    """A reading: '4 (drain and reset)', '85 °C', 'down', 'no data (blank)'."""
    if isinstance(reading, NoData):
        return f"no data ({reading.kind.replace('_', ' ')})"
    plain = number(reading)
    if field is not None and plain is not None:
        if int(plain) in field.words:
            return f"{int(plain)} ({field.words[int(plain)]})"
        if field.unit and field.kind == GAUGE:
            return f"{plain:g} {field.unit}"
    return str(reading)
