"""The policy: an administrator's YAML, strictly validated, compiled to what the hooks load.

``compiled`` holds the values that judge and act use and imports nothing heavy;
``schema``, ``source`` and ``compile`` need PyYAML and msgspec and are imported
only when a file changed.
"""
