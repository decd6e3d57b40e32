"""Arithmetic of two tensors, with broadcasting."""

from __future__ import annotations

import numpy as np

from mpsim.ops._numeric import summed_to
from mpsim.ops.table import Array, Call, Gradients, Operation

__all__ = ["OPERATIONS"]


def _add(_: Call, input: Array, other: Array) -> Array:
    return np.asarray(input + other)


def _add_vjp(_: Call, g: Array, __: Array, input: Array, other: Array) -> Gradients:
    return summed_to(g, input.shape), summed_to(g, other.shape)


def _sub(_: Call, input: Array, other: Array) -> Array:
    return np.asarray(input - other)


def _sub_vjp(_: Call, g: Array, __: Array, input: Array, other: Array) -> Gradients:
    return summed_to(g, input.shape), summed_to(-g, other.shape)


def _mul(_: Call, input: Array, other: Array) -> Array:
    return np.asarray(input * other)


def _mul_vjp(call: Call, g: Array, _: Array, input: Array, other: Array) -> Gradients:
    return (
        summed_to(g * other, input.shape) if call.wanted[0] else None,
        summed_to(g * input, other.shape) if call.wanted[1] else None,
    )


def _div(_: Call, input: Array, other: Array) -> Array:
    return np.asarray(input / other)


def _div_vjp(call: Call, g: Array, _: Array, input: Array, other: Array) -> Gradients:
    return (
        summed_to(g / other, input.shape) if call.wanted[0] else None,
        summed_to(-g * input / (other * other), other.shape) if call.wanted[1] else None,
    )


def _power(base: Array, exponent: Array) -> Array:
    """Return ``base ** exponent`` by float64; squares and first powers the short way, to the same bits."""
    if exponent.ndim == 0 and exponent == 2:
        return np.asarray(base * base)
    if exponent.ndim == 0 and exponent == 1:
        return base
    result: Array = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    return result


def _pow(_: Call, input: Array, exponent: Array) -> Array:
    return _power(input, exponent)


def _pow_vjp(call: Call, g: Array, y: Array, input: Array, exponent: Array) -> Gradients:
    zero = g.dtype.type(0)
    by_input = by_exponent = None
    if call.wanted[0]:
        slope = exponent * _power(input, np.asarray(exponent - 1))
        by_input = summed_to(np.where(exponent == 0, zero, g * slope), input.shape)
    if call.wanted[1]:
        logarithm = np.log(input.astype(np.float64)).astype(input.dtype)
        # 0**y is 0 for all y > 0; at y = 0 torch says 0 too.
        by_exponent = summed_to(np.where((input == 0) & (exponent >= 0), zero, g * (y * logarithm)), exponent.shape)
    return by_input, by_exponent


def _maximum(_: Call, input: Array, other: Array) -> Array:
    return np.maximum(input, other)


def _minimum(_: Call, input: Array, other: Array) -> Array:
    return np.minimum(input, other)


def _extremum_shares(g: Array, loses: Array, wins: Array, input: Array, other: Array) -> Gradients:
    """Give a gradient to the winner; equals share it, and a NaN lets it through to both, as in torch."""
    zero, half = g.dtype.type(0), g * g.dtype.type(0.5)
    equal = input == other
    return (
        summed_to(np.where(equal, half, np.where(loses, zero, g)), input.shape),
        summed_to(np.where(equal, half, np.where(wins, zero, g)), other.shape),
    )


def _maximum_vjp(_: Call, g: Array, __: Array, input: Array, other: Array) -> Gradients:
    return _extremum_shares(g, input < other, input > other, input, other)


def _minimum_vjp(_: Call, g: Array, __: Array, input: Array, other: Array) -> Gradients:
    return _extremum_shares(g, input > other, input < other, input, other)


def _where(_: Call, input: Array, other: Array, condition: Array) -> Array:
    return np.where(condition, input, other)


def _where_vjp(_: Call, g: Array, __: Array, input: Array, other: Array, condition: Array) -> Gradients:
    zero = g.dtype.type(0)
    return (
        summed_to(np.where(condition, g, zero), input.shape),
        summed_to(np.where(condition, zero, g), other.shape),
    )


OPERATIONS = (
    Operation("add", _add, _add_vjp, reads=()),
    Operation("sub", _sub, _sub_vjp, reads=()),
    Operation("mul", _mul, _mul_vjp, reads=("input", "other")),
    Operation("div", _div, _div_vjp, reads=("input", "other")),
    Operation("pow", _pow, _pow_vjp),
    Operation("maximum", _maximum, _maximum_vjp, reads=("input", "other")),
    Operation("minimum", _minimum, _minimum_vjp, reads=("input", "other")),
    # Not exact: a Python number among the operands is not rounded before.
    Operation("where", _where, _where_vjp, reads=()),
)
