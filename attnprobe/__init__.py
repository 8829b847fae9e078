"""Which attention does a Transformer checkpoint need, what can it do without, what does it cost?

Importing this package imports no torch and changes nothing; see the submodules.
"""

__version__ = "0.1.0"
