"""Several requests at once on one decode loop: queue, slots, and the thread that runs them."""
