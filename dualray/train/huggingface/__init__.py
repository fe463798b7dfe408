"""Libraries of Hugging Face in the workers of a TorchTrainer."""
