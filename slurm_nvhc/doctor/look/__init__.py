"""The doctor's edges: everything that touches the machine, each look bounded in time, nothing changed."""
