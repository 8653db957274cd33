"""Pure functions on tensors: torch only, no modules, no I/O, randomness only through a generator argument."""
