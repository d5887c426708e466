"""Workers through batch schedulers: acquired and released as load demands (DRP, 2007)."""
