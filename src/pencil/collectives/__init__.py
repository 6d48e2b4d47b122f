"""The processes of one training: how they are started, and what they exchange."""
