"""Images and videos: found, decoded, resized, augmented and indexed."""
