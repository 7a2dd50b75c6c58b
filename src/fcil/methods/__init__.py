"""Methods: one small module each, over shared parts; they never import each other."""
