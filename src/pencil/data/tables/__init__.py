"""Tables: pairs of texts, and texts with labels, from CSV, JSONL and Parquet."""
