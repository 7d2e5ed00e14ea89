"""The reader's backend for a real DCGM engine, through NVIDIA's own Python bindings.

Imported by the reader process only: a call may block for minutes or crash.
"""
