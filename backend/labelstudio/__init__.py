"""Label Studio's side of the product: label configs, payloads and predictions, each turned into domain types."""
