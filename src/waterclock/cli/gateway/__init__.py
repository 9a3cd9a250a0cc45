"""The commands of a gateway: messages in, batches out, and all of it under one process."""
