"""What produces the pictures, tables and numbers."""
