"""The primary component: state exchange, epochs, activation, the durable mark (pure)."""
