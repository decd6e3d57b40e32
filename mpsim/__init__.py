"""mpsim: a laboratory for reduced-precision arithmetic on any CPU."""

__version__ = "0.1.0"
