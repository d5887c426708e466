"""Who runs what, where and when."""
