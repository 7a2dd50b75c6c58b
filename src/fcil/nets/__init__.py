"""Networks: backbones, heads, and the two put together."""
