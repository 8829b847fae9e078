"""The sweep of `attnprobe sparsify`: learnt masks, their controls, tables, and the choice of what is exported."""
