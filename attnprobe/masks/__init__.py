"""Masks: which cells a model keeps. Fixed patterns now; learnt masks join them here."""
