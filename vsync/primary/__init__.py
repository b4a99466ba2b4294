"""The primary component: state exchange, epochs, activation, durable mark. No I/O."""
