"""The `nvhc` command: thin over the same rooms that the hooks use."""
