"""Errors a user can mend: one line that says the value, the rule and the remedy.

Every command prints these without a traceback and exits with code 2.
Any other exception that leaves kvsim is a bug in kvsim.
"""


class KvsimError(Exception):
    """Something outside the code is wrong: a config, a trace, a request, an environment."""


class ConfigError(KvsimError):
    """A configuration (file, `--set`, constructor argument) breaks a rule."""


class TraceError(KvsimError):
    """A trace file breaks its format."""
