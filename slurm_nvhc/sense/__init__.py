"""What does the node say now? The client in the hook, the reader process, and the simulated node."""
