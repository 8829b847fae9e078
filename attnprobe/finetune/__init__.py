"""`attnprobe finetune`: fine-tune a checkpoint under dropouts of attention, over seeds, and compare them."""
