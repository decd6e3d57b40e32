"""Matrix units as data: one row for each real instruction, found by device name."""

from mpsim.units.catalogue import NATIVE, UNITS, devices, get, is_block_format
from mpsim.units.ideal import ideal
from mpsim.units.model import Family, InputsLike, MatrixUnit, Order, UnitLike, ZeroTerms

__all__ = [
    "NATIVE",
    "UNITS",
    "Family",
    "InputsLike",
    "MatrixUnit",
    "Order",
    "UnitLike",
    "ZeroTerms",
    "devices",
    "get",
    "ideal",
    "is_block_format",
]
