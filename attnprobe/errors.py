"""Errors a user can cause or meet. Each carries the exit code of the command that raised it."""

from __future__ import annotations


class AttnProbeError(Exception):
    """Base of every error that ends a command with one line on stderr.

    The message states the rule, the value that broke it, and the remedy.
    """

    exit_code = 1


class UsageError(AttnProbeError, ValueError):
    """An argument, option or configuration file that cannot be meant."""

    exit_code = 2


class CheckpointError(AttnProbeError, OSError):
    """A checkpoint that is missing, incomplete, corrupt or unsafe to load."""


class DataError(AttnProbeError, ValueError):
    """Data that is missing, malformed or unfit for what was asked."""


class RunFolderError(AttnProbeError, OSError):
    """A run folder that cannot be written, resumed or read."""


class TrainingError(AttnProbeError, ArithmeticError):
    """A training that diverged."""


class EngineError(AttnProbeError, RuntimeError):
    """Work that could not be done where it was sent."""


class MissingDependencyError(AttnProbeError, ImportError):
    """An optional dependency that is not installed; the message names the extra."""


class UnsupportedModelError(AttnProbeError, NotImplementedError):
    """A model whose attention cannot be reached or reproduced through the seam."""

    exit_code = 3


class VerificationError(AttnProbeError, ArithmeticError):
    """A result that failed its own check."""

    exit_code = 4
