"""From files and hubs to batches: tasks, tables, labels, tokens, position classes.

The submodules are imported by name; all but `batches` and `positions` do without torch.
"""
