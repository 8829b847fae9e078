"""Slow, plain implementations that tests compare the package with. They share no code with it."""
