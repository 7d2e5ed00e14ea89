"""The simulated node: what it is, what can happen to it, and the reader's backend for it."""
