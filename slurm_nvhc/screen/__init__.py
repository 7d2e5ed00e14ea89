"""`nvhc screen`: the same work on each GPU, and its digest held against other GPUs, the same GPU's past, and itself.

``compare`` says what the digests mean (pure); ``run`` has the site's command give them and keeps them.
docs/screen.md says what this can show and what it can not.
"""
