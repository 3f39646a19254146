"""How a full memory is recognised, and what is said then."""

OUT_OF_MEMORY = "out of memory: take a smaller model or number type, a shorter text, another device"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python, NumPy or PyTorch says that memory is full.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("no such kernel"))
    (True, False)
    """
    says = f"{type(error)} {error}".lower()
    return isinstance(error, (MemoryError, RuntimeError)) and "memory" in says
