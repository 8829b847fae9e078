"""Which attention positions, heads and sites a checkpoint needs: one file a method, one table of figures."""
