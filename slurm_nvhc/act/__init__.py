"""What to do about a decision: ``plan`` is pure, ``execute`` does the steps once, safely."""
