"""Many runs at once: which are missing, where they go, and what trains them."""
