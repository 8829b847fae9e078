"""The trade-off of sparsity and what it costs: the report of `attnprobe sparsify`, and of merged runs."""
