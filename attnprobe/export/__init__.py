"""Masked models as folders: written, read back, and proved equal in a fresh process."""
