"""Views of views, as JAX makes them in one go."""

from typing import Any

from planner.tracing.applying.views import View, order_of


def ordered(view: View, source: Any) -> Any:
    """``source`` as ``view`` shows it."""
    import jax.numpy as jnp

    order = order_of(view.loops, view.loops.sizes)
    apart = source.reshape(order.apart).transpose(order.turned)
    return jnp.broadcast_to(jnp.expand_dims(apart, order.new), order.repeated).reshape(order.joined)
