"""Exceptions. Each carries the library's message: the argument, its value and what would do."""


class FlashLatentError(Exception):
    """Base of all errors that this package raises on purpose."""


class InvalidArgumentError(FlashLatentError, ValueError):
    """The call is wrong: a shape, dtype, device, stride or option."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """The call is wrong: an argument has a wrong type, is missing, or is unknown."""


class UnsupportedError(FlashLatentError, NotImplementedError):
    """The call is right, but no kernel of the backend takes it; the message has each kernel's reason."""


class UnavailableError(FlashLatentError, RuntimeError):
    """The backend or the device is not there."""


class ExhaustedError(FlashLatentError, RuntimeError):
    """A page pool or a caller's buffer is too small."""


class InternalError(FlashLatentError, RuntimeError):
    """A CUDA call failed."""
