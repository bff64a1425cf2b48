"""What a manager says when its policy offers a victim that it must not.

Managers look at every offer, as far as that is cheap: a wrong one would go round for ever, or leave
books that nobody can trust. `sim.testing` sees more.
"""

from __future__ import annotations

from sim.cache import EvictionPolicy, Span
from sim.errors import KvsimError


def wrong_offer(policy: EvictionPolicy, span: Span, num: int, wanted: int) -> KvsimError:
    """The error to raise if the span is in use, or the number not from 1 to what is wanted."""
    name = f"{type(policy).__module__}:{type(policy).__qualname__}"
    return KvsimError(
        f"{name}: victim({wanted}) offered {num} blocks of a span of {span.num_blocks} "
        f"that {span.ref_cnt} requests use; it must be 1 to {wanted} of a span that no request "
        f"uses, and no more than that has; kvsim check {name} finds out more"
    )
