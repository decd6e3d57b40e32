"""Optimizers, schedules of the learning rate and clipping of gradients, with a count of the updates that are lost."""

from mpsim.optim import lr_scheduler
from mpsim.optim.adagrad import Adagrad
from mpsim.optim.adam import Adam, AdamW
from mpsim.optim.base import Optimizer
from mpsim.optim.clipping import clip_grad_norm_, clip_grad_value_
from mpsim.optim.rmsprop import RMSprop
from mpsim.optim.sgd import SGD
from mpsim.optim.updates import Update, UpdateCounts

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "Update",
    "UpdateCounts",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lr_scheduler",
]
