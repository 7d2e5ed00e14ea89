"""Values shared by all rooms: immutable, JSON-able, without behaviour beyond their own shape."""
