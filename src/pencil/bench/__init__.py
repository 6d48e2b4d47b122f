"""Measurements of speed: Pencil beside other libraries, with the same weights and inputs in one process."""

JOBS: tuple[str, ...] = tuple("train decode vit dit sample attention".split())
# the jobs that take each option; the others have no such size
TAKES = {
    "--preset": {"train", "decode", "sample", *JOBS[2:4]},
    "--batch": {"train", "decode", "sample", *JOBS[2:4]},
    "--tokens": {"decode"},
    "--scan": {"decode"},
    "--compile": {"decode"},
}
