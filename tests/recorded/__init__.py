"""Data of tests, and how it was made."""
