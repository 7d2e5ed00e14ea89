"""The reader: a process of its own, the only one that talks to hardware, driver or engine."""
