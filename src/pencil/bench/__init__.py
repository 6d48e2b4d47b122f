"""Measurements of speed: Pencil beside other libraries, with the same weights and inputs in one process."""

JOBS: tuple[str, ...] = tuple("train decode vit dit sample attention serve".split())
# the jobs that take each option; the others have no such size
TAKES = {
    "--preset": {"train", "decode", "sample", "serve", *JOBS[2:4]},
    "--batch": {"train", "decode", "sample", "serve", *JOBS[2:4]},
    "--tokens": {"decode", "serve"},
    "--scan": {"decode"},
    "--compile": {"decode"},
}
