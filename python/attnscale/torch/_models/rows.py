from typing import Any, NamedTuple


class Running(NamedTuple):
    module: Any
    name: str
    args: tuple
    kwargs: dict


class Context(NamedTuple):
    kind: str
    real: Any
    documents: Any


def context_of(stack, batch, nq, nk, query=None, key=None):
    return Context("self", None, None)
