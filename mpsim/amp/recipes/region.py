"""The context in which linear layers, and attention where a recipe says so, multiply in FP8 or FP4."""

from __future__ import annotations

import contextlib
from typing import Any

from mpsim.amp.autocast import autocast
from mpsim.amp.recipes.catalogue import RecipeLike, get_recipe
from mpsim.amp.recipes.sight import Sight
from mpsim.amp.recipes.site import LayerState, RecipeSite, layer_state
from mpsim.formats import FP32, FP64, FormatLike, get_format
from mpsim.stochastic import Draws
from mpsim.tensor import Tensor, is_grad_enabled, settings, using
from mpsim.units import NATIVE, UnitLike

__all__ = ["fp8_autocast"]


class fp8_autocast(contextlib.ContextDecorator):  # noqa: N801 - Transformer Engine's name
    """Context in which a recipe quantises the operands of linear layers, forward and backward.

    Parameters
    ----------
    recipe : Recipe or str
        A name of `RECIPES`, such as ``"te-delayed"``, ``"te-mxfp8"``, ``"torchao-rowwise"`` or ``"deepseek-v3"``.
    unit : MatrixUnit or str
        Matrix unit of all products, such as ``"h100"``; ``"native"`` multiplies the same operands in NumPy's FP32. A
        MatrixUnit has formats of its own: it goes with a recipe of one pair of formats, and ``format="fp32"``.
    format : format, optional
        Format of everything else in the region, as in `autocast`; unless given the recipe's, BF16 mostly. ``"fp32"``
        leaves everything else alone.
    enabled : bool
        False runs a part of a region without the recipe, in the format of the region around it.
    seed : int
        Of stochastic rounding.

    Raises
    ------
    ValueError
        An unknown recipe, or a unit that lacks one of its instructions.

    Notes
    -----
    Operands are quantised from what the layer was given: weights from the FP32 parameter, without a cast to ``format``
    between. Call ``backward`` outside the region; it uses the recipe of the forward pass. Amax histories stay with
    the weight of a layer, whatever region it runs in; see `scaling_state`. Gradients, updates and the parameters
    themselves are as without the recipe.

    In attention each operand of each product is quantised like a tensor of a linear layer, softmax weights before
    their division by the sum; the fused kernels of cuDNN have not been characterised bit for bit.

    Examples
    --------
    >>> from mpsim import nn
    >>> layer = nn.Linear(4, 2, rng=0)
    >>> with fp8_autocast("te-current", unit="h100"):
    ...     y = layer(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> y.sum().backward()
    >>> y.format.name, layer.weight.grad.format.name
    ('bf16', 'fp32')
    """

    def __init__(
        self,
        recipe: RecipeLike = "te-delayed",
        unit: UnitLike = "native",
        format: FormatLike | None = None,
        enabled: bool = True,
        seed: int = 0,
    ) -> None:
        self.recipe, self.enabled = get_recipe(recipe), enabled
        self.unit: UnitLike = "native" if unit == NATIVE else unit  # that row is for FP32 alone
        self.format = get_format(self.recipe.compute if format is None else format)
        self.draws = Draws(seed=seed)
        self._visited: list[LayerState] = []
        self._calls = 0
        self._attentions = 0
        self._latest: Tensor | None = None
        self._entered: list[contextlib.ExitStack] = []
        self._around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if enabled:
            self.recipe.check(self.unit)
            if self.format != FP32:
                self._around = autocast(self.format, unit=self.unit)

    def __enter__(self) -> fp8_autocast:
        stack = contextlib.ExitStack()
        if not self.enabled:
            stack.enter_context(using(quantization=None))
        else:
            stack.enter_context(self._around)
            if not self._entered:
                self._visited, self._calls, self._attentions, self._latest = [], 0, 0, None
                stack.callback(self._finish)
            stack.enter_context(using(quantization=self))
        self._entered.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().close()

    def _finish(self) -> None:
        """Make the scales of the next step of all that ran."""
        for state in self._visited:
            self.recipe.roll(state, backward=False)

    def site(self, operation: str, inputs: tuple[Tensor, ...]) -> RecipeSite | None:
        """Return what multiplies the operands of an operation; None where the recipe leaves it alone."""
        if any(t.format == FP64 for t in inputs):
            return None
        if operation == "linear":
            self._latest, self._attentions = inputs[1], 0
            return self._site(operation, inputs[1], "linear", inputs[1])
        if operation == "scaled_dot_product_attention" and self.recipe.attention:
            self._attentions += 1
            if self._latest is None:
                if self.recipe.remembers:
                    raise ValueError(
                        "fp8_autocast: attention comes before every linear layer of the region; what the recipe "
                        "remembers stays with the weight of the layer before: let that run in the region too"
                    )
                return self._site(operation, None, "attention", None)
            return self._site(operation, self._latest, f"attention-{self._attentions}", None)
        return None

    def _site(self, operation: str, weight: Tensor | None, layer: str, operand: Tensor | None) -> RecipeSite:
        if self.recipe.remembers and weight is not None and not weight.is_leaf:
            raise ValueError(
                f"fp8_autocast: the weight of a linear layer, of shape {weight.shape}, was made by an operation; what "
                "the recipe remembers stays with a parameter: choose one without a memory, such as 'te-current'"
            )
        state = LayerState() if weight is None else layer_state(weight, layer)
        recording = is_grad_enabled()
        if recording:
            self.recipe.roll(state, backward=True)
            self._visited.append(state)
            state.steps += 1
            self._calls += 1
        # Two streams for each call: one for each product of its backward pass.
        stream = state.steps << 24 | self._calls << 1
        return RecipeSite(
            self.recipe,
            self.unit,
            state,
            None if operand is None else operand.data,
            recording,
            Draws(seed=self.draws.seed, stream=stream),
            sight=Sight(settings().layer, operation, operand),
        )
