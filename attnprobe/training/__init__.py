"""What commands that train share: data to learn from, the Trainer, and its options."""
