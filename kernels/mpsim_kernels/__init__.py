"""Numba kernels of mpsim: arrays, integers and floats in, arrays out."""
