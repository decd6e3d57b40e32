"""mpsim: a laboratory for reduced-precision arithmetic on any CPU.

Names are imported when they are first used, so that ``import mpsim`` and the command line start at once.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mpsim._version import __version__ as __version__

if TYPE_CHECKING:
    from mpsim.arithmetic import ExceptionCounts as ExceptionCounts
    from mpsim.arithmetic import Flags as Flags
    from mpsim.arithmetic import env as env
    from mpsim.counters import Counters as Counters
    from mpsim.encoding import classify as classify
    from mpsim.encoding import decode as decode
    from mpsim.encoding import encode as encode
    from mpsim.formats import BF16 as BF16
    from mpsim.formats import CATALOGUE as CATALOGUE
    from mpsim.formats import CB16 as CB16
    from mpsim.formats import DLFLOAT16 as DLFLOAT16
    from mpsim.formats import E2M1 as E2M1
    from mpsim.formats import E2M3 as E2M3
    from mpsim.formats import E3M2 as E3M2
    from mpsim.formats import E3M4 as E3M4
    from mpsim.formats import E4M3 as E4M3
    from mpsim.formats import E4M3B11FNUZ as E4M3B11FNUZ
    from mpsim.formats import E4M3FNUZ as E4M3FNUZ
    from mpsim.formats import E4M3IEEE as E4M3IEEE
    from mpsim.formats import E5M2 as E5M2
    from mpsim.formats import E5M2FNUZ as E5M2FNUZ
    from mpsim.formats import E8M0 as E8M0
    from mpsim.formats import FP16 as FP16
    from mpsim.formats import FP16ALT as FP16ALT
    from mpsim.formats import FP24AMD as FP24AMD
    from mpsim.formats import FP32 as FP32
    from mpsim.formats import FP64 as FP64
    from mpsim.formats import PXR24 as PXR24
    from mpsim.formats import TF32 as TF32
    from mpsim.formats import UE4M3 as UE4M3
    from mpsim.formats import UE5M3 as UE5M3
    from mpsim.formats import FloatFormat as FloatFormat
    from mpsim.formats import finfo as finfo
    from mpsim.formats import get_format as get_format
    from mpsim.formats import register as register
    from mpsim.functions import cat as cat
    from mpsim.functions import chunk as chunk
    from mpsim.functions import gather as gather
    from mpsim.functions import maximum as maximum
    from mpsim.functions import minimum as minimum
    from mpsim.functions import scatter_add as scatter_add
    from mpsim.functions import split as split
    from mpsim.functions import stack as stack
    from mpsim.functions import where as where
    from mpsim.gradcheck import gradcheck as gradcheck
    from mpsim.inspect import inspect as inspect
    from mpsim.matmul import MatmulCounters as MatmulCounters
    from mpsim.matmul import explain_dot as explain_dot
    from mpsim.matmul import matmul as matmul
    from mpsim.matmul import matmul_codes as matmul_codes
    from mpsim.modes import NaN as NaN
    from mpsim.modes import Overflow as Overflow
    from mpsim.modes import Rounding as Rounding
    from mpsim.observe import observe as observe
    from mpsim.ops import Units as Units
    from mpsim.rounding import round_to as round_to
    from mpsim.stochastic import Draws as Draws
    from mpsim.tensor import Tensor as Tensor
    from mpsim.tensor import matrix_unit as matrix_unit
    from mpsim.tensor import no_grad as no_grad

    from . import amp as amp
    from . import arithmetic as arithmetic
    from . import blocks as blocks
    from . import checkpoint as checkpoint
    from . import datasets as datasets
    from . import experiments as experiments
    from . import hardware as hardware
    from . import memory as memory
    from . import nn as nn
    from . import optim as optim
    from . import plots as plots
    from . import presets as presets
    from . import tables as tables
    from . import units as units

_MODULES = (
    "amp",
    "arithmetic",
    "blocks",
    "checkpoint",
    "datasets",
    "experiments",
    "hardware",
    "memory",
    "nn",
    "optim",
    "plots",
    "presets",
    "tables",
    "units",
)

_NAMES = {
    "arithmetic": "ExceptionCounts Flags env",
    "counters": "Counters",
    "encoding": "classify decode encode",
    "formats": (
        "BF16 CATALOGUE CB16 DLFLOAT16 E2M1 E2M3 E3M2 E3M4 E4M3 E4M3B11FNUZ E4M3FNUZ E4M3IEEE E5M2 E5M2FNUZ E8M0 FP16 "
        "FP16ALT FP24AMD FP32 FP64 PXR24 TF32 UE4M3 UE5M3 FloatFormat finfo get_format register"
    ),
    "functions": "cat chunk gather maximum minimum scatter_add split stack where",
    "gradcheck": "gradcheck",
    "inspect": "inspect",
    "matmul": "MatmulCounters explain_dot matmul matmul_codes",
    "modes": "NaN Overflow Rounding",
    "observe": "observe",
    "ops": "Units",
    "rounding": "round_to",
    "stochastic": "Draws",
    "tensor": "Tensor matrix_unit no_grad",
}
"""Public names by the module that they live in."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, *_HOME])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The class of this package, so that ``mpsim.matmul`` is the function whatever is imported when.

    The import system assigns each submodule to an attribute of its package. Where a public function has the name of
    its module, that assignment is left out: the module is found by ``from mpsim.matmul import ...`` all the same.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
