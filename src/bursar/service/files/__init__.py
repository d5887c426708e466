"""
Files of instances: reading, writing, listing and unpacking them, within quotas.

``file_store`` is what the HTTP handlers call. Tasks share these folders with the service and may
put links and pipes there at any time, so ``instance_files`` opens each folder step by step.
"""
