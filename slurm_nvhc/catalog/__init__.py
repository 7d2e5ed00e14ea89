"""Data only: fields, Xids, finding codes. Adding a counter or a code is an edit of data here."""
