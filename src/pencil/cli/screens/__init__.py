"""What the verbs print: tables, exercises and reports."""
