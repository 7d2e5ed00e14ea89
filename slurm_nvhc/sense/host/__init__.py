"""What the node says without any engine: clocks, kernel log, PCI bus, driver.

These are the witnesses by which a dying GPU is told from a dying engine, so nothing here
asks the engine or the driver's own library.
"""
