"""Recognising out-of-memory errors, and the message for them."""

OUT_OF_MEMORY = "out of memory: use a smaller model or dtype, a shorter text, or another device"


def is_out_of_memory(error: BaseException) -> bool:
    """Does this exception of Python, NumPy or PyTorch say that memory is full?

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("no such kernel"))
    (True, False)
    """
    says = f"{type(error)} {error}".lower()
    return isinstance(error, (MemoryError, RuntimeError)) and "memory" in says
