"""Images, tasks and clients: everything that happens before a network sees a pixel."""
