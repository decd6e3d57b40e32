"""Recurrent layers, with torch's weights and order of gates.

The inputs of all steps are multiplied by their weight at once, as cuDNN does; then each step adds the product of
the hidden state. Every operation rounds its result to the format of its inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpsim.formats import FormatLike
from mpsim.functions import cat, stack
from mpsim.nn import functional
from mpsim.nn.initialisation import RngLike, fan_in_uniform
from mpsim.nn.module import Module, Parameter
from mpsim.nn.normalisation import Dropout
from mpsim.tensor import Tensor, as_tensor

__all__ = ["GRU", "LSTM", "RNN"]

State = tuple[Tensor, ...]


class _Recurrent(Module):
    """What recurrent layers share: weights of all layers and directions, and the walk over time.

    A subclass says how many ``gates`` it has, how many tensors its state has, and how a step goes.
    """

    gates: int
    states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; it must be at least 1")
        generator = np.random.default_rng(rng)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self._dropout = Dropout(dropout, rng=int(generator.integers(1 << 63)))
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            columns = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                for name, shape in (("weight_ih", (rows, columns)), ("weight_hh", (rows, hidden_size))):
                    setattr(self, name + suffix, fan_in_uniform(generator, hidden_size, shape, format))
                for name in ("bias_ih", "bias_hh") if bias else ():
                    setattr(self, name + suffix, fan_in_uniform(generator, hidden_size, (rows,), format))

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _step(self, projected: Tensor, state: State, weight: Parameter, bias: Parameter | None) -> State:
        """Return the state after one step, its first tensor being the output; a subclass defines it."""
        raise NotImplementedError

    def _run(self, x: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
        """Map ``x`` [time, batch, input_size] and a state for each layer and direction to outputs and states."""
        finals: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                x = self._dropout(x)
            outputs = []
            for suffix in self._suffixes(layer):
                weight = getattr(self, f"weight_hh{suffix}")
                biases = [getattr(self, f"{name}{suffix}", None) for name in ("bias_ih", "bias_hh")]
                projected = functional.linear(x, getattr(self, f"weight_ih{suffix}"), biases[0])
                state, steps = states[len(finals)], range(len(x))
                backwards = suffix.endswith("_reverse")
                seen: list[Tensor] = []
                for t in reversed(steps) if backwards else steps:
                    state = self._step(projected[t], state, weight, biases[1])
                    seen.append(state[0])
                outputs.append(stack(seen[::-1] if backwards else seen))
                finals.append(state)
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
        return x, finals

    def forward(self, input: Tensor | ArrayLike, hx: Any = None) -> tuple[Tensor, Any]:
        """Run over a sequence.

        Parameters
        ----------
        input : Tensor [time, batch, input_size], [batch, time, input_size] if ``batch_first``, or [time, input_size]
        hx : Tensor [layers * directions, batch, hidden_size], optional
            The state before; zeros unless given. For `LSTM` a pair: hidden state and cell.

        Returns
        -------
        output : Tensor, last size hidden_size * directions
        hx : like the state before
        """
        name = type(self).__name__
        x = as_tensor(input)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ValueError(f"{name}: input is {x.shape}; (time, batch, {self.input_size}) is needed")
        alone = x.ndim == 2
        if alone:
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        if len(x) == 0:
            raise ValueError(f"{name}: input is {as_tensor(input).shape}; at least one step in time is needed")
        shape = (self.num_layers * self._directions, x.shape[1], self.hidden_size)
        given = (hx,) if isinstance(hx, Tensor) else hx
        if given is None:
            given = (Tensor(np.zeros(shape), format=x.format),) * self.states
        parts = [as_tensor(h) for h in given]
        if alone:
            parts = [h.unsqueeze(1) if h.ndim == 2 else h for h in parts]
        if len(parts) != self.states or any(h.shape != shape for h in parts):
            shapes = ", ".join(str(h.shape) for h in parts)
            raise ValueError(f"{name}: hx is {shapes}; {self.states} of shape {shape} needed")
        output, finals = self._run(x, [tuple(h[i] for h in parts) for i in range(shape[0])])
        after = [stack([state[i] for state in finals]) for i in range(self.states)]
        if alone:
            output, after = output.squeeze(1), [h.squeeze(1) for h in after]
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, after[0] if self.states == 1 else tuple(after)


class RNN(_Recurrent):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it.

    Parameters
    ----------
    input_size, hidden_size : int
    num_layers : int
    nonlinearity : {"tanh", "relu"}
    bias, batch_first : bool
    dropout : float
        Of the outputs of all layers but the last, in training.
    bidirectional : bool
    format, rng
        As for `Linear`; uniform in +-1/sqrt(hidden_size).
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        format: FormatLike = "fp32",
        rng: RngLike = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f'nonlinearity is {nonlinearity!r}; it must be "tanh" or "relu"')
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, format, rng)

    def _step(self, projected: Tensor, state: State, weight: Parameter, bias: Parameter | None) -> State:
        total = projected + functional.linear(state[0], weight, bias)
        return (total.tanh() if self.nonlinearity == "tanh" else total.relu(),)


class LSTM(_Recurrent):
    """Long short-term memory: gates i, f, g, o; c = f c + i g, h = o tanh(c).

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, format, rng
        As for `RNN`.
    """

    gates = 4
    states = 2

    def _step(self, projected: Tensor, state: State, weight: Parameter, bias: Parameter | None) -> State:
        hidden, cell = state
        i, f, g, o = (projected + functional.linear(hidden, weight, bias)).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


class GRU(_Recurrent):
    """Gated recurrent unit: gates r, z, n; n = tanh(x_n + r (W_hn h + b_hn)), h = (1 - z) n + z h.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, format, rng
        As for `RNN`.
    """

    gates = 3

    def _step(self, projected: Tensor, state: State, weight: Parameter, bias: Parameter | None) -> State:
        (hidden,) = state
        xr, xz, xn = projected.chunk(3, -1)
        hr, hz, hn = functional.linear(hidden, weight, bias).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        return ((1 - z) * n + z * hidden,)
