"""Block-scaled formats: elements in a narrow format, and one scale for each block of them along an axis."""

from mpsim.blocks.arrays import (
    BlockArray,
    dequantize,
    element_scales,
)
from mpsim.blocks.formats import (
    BLOCK_CATALOGUE,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    MXINT8,
    NVFP4,
    NVFP4_UE5M3,
    BlockFormat,
    BlockFormatLike,
    IntElement,
    get_block_format,
)
from mpsim.blocks.inspection import (
    BlockInspection,
    ElementInspection,
    RuleComparison,
    compare_rules,
    inspect_block,
)
from mpsim.blocks.quantization import (
    BlockCounters,
    quantize,
    quotients,
    round_to,
)
from mpsim.blocks.rules import (
    RECIPES,
    ScaleRecipe,
    ScaleRule,
)

__all__ = [
    "BLOCK_CATALOGUE",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "MXINT8",
    "NVFP4",
    "NVFP4_UE5M3",
    "RECIPES",
    "BlockArray",
    "BlockCounters",
    "BlockFormat",
    "BlockFormatLike",
    "BlockInspection",
    "ElementInspection",
    "IntElement",
    "RuleComparison",
    "ScaleRecipe",
    "ScaleRule",
    "compare_rules",
    "dequantize",
    "element_scales",
    "get_block_format",
    "inspect_block",
    "quantize",
    "quotients",
    "round_to",
]
