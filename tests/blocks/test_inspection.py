import json
from fractions import Fraction

import numpy as np
import pytest

from mpsim.blocks import (
    BLOCK_CATALOGUE,
    MXFP6_E2M3,
    MXFP8_E5M2,
    MXINT8,
    NVFP4_UE5M3,
    RECIPES,
    BlockCounters,
    BlockFormat,
    ScaleRule,
    compare_rules,
    inspect_block,
    quantize,
)
from mpsim.rounding import Counters


def test_a_block_explains_itself():
    seen = inspect_block([957.0, 3.0, -12.5], "mxfp8_e4m3")
    assert (seen.amax, seen.scale, seen.scale_code, seen.clipped) == (957, 2, 128, 1)
    first, _, last = seen.elements
    assert (first.quotient, first.element, first.value, first.error, first.clipped) == (
        Fraction(957, 2), 448, 896, -61, True,
    )  # fmt: skip
    assert (last.code, last.element, last.error, last.clipped) == (0xCC, -6, Fraction(1, 2), False)
    assert {name: code for name, (code, _, _) in seen.scales_by_rule.items()} == {
        "floor": 128, "ceil": 129, "rceil": 129, "rceil-fp32": 129, "even": 128, "nearest": 128,
    }  # fmt: skip
    text = str(seen)
    assert "957" in text
    assert "clipped at 448" in text
    assert "floor 2 (clips 1)" in text
    assert repr(seen) == "<3 in mxfp8_e4m3: amax 957, scale 2, 1 clipped>"
    data = json.loads(json.dumps(seen.to_dict()))
    assert data["elements"][0] == {
        "given": "957", "quotient": "478.5", "code": "0x7e", "element": "448", "value": "896", "error": "-61",
        "clipped": True,
    }  # fmt: skip


def test_an_amax_of_500_keeps_the_scale_one_and_becomes_448():
    seen = inspect_block([500.0], "mxfp8_e4m3")
    assert (seen.scale, seen.elements[0].value, seen.elements[0].clipped) == (1, 448, True)
    assert inspect_block([500.0], "mxfp8_e4m3", "even").elements[0].value == 512


@pytest.mark.parametrize("fmt", BLOCK_CATALOGUE, ids=str)
def test_special_blocks_explain_themselves(fmt: BlockFormat):
    for numbers in ([0.0, -0.0], [np.nan, 1.0], [np.inf, -1.0], [1e-45], [3e38, 1.0], [0.1, 0.2, 0.3]):
        for rule in fmt.rules:
            seen = inspect_block(np.array(numbers, np.float32), fmt, rule)
            assert json.loads(json.dumps(seen.to_dict()))["scale_rule"] == rule
            assert len(str(seen).splitlines()) == 6 + len(numbers)
            want = quantize(np.array(numbers, np.float32), fmt, scale_rule=rule).dequantize(np.float64)
            got = np.array([float(e.value) for e in seen.elements])
            assert np.array_equal(got, want, equal_nan=True)


def test_rules_are_compared_on_data():
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    rows = {row.scale_rule: row for row in compare_rules(x, "mxfp8_e4m3")}
    assert list(rows) == list(ScaleRule)
    assert rows["ceil"].clipped == rows["rceil"].clipped == 0
    assert 0 < rows["even"].clipped_blocks < rows["floor"].clipped_blocks < rows["nearest"].clipped_blocks
    assert rows["nearest"].sqnr_db < rows["floor"].sqnr_db < rows["even"].sqnr_db < rows["rceil"].sqnr_db
    assert all(row.overflows <= row.clipped for row in rows.values())
    for name in ("floor", "nearest"):
        seen = np.array([inspect_block(block, "mxfp8_e4m3", name).clipped for block in x.reshape(-1, 32)])
        assert (rows[name].clipped_blocks, rows[name].clipped) == (np.mean(seen > 0), seen.sum() / x.size)
    assert [row.scale_rule for row in compare_rules(x, "nvfp4")] == list(RECIPES)
    assert compare_rules(np.zeros(0), "mxfp4")[0].sqnr_db == np.inf


def test_counters_accumulate_and_clear():
    counters = BlockCounters()
    for _ in range(2):
        quantize([957.0, 0.0, 1e-9], "mxfp8_e4m3", counters=counters)
    assert (counters.blocks, counters.clipped, counters.elements.zeros, counters.elements.underflows) == (2, 2, 2, 2)
    counters += counters
    assert counters.blocks == 4
    counters.clear()
    assert counters == BlockCounters()
    assert counters.elements == Counters()


@pytest.mark.parametrize("fmt", [MXINT8, MXFP6_E2M3, MXFP8_E5M2, NVFP4_UE5M3], ids=str)
def test_counts_of_elements_by_hand(fmt: BlockFormat):
    largest = float(fmt.max_element)
    counters = BlockCounters()
    quantize([largest, 0.0, 2.0**-40], fmt, counters=counters)
    elements = counters.elements
    assert (elements.zeros, elements.underflows, elements.overflows, elements.inexact) == (1, 1, 0, 1)
    counters = BlockCounters()
    quantize([largest, largest * (1 + 2.0**-20)], fmt, scale_rule=fmt.rules[0], counters=counters)
    assert counters.elements.overflows == 0  # rounds to the largest
    if fmt.has_power_scales:
        counters = BlockCounters()
        quantize([np.nextafter(2.0 ** (fmt.emax_element + 1), 0.0)], fmt, counters=counters)
        assert (counters.clipped, counters.elements.saturations, counters.elements.inexact) == (1, 1, 1)
