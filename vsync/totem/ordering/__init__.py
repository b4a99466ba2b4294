"""Totem's ordering protocol: token, window, flow control, packing."""
