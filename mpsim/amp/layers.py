"""Choosing layers of a model, and running them otherwise than the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from mpsim import nn
from mpsim.amp.policies import FormatPolicy, get_policy
from mpsim.formats import FormatLike
from mpsim.modes import unknown
from mpsim.nn import Module, Parameter
from mpsim.tensor import using

__all__ = ["KINDS", "override_formats", "select", "weight_of", "weighted", "wrapped"]

Forward: TypeAlias = Callable[..., Any]

KINDS: dict[str, tuple[type[Module], ...]] = {
    "batch norm": (nn.BatchNorm1d, nn.BatchNorm2d),
    "layer norm": (nn.LayerNorm, nn.RMSNorm),
    "softmax": (nn.Softmax, nn.LogSoftmax),
    "linear": (nn.Linear,),
    "convolution": (nn.Conv1d, nn.Conv2d),
    "embedding": (nn.Embedding,),
}
"""Kinds of layer by name."""


def weighted(model: Module) -> dict[str, Module]:
    """Return the layers of products and embeddings in the order of the model, by dotted name."""
    kinds = KINDS["linear"] + KINDS["convolution"] + KINDS["embedding"]
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}


def weight_of(layer: Module) -> Parameter | None:
    """Return the weight of a layer; None where it has none."""
    weight = getattr(layer, "weight", None)
    return weight if isinstance(weight, Parameter) else None


def select(model: Module, which: str) -> dict[str, Module]:
    """Return layers of a model by dotted name.

    Parameters
    ----------
    model : Module
    which : str
        "first" or "last", of those with a product or an embedding; a kind, a key of `KINDS`; or a dotted name.

    Raises
    ------
    ValueError
        The model has no layer of that name, or ``which`` is neither.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))
    >>> list(select(model, "last")), list(select(model, "softmax"))
    (['0'], ['1'])
    """
    modules = dict(model.named_modules())
    if which in ("first", "last"):
        layers = list(weighted(model).items())
        return dict(layers[:1] if which == "first" else layers[-1:])
    if which in KINDS:
        return {name: layer for name, layer in modules.items() if isinstance(layer, KINDS[which])}
    if which in modules:
        return {which: modules[which]}
    raise unknown("which", which, ["first", "last", *KINDS, *filter(None, modules)])


@contextlib.contextmanager
def wrapped(layers: Mapping[str, Module], around: Callable[[str, Module, Forward], Forward]) -> Iterator[None]:
    """Give layers another ``forward`` for the length of a block.

    Parameters
    ----------
    layers : mapping of str to Module
    around : callable
        Called with name, layer and its present ``forward``; returns what takes its place.
    """
    with contextlib.ExitStack() as undo:
        for name, layer in layers.items():
            own = vars(layer)  # an attribute of the object goes before the method of its class
            if "forward" in own:
                undo.callback(own.update, forward=own["forward"])
            else:
                undo.callback(own.pop, "forward")
            own["forward"] = around(name, layer, layer.forward)
        yield


def override_formats(
    model: Module, overrides: Mapping[str, FormatLike | FormatPolicy]
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which some layers run in a format of their own.

    Parameters
    ----------
    model : Module
    overrides : mapping of str to FloatFormat, name or FormatPolicy
        Which layers, as for `select`, and the format that all their inputs and parameters are cast to. Where a layer
        is chosen twice the later entry holds.

    Notes
    -----
    Inside such a layer no list of autocast applies, as for a Keras layer with a ``dtype`` of its own; what follows it
    casts its output as usual.

    Examples
    --------
    >>> from mpsim.amp import autocast
    >>> model = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Linear(2, 2, rng=1))
    >>> with autocast("fp16"), override_formats(model, {"last": "fp32"}):
    ...     y = model([[1.0, 2.0]])
    >>> y.format.name
    'fp32'
    """
    policies: dict[str, FormatPolicy] = {}
    for which, policy in overrides.items():
        chosen = policy if isinstance(policy, FormatPolicy) else get_policy(policy)
        policies.update(dict.fromkeys(select(model, which), chosen))

    def around(name: str, layer: Module, forward: Forward) -> Forward:
        def overridden(*inputs: Any, **options: Any) -> Any:
            with using(policy=policies[name]):
                return forward(*inputs, **options)

        return overridden

    modules = dict(model.named_modules())
    return wrapped({name: modules[name] for name in policies}, around)
